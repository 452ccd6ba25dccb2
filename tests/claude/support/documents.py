"""Settings files as people and programs write them, and edits that can be made before and after others."""

import json

from hypothesis import strategies as st

from eyas.claude.json_text import find, find_container

OURS = {
    "env": {"ANTHROPIC_MODEL": "claude-x", "A": "", "ANTHROPIC_BASE_URL": "http://127.0.0.1:8000"},
    "apiKeyHelper": "",
    "permissions": {"defaultMode": "default", "deny": ["WebSearch"]},
}
PATHS = [(top, *rest) for top, inner in OURS.items() for rest in ([(name,) for name in inner] if inner else [()])]
TEXTS = st.sampled_from(
    ["", "a", "model", "\u00e4\u20ac", "\U0001f985", 'q"\\', "\n\t/", "{,}", "WebSearch", "claude-x"]
)
SCALARS = st.one_of(TEXTS, st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
BLANKS = st.sampled_from(["", "", " ", "\n", "\r\n", "\n  ", "\n\t", "  \n"])


def settings():
    """Documents with some of our keys in them, and others, in any order."""
    env = st.dictionaries(TEXTS | st.sampled_from(list(OURS["env"])), SCALARS, max_size=4)
    permissions = st.fixed_dictionaries(
        {},
        optional={
            "allow": VALUES,
            "deny": st.lists(TEXTS, max_size=3),
            "defaultMode": st.sampled_from(["auto", "default"]),
        },
    )
    ours = st.fixed_dictionaries({}, optional={"env": env, "permissions": permissions, "apiKeyHelper": TEXTS})
    both = st.builds(
        lambda others, mine: list((others | mine).items()), st.dictionaries(TEXTS, VALUES, max_size=4), ours
    )
    return both.flatmap(st.permutations).map(dict)


@st.composite
def texts(draw):
    """The text of such a document, set as programs do or with blanks anywhere."""
    content = draw(settings())
    is_ascii = draw(st.booleans())
    if draw(st.booleans()):
        indent = draw(st.sampled_from([None, 0, 1, 2, 4, "\t"]))
        separators = draw(st.sampled_from([None, (",", ":"), (", ", ": "), (",", " : ")]))
        text = json.dumps(content, indent=indent, separators=separators, ensure_ascii=is_ascii)
        text = text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))
    else:
        text = jittered(draw, content, is_ascii)
    return draw(st.sampled_from(["", "", "\n", "  "])) + text + draw(st.sampled_from(["", "\n", "\r\n", "\n\n"]))


def jittered(draw, value, is_ascii):
    gap = draw(BLANKS)
    if isinstance(value, dict):
        members = (
            f"{gap}{json.dumps(key)}{draw(BLANKS)}:{gap}{jittered(draw, one, is_ascii)}" for key, one in value.items()
        )
        return "{" + f"{gap},".join(members) + draw(BLANKS) + "}"
    if isinstance(value, list):
        return "[" + ",".join(f"{gap}{jittered(draw, one, is_ascii)}{gap}" for one in value) + draw(BLANKS) + "]"
    return json.dumps(value, ensure_ascii=is_ascii)


def pairs(text):
    """The content with the order of its keys."""
    return json.loads(text, object_pairs_hook=tuple)


def members(text, path=()):
    """The paths of all members of objects that lie in objects, and are not ours or on the way there."""
    for item in find_container(text, path).items:
        here = (*path, item.key)
        if not any(ours[: len(here)] == here for ours in PATHS):
            yield here
        inner = find_container(text, here)
        if inner is not None and inner.is_object:
            yield from members(text, here)


def replaced(text, path, value):
    item = find(text, path)
    return text[: item.value] + json.dumps(value) + text[item.end :]


def added(text, path, value):
    """A member `new` right after the one at `path`."""
    item = find(text, path)
    return f'{text[: item.end]},\n "new": {json.dumps(value)}{text[item.end :]}'


def removed(text, path):
    parent, item = find_container(text, path[:-1]), find(text, path)
    at = parent.items.index(item)
    if at:
        return text[: parent.items[at - 1].end] + text[item.end :]
    end = parent.items[1].start if len(parent.items) > 1 else parent.end
    return text[: item.start] + text[end:]
