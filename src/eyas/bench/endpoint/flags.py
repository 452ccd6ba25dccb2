"""Flags of a load, and what they mean: arms, settings of a run, limits of a good request."""

from __future__ import annotations

import argparse
import json
import os
import re
from collections.abc import Sequence
from typing import Any

from eyas.base.errors import UserError, nearest
from eyas.base.settings.config import key_from
from eyas.bench.endpoint.figures import Slo
from eyas.bench.endpoint.load.pace import Limits
from eyas.bench.endpoint.load.session import Settings
from eyas.bench.endpoint.prompts.builtin import SETS
from eyas.bench.endpoint.records import Load
from eyas.bench.endpoint.target import Arm
from eyas.bench.report import positive_int

__all__ = ["add_load_flags", "arms_from", "settings_from", "slo_from"]

MAX_CONCURRENCY = 1024
OUR_FIELDS = frozenset({"model", "messages", "prompt", "stream", "stream_options"})
UNITS = {"ms": 1e-3, "s": 1.0}


def add_load_flags(parser: argparse.ArgumentParser) -> None:
    _add_arms(parser)
    _add_loads(parser)
    _add_prompts(parser)


def _add_arms(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "url",
        nargs="*",
        metavar="URL",
        help="endpoints to measure, with /v1 or without; several take turns as A, B, ...",
    )
    add(
        "--arm", action="append", default=[], metavar="NAME=URL",
        help="an endpoint under a name of its own; may be given several times, and with one URL for several names",
    )  # fmt: skip
    add(
        "--model", action="append", default=[], metavar="NAME", help="model: one for all arms, or one for each in order"
    )
    add(
        "--api-key", action="append", default=[], metavar="KEY",
        help="API key, or env:NAME for one in an environment variable: one for all arms, or one for each in order "
        "(default: that in OPENAI_API_KEY)",
    )  # fmt: skip
    add(
        "--field", action="append", default=[], metavar="[ARM:]NAME=JSON",
        help="further field of each request's body, of all arms or of one, such as temperature=0",
    )  # fmt: skip


def _add_loads(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--concurrency", type=_concurrencies, metavar="N,...",
        help="conversations at once, each followed by the next (closed loop), such as 1,4 or 1..8 (default: 1,2,4,8)",
    )  # fmt: skip
    add(
        "--rate",
        type=_rates,
        metavar="R,...",
        help="requests a second at random times, whatever comes back (open loop)",
    )
    add("--duration", type=_seconds, default=10.0, metavar="S", help="seconds of a window's steady part (default: 10)")
    add("--requests", type=positive_int, metavar="N", help="requests of a window, in place of --duration")
    add(
        "--warm-up", type=_seconds, default=30.0, metavar="S",
        help="the most seconds until two stretches of the same load agree, before each window (default: 30)",
    )  # fmt: skip
    add(
        "--turns", type=positive_int, default=7, metavar="N", help="windows of each arm and load, in turns (default: 7)"
    )
    add(
        "--mode", choices=("natural", "fixed"), default="natural",
        help="natural: answers end where the model ends them; fixed: all have --max-tokens, past their natural end "
        "(ignore_eos), which is for an engine's speed (default: natural)",
    )  # fmt: skip
    add("--max-tokens", type=positive_int, default=512, metavar="N", help="the most tokens of an answer (default: 512)")


def _add_prompts(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--prompts", type=_names, default=("chat",), metavar="NAME,...",
        help=f"prompts: of our sets {', '.join(SETS)} or all; a file of JSON lines or in ShareGPT's format; "
        "hub:OWNER/NAME[:SPLIT], such as hub:Hwilner/imo-answerbench; random:TOKENS[:VOCABULARY], token ids for "
        "/v1/completions (default: chat)",
    )  # fmt: skip
    add(
        "--shared-prefix", type=positive_int, default=0, metavar="WORDS",
        help="let all prompts begin with the same words, which a prefix cache finds again; without, it finds none",
    )  # fmt: skip
    add("--seed", type=int, default=0, metavar="N", help="seed of the order of prompts and of times (default: 0)")
    add(
        "--timeout",
        type=_seconds,
        default=600.0,
        metavar="S",
        help="the longest that an answer may take (default: 600)",
    )
    add(
        "--slo",
        metavar="NAME=TIME,...",
        help="limits of a good request, such as ttft=500ms,ttft_final=5s,tpot=20ms,e2e=30s",
    )
    add("--keep-text", action="store_true", help="keep the text of answers in --out")


def arms_from(args: argparse.Namespace) -> list[Arm]:
    """Return the arms that the flags name. Raises UserError."""
    named = [_named(text) for text in args.arm]
    letters = [chr(ord("A") + place) if place < 26 else f"A{place}" for place in range(len(args.url))]
    pairs = [*zip(letters, args.url, strict=True), *named]
    if not pairs:
        raise UserError("there is no endpoint to measure; give its URL, such as http://127.0.0.1:8000/v1")
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise UserError(f"two arms have one name ({', '.join(names)}); name each differently with --arm NAME=URL")
    models = _each(args.model, len(pairs), "--model")
    keys = [_key(key) for key in _each(args.api_key, len(pairs), "--api-key")]
    fields = [_field(text, names) for text in args.field]
    return [
        Arm(
            name=name,
            url=url,
            model=model,
            key=key,
            fields={field: value for arm, field, value in fields if arm in (None, name)},
        )
        for (name, url), model, key in zip(pairs, models, keys, strict=True)
    ]


