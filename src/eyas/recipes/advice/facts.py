"""Facts of a plan, and the predicates over them by which known issues and tuning rules apply.

A predicate is a mapping from YAML. All of its keys must hold. Text keys take one value or a list of alternatives and
`*` as a wildcard, capitals do not matter; numbers take comparisons such as ">1" or ">=2,<=8"; `version` and `driver`
take ranges such as ">=0.5.6,<0.5.10". What is not known (an empty text) matches no predicate that asks for it.

Features are tags. `facts_of` reads these from the commands, files and decisions of the plan:

| tag | there when |
|---|---|
| `flag:--x`, `flag:--x=VALUE` | the command holds it (also one-dash flags such as `-md`) |
| `env:NAME`, `env:NAME=VALUE` | it is set; a value that is only referenced is `$NAME` |
| `yaml:a.b`, `yaml:a.b=VALUE` | a YAML file of the plan has the key; booleans are `true`, `false` |
| `image:TAG` | it runs in a container, of that image |
| `tools`, `kv:fp8` | tool calls are wanted; the KV cache is fp8 |
| `listen-all`, `api-key` | it listens beyond this machine; it asks for a key |
| `short-head` | the head's positions end before the context does (set by emitters) |

The planner, the probe and the preflight add what only they know: `guided-decoding`, `offline` (no internet inside the
container), `page-cache-full`, `no-swap`, `old-firmware`, `several-copies` (of one model on the disk).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import lru_cache

import yaml
from msgspec import Struct

from eyas.recipes.plan import Box, Choice, Emission, File, Home, Launch, Ref, Word
from eyas.recipes.versions import satisfies

__all__ = ["Facts", "When", "command_features", "facts_of", "flags_of", "matches", "settings", "text_of"]

Texts = str | tuple[str, ...]

COMPARISON = re.compile(r"\s*(<=|>=|!=|==|<|>)?\s*(-?\d+(?:\.\d+)?)\s*")
FLAG = re.compile(r"--?[A-Za-z][\w.-]*")
EVERYWHERE = ("0.0.0.0", "::", "*")  # addresses that mean "from any machine"


class Facts(Struct, frozen=True, kw_only=True):
    """Facts of one engine of a plan as it would be started; `features` are the tags of the module's table."""

    engine: str
    version: str
    model: str
    hardware: str
    compute_capability: str
    unified: bool = False
    bandwidth: float = 0.0  # bytes per second
    memory_bytes: int = 0  # of one GPU
    nodes: int = 1
    tensor_parallel: int = 1
    method: str = "none"  # none, eagle3, draft-model
    head: str = ""
    draft_tokens: int = 0
    context: int = 0
    concurrency: int = 1
    purpose: str = "chat"
    driver: str = ""
    features: frozenset[str] = frozenset()


