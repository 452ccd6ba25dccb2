"""Settings of an engine and of a server, each written once, as one dataclass field.

Command-line flags, `EYAS_*` variables and the keys of a YAML file are all derived from the fields.
Precedence: command line, then environment, then file, then default. A name that no field has is an error.
This module knows nothing about models or HTTP; whether a value suits a model is checked when the model is loaded.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, TypeVar

from eyas.base.errors import UserError, nearest
from eyas.base.synthetic import parse_acceptance
from eyas.base.types import MAX_DRAFTS

__all__ = [
    "MAX_AUTO_DRAFTS",
    "EngineConfig",
    "ServeConfig",
    "add_arguments",
    "argument",
    "env_name",
    "flag_name",
    "human_int",
    "int_from",
    "key_from",
    "load",
    "one_of",
    "true_or_false",
]

T = TypeVar("T")
ENV_PREFIX = "EYAS_"
MAX_AUTO_DRAFTS = 7  # of `--draft-tokens auto`: with the last token, they fill one tile of 8 rows
FILE_KEY = "config"
ENV_KEY = "env:"  # an API key that is in an environment variable
OTHERS = ("EYAS_HOME", "EYAS_SSH_OPTIONS", "EYAS_FLEET_LIMITS")  # variables of the commands that start engines
BUSY_CHUNK_TOKENS = 2048
UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

ConfigT = TypeVar("ConfigT", bound="EngineConfig")


def human_int(text: str) -> int:
    """Read `"4096"`, `"32k"` (32 x 1024), `"1M"` or `"2G"` as an int. Raises ValueError for anything else."""
    match = re.fullmatch(r"(\d+)([kmg]?)", text.strip().lower().replace("_", ""))
    if match is None:
        raise ValueError(f"wants a number such as 4096 or 32k, got '{text}'")
    return int(match[1]) * UNITS[match[2]]


def key_from(text: str) -> str:
    """The key itself, or for `env:NAME` the value of that environment variable. Raises ValueError if it has none."""
    if not text.startswith(ENV_KEY):
        return text
    name = text.removeprefix(ENV_KEY)
    value = os.environ.get(name)
    if not value:
        raise ValueError(f"names the environment variable '{name}', which is not set")
    return value


def int_from(low: int, high: int | None = None) -> Callable[[str], int]:
    """Return a reader of ints within bounds, both included. It raises ValueError, as the other readers do."""

    def parse(text: str) -> int:
        value = human_int(text)
        if value < low or (high is not None and value > high):
            raise ValueError(f"wants {f'{low} to {high}' if high is not None else f'at least {low}'}, got {text}")
        return value

    return parse


def argument(read: Callable[[str], T]) -> Callable[[str], T]:
    """Return a reader for argparse, which shows what `read` says of a wrong text only if it is an ArgumentTypeError."""

    def parse(text: str) -> T:
        try:
            return read(text)
        except (ValueError, UserError) as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return parse


def _auto_or(parse: Callable[[str], int]) -> Callable[[str], int | str]:
    return lambda text: "auto" if text == "auto" else parse(text)


def true_or_false(text: str) -> bool:
    """Read a bool."""
    if text.lower() not in ("true", "false"):
        raise ValueError(f"wants true or false, got '{text}'")
    return text.lower() == "true"


def one_of(*words: str) -> Callable[[str], str]:
    """Return a reader that takes these words alone."""

    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"wants {' or '.join(words)}, got '{text}'")
        return text

    return parse


def _setting(default: Any, help_text: str, *, metavar: str = "", parse: Callable[[str], Any] = str) -> Any:
    return field(default=default, metadata={"help": help_text, "metavar": metavar, "parse": parse})


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineConfig:
    """Settings of the engine: what to load, and how much of it to run at once."""

    model: str = _setting("demo", "folder, hub id (ORG/NAME), or 'demo': the one in this package", metavar="MODEL")
    revision: str | None = _setting(None, "branch, tag or commit of a model from the hub", metavar="REV")
    offline: bool = _setting(False, "use only hub files that are already on this machine", parse=true_or_false)
    draft: str = _setting(
        "auto",
        "draft head (folder or hub id), 'ngram', 'none', or 'auto': the head in the model's folder eagle3, else none",
        metavar="HEAD",
    )
    draft_tokens: int | Literal["auto"] = _setting(
        "auto", "tokens drafted per round, 0 to 16, fewer in a GPU's large rounds; 'auto' measures, takes the fastest",
        metavar="N",
        parse=_auto_or(int_from(0, MAX_DRAFTS)),
    )  # fmt: skip
    draft_vocab: int | None = _setting(
        None, "size of the draft vocabulary, e.g. 32k: smaller is faster, accepted less; the head's own if not given",
        metavar="N", parse=int_from(16),
    )  # fmt: skip
    draft_counts: str | None = _setting(
        None, "JSON file of token counts by id: --draft-vocab then keeps the most frequent ids instead of the lowest",
        metavar="FILE",
    )  # fmt: skip
    draft_weights: Literal["bf16", "fp8"] = _setting(
        "bf16", "weights of the head: as published ('bf16'), or rounded to half the bytes when loaded ('fp8')",
        metavar="FORMAT", parse=one_of("bf16", "fp8"),
    )  # fmt: skip
    kv_dtype: Literal["auto", "fp8"] = _setting(
        "auto", "keys and values of the model: as its weights ('auto'), or in 8 bits ('fp8'): half the bytes, rounded",
        metavar="FORMAT", parse=one_of("auto", "fp8"),
    )  # fmt: skip
    decode_weights: Literal["bf16", "12bit"] = _setting(
        "bf16", "attention's matrices for decoding, on a GPU: as published ('bf16'), or a lossless copy beside them "
        "with three quarters of the bytes ('12bit'): 8 % slower on an H200, for GPUs with slow memory",
        metavar="FORMAT", parse=one_of("bf16", "12bit"),
    )  # fmt: skip
    context: int | Literal["auto"] = _setting(
        "auto", "tokens per conversation, prompt and answer, e.g. 32k; 'auto' is the model's own limit, at most 32k",
        metavar="N", parse=_auto_or(int_from(16)),
    )  # fmt: skip
    concurrency: int = _setting(
        8, "conversations answered at once, on a GPU at most 512; more wait in a queue", metavar="N",
        parse=int_from(1, 1024),
    )  # fmt: skip
    busy_chunk_tokens: int = _setting(
        BUSY_CHUNK_TOKENS,
        "prefill tokens per step while any answer decodes (chunked prefill): lower gives steadier inter-token latency "
        "and a later first token; steps without decoding take more, and those beside 256 answers twice as many",
        metavar="N",
        parse=int_from(64),
    )
    target_itl: int | None = _setting(
        None, "inter-token latency in ms that 95 % shall stay below: instead of --busy-chunk-tokens a step reads the "
        "prefill tokens that fit, where none fit some in every 21st step",
        metavar="MS", parse=int_from(1),
    )  # fmt: skip
    whole_lm_head: bool = _setting(
        False,
        "read the whole lm_head for every token; else a GPU reads an 8-bit copy first (gpt-oss: 0.6 GB, left out where "
        "memory is short), which rules out most tokens and changes none",
        parse=true_or_false,
    )
    device: str = _setting(
        "auto", "'cpu', 'cuda', 'cuda:1', ...; 'auto' takes a GPU where there is one", metavar="DEVICE"
    )
    seed: int | None = _setting(
        None,
        "seed for requests without one of their own, which makes their answers repeatable",
        metavar="N",
        parse=int_from(0),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig(EngineConfig):
    """An engine's settings and where it listens."""

    model: str = _setting(
        "demo",
        "folder, hub id (ORG/NAME), 'demo': the one in this package, 'random:SHAPE': random weights of a true shape, "
        "to measure speed without files (random:gpt-oss-120b; SIMULATED), or, to measure the HTTP side with "
        "'eyas bench http', 'null' or 'null:MS': an engine that computes nothing and answers with MS ms a round",
        metavar="MODEL",
    )
    host: str = _setting(
        "127.0.0.1", "address to listen on; the default is reachable from this machine only", metavar="ADDR"
    )
    port: int = _setting(8000, "port to listen on; 0 picks a free one", metavar="PORT", parse=int_from(0, 65535))
    served_name: str | None = _setting(None, "the model's name in the API; its own name if not given", metavar="NAME")
    api_key: str | None = _setting(
        None,
        "API keys that clients must send, comma-separated: sha256:HEX digests (see 'eyas key'), the keys themselves, "
        "or env:NAME for keys in an environment variable",
        metavar="KEYS",
        parse=lambda text: ",".join(map(key_from, text.split(","))),
    )
    cors: str | None = _setting(
        None, "origins whose pages may call this server, comma-separated, or '*'; none if not given", metavar="ORIGINS"
    )
    allowed_hosts: str | None = _setting(
        None,
        "host names that requests may name, comma-separated: box.example, *.example, or '*' for any. Loopback names "
        "are always allowed; on other addresses also IP addresses and this machine's names, with --api-key any name",
        metavar="NAMES",
    )
    max_body: int = _setting(16 << 20, "largest body of a request in bytes", metavar="BYTES", parse=int_from(1024))
    max_queue: int = _setting(
        256, "answers that may wait in the queue (a request with n counts n times); more are refused with status 429",
        metavar="N", parse=int_from(0, 65536),
    )  # fmt: skip
    drain: int = _setting(
        30, "seconds that running answers get to finish after a signal to stop", metavar="S", parse=int_from(0, 3600)
    )
    step_timeout: int = _setting(
        120, "seconds without progress, while it could run, after which the engine is restarted", metavar="S",
        parse=int_from(1, 3600),
    )  # fmt: skip
    log_format: Literal["text", "json"] = _setting(
        "text", "log lines for people ('text') or one JSON object a line ('json')", metavar="FORMAT",
        parse=one_of("text", "json"),
    )  # fmt: skip
    trace: str | None = _setting(
        None, "write one JSON line per engine step to this file: token ids, no text", metavar="FILE"
    )
    live: Literal["auto", "text", "blank", "off"] = _setting(
        "auto",
        "live view: 'text' shows the tokens of all users, 'blank' only colours, 'off' nothing; 'auto' is 'text' on a "
        "loopback address and 'blank' on others",
        metavar="MODE",
        parse=one_of("auto", "text", "blank", "off"),
    )
    simulate_acceptance: str | None = _setting(
        None,
        "synthetic acceptance of random weights: 0.7 is the rate at which each draft is accepted, 2.6 an acceptance "
        "length, 0.9/0.1 alternating rates; it drafts with a random EAGLE-3 head unless --draft says otherwise",
        metavar="RATE", parse=lambda text: parse_acceptance(text).text,
    )  # fmt: skip
    keep_reasoning: bool = _setting(
        False,
        "leave finished turns their reasoning, against the model's format, so that a conversation's prompt only grows",
        parse=true_or_false,
    )


def flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def env_name(name: str) -> str:
    return ENV_PREFIX + name.upper()


def add_arguments(parser: argparse.ArgumentParser, cls: type[EngineConfig], *, positional: str | None = None) -> None:
    """Add a flag for every field of `cls` and `--config`; the field named `positional` becomes an argument."""
    group = parser.add_argument_group(
        "settings", f"each can also be set as {ENV_PREFIX}NAME or as a key of the --config file"
    )
    for item in fields(cls):
        help_text = item.metadata["help"]
        if item.default is not None and f"'{item.default}'" not in help_text:
            help_text += f" (default: {str(item.default).lower() if isinstance(item.default, bool) else item.default})"
        options: dict[str, Any] = {"default": argparse.SUPPRESS, "help": help_text.replace("%", "%%")}
        if isinstance(item.default, bool):
            group.add_argument(flag_name(item.name), action=argparse.BooleanOptionalAction, **options)
            continue
        options |= {"metavar": item.metadata["metavar"], "type": argument(item.metadata["parse"])}
        if item.name == positional:
            parser.add_argument(item.name, nargs="?", **options)
        else:
            group.add_argument(flag_name(item.name), **options)
    group.add_argument(
        flag_name(FILE_KEY), metavar="FILE", type=Path, default=argparse.SUPPRESS, help="YAML file with settings"
    )


