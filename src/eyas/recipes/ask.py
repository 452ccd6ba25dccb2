"""What a person asks of the planner, and the same with every default settled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Literal

from msgspec import Struct

from eyas.base.errors import UserError
from eyas.recipes.boxes import parse_box
from eyas.recipes.knowledge import Knowledge
from eyas.recipes.plan import Box, Home, Node, Purpose, Word
from eyas.recipes.records import EngineName, Head, Model

__all__ = ["Ask", "Target", "settle"]

CLAUDE_CODE_CONTEXT = 128 << 10  # tokens; its own prompt and tools take 20-30 thousand of them
USES: dict[str, tuple[int, int]] = {  # purpose: (context, concurrency), where they are not given
    "chat": (32 << 10, 4),
    "claude-code": (CLAUDE_CODE_CONTEXT, 2),
    "discord": (16 << 10, 8),
    "batch": (8 << 10, 32),
}
TWO_SPARK_ADDRESSES = ("192.168.200.12", "192.168.200.13")  # of the playbook's netplan file
TWO_SPARK_INTERFACES = ("enp1s0f1np1", "enP2p1s0f1np1")


class Ask(Struct, frozen=True, kw_only=True):
    """The flags of `eyas plan`. None stands for a default that depends on the rest."""

    model: str
    on: str = "here"
    engine: EngineName | Literal["auto"] = "auto"
    version: str | None = None
    image: str | None = None
    native: bool = False
    purpose: Purpose = "chat"
    context: int | None = None
    concurrency: int | None = None
    spec: Literal["auto", "eagle3", "draft-model", "none"] = "auto"
    head: str | None = None
    draft_tokens: int | None = None
    tools: bool = False
    name: str | None = None
    nodes: tuple[str, ...] = ()  # ssh destinations, rank 0 first; "USER@HOST" or "USER@HOST=ADDRESS"
    listen: str = "127.0.0.1"
    port: int | None = None
    api_key_env: str | None = None
    cache: str | None = None
    directory: str | None = None
    binary: str | None = None


class Target(Struct, frozen=True, kw_only=True):
    """An Ask with all that does not depend on the engine settled."""

    ask: Ask
    box: Box
    model: Model
    model_path: str | None
    weight_bytes: int | None  # of the checkpoint's own index
    head: Head | None  # asked for by name
    context: int
    concurrency: int
    tools: bool
    nodes: tuple[Node, ...]
    cache: Word
    features: tuple[str, ...]


def settle(ask: Ask, known: Knowledge, box: Box | None) -> Target:
    """Raises UserError for names that nobody knows and for what the model cannot do on any box."""
    if box is None:
        if ask.on == "here":
            raise UserError("this machine was not looked at; name another one with --on, e.g. --on spark")
        box = parse_box(ask.on)
    path = Path(ask.model).expanduser()
    is_folder = path.is_dir()
    model = _model_of_folder(path, known) if is_folder else known.model(ask.model)
    context, concurrency = USES[ask.purpose]
    context = min(ask.context or context, model.native_context) if ask.context is None else ask.context
    if context > model.native_context:
        raise UserError(f"{model.name} has a context of {model.native_context} tokens, --context asks for {context}")
    if ask.listen not in ("127.0.0.1", "localhost", "::1") and ask.api_key_env is None:
        raise UserError(
            f"--listen {ask.listen} opens the server to the network; name an environment variable that holds a key for "
            "its clients with --api-key-env, e.g. --api-key-env SERVER_KEY"
        )
    tools = ask.tools or ask.purpose == "claude-code"
    return Target(
        ask=ask,
        box=box,
        model=model,
        model_path=str(path.resolve()) if is_folder else None,
        weight_bytes=_index_bytes(path) if is_folder else None,
        head=known.head(ask.head) if ask.head is not None else None,
        context=context,
        concurrency=ask.concurrency or concurrency,
        tools=tools,
        nodes=_nodes(ask, box),
        cache=ask.cache or Home(path=".cache/huggingface"),
        features=tuple(feature for feature, on in (("tools", tools), (ask.purpose, True)) if on),
    )


def _nodes(ask: Ask, box: Box) -> tuple[Node, ...]:
    if ask.nodes and len(ask.nodes) != box.nodes:
        raise UserError(f"{box.name} has {box.nodes} node{'s' * (box.nodes > 1)}, --node names {len(ask.nodes)}")
    if box.nodes == 1:
        return (_node("node", ask.nodes[0], None, ()) if ask.nodes else Node(name=box.name),)
    return tuple(
        _node(
            f"node-{'ab'[rank] if box.nodes == 2 else rank}",
            ask.nodes[rank] if ask.nodes else (TWO_SPARK_ADDRESSES[rank] if rank else None),
            TWO_SPARK_ADDRESSES[rank] if rank < len(TWO_SPARK_ADDRESSES) else None,
            TWO_SPARK_INTERFACES,
        )
        for rank in range(box.nodes)
    )


def _node(name: str, destination: str | None, address: str | None, interfaces: tuple[str, ...]) -> Node:
    """`USER@HOST=ADDRESS` names the address of the fast link too; `local` is this machine."""
    ssh, _, given = (destination or "").partition("=")
    if ssh.startswith("-"):
        raise UserError(f"--node wants USER@HOST, got '{ssh}'")
    address = given or address or "127.0.0.1"
    return Node(name=name, ssh=ssh if ssh not in ("", "local") else None, address=address, interfaces=interfaces)


def _model_of_folder(path: Path, known: Knowledge) -> Model:
    """The known model whose shapes a folder's config.json has."""
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} has no config.json: name a folder with a checkpoint, or a model by its name") from None
    except ValueError as error:
        raise UserError(f"{path / 'config.json'} is not JSON: {error}") from None
    shape = (config.get("num_hidden_layers"), config.get("hidden_size"), config.get("vocab_size"))
    for model in known.models.values():
        if (model.num_layers, model.hidden_size, model.vocab_size) == shape:
            return model
    raise UserError(
        f"{path}: no known model has its shape (layers, hidden size, vocabulary: {shape}); known are "
        + ", ".join(known.models)
    )


def _index_bytes(path: Path) -> int | None:
    """What the checkpoint says of its own size; else the size of its files."""
    index = path / "model.safetensors.index.json"
    if index.exists():
        total = json.loads(index.read_text(encoding="utf-8")).get("metadata", {}).get("total_size")
        if isinstance(total, int):
            return total
    return sum(file.stat().st_size for file in path.glob("*.safetensors")) or None
