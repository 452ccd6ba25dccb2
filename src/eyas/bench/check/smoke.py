"""The list of checks, and running them one after the other: an answer that does not come is a finding like others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable

from msgspec import Struct

from eyas.bench.check import basics, forms, other_apis, prompts, sampling, together, tools, watching
from eyas.bench.check.asking import Endpoint
from eyas.bench.check.finding import Failed, Finding, Refused, Result

__all__ = ["CHECKS", "Check", "smoke_test"]


class Check(Struct, frozen=True, kw_only=True):
    """A check: what it `asks` of a server, and the checks that must not be broken for its result to mean anything.

    `is_optional`: a server that refuses it with a 4xx does not offer it; else that is a fault.
    """

    name: str
    asks: str
    run: Callable[[Endpoint], Awaitable[Result]]
    needs: tuple[str, ...] = ()
    is_optional: bool = False


CHECKS = (
    Check(name="models", asks="a list with the model in it", run=basics.models),
    Check(name="chat", asks="a whole answer", run=basics.chat),
    Check(name="garbage", asks="a short answer without loops", run=watching.garbage, needs=("chat",)),
    Check(name="stream", asks="the same as a stream of events", run=basics.stream, needs=("chat",)),
    Check(name="usage", asks="the tokens of a whole answer", run=basics.usage, needs=("chat",)),
    Check(
        name="stream usage", asks="the tokens of a stream", run=basics.stream_usage, needs=("stream",),
        is_optional=True,
    ),
    Check(name="max_tokens", asks="five tokens of a long answer", run=basics.max_tokens, needs=("chat",)),
    Check(name="stop", asks="an answer that ends before a word", run=basics.stop, needs=("garbage",)),
    Check(name="errors", asks="what is no request", run=basics.errors),
    Check(
        name="sampling", asks="two seeds, one seed twice, temperatures 0, 1 and 1.5, top_p, top_k",
        run=sampling.sampling, needs=("garbage",), is_optional=True,
    ),
    Check(name="reasoning", asks="what wants thought", run=forms.reasoning, needs=("garbage", "stream")),
    Check(name="tools", asks="a call, then its result", run=tools.tools, needs=("garbage",), is_optional=True),
    Check(
        name="tool_choice", asks="a call at least, another tool by name, none", run=tools.tool_choice,
        needs=("tools",), is_optional=True,
    ),
    Check(
        name="JSON schema", asks="an answer that no one would give without it", run=forms.json_schema,
        needs=("garbage", "reasoning"), is_optional=True,
    ),
    Check(
        name="logprobs", asks="log-probabilities with three rivals", run=forms.logprobs,
        needs=("garbage", "sampling"),
        is_optional=True,
    ),
    Check(name="long prompt", asks="20,000 tokens", run=prompts.long_prompt, needs=("chat",)),
    Check(name="prefix reuse", asks="new prompts, each twice", run=prompts.prefix_reuse, needs=("chat",)),
    Check(name="counters", asks="metrics before and after an answer", run=watching.counters, needs=("chat",)),
    Check(name="two at once", asks="sums, alone and at once", run=together.two_at_once, needs=("stream", "garbage")),
    Check(name="cancel", asks="long answers that are left", run=watching.cancel, needs=("stream",)),
    Check(name="/v1/responses", asks="an answer", run=other_apis.responses, needs=("chat",), is_optional=True),
)  # fmt: skip


async def smoke_test(endpoint: Endpoint, checks: Iterable[Check] = CHECKS) -> AsyncIterator[Finding]:
    """Yield what each check finds as soon as it does. Checks whose ground is broken are not judged."""
    faulty: set[str] = set()
    for check in checks:
        lacking = [name for name in check.needs if name in faulty]
        if lacking:
            result = Result("not judged", f"needs: {', '.join(lacking)}")
        else:
            result = await _run(check, endpoint)
        if result.verdict == "broken" or lacking or (result.verdict == "missing" and check.is_optional):
            faulty.add(check.name)
        is_shown = result.verdict in ("missing", "broken")
        request = (result.request or endpoint.last) if is_shown else None
        yield Finding(
            name=check.name, asks=check.asks, verdict=result.verdict, text=result.text, request=request
        )  # fmt: skip


async def _run(check: Check, endpoint: Endpoint) -> Result:
    try:
        return await check.run(endpoint)
    except Refused as error:
        return Result("missing" if check.is_optional else "broken", f"refused with {error}", error.request)
    except Failed as error:
        return Result("broken", str(error), error.request)