def load(cls: type[ConfigT], args: argparse.Namespace, environ: Mapping[str, str]) -> ConfigT:
    """Build `cls` from given flags, `EYAS_*` variables and the config file, in that order of precedence.

    Settings that only a server has are accepted for an engine too, so that one file serves both.
    Raises UserError for an unknown name, a bad value, or a file that cannot be read.
    """
    given = vars(args)
    known = {item.name: item for item in fields(ServeConfig)}
    values: dict[str, Any] = {}

    path = given.get(FILE_KEY) or environ.get(env_name(FILE_KEY))
    if path:
        for key, value in _read_file(Path(path)).items():
            name = str(key).replace("-", "_")
            if name not in known:
                raise UserError(f"{path}: unknown key '{key}'{nearest(name, known)}")
            values[name] = _parse(known[name], value, f"{path}: {key}")

    variables = {env_name(name): name for name in known}
    for variable, text in environ.items():
        if not variable.startswith(ENV_PREFIX) or variable in (env_name(FILE_KEY), *OTHERS):
            continue
        if variable not in variables:
            raise UserError(f"unknown environment variable {variable}{nearest(variable, variables)}")
        values[variables[variable]] = _parse(known[variables[variable]], text, variable)

    own = {item.name for item in fields(cls)}
    values |= {name: value for name, value in given.items() if name in own}
    return cls(**{name: value for name, value in values.items() if name in own})


def _read_file(path: Path) -> Mapping[Any, Any]:
    import yaml

    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read the config file {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold 'key: value' lines, such as 'port: 8000'")
    return content


def _parse(item: Field[Any], value: object, where: str) -> Any:
    if value is None and item.default is None:
        return None
    if not isinstance(value, str | int | float):
        raise UserError(f"{where} wants a single value, got {value!r}")
    try:
        return item.metadata["parse"](str(value))
    except ValueError as error:
        raise UserError(f"{where} {error}") from error
