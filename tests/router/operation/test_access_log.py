"""Log lines of a router: one for each request, failure and change of a backend, none for what goes well."""

import logging

import pytest

from eyas.base.logs import FIELDS
from eyas.router.manager.happenings import HAPPENINGS, Happening
from eyas.router.operation.access_log import AccessLog
from eyas.router.relay.outcome import Outcome, Trip


@pytest.fixture
def lines(caplog):
    """A log, and its lines as (level, message, fields that have a value)."""
    caplog.set_level(logging.DEBUG, logger="eyas.router")

    def read():
        found = [
            (record.levelname, record.message, {k: v for k, v in getattr(record, FIELDS).items() if v is not None})
            for record in caplog.records
        ]
        caplog.clear()
        return found

    return AccessLog(lambda text: text.replace("sesame", "[key]")), read


def test_a_request(lines):
    log, read = lines
    common = {"request_id": "r1", "path": "/v1/messages", "model": "m", "backend": "a", "num_asked": 2, "e2e_s": 1.5}
    log.record(Outcome(status=200, route="MATH", queue_s=0.0012, ttft_s=0.25, **common))
    log.record(Outcome(status=400, error="it quotes the request", **common))
    log.record(Outcome(status=502, error="sesame is wrong", **common))
    whole, refused, failed = read()
    assert whole == (
        "INFO",
        "request",
        {"id": "r1", "path": "/v1/messages", "status": 200, "model": "m", "route": "MATH", "backend": "a", "asked": 2,
         "queue_ms": 1.2, "ttft_ms": 250.0, "e2e_ms": 1500.0},
    )  # fmt: skip
    assert refused[0] == "INFO" and "error" not in refused[2]
    assert failed[0] == "WARNING" and failed[2]["error"] == "[key] is wrong"


def test_what_happens(lines):
    log, read = lines
    for kind in HAPPENINGS:
        log.happened(Happening(time_s=1.0, kind=kind, backend="a", text="sesame"))
    assert [message for _, message, _ in read()] == ["failed", "breaker", "condition", "loops"]
    log.happened(Happening(time_s=1.0, kind="breaker", backend="a", breaker="open", text="5 failures"))
    log.happened(Happening(time_s=1.0, kind="breaker", backend="a", breaker="closed"))
    log.happened(Happening(time_s=1.0, kind="failed", backend="a", model="m", failure="budget", text="sesame"))
    opened, closed, failed = read()
    assert opened == ("WARNING", "breaker", {"backend": "a", "state": "open", "text": "5 failures"})
    assert closed == ("INFO", "breaker", {"backend": "a", "state": "closed"})
    assert failed == ("WARNING", "failed", {"backend": "a", "model": "m", "failure": "budget", "text": "[key]"})


def test_a_loop(lines):
    log, read = lines
    log.record(Trip(backend="a", model="m", kind="one_symbol", action="observe"))
    ((level, _, values),) = read()
    assert level == "WARNING"
    assert values == {"backend": "a", "model": "m", "kind": "one_symbol", "action": "observe"}
