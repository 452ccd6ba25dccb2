"""What Discord refuses in a message or a list of commands, with the answer that says where."""

import re
from typing import Any

from tests.discord.local import errors
from tests.discord.local.errors import invalid_form, too_long

__all__ = ["MAX_CONTENT", "MAX_FILE_BYTES", "check_commands", "check_files", "check_message", "length"]

MAX_CONTENT = 2_000
MAX_FILE_BYTES = 10 << 20
MAX_REQUEST_BYTES = 25 << 20
MAX_FILES = 10
MAX_EMBEDS, MAX_EMBED_TOTAL = 10, 6_000
EMBED_LIMITS = {"title": 256, "description": 4_096}
MAX_NONCE = 25
COMPONENTS_V2 = 1 << 15
COMMAND_NAME = re.compile(r"^[-_\w]{1,32}$")


def length(text: str) -> int:
    """Length in UTF-16 units, at least as long as in code points: what passes here passes whichever of them counts."""
    return len(text.encode("utf-16-le", "surrogatepass")) // 2


def check_text(path: str, value: Any, limit: int, *, required: bool = False) -> int:
    """The length of a text that is at most `limit` long."""
    if value is None and not required:
        return 0
    if not isinstance(value, str):
        raise invalid_form(path, "BASE_TYPE_REQUIRED", "This field is required")
    if required and not value.strip():
        raise invalid_form(path, "BASE_TYPE_REQUIRED", "This field is required")
    if length(value) > limit:
        raise too_long(path, limit)
    return length(value)


def check_embeds(embeds: Any) -> None:
    if not isinstance(embeds, list):
        raise invalid_form("embeds", "LIST_TYPE_CONVERT", "Only iterables may be used in a ListType")
    if len(embeds) > MAX_EMBEDS:
        raise too_long("embeds", MAX_EMBEDS)
    total = 0
    for i, embed in enumerate(embeds):
        at = f"embeds.{i}"
        total += sum(check_text(f"{at}.{name}", embed.get(name), limit) for name, limit in EMBED_LIMITS.items())
        total += check_text(f"{at}.footer.text", (embed.get("footer") or {}).get("text"), 2_048)
        total += check_text(f"{at}.author.name", (embed.get("author") or {}).get("name"), 256)
        fields = embed.get("fields") or []
        if len(fields) > 25:
            raise too_long(f"{at}.fields", 25)
        for j, one in enumerate(fields):
            total += check_text(f"{at}.fields.{j}.name", one.get("name"), 256, required=True)
            total += check_text(f"{at}.fields.{j}.value", one.get("value"), 1_024, required=True)
    if total > MAX_EMBED_TOTAL:
        raise invalid_form("embeds", "MAX_EMBED_SIZE_EXCEEDED", "Embed size exceeds maximum size of 6000")


def check_button(at: str, button: dict[str, Any], custom_ids: set[str]) -> None:
    check_text(f"{at}.label", button.get("label"), 80)
    if not button.get("label") and not button.get("emoji"):
        raise invalid_form(at, "BUTTON_COMPONENT_LABEL_OR_EMOJI", "A button needs a label or an emoji")
    if button.get("style") == 5:
        check_text(f"{at}.url", button.get("url"), 512, required=True)
        return
    check_text(f"{at}.custom_id", button.get("custom_id"), 100, required=True)
    if button["custom_id"] in custom_ids:
        raise invalid_form(
            f"{at}.custom_id", "COMPONENT_CUSTOM_ID_DUPLICATED", "Component custom id cannot be duplicated"
        )
    custom_ids.add(button["custom_id"])


def check_components(components: Any, *, is_v2: bool) -> None:
    if not isinstance(components, list):
        raise invalid_form("components", "LIST_TYPE_CONVERT", "Only iterables may be used in a ListType")
    if len(components) > (40 if is_v2 else 5):
        raise too_long("components", 40 if is_v2 else 5)
    custom_ids: set[str] = set()
    for i, row in enumerate(components):
        at = f"components.{i}"
        if row.get("type") != 1:
            if not is_v2:
                raise invalid_form(at, "UNION_TYPE_CHOICES", "Value of field 'type' must be one of (1,).")
            continue
        parts = row.get("components") or []
        if not 1 <= len(parts) <= 5:
            raise invalid_form(f"{at}.components", "BASE_TYPE_BAD_LENGTH", "Must be between 1 and 5 in length.")
        for j, part in enumerate(parts):
            if part.get("type") == 2:
                check_button(f"{at}.components.{j}", part, custom_ids)