def settings_from(args: argparse.Namespace) -> Settings:
    """Return the settings of a run. Raises UserError for flags that exclude each other."""
    if args.rate is not None and args.concurrency is not None:
        raise UserError("--rate and --concurrency are two kinds of load; give one of them")
    common: dict[str, Any] = {"mode": args.mode, "max_tokens": args.max_tokens}
    if args.rate is not None:
        loads = tuple(Load(rate=rate, **common) for rate in args.rate)
    else:
        loads = tuple(Load(concurrency=number, **common) for number in args.concurrency or (1, 2, 4, 8))
    return Settings(
        loads=loads,
        prompts=args.prompts,
        limits=Limits(warm_up_s=args.warm_up, duration_s=args.duration, num_requests=args.requests),
        turns=args.turns,
        shared_words=args.shared_prefix,
        seed=args.seed,
        timeout_s=args.timeout,
        keeps_text=args.keep_text,
    )


def slo_from(args: argparse.Namespace) -> Slo | None:
    """Return the limits of --slo, None without. Raises UserError."""
    if args.slo is None:
        return None
    limits: dict[str, float] = {}
    for item in args.slo.split(","):
        name, _, text = item.strip().partition("=")
        if name not in Slo.__struct_fields__:
            known = ", ".join(Slo.__struct_fields__)
            raise UserError(f"--slo knows no '{name}'{nearest(name, Slo.__struct_fields__)}; it knows {known}")
        match = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s)", text)
        if match is None:
            raise UserError(f"--slo {name} wants a time with its unit, such as {name}=200ms or {name}=2s, got '{text}'")
        limits[name] = float(match[1]) * UNITS[match[2]]
    return Slo(**limits)


def _named(text: str) -> tuple[str, str]:
    name, is_there, url = text.partition("=")
    if not is_there or not re.fullmatch(r"[\w.+-]+", name):
        raise UserError(f"--arm wants NAME=URL with a name of letters, digits, dots and dashes, got '{text}'")
    return name, url


def _each(values: Sequence[str], count: int, flag: str) -> list[str | None]:
    """Return one value for each arm. Raises UserError where their number fits neither all nor each."""
    if len(values) not in (0, 1, count):
        raise UserError(f"{flag} is given {len(values)} times for {count} arms; give one for all, or one for each")
    return [*values] if len(values) == count else [values[0] if values else None] * count


def _key(text: str | None) -> str | None:
    try:
        return os.environ.get("OPENAI_API_KEY") if text is None else key_from(text)
    except ValueError as error:
        raise UserError(f"--api-key {error}") from None


def _field(text: str, names: Sequence[str]) -> tuple[str | None, str, Any]:
    """Return arm (None for all), name and value of a field."""
    name, is_there, raw = text.partition("=")
    arm, is_of_one, field = name.rpartition(":")
    if not is_there or not field:
        raise UserError(f"--field wants NAME=JSON, such as temperature=0, got '{text}'")
    if is_of_one and arm not in names:
        raise UserError(f"--field {text}: there is no arm '{arm}'{nearest(arm, names)}")
    if field in OUR_FIELDS:
        raise UserError(f"--field {field}: the benchmark sets this field itself")
    try:
        return arm or None, field, json.loads(raw)
    except ValueError:
        raise UserError(
            f"--field {field}: '{raw}' is not JSON; a text needs quotes, such as {field}='\"{raw}\"'"
        ) from None


def _concurrencies(text: str) -> tuple[int, ...]:
    """Parse `1,2,4..8` for argparse."""
    found: list[int] = []
    for item in text.split(","):
        low, is_range, high = item.strip().partition("..")
        try:
            first, last = int(low), int(high) if is_range else int(low)
        except ValueError:
            first, last = 0, 0
        if not 1 <= first <= last <= MAX_CONCURRENCY:
            raise argparse.ArgumentTypeError(
                f"wants numbers from 1 to {MAX_CONCURRENCY} such as 1,2,4 or 1..8, got {text}"
            )
        found += range(first, last + 1)
    return tuple(dict.fromkeys(found))


def _rates(text: str) -> tuple[float, ...]:
    try:
        rates = tuple(dict.fromkeys(float(item) for item in text.split(",")))
    except ValueError:
        rates = ()
    if not rates or not all(0 < rate <= 1e4 for rate in rates):
        raise argparse.ArgumentTypeError(f"wants requests a second such as 0.5,2,8, got {text}")
    return rates


def _seconds(text: str) -> float:
    try:
        value = float(text.removesuffix("s"))
    except ValueError:
        value = -1.0
    if not 0 <= value <= 86400:
        raise argparse.ArgumentTypeError(f"wants seconds such as 10 or 2.5, got {text}")
    return value


def _names(text: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
