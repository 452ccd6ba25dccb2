"""`eyas check`: a smoke test of any endpoint, and advice on tuning it.

The composition root: `bench/check/` asks in OpenAI's API, `claude/` in Anthropic's, `fleet/advice/` looks at the
machine.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from eyas.bench.check.asking import Endpoint
    from eyas.bench.check.finding import Finding, Result
    from eyas.fleet.advice.tips import Advice, Reuse, Seen

__all__ = ["add_arguments", "run"]

MESSAGES = "/v1/messages"
READ_S = 300.0
VERDICTS = ("ok", "missing", "broken", "not judged")
BODIES = "eyas-check"  # in the folder for temporary files: bodies of requests that are too long for a line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("url", metavar="URL", type=_address, help="address of the server, with /v1 or without")
    add(
        "--api-key",
        type=_key,
        default=os.environ.get("EYAS_API_KEY") or None,
        metavar="KEY",
        help="API key, or env:NAME for one in an environment variable (default: that in EYAS_API_KEY)",
    )
    add("--model", metavar="NAME", help="name of the model in requests (default: the server's first)")
    add("--json", action="store_true", help="print one JSON object instead of lines")


def _address(text: str) -> str:
    from eyas.base.serving.address import address
    from eyas.base.settings.config import argument

    return argument(address)(text)


def _key(text: str) -> str:
    from eyas.base.settings.config import argument, key_from

    return argument(key_from)(text)


def run(args: argparse.Namespace) -> int:
    return asyncio.run(_run(args))


async def _run(args: argparse.Namespace) -> int:
    from eyas.bench.check.discover import connect, discover
    from eyas.bench.check.watching import PATHS

    url, key, found = args.url, args.api_key, []
    async with connect(url, key) as http:
        endpoint = await discover(http, url, args.model, has_key=key is not None)
        models, metrics = await endpoint.get("/v1/models"), await endpoint.get(PATHS[0])
        before = _Before(models.value, metrics.text if metrics.status == 200 else "")
        if not args.json:
            print(f"eyas check: '{endpoint.model}' at {url}", flush=True)
        async for finding in _findings(endpoint, url, key):
            curl = _curl(finding, url, has_key=key is not None)
            found.append((finding, curl))
            if not args.json:
                _show(finding, curl)
        given, seen = await asyncio.to_thread(_advice, endpoint, url, key, before)
    counts: Counter[str] = Counter(finding.verdict for finding, _ in found)
    if args.json:
        print(_json(url, endpoint.model, found, given, seen))
    else:
        _show_advice(given, seen)
        print(", ".join(f"{counts[name]} {name}" for name in VERDICTS if counts[name]))
    return 1 if counts["broken"] else 0


class _Before(NamedTuple):
    """Replies of the server from before the checks, which are not in its figures yet."""

    models: Any
    metrics: str


def _curl(finding: Finding, url: str, *, has_key: bool) -> str | None:
    from eyas.bench.check.curl import command

    if finding.request is None:
        return None
    folder = Path(tempfile.gettempdir()) / BODIES
    try:
        return command(finding.request, url, has_key=has_key, folder=folder, name=finding.name)
    except OSError as error:
        return f"(its request is too long for a line, and {error.filename} cannot be written: {error.strerror})"


def _json(
    url: str,
    model: str,
    found: list[tuple[Finding, str | None]],
    given: tuple[Advice, ...],
    seen: Seen,
) -> str:
    from datetime import UTC, datetime

    import msgspec

    from eyas.base.commit import version_text
    from eyas.fleet.advice.tips import unseen

    rows = [
        {"name": one.name, "asks": one.asks, "verdict": one.verdict, "text": one.text, "curl": curl}
        for one, curl in found
    ]
    report = {
        "url": url,
        "model": model,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "eyas": version_text(),
        "findings": rows,
        "advice": given,
        "not_visible": unseen(seen),
    }
    return msgspec.json.encode(report).decode()


async def _findings(endpoint: Endpoint, url: str, key: str | None) -> AsyncIterator[Finding]:
    from eyas.bench.check.finding import Finding, unclear
    from eyas.bench.check.smoke import smoke_test

    faulty = []
    async for finding in smoke_test(endpoint):
        if finding.verdict == "broken" and finding.name in ("chat", "garbage"):
            faulty.append(finding.name)
        yield finding
    if faulty:
        results = [unclear(f"needs: {', '.join(faulty)}")]
    else:
        results = await asyncio.to_thread(lambda: list(_messages(endpoint, url, key)))
    for one in results:
        asks = "a stream and a call, as Claude Code does"
        yield Finding(name=MESSAGES, asks=asks, verdict=one.verdict, text=one.text, request=one.request)


def _messages(endpoint: Endpoint, url: str, key: str | None) -> Iterator[Result]:
    """Yield what `eyas claude check` finds of Anthropic's API where it is offered, whatever the context is."""
    import httpx

    from eyas.bench.check.finding import Request, broken, missing, ok, unclear
    from eyas.bench.check.other_apis import NOT_OFFERED
    from eyas.claude.check import FEW_LINES, check
    from eyas.claude.server import Server, connect

    body = {"model": endpoint.model, "max_tokens": 16, "messages": [{"role": "user", "content": "Say hello."}]}
    request = Request(method="POST", path=MESSAGES, body=body)
    with connect(url, key) as http:
        try:
            status = http.post(MESSAGES, json=body, timeout=READ_S).status_code
        except httpx.HTTPError as error:
            yield broken(f"no answer ({str(error) or type(error).__name__})", request)
            return
        if status in NOT_OFFERED:
            yield missing("it is not offered", request)
            return
        server = Server(url=url, model=endpoint.model, context=endpoint.context or 0, version=None)
        found = list(check(http, server, num_lines=FEW_LINES))
    faults = [one for one in found if not one.is_good and one.name in ("stream", "tools")]
    for one in faults:
        if one.is_cut:
            yield unclear("tools: no call within its tokens")
            continue
        sent = Request(method="POST", path=MESSAGES, body={**(one.body or {}), "stream": True})
        yield broken(f"{one.name}: {' '.join(one.text.split())}", sent)
    if not faults:
        yield ok("a stream in order, and a call as it was asked for")