def check_files(files: dict[int, tuple[str, bytes]]) -> None:
    """Refuse files that are too many or too large."""
    if len(files) > MAX_FILES:
        raise errors.ApiError(400, 30015, "Maximum number of attachments in a message reached (10)")
    sizes = [len(data) for _, data in files.values()]
    if sum(sizes) > MAX_REQUEST_BYTES or any(size > MAX_FILE_BYTES for size in sizes):
        raise errors.too_large()


def check_message(body: dict[str, Any]) -> None:
    """Refuse fields of a new message or of an edit that are too long or of the wrong kind."""
    flags = body.get("flags") or 0
    is_v2 = bool(flags & COMPONENTS_V2)
    content = body.get("content")
    if content is not None:
        if not isinstance(content, str):
            raise invalid_form("content", "STRING_TYPE_CONVERT", "Could not interpret value as string.")
        check_text("content", content, MAX_CONTENT)
    if is_v2 and (content or body.get("embeds")):
        raise invalid_form(
            "content", "MESSAGE_CANNOT_USE_LEGACY_FIELDS_WITH_COMPONENTS_V2", "Use components for the text"
        )
    nonce = body.get("nonce")
    if nonce is not None and length(str(nonce)) > MAX_NONCE:
        raise invalid_form("nonce", "NONCE_TYPE_TOO_LONG", f"Must be {MAX_NONCE} or fewer in length.")
    if body.get("embeds") is not None:
        check_embeds(body["embeds"])
    if body.get("components") is not None:
        check_components(body["components"], is_v2=is_v2)
    check_mentions(body.get("allowed_mentions"))


def check_mentions(allowed: dict[str, Any] | None) -> None:
    """Refuse to parse a kind of mention and to list some of it at once."""
    for kind in ("users", "roles"):
        if allowed and allowed.get(kind) and kind in (allowed.get("parse") or []):
            raise invalid_form(
                "allowed_mentions", "MESSAGE_ALLOWED_MENTIONS_PARSE_EXCLUSIVE", f"parse:[{kind}] and {kind}: ids"
            )


def check_commands(commands: Any) -> None:
    """Refuse a list of application commands with bad names, descriptions, options or choices."""
    if not isinstance(commands, list):
        raise invalid_form("_", "LIST_TYPE_CONVERT", "Only iterables may be used in a ListType")
    if len(commands) > 100:
        raise errors.ApiError(400, 30032, "Maximum number of application commands reached (100).")
    names: set[tuple[str, int]] = set()
    for i, command in enumerate(commands):
        kind = command.get("type", 1)
        key = (command.get("name", ""), kind)
        if key in names:
            raise invalid_form(f"{i}.name", "APPLICATION_COMMANDS_DUPLICATE_NAME", "Names must be unique")
        names.add(key)
        if kind == 1:
            check_command(str(i), command)


def check_command(at: str, command: dict[str, Any]) -> None:
    name = command.get("name")
    if not isinstance(name, str) or not COMMAND_NAME.match(name) or name != name.lower():
        raise invalid_form(f"{at}.name", "APPLICATION_COMMAND_INVALID_NAME", "Command name is invalid")
    check_text(f"{at}.description", command.get("description"), 100, required=True)
    options = command.get("options") or []
    if len(options) > 25:
        raise too_long(f"{at}.options", 25)
    optional = False
    for j, option in enumerate(options):
        check_command(f"{at}.options.{j}", option)
        if option.get("required") and optional:
            raise invalid_form(
                f"{at}.options.{j}",
                "APPLICATION_COMMAND_OPTIONS_REQUIRED_INVALID",
                "Required options must be placed before non-required options",
            )
        optional = optional or not option.get("required")
        choices = option.get("choices") or []
        check_choices(f"{at}.options.{j}.choices", choices)


def check_choices(at: str, choices: list[dict[str, Any]]) -> None:
    """Refuse choices of an option, or of autocompletion, that are too many or too long."""
    if len(choices) > 25:
        raise too_long(at, 25)
    for k, choice in enumerate(choices):
        check_text(f"{at}.{k}.name", choice.get("name"), 100, required=True)
        if isinstance(choice.get("value"), str):
            check_text(f"{at}.{k}.value", choice["value"], 100, required=True)
