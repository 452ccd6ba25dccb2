"""The order of the house: which package may import which, and the rooms of each package from the ground up.

`docs/structure.md` prints both (`python tools/structure.py`).
"""

from typing import NamedTuple


class Package(NamedTuple):
    """`floors` go upwards: a file imports from its own room and from rooms on lower floors, never from a neighbour.

    A room is a folder, or a file beside the folders; files that no floor names form the ground floor together.
    `loads` are the folders whose modules are imported by a name that is made at run time, by the room that does so.
    """

    knows: str
    imports: tuple[str, ...] = ()
    libraries: tuple[str, ...] = ()
    floors: tuple[tuple[str, ...], ...] = ()
    late: tuple[str, ...] = ()  # packages that the modules `through`, themselves imported inside functions, may import
    through: tuple[str, ...] = ()
    loads: tuple[tuple[str, str], ...] = ()


PACKAGES = {
    "base": Package(
        knows="words that everything shares: types, errors, settings, Harmony, tokenizer",
        floors=(("tokens",), ("harmony",), ("serving", "settings")),
    ),
    "kernels": Package(
        knows="operations on tensors, each with a plain PyTorch twin",
        libraries=("torch", "triton"),
        floors=(("layouts",), ("reference",), ("cuda", "triton", "training")),
    ),
    "model": Package(
        knows="what the networks compute; reading and writing checkpoints",
        imports=("kernels", "base"),
        libraries=("torch", "safetensors", "numpy", "httpx", "gguf"),  # httpx: the hub's errors
        floors=(("networks", "checkpoints"), ("making", "gguf"), ("commands",)),
    ),
    "engine": Package(
        knows="who runs when: scheduling, pages, drafting, sampling, its own process",
        imports=("model", "kernels", "base"),
        libraries=("torch", "numpy", "msgspec"),
        floors=(
            ("sequences",),
            ("draft_length",),
            ("round",),
            ("drafters", "sampling"),
            ("step",),
            ("startup",),
            ("ports",),
        ),
    ),
    "sandbox": Package(
        knows="running Python programs of a model: no network, no files, limits on everything",
        imports=("base",),
    ),
    "train": Package(
        knows="training of draft heads: data and masks, the target's states, losses, the loop, evaluation, export",
        imports=("model", "kernels", "sandbox", "base"),
        libraries=("torch", "numpy", "safetensors", "httpx"),
        floors=(
            ("settings",),
            ("data",),
            ("states",),
            ("heads",),
            ("loss",),
            ("evaluation",),
            ("export",),
            ("steps",),
            ("records",),
            ("loop",),
            ("regeneration",),
            ("commands",),
        ),
    ),
    "client": Package(
        knows="asking OpenAI endpoints: the async client; canary and metrics of a running server",
        imports=("base",),
        libraries=("aiohttp", "msgspec", "httpx"),
        floors=(("endpoint",),),
    ),
    "recipes": Package(
        knows="other engines, boxes, heads; plans made of them. Starts nothing",
        imports=("base",),
        libraries=("msgspec",),
        floors=(("knowledge",), ("advice", "estimate"), ("engines",), ("emit",), ("planning",)),
        loads=(("planning", "engines"),),
    ),
    "fleet": Package(
        knows="running plans: processes, containers, other machines; health and logs",
        imports=("recipes", "client", "base"),
        libraries=("msgspec", "httpx"),
        floors=(("machines",), ("running",), ("models",), ("preflight", "advice"), ("commands",)),
    ),
    "gateway": Package(
        knows="HTTP: one folder a vendor's dialect, streaming, metrics, the page. No torch",
        imports=("base",),
        libraries=("starlette", "uvicorn", "msgspec"),
        floors=(
            ("http",),
            ("grammar",),
            ("server",),
            ("turn",),
            ("question",),
            ("openai", "anthropic"),
            ("operation", "page"),
            ("app",),
        ),
    ),
    "router": Package(
        knows="one address in front of many backends: which of them answers, relaying, the guard, routes. No torch",
        imports=("gateway", "fleet", "recipes", "client", "base"),
        libraries=("aiohttp", "starlette", "uvicorn", "msgspec"),
        floors=(
            ("settings",),
            ("memory",),
            ("manager", "guard", "routes"),
            ("upstream", "sidecars"),
            ("messages", "backends"),
            ("relay",),
            ("operation", "page"),
            ("app",),
            ("commands",),
        ),
    ),
    "claude": Package(
        knows="Claude Code: settings for a server, starting it, its settings.json",
        imports=("base",),
        libraries=("httpx",),
        floors=(("commands",),),
    ),
    "discord": Package(
        knows="a Discord bot: what is shown when, memory, limits of people; two rooms talk to Discord",
        imports=("client", "base"),
        libraries=("aiohttp", "msgspec", "discord"),
        floors=(
            ("settings", "text"),
            ("attachments", "endpoint", "permissions", "quotas", "words"),
            ("conversation",),
            ("showing",),
            ("bot",),
            ("commands",),
        ),
    ),
    "bench": Package(
        knows="measuring: the engine, the HTTP side, endpoints, acceptance, training steps",
        imports=("client", "base"),
        libraries=("rich", "msgspec", "aiohttp", "httpx"),
        floors=(("engine", "http", "training", "endpoint", "check"),),
        late=("engine", "train", "model", "kernels"),
        through=("bench.engine.parts", "bench.training.steps", "bench.training.modes"),
    ),
    "tune": Package(
        knows="measuring engines here: starts them, what to measure next, advice, the file that plans read",
        imports=("fleet", "recipes", "bench", "client", "base"),
        libraries=("msgspec", "httpx"),
        floors=(
            ("schedule",),
            ("arms", "guard", "measure", "sweep"),
            ("advice", "servers"),
            ("session",),
            ("command",),
        ),
    ),
}
# Files beside the packages. They import no heavy library before they need it; `llm` is imported when it is asked for.
TOP = (
    "__init__",
    "__main__",
    "cli",
    "serve",
    "check",
    "training",
    "chat",
    "generate",
    "ask",
    "local",
    "terminal",
    "key",
)
LATE_TOP = {"llm": ("engine", "base")}