def _advice(endpoint: Endpoint, url: str, key: str | None, before: _Before) -> tuple[tuple[Advice, ...], Seen]:
    from eyas.fleet.advice.looking import seen
    from eyas.fleet.advice.tips import advice

    reuse = _reuse(endpoint, url, key)
    found = seen(url, before.models, endpoint.model, endpoint.context, before.metrics, reuse)
    return advice(found), found


def _reuse(endpoint: Endpoint, url: str, key: str | None) -> Reuse | None:
    """Return what the cache keeps of a prompt behind another attribution line; None where nothing tells it."""
    from eyas.claude.answer import WrongAnswer
    from eyas.claude.attribution import cached_behind_line
    from eyas.claude.server import connect
    from eyas.fleet.advice.tips import Reuse

    try:
        with connect(url, key) as http:
            found = cached_behind_line(http, endpoint.model)
    except WrongAnswer:
        return None
    return Reuse(same=found.same, other_line=found.other_line, total=found.total)


def _show(finding: Finding, curl: str | None) -> None:
    print(f"{finding.verdict:<11}{finding.name:<15}{finding.text}", flush=True)
    if finding.verdict == "broken" and curl is not None:
        print(f"{'':<11}{curl}", flush=True)


def _show_advice(given: tuple[Advice, ...], seen: Seen) -> None:
    from eyas.fleet.advice.tips import unseen

    for one in given:
        print(f"advice     {one.name}: {one.text}\n{'':<11}seen: {one.evidence}\n{'':<11}source: {one.source}")
    if hidden := unseen(seen):
        print(f"advice     not visible from here, since the server's machine is not this one: {', '.join(hidden)}")
