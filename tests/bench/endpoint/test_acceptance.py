"""Counters of a server over a window, read from a server that counts, restarts, or is gone; and the words for them."""

import asyncio
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
import pytest
from tests.bench.endpoint.test_verdict import window

from eyas.bench.endpoint.acceptance import acceptance_lines, side_of
from eyas.bench.endpoint.records import Counts
from eyas.bench.endpoint.target import Arm, Endpoint


def page(rounds, positions, started=1.0):
    """What vLLM's `/metrics` says."""
    lines = [
        f"vllm:spec_decode_num_drafts_total {rounds}",
        f"vllm:spec_decode_num_draft_tokens_total {rounds * len(positions)}",
        f"vllm:spec_decode_num_accepted_tokens_total {sum(positions)}",
        f"process_start_time_seconds {started}",
    ]
    lines += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{at}"}} {count}'
        for at, count in enumerate(positions)
    ]
    return "\n".join(lines) + "\n"


@contextmanager
def engine(*pages):
    """A server whose `/metrics` is one page after the other; None is an error. It records the keys that it is sent."""
    left, keys = list(pages), []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            keys.append(self.headers.get("Authorization"))
            text = left.pop(0)
            self.send_response(200 if text is not None else 500)
            self.end_headers()
            self.wfile.write((text or "").encode())

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        arm = Arm(name="on", url=f"http://127.0.0.1:{server.server_port}/v1", key="secret")
        yield side_of(arm, Endpoint(root=arm.url.removesuffix("/v1"), model="m", engine="vllm")), keys
        server.shutdown()


def over_a_window(*pages):
    async def go(side):
        counters = side.acceptance.counters()
        await counters.begin()
        return await counters.end()

    with engine(*pages) as (side, keys):
        found = asyncio.run(go(side))
    assert keys == ["Bearer secret"] * 2
    return found


def test_what_was_counted_in_a_window():
    counts, why = over_a_window(page(10, (5, 1)), page(110, (75, 31)))
    assert (counts.rounds, counts.accepted, counts.by_position, why) == (100, 100, (70, 30), "")
    assert counts.length == 2.0


def test_a_restart_in_between_makes_the_window_void():
    assert over_a_window(page(10, (5, 1)), page(4, (2, 0))) == (
        None,
        "the server has started again in between: its count of rounds fell from 10 to 4",
    )
    _, why = over_a_window(page(10, (5, 1), started=1.0), page(110, (75, 31), started=2.0))
    assert why == "the server has started again in between"


@pytest.mark.parametrize("pages", [("", page(1, (1, 0))), (page(1, (1, 0)), None), (None, None), ("{", "<html>")])
def test_an_engine_without_counters_makes_no_window_void(pages):
    assert over_a_window(*pages) == (None, "")


def test_an_engine_that_wants_to_be_asked_is_asked():
    arm = Arm(name="on", url="http://x:1", fields={"temperature": 0})
    side = side_of(arm, Endpoint(root="http://x:1", model="m", engine="sglang"))
    assert side.arm.fields == {"temperature": 0, "return_spec_tokens_details": True}
    details = {"spec_verify_ct": 2, "spec_num_correct_drafts": 3, "spec_correct_drafts_histogram": [0, 1, 1]}
    events = [b'{"choices": []}', json.dumps({"choices": [], "sglext": {"spec_tokens_details": details}}).encode()]
    assert side.acceptance.counts_of(events).length == 2.5


def test_an_unknown_engine_says_nothing():
    side = side_of(Arm(name="x", url="http://127.0.0.1:9"), Endpoint(root="http://127.0.0.1:9", model="m"))
    assert side.acceptance.counts_of([b"{}"]) is None
    assert side.acceptance.read().not_offered == "the engine is unknown"


def counts(rounds, *positions):
    return Counts.of_positions(rounds, positions, source="/metrics", drafted=rounds * len(positions))


def test_words_for_counters_and_requests():
    windows = [window("on", 100.0, turn=turn, counts=counts(100, 80, 50 + 10 * turn)) for turn in range(2)]
    of_request = [msgspec.structs.replace(windows[0].records[0], counts=counts(10, 10, 10)), windows[0].records[0]]
    windows[0] = msgspec.structs.replace(windows[0], records=tuple(of_request))
    windows.append(window("on", 100.0, turn=2, counts=counts(100, 0, 0), void="the client was the bottleneck"))
    assert acceptance_lines(windows) == [
        "on, 1 at once: acceptance length 2.35 (200 rounds, /metrics); 3.00 by request; "
        "accepted by position, of all rounds: 80%, 55%"
    ]


def test_without_drafts_there_is_nothing_to_say():
    assert acceptance_lines([window("off", 100.0)]) == []
    assert acceptance_lines([window("off", 100.0, counts=Counts(rounds=9, accepted=0, drafted=0))]) == []
