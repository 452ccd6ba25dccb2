"""`eyas bench http` against null servers of its own and against a server by its address, and its client."""

import asyncio
import json
import os

import httpx
import pytest
from tests.gateway.conftest import stub_server

from eyas import cli
from eyas.base.errors import UserError
from eyas.bench.http.client import APIS, Connection, Target
from eyas.bench.http.load import cpu_seconds, run_streams
from eyas.gateway.operation.auth import digests

SMALL = ("--repeats", "1", "--seconds", "1", "--streams", "4", "--requests", "5", "--max-tokens", "16")


def bench(capsys, *argv):
    assert cli.main(["bench", "http", *argv]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out.splitlines()[:-1], json.loads(out.splitlines()[-1])


@pytest.fixture(scope="module")
def server(codec):
    with stub_server(codec, None, gateway={"key_digests": digests("key")}) as server:
        yield server


@pytest.mark.slow
def test_null_servers(capsys):
    lines, report = bench(capsys, *SMALL, "--pause", "5")
    flat, paced = report["figures"]["flat out"], report["figures"]["paced"]
    for name in ("ttft_ms_p50", "ttft_ms_p95", "ttft_ms_p99", "added_ms_p50"):
        assert flat[name]["n"] == 1 and flat[name]["min"] > 0
    assert flat["added_ms_p50"]["median"] < flat["ttft_ms_p50"]["median"]
    for figures in (flat, paced):
        assert figures["cpu_us_per_chunk"]["median"] > 0 and 2 < figures["tokens_per_chunk"]["median"] < 4
    assert paced["chunks_per_s"]["max"] < 4 * 1000 / 5
    assert report["versions"]["uvicorn"] and report["hardware"]["cores"] and lines[1].startswith("hardware")
    assert any(line.strip().startswith("paced, with the streams") for line in lines)


@pytest.mark.slow
def test_messages_are_measured_in_turns_with_chat(capsys):
    lines, report = bench(capsys, *SMALL, "--api", "messages", "--pause", "5", "--history", "4000")
    figures = report["figures"]
    assert report["api"] == "messages"
    assert list(figures) == [f"{name}, {api}" for name in ("flat out", "paced") for api in ("chat", "messages")]
    for group in figures.values():
        assert group["cpu_us_per_chunk"]["median"] > 0 and 2 < group["tokens_per_chunk"]["median"] < 4
    for api in ("chat", "messages"):
        flat = figures[f"flat out, {api}"]
        assert flat["added_ms_p50"]["median"] < flat["ttft_ms_p50"]["median"]
        assert 3000 < flat["history_tokens"]["median"] < 5000 and flat["history_ratio"]["median"] > 0
    assert sum("TTFT with a history" in line for line in lines) == 1


def test_a_server_by_its_address(capsys, server):
    lines, report = bench(capsys, f"{server.url}/v1", "--model", "stub", "--api-key", "key", *SMALL)
    figures = report["figures"]["server"]
    assert figures["chunks_per_s"]["median"] > 0 and "cpu_us_per_chunk" not in figures
    assert report["url"] == f"{server.url}/v1" and not any("null" in line for line in lines[:6])


def test_the_client_sees_messages(server):
    target = Target.parse(server.url, model="stub", key="key", api=APIS["messages"])

    async def ask():
        async with Connection.open(target) as connection:
            return [await connection.ask(target.request("Hi", max_tokens=n)) for n in (12, 40)]

    for answer, max_tokens in zip(asyncio.run(ask()), (12, 40), strict=True):
        body = json.loads(target.request("Hi", max_tokens=max_tokens).partition(b"\r\n\r\n")[2])
        whole = httpx.post(f"{server.url}/v1/messages", json=body, headers={"x-api-key": "key"}).text
        events = [json.loads(line[6:]) for line in whole.splitlines() if line.startswith("data: {")]
        assert answer.num_events == sum(event["type"] == "content_block_delta" for event in events)
        usage = next(event["usage"] for event in events if event["type"] == "message_delta")
        assert answer.num_tokens == usage["output_tokens"] == max_tokens
        start = next(event["message"]["usage"] for event in events if event["type"] == "message_start")
        assert answer.num_prompt == start["input_tokens"] + start["cache_read_input_tokens"] > 0
        assert answer.sent < answer.first <= answer.last and answer.prompt_ms is None


def test_the_client_sees_what_is_there(server):
    """Events, tokens and the end of each answer, on one connection, against a client of general use."""
    target = Target.parse(server.url, model="stub", key="key")

    async def ask():
        async with Connection.open(target) as connection:
            return [await connection.ask(target.request("Hi", max_tokens=n)) for n in (12, 40, 12)]

    for answer, max_tokens in zip(asyncio.run(ask()), (12, 40, 12), strict=True):
        body = json.loads(target.request("Hi", max_tokens=max_tokens).partition(b"\r\n\r\n")[2])
        whole = httpx.post(f"{server.url}/v1/chat/completions", json=body, headers={"x-api-key": "key"}).text
        chunks = [json.loads(line[6:]) for line in whole.splitlines() if line.startswith("data: {")]
        assert answer.num_events == len(chunks) - 1 == sum(count for _, count in answer.events) - 2
        assert answer.num_tokens == chunks[-1]["usage"]["completion_tokens"] == max_tokens
        assert answer.num_prompt == chunks[-1]["usage"]["prompt_tokens"] > 0
        assert answer.sent < answer.first <= answer.last and answer.prompt_ms > 0


def test_streams_are_counted_within_the_window(server):
    target = Target.parse(server.url, model="stub", key="key")
    run = asyncio.run(run_streams(target, num_streams=3, max_tokens=20, warm_s=0.2, seconds=0.5, pid=os.getpid()))
    assert run.seconds > 0 and run.num_events > 0 and run.cpu_s > 0 and run.probes.ttft_ms
    assert 1 < run.num_tokens_per_event <= 5 and len(run.lags_ms) > 10


@pytest.mark.parametrize(
    ("url", "message"),
    [("https://x", "https is not measured"), ("nowhere", "no address"), ("http://127.0.0.1:9", "no server answers")],
)
def test_addresses_that_do_not_work(url, message, capsys):
    assert cli.main(["bench", "http", url]) == 1
    assert message in capsys.readouterr().err


def test_a_head_that_ends_with_a_zero_is_not_the_end():
    async def answers(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        body = b'{"error": {"message": "not today"}}'
        writer.write(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\nx-request-id: a0\r\n\r\n" % len(body))
        await writer.drain()
        await asyncio.sleep(0.05)
        writer.write(body)
        writer.close()

    async def main():
        async with await asyncio.start_server(answers, "127.0.0.1", 0) as server:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            target = Target.parse(url, model="m", key=None, api=APIS["chat"])
            async with Connection.open(target) as connection:
                await connection.ask(target.request("Hi", max_tokens=1))

    with pytest.raises(UserError, match="not today"):
        asyncio.run(main())


def test_a_refusal_is_shown(server, capsys):
    assert cli.main(["bench", "http", server.url, "--model", "stub", "--api-key", "wrong"]) == 1
    assert "needs a valid API key" in capsys.readouterr().err


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/", "/v1/chat/completions"])
def test_forms_of_an_address(suffix):
    target = Target.parse(f"http://box:81/base{suffix}", model="m")
    assert (target.host, target.port, target.path) == ("box", 81, "/base/v1/chat/completions")
    target = Target.parse(f"http://[::1]:81{suffix}", model="m")
    assert target.host == "::1" and b"\r\nHost: [::1]:81\r\n" in target.request("Hi", max_tokens=1)


def test_cpu_time_of_this_process():
    before = cpu_seconds(os.getpid())
    sum(i * i for i in range(2_000_000))
    assert cpu_seconds(os.getpid()) > before
