"""`eyas serve` from outside: what it says, how signals end it, and what clients hear meanwhile."""

import signal
import socket
from pathlib import Path

import pytest
from tests.serving import events_of, served

from eyas.base.config import ServeConfig
from eyas.base.errors import UserError
from eyas.serve import gateway_options


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_signal_stops_an_idle_server(number):
    with served("null", "--served-name", "bird") as server:
        assert server.lines[0].startswith("model    null")
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
        out, _ = server.process.communicate(timeout=30)
        assert server.process.returncode == 0 and "stopping: running answers get 60 s" in out


def test_an_answer_that_outlasts_the_time_to_drain_is_told_so():
    with served("null:20", "--drain", "1") as server, server.ask(stream=True, max_tokens=20_000) as response:
        lines = response.iter_lines()
        next(lines)
        server.process.send_signal(signal.SIGTERM)
        last = events_of(lines)[-1]
        assert last["error"]["message"] == "the request was cancelled: the server is stopping"
        out, _ = server.process.communicate(timeout=30)
        assert server.process.returncode == 0 and "stopping: running answers get 1 s" in out


def test_a_second_signal_does_not_wait():
    with served("null:20", "--drain", "3600") as server, server.ask(stream=True, max_tokens=20_000) as response:
        next(response.iter_lines())
        server.process.send_signal(signal.SIGINT)
        while not server.process.stdout.readline().startswith("stopping"):
            pass
        assert server.stop(signal.SIGINT)[0] == 0


def test_keys_are_wanted_and_a_public_address_without_them_is_warned_of():
    with served("null", "--host", "0.0.0.0") as server:
        assert any(line.startswith("WARNING: listening on 0.0.0.0 without API keys") for line in server.lines)
    with served("null", "--host", "0.0.0.0", "--api-keys", "crow") as server:
        assert not any("WARNING" in line for line in server.lines)
        assert server.get("/v1/models").status_code == 401 and server.get("/ready").status_code == 200


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
    config = ServeConfig(api_keys="a,b", cors="https://x.example", max_body=4096, trace="steps.jsonl", served_name="n")
    options = gateway_options(config, tmp_path)
    assert options.defaults == {"temperature": 0.5} and options.tokenizer_json == tmp_path / "tokenizer.json"
    assert (len(options.key_digests), options.cors_origins) == (2, ("https://x.example",))
    assert (options.max_body, options.trace, options.served_name) == (4096, Path("steps.jsonl"), "n")
    with pytest.raises(UserError, match="cors wants origins"):
        gateway_options(ServeConfig(cors="x"), tmp_path)
