"""The question to the planner, and the same with every default settled and everything impossible refused."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, get_args

from msgspec import Struct

from eyas.base.bundled import random_shape
from eyas.base.errors import UserError
from eyas.base.serving.engines import EngineName, Role
from eyas.base.sizes import parse_size
from eyas.base.synthetic import parse_acceptance
from eyas.base.units import readable
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.folders import head_of_folder, model_of_folder, weight_bytes
from eyas.recipes.knowledge.images import engine_of_image, parse_image
from eyas.recipes.knowledge.tables import Knowledge
from eyas.recipes.plan import Box, Home, Node, Purpose, Word
from eyas.recipes.records import CPU, Head, Model

__all__ = ["LOOPBACK", "Ask", "Target", "settle"]

CLAUDE_CODE_CONTEXT = 128 << 10  # tokens; its own prompt and tools take 10 to 18 thousand of them
USES: dict[str, tuple[int, int]] = {  # purpose: (context, concurrency), where they are not given
    "chat": (32 << 10, 4),
    "claude-code": (CLAUDE_CODE_CONTEXT, 2),
    "discord": (16 << 10, 8),
    "batch": (8 << 10, 32),
}
BESIDE: dict[Role, tuple[int, int]] = {"vision": (8 << 10, 1), "embeddings": (2 << 10, 4)}  # in place of a use's
LOOPBACK = ("127.0.0.1", "localhost", "::1")
MAX_DRAFT_TOKENS, MAX_CONCURRENCY, MAX_PORT = 16, 4096, 65535
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")  # what docker, systemd and Slurm all take
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
ADDRESS = re.compile(r"[A-Za-z0-9.:-]+")
TWO_SPARK_ADDRESSES = ("192.168.200.12", "192.168.200.13")  # of the playbook's netplan file
TWO_SPARK_INTERFACES = ("enp1s0f1np1", "enP2p1s0f1np1")


class Ask(Struct, frozen=True, kw_only=True):
    """The flags of `eyas plan`. None stands for a default that depends on the rest."""

    model: str
    on: str = "here"
    engine: EngineName | Literal["auto"] = "auto"
    version: str | None = None
    image: str | None = None
    image_settings: dict[str, str] = {}  # labels and variables of the image, where it is at hand
    native: bool = False
    in_container: bool = False  # also an engine that usually runs as a process, if it has an image
    role: Role | None = None  # None: the model's usual one
    purpose: Purpose = "chat"
    context: int | None = None
    concurrency: int | None = None
    spec: Literal["auto", "eagle3", "draft-model", "none"] = "auto"
    head: str | None = None
    draft_tokens: int | None = None
    kv_dtype: Literal["auto", "fp8"] = "auto"
    simulate_acceptance: str | None = None  # of random weights
    memory: str | None = None  # a size, or a share of one GPU's memory: "90GiB", "75%"
    tools: bool = False
    name: str | None = None
    nodes: tuple[str, ...] = ()  # rank 0 first: "USER@HOST", "USER@HOST=ADDRESS" or "USER@HOST=ADDRESS,INTERFACE,..."
    listen: str = "127.0.0.1"
    port: int | None = None
    api_key_env: str | None = None
    cache: str | None = None
    binary: str | None = None


class Target(Struct, frozen=True, kw_only=True):
    """An Ask with all that does not depend on the engine settled."""

    ask: Ask
    box: Box
    model: Model
    model_path: str | None
    has_random_weights: bool
    role: Role
    weight_bytes: int | None  # of the checkpoint's own index
    head: Head | None  # asked for by name or folder
    head_path: str | None
    context: int
    concurrency: int
    memory_cap: int | None
    tools: bool
    nodes: tuple[Node, ...]
    cache: Word
    features: tuple[str, ...]

    @property
    def is_speculation_asked(self) -> bool:
        return self.ask.spec not in ("auto", "none") or self.head is not None or self.ask.draft_tokens is not None


def settle(ask: Ask, known: Knowledge, box: Box | None, extra: tuple[str, ...] = ()) -> Target:
    """Settle the question. `extra` are features of the machine. Raises UserError for unknown names, for values with
    which nothing could start, and for what the model cannot do on any box."""
    _check(ask)
    if box is None:
        if ask.on == "here":
            raise UserError("this machine was not looked at; name another one with --on, e.g. --on spark")
        box = parse_box(ask.on)
    if box.hardware.unplanned:
        raise UserError(
            f"{box.name} is known, and nothing is planned for it: {' '.join(box.hardware.unplanned.split())}"
        )
    shape = random_shape(ask.model)
    path = Path(ask.model).expanduser()
    is_folder = shape is None and path.is_dir()
    model = model_of_folder(path, known) if is_folder else known.model(shape or ask.model)
    role = _role(ask, model, known)
    usual, concurrency = BESIDE.get(role, USES[ask.purpose])
    context = min(usual, model.native_context) if ask.context is None else ask.context
    if context > model.native_context:
        raise UserError(f"{model.name} has a context of {model.native_context} tokens, --context asks for {context}")
    head, head_path = _head(ask, model, known)
    tools = ask.tools or ask.purpose == "claude-code"
    return Target(
        ask=ask,
        box=box,
        model=model,
        model_path=str(path.resolve()) if is_folder else None,
        has_random_weights=shape is not None,
        role=role,
        weight_bytes=weight_bytes(path) if is_folder else None,
        head=head,
        head_path=head_path,
        context=context,
        concurrency=ask.concurrency or concurrency,
        memory_cap=_memory_cap(ask.memory, box),
        tools=tools,
        nodes=_nodes(ask, box),
        cache=_cache(ask.cache),
        features=(*(("tools",) if tools else ()), ask.purpose, *extra),
    )


def _check(ask: Ask) -> None:
    for flag, value, low, high in (
        ("--context", ask.context, 1, None),
        ("--concurrency", ask.concurrency, 1, MAX_CONCURRENCY),
        ("--draft-tokens", ask.draft_tokens, 1, MAX_DRAFT_TOKENS),
        ("--port", ask.port, 1, MAX_PORT),
    ):
        if value is not None and (value < low or (high is not None and value > high)):
            most = f"{low} to {high}" if high is not None else f"at least {low}"
            none = "; for no drafts: --spec none" if flag == "--draft-tokens" else ""
            raise UserError(f"{flag} wants {most}, got {value}{none}")
    if ask.api_key_env is not None and not VARIABLE.fullmatch(ask.api_key_env):
        raise UserError("--api-key wants env:NAME, the name of an environment variable, not the key itself")
    if not ADDRESS.fullmatch(ask.listen):
        raise UserError(f"--host wants an address such as 127.0.0.1, got '{ask.listen}'")
    if ask.listen not in LOOPBACK and ask.api_key_env is None:
        raise UserError(
            f"--host {ask.listen} opens the server to the network; name an environment variable that holds a key for "
            "its clients, e.g. --api-key env:SERVER_KEY"
        )
    if ask.name is not None and not NAME.fullmatch(ask.name):
        raise UserError(f"--name wants up to 63 of a-z, 0-9, '-', '_' and '.', got '{ask.name[:63]}'")
    if ask.native and ask.image is not None:
        raise UserError("--native and --image exclude each other")
    for flag, given in (("--engine-version", ask.version), ("--image", ask.image), ("--binary", ask.binary)):
        if given is not None and ask.engine == "auto":
            raise UserError(f"{flag} belongs to one engine; name it with --engine {'|'.join(get_args(EngineName))}")
    if ask.image is not None:
        held = engine_of_image(parse_image(ask.image))
        if held not in (None, ask.engine):
            raise UserError(f"--image {ask.image} holds {held}, and --engine says {ask.engine}")
    is_random = random_shape(ask.model) is not None
    if is_random and ask.listen not in LOOPBACK:
        raise UserError(
            f"random weights answer nonsense, and are served to one machine alone; leave out --host {ask.listen}"
        )
    if ask.simulate_acceptance is not None and not is_random:
        raise UserError(f"--simulate-acceptance is for random weights, such as random:{ask.model}")
    try:
        parse_acceptance(ask.simulate_acceptance or "0")
    except ValueError as error:
        raise UserError(f"--simulate-acceptance {error}") from None
    if ask.spec == "none" and (ask.head is not None or ask.draft_tokens is not None):
        raise UserError("--spec none excludes --draft and --draft-tokens")


def _head(ask: Ask, model: Model, known: Knowledge) -> tuple[Head | None, str | None]:
    """Return the head that was asked for, and its folder if it is one."""
    if ask.head is not None:
        path = Path(ask.head).expanduser()
        if path.is_dir():
            return head_of_folder(path, model, known), str(path.resolve())
        head = known.head(ask.head)
        if head.target != model.name:
            raise UserError(f"{head.repo} is a head of {head.target}, not of {model.name}")
        if ask.spec not in ("auto", head.kind):
            raise UserError(f"{head.repo} is for --spec {head.kind}, not for --spec {ask.spec}")
        return head, None
    kinds = {head.kind for head in known.heads_of(model)}
    if ask.spec not in ("auto", "none") and ask.spec not in kinds:
        others = f"; known: --spec {' or '.join(sorted(kinds))}" if kinds else ""
        raise UserError(
            f"nothing drafts for {model.name} by {ask.spec}{others}; name a folder of your own with --draft"
        )
    return None, None


def _role(ask: Ask, model: Model, known: Knowledge) -> Role:
    role = ask.role or model.roles[0]
    if role not in model.roles:
        others = [other.name for other in known.models.values() if other.roles[0] == role]
        raise UserError(f"{model.name} is for {' or '.join(model.roles)}, not for --role {role} ({', '.join(others)})")
    if role != "text":
        drafting = ask.spec not in ("auto", "none") or ask.head is not None or ask.draft_tokens is not None
        for flag, is_given in (
            ("--for", ask.purpose != "chat"),
            ("--tools", ask.tools),
            ("--draft or --spec", drafting),
        ):
            if is_given:
                raise UserError(f"{flag} belongs to --role text, {model.name} is planned for {role}")
    return role


def _memory_cap(text: str | None, box: Box) -> int | None:
    if text is None:
        return None
    usable = box.hardware.usable_bytes
    try:
        cap = parse_size(text, usable)
    except UserError as error:
        raise UserError(f"--memory {error}") from None
    if not 0 < cap <= usable:
        what = "a GPU of " * (not box.hardware.unified and box.hardware.compute_capability != CPU) + box.name
        raise UserError(f"--memory wants more than nothing and at most the {readable(usable)} of {what}, got {text}")
    return cap


def _cache(folder: str | None) -> Word:
    if folder is None:
        return Home(path=".cache/huggingface")
    if folder.startswith("~/"):
        return Home(path=folder.removeprefix("~/"))
    if not folder.startswith("/"):
        raise UserError(f"--cache wants an absolute path (the same on every node), got '{folder}'")
    return folder


def _nodes(ask: Ask, box: Box) -> tuple[Node, ...]:
    if ask.nodes and len(ask.nodes) != box.nodes:
        raise UserError(f"{box.name} has {box.nodes} node{'s' * (box.nodes > 1)}, --node names {len(ask.nodes)}")
    if len({node.partition("=")[0] for node in ask.nodes}) < len(ask.nodes):
        raise UserError("--node names one machine twice")
    if box.nodes == 1:
        return (_node("node", ask.nodes[0], "127.0.0.1", ()) if ask.nodes else Node(name=box.name),)
    if box.nodes > len(TWO_SPARK_ADDRESSES) and not ask.nodes:
        raise UserError(f"{box.name} has {box.nodes} nodes; name each with --node USER@HOST=ADDRESS,INTERFACE")
    nodes = ask.nodes or ("local", *TWO_SPARK_ADDRESSES[1:])
    interfaces = TWO_SPARK_INTERFACES if box.hardware.name == "spark" else ()
    addresses = (*TWO_SPARK_ADDRESSES, *("" for _ in nodes[len(TWO_SPARK_ADDRESSES) :]))
    return tuple(
        _node(f"node-{chr(ord('a') + rank)}", node, address, interfaces)
        for rank, (node, address) in enumerate(zip(nodes, addresses, strict=True))
    )


def _node(name: str, destination: str, address: str, interfaces: tuple[str, ...]) -> Node:
    """Parse a node: `USER@HOST=ADDRESS,INTERFACE,...` names the fast link too; `local` is this machine."""
    ssh, _, link = destination.partition("=")
    given, *found = link.split(",")
    if not ssh or ssh.startswith("-") or not ssh.isprintable() or " " in ssh:
        raise UserError(f"--node wants USER@HOST or USER@HOST=ADDRESS,INTERFACE,..., got '{destination}'")
    if not all(ADDRESS.fullmatch(word) for word in (given or address, *found)):
        raise UserError(f"--node wants an address and interfaces after '=', got '{link}'")
    return Node(
        name=name,
        ssh=None if ssh == "local" else ssh,
        address=given or address,
        interfaces=tuple(found) or interfaces,
    )
