"""`eyas serve` from outside: what it says, how signals end it, and what clients hear meanwhile."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from tests.gateway.support.gateway import eventually
from tests.support.serving import LIMIT_S, events_of, served

from eyas.base.errors import UserError
from eyas.base.settings.config import ServeConfig
from eyas.gateway.operation.serving import SAME_SIGNAL_S
from eyas.gateway.server.hosts import Hosts
from eyas.serve import check_random, gateway_options


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_stops_an_idle_server(number):
    with served("null", "--served-name", "bird") as server:
        assert server.lines[0].startswith("model    null (SIMULATED: no model")
        assert server.get("/ready").json()["model"] == "bird"
        pid = server.engine_pid
        code, _, err = server.stop(number)
        assert (code, err) == (0, "") and not Path(f"/proc/{pid}").exists()
        socket.create_server(("127.0.0.1", server.port)).close()


def test_running_answers_end_while_new_ones_are_refused():
    with served("null:20", "--drain", "60") as server, server.ask(stream=True, max_tokens=100) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        server.until_ready(503)
        assert server.get("/ready").json()["error"] == "the server is stopping"
        with server.ask() as refused:
            assert refused.status_code == 503 and b"stopping" in refused.read()
        events = events_of(lines)
        assert events[-1] == "[DONE]" and events[-2]["choices"][0]["finish_reason"] == "stop"
        assert server.process.wait(30) == 0 and "WARNING stopping: running answers get 60 s" in server.log


def test_an_answer_that_outlasts_the_time_to_drain_is_told_so():
    with served("null:20", "--drain", "1") as server, server.ask(stream=True, max_tokens=20_000) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        last = events_of(lines)[-1]
        assert last["error"]["message"] == "the request was cancelled: the server is stopping"
        assert server.process.wait(30) == 0 and "WARNING stopping: running answers get 1 s" in server.log


def test_a_second_signal_does_not_wait():
    with served("null:20", "--drain", "3600") as server, server.ask(stream=True, max_tokens=20_000) as response:
        lines = response.iter_lines()  # to be kept: httpx closes the connection when nothing iterates any more
        next(lines)
        server.process.send_signal(signal.SIGINT)
        server.until_ready(503)
        time.sleep(SAME_SIGNAL_S + 0.1)
        server.until_ready(503)
        code, _, log = server.stop(signal.SIGINT)
        assert code == 0 and "Traceback" not in log
        assert events_of(lines)[-1]["error"]["message"] == "the request was cancelled: the server is stopping"


def test_a_signal_that_comes_twice_at_once_is_one():
    with served("null:20", "--drain", "60") as server, server.ask(stream=True, max_tokens=100) as response:
        lines = response.iter_lines()
        next(lines)
        for _ in range(2):
            server.process.send_signal(signal.SIGTERM)
            server.until_ready(503)
        assert events_of(lines)[-1] == "[DONE]"
        server.process.communicate(timeout=LIMIT_S)
        assert server.process.returncode == 0 and "Traceback" not in server.log


@pytest.mark.parametrize("is_busy", [pytest.param(False, marks=pytest.mark.slow), True], ids=["idle", "busy"])
def test_an_open_live_view_holds_no_stop_up(is_busy):
    with served("null:20", "--drain", "1") as server, ExitStack() as stack:
        lines = stack.enter_context(httpx.stream("GET", f"{server.url}/live", timeout=LIMIT_S)).iter_lines()
        next(lines)
        if is_busy:
            answer = stack.enter_context(server.ask(stream=True, max_tokens=20_000)).iter_lines()
            next(answer)
        server.process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        assert any('"the server is stopping"' in line for line in lines)
        assert server.process.wait(30) == 0
        print(f"\nstopped after {time.monotonic() - began:.2f} s")
        assert "ERROR" not in server.log and "Traceback" not in server.log and (is_busy or server.log == "")


@contextmanager
def unheard(kind):
    """Standard output and error of which nobody hears anything."""
    if kind == "full disk":
        with Path("/dev/full").open("w") as full:
            yield {"stdout": full, "stderr": full}
    elif kind == "none":
        yield {"preexec_fn": lambda: [os.close(number) for number in (0, 1, 2)]}
    else:
        reader, writer = map(open, os.pipe(), "rw")
        with reader, writer:
            if kind == "closed pipe":
                reader.close()
            else:
                os.set_blocking(writer.fileno(), False)
                with suppress(BlockingIOError):
                    while True:
                        os.write(writer.fileno(), b"x" * 4096)
                os.set_blocking(writer.fileno(), True)
            yield {"stdout": writer if reader.closed else subprocess.DEVNULL, "stderr": writer}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("full disk", marks=pytest.mark.slow),
        "closed pipe",
        "pipe that nobody reads",
        pytest.param("none", marks=pytest.mark.slow),
    ],
)
def test_a_server_that_nobody_hears_serves_and_stops(kind):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{(port := listener.getsockname()[1])}"
    command = [sys.executable, "-m", "eyas", "serve", "null:20", "--port", str(port), "--drain", "1"]
    with unheard(kind) as streams, subprocess.Popen(command, **streams) as process:
        try:
            with httpx.Client(transport=httpx.HTTPTransport(retries=8), timeout=LIMIT_S) as client:
                body = {"prompt": "Hi", "stream": True, "max_tokens": 20_000}
                with client.stream("POST", f"{url}/v1/completions", json=body) as response:
                    next(lines := response.iter_lines())
                    process.send_signal(signal.SIGTERM)
                    assert "the server is stopping" in events_of(lines)[-1]["error"]["message"]
            assert process.wait(30) == 0
        finally:
            process.kill()


def half_closed(server, **fields) -> socket.socket:
    """A connection that has sent a chat request and no more can send."""
    body = json.dumps({"messages": [{"role": "user", "content": "Hi"}]} | fields).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: {server.url.removeprefix('http://')}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    one = socket.create_connection(("127.0.0.1", server.port), timeout=LIMIT_S)
    one.sendall(head.encode() + body)
    one.shutdown(socket.SHUT_WR)
    return one


def test_a_half_closed_connection_is_answered_and_a_closed_one_is_noticed():
    with served("null:20") as server:
        for stream in (True, False):  # an interim response comes after 0.25 s
            with half_closed(server, stream=stream, max_tokens=40) as one, one.makefile("rb") as file:
                data = file.read()
            assert b"HTTP/1.1 200 OK" in data and data.count(b"100 Continue") == (not stream)
            assert data.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n" if stream else b"}"), data[-100:]
            half_closed(server, stream=stream, max_tokens=20_000).close()
            assert eventually(lambda: server.log.count("status=499") == 2 - stream)  # noqa: B023


def test_keys_are_wanted_and_a_public_address_without_them_is_warned_of():
    with served("null", "--host", "0.0.0.0", "--allowed-hosts", "eyas,*.internal") as server:
        assert any(line.startswith("WARNING: listening on 0.0.0.0 without API keys") for line in server.lines)
        for name, status in {"eyas:8000": 200, "a.internal": 200, "10.0.0.7": 200, "box": 403}.items():
            assert httpx.get(f"{server.url}/v1/models", headers={"host": name}).status_code == status, name
    with served("null", "--host", "0.0.0.0", "--api-key", "crow") as server:
        assert not any("WARNING" in line for line in server.lines)
        assert server.get("/v1/models").status_code == 401 and server.get("/ready").status_code == 200
        assert httpx.get(f"{server.url}/ready", headers={"host": "any.example"}).status_code == 200


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "text"),
        ({"host": "0.0.0.0"}, "blank"),
        ({"host": "0.0.0.0", "live": "text"}, "text"),
        ({"live": "off"}, "off"),
    ],
)
def test_the_live_view_shows_text_on_a_loopback_address_only(tmp_path, config, expected):
    assert gateway_options(ServeConfig(**config), tmp_path).live == expected


def test_options_come_from_settings_and_the_models_folder(tmp_path):
    (tmp_path / "generation_config.json").write_text('{"do_sample": true, "temperature": 0.5, "eos_token_id": [1]}')
    config = ServeConfig(api_key="a,b", cors="https://x.example", max_body=4096, trace="steps.jsonl", served_name="n")
    options = gateway_options(config, tmp_path)
    assert options.defaults == {"temperature": 0.5} and options.tokenizer_json == tmp_path / "tokenizer.json"
    assert (len(options.key_digests), options.cors_origins) == (2, ("https://x.example",))
    assert options.hosts == Hosts()
    assert (options.max_body, options.trace, options.served_name) == (4096, Path("steps.jsonl"), "n")
    with pytest.raises(UserError, match="cors takes origins"):
        gateway_options(ServeConfig(cors="x"), tmp_path)


@pytest.mark.slow
def test_random_weights_are_served_as_what_they_are():
    with served("random:tiny", "--simulate-acceptance", "0.7", "--draft-tokens", "3") as server:
        assert server.lines[0].startswith("model    random:tiny (SIMULATED: random weights)")
        assert "drafter  eagle3" in server.lines[1] and "acceptance set to 0.7" in server.lines[1]
        assert server.get("/v1/models").json()["data"][0]["simulated"].startswith("SIMULATED")
        with server.ask(stream=True, max_tokens=100, stream_options={"include_usage": True}) as response:
            *chunks, last, _ = events_of(response.iter_lines())
        assert sum("content" in chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]) > 20
        assert last["usage"]["completion_tokens"] == 100
        metrics = next(chunk["metrics"] for chunk in [*chunks, last] if "metrics" in chunk)
        length = metrics["speculative_decoding"]["mean_acceptance_length"]
        assert abs(length - 2.53) < 0.3  # 1 + 0.7 + 0.49 + 0.343


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "random:tiny", "host": "0.0.0.0"}, "leave out --host 0.0.0.0"),
        ({"model": "random:tiny", "host": "box.example", "api_key": "crow"}, "leave out --host box.example"),
        ({"model": "demo", "simulate_acceptance": "0.7"}, "'demo' has its own"),
    ],
)
def test_random_weights_are_for_this_machine_and_set_acceptance_for_them(options, message):
    with pytest.raises(UserError, match=message):
        check_random(ServeConfig(**options))
    check_random(ServeConfig(model="random:tiny", host="localhost", simulate_acceptance="0.7"))