class When(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A predicate over Facts; see the module. An absent key asks nothing."""

    engine: Texts | None = None
    version: str | None = None
    model: Texts | None = None
    hardware: Texts | None = None
    compute_capability: Texts | None = None
    unified: bool | None = None
    bandwidth: str | None = None  # GB/s
    memory: str | None = None  # GB
    nodes: str | None = None
    tensor_parallel: str | None = None
    method: Texts | None = None
    head: Texts | None = None
    draft_tokens: str | None = None
    context: str | None = None
    concurrency: str | None = None
    purpose: Texts | None = None
    driver: str | None = None
    all: tuple[str, ...] = ()  # features that must be there, `*` allowed
    none: tuple[str, ...] = ()  # features that must not be there


def facts_of(choice: Choice, box: Box, emission: Emission, extra: Iterable[str] = ()) -> Facts:
    """Return the facts of a choice as it was emitted; `extra` are tags that neither of them shows."""
    hardware = box.hardware
    return Facts(
        engine=choice.engine,
        version=choice.version,
        model=choice.model,
        hardware=hardware.name,
        compute_capability=hardware.compute_capability,
        unified=hardware.unified,
        bandwidth=hardware.measured_bandwidth or hardware.bandwidth,
        memory_bytes=hardware.memory_bytes,
        nodes=len(choice.nodes),
        tensor_parallel=choice.tensor_parallel,
        method=choice.method,
        head=choice.head or "",
        draft_tokens=choice.draft_tokens,
        context=choice.context,
        concurrency=choice.concurrency,
        purpose=choice.purpose,
        driver=box.driver,
        features=frozenset({*_choice_features(choice), *command_features(emission), *emission.features, *extra}),
    )


def matches(when: When, facts: Facts) -> bool:
    """Whether every key of `when` holds. Raises ValueError where a comparison or a version range is not one."""
    texts = (
        (when.engine, facts.engine),
        (when.model, facts.model),
        (when.hardware, facts.hardware),
        (when.compute_capability, facts.compute_capability),
        (when.method, facts.method),
        (when.head, facts.head),
        (when.purpose, facts.purpose),
    )
    numbers = (
        (when.bandwidth, facts.bandwidth / 1e9),
        (when.memory, facts.memory_bytes / 1e9),
        (when.nodes, facts.nodes),
        (when.tensor_parallel, facts.tensor_parallel),
        (when.draft_tokens, facts.draft_tokens),
        (when.context, facts.context),
        (when.concurrency, facts.concurrency),
    )
    versions = ((when.version, facts.version), (when.driver, facts.driver))
    return (
        all(_is_one_of(value, wanted) for wanted, value in texts if wanted is not None)
        and all(_compares(value, wanted) for wanted, value in numbers if wanted is not None)
        and all(value != "" and satisfies(value, wanted) for wanted, value in versions if wanted is not None)
        and (when.unified is None or when.unified == facts.unified)
        and all(_has(facts.features, wanted) for wanted in when.all)
        and not any(_has(facts.features, unwanted) for unwanted in when.none)
    )


def command_features(emission: Emission) -> frozenset[str]:
    """Return the tags that the commands and YAML files of an emission hold."""
    return frozenset(
        tag
        for tags in (
            *(_launch_features(launch) for launch in emission.launches if not launch.is_once),
            *(_file_features(file) for file in emission.files),
        )
        for tag in tags
    )


def settings(file: File) -> dict[str, str]:
    """Yield the values of a YAML file by their dotted path; nothing for other files."""
    if not file.path.endswith((".yaml", ".yml")):
        return {}
    return dict(_leaves(yaml.safe_load(file.content), ()))


def text_of(word: Word) -> str:
    """Format a word of a plan for people and tags: references as `$NAME`, the home directory as `~`."""
    match word:
        case Ref(name=name):
            return f"${name}"
        case Home(path=path):
            return f"~/{path}"
    return word


def flags_of(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Return each flag of a command line with its value, "" where it has none."""
    rest = list(words)
    for word, following in zip(rest, [*rest[1:], "-x"], strict=True):
        flag, equals, value = word.partition("=")
        if FLAG.fullmatch(flag):
            has_value = not equals and not FLAG.fullmatch(following.partition("=")[0])
            yield flag, following if has_value else value


def _choice_features(choice: Choice) -> Iterator[str]:
    if choice.tools:
        yield "tools"
    if choice.kv_dtype != "auto":
        yield f"kv:{choice.kv_dtype}"
    if choice.listen in EVERYWHERE:
        yield "listen-all"
    if choice.api_key_env is not None:
        yield "api-key"


def _launch_features(launch: Launch) -> Iterator[str]:
    if launch.container is not None:
        yield f"image:{launch.container.image}"
    for variable in launch.env:
        yield from _tags("env", variable.name, text_of(variable.value))
    for flag, value in flags_of(map(text_of, launch.argv)):
        yield from _tags("flag", flag, value)


def _file_features(file: File) -> Iterator[str]:
    for path, value in settings(file).items():
        parts = path.split(".")
        yield from (f"yaml:{'.'.join(parts[:end])}" for end in range(1, len(parts) + 1))
        yield f"yaml:{path}={value}"


def _leaves(value: object, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _leaves(inner, (*path, str(key)))
    elif path:
        yield ".".join(path), str(value).lower() if isinstance(value, bool) else str(value)


def _tags(kind: str, name: str, value: str) -> Iterator[str]:
    yield f"{kind}:{name}"
    if value:
        yield f"{kind}:{name}={value}"


def _is_one_of(value: str, wanted: Texts) -> bool:
    patterns = (wanted,) if isinstance(wanted, str) else wanted
    return value != "" and any(_wildcard(pattern).fullmatch(value) for pattern in patterns)


def _has(features: frozenset[str], wanted: str) -> bool:
    if "*" not in wanted:
        return wanted in features
    pattern = _wildcard(wanted)
    return any(pattern.fullmatch(feature) for feature in features)


@lru_cache(maxsize=1024)
def _wildcard(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.IGNORECASE | re.DOTALL)


def _compares(value: float, wanted: str) -> bool:
    return all(_compares_once(value, part) for part in wanted.split(","))


def _compares_once(value: float, wanted: str) -> bool:
    found = COMPARISON.fullmatch(wanted)
    if found is None:
        raise ValueError(f"not a comparison: {wanted!r}; write one such as '>1' or '>=2,<=8'")
    operator, number = found[1] or "==", float(found[2])
    match operator:
        case "<":
            return value < number
        case "<=":
            return value <= number
        case ">":
            return value > number
        case ">=":
            return value >= number
        case "!=":
            return value != number
    return value == number
