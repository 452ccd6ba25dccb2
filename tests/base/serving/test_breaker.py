"""The circuit breaker: by name, and against a plain model for any order of events."""

from hypothesis import given
from hypothesis import strategies as st

from eyas.base.serving.breaker import Breaker, Ticket


def opened(now=0.0, **options):
    """A breaker that five failures have opened at `now`."""
    breaker = Breaker(**options)
    for _ in range(5):
        breaker.failed(breaker.enter(now), now)
    assert breaker.state == "open"
    return breaker


def test_five_failures_in_a_row_open_it_and_a_success_starts_the_count_again():
    breaker = Breaker()
    for _ in range(4):
        breaker.failed(breaker.enter(0.0), 0.0)
    breaker.succeeded(breaker.enter(0.0))
    for number in range(5):
        assert breaker.state == "closed" and breaker.failures == number
        breaker.failed(breaker.enter(1.0), 1.0)
    assert breaker.state == "open" and breaker.open_until == 61.0
    assert breaker.enter(60.999) is None and not breaker.allows(60.999)


def test_one_of_fifty_enters_when_the_time_is_up():
    breaker = opened()
    tickets = [breaker.enter(60.0) for _ in range(50)]
    assert [ticket for ticket in tickets if ticket] == tickets[:1] and tickets[0].is_probe
    assert breaker.state == "probing" and breaker.open_until is None


def test_the_outcome_of_the_probe_decides():
    breaker = opened()
    breaker.failed(breaker.enter(60.0), 75.0)
    assert breaker.state == "open" and breaker.open_until == 135.0
    breaker.succeeded(breaker.enter(135.0))
    assert breaker.state == "closed" and breaker.failures == 0 and not breaker.enter(135.0).is_probe


def test_a_probe_that_says_nothing_gives_its_place_to_the_next():
    breaker = opened()
    first = breaker.enter(70.0)
    breaker.give_back(first)
    second = breaker.enter(70.0)
    assert second.is_probe and breaker.enter(70.0) is None
    breaker.give_back(first)
    assert breaker.state == "probing", "a place is given back once"
    breaker.give_back(second)
    assert breaker.state == "open" and breaker.allows(70.0)


def test_what_was_on_its_way_changes_nothing():
    breaker = Breaker()
    early = [breaker.enter(0.0) for _ in range(20)]
    for ticket in early[:5]:
        breaker.failed(ticket, 1.0)
    breaker.failed(early[5], 50.0)
    assert breaker.open_until == 61.0, "a late failure does not keep it open for longer"
    breaker.succeeded(early[6])
    assert breaker.state == "open", "a late success does not close it"
    probe = breaker.enter(61.0)
    breaker.failed(early[7], 61.5)
    breaker.succeeded(early[8])
    breaker.give_back(early[9])
    assert breaker.state == "probing", "the probe alone decides"
    breaker.succeeded(probe)
    for ticket in early[10:]:
        breaker.failed(ticket, 62.0)
    assert breaker.state == "closed" and breaker.failures == 0


def test_a_server_that_was_started_again_may_be_probed_at_once():
    breaker = opened()
    breaker.retry(10.0)
    assert breaker.enter(10.0).is_probe
    closed = Breaker()
    closed.retry(0.0)
    assert closed.enter(0.0) == Ticket(0, False)


STEPS = st.lists(
    st.tuples(st.sampled_from(["enter", "succeeded", "failed", "give_back"]), st.integers(0, 5), st.integers(0, 40)),
    max_size=80,
)


@given(STEPS)
def test_it_does_what_a_plain_model_does(steps):
    """The model keeps all requests in a list; the breaker hears of any of them, in any order."""
    breaker, now = Breaker(max_failures=3), 0.0
    inside = []  # (ticket, epoch in which it entered)
    epoch, row, until, probe = 0, 0, None, None  # until: open; probe: inside alone
    for what, index, pause in steps:
        now += pause
        if what == "enter":
            ticket = breaker.enter(now)
            assert (ticket is not None) == (probe is None if until is None else now >= until)
            if ticket is None:
                continue
            assert ticket.is_probe == (until is not None)
            if ticket.is_probe:
                epoch, until, probe = epoch + 1, None, ticket
            inside.append((ticket, epoch))
        elif inside:
            ticket, entered = inside.pop(index % len(inside))
            breaker.failed(ticket, now) if what == "failed" else getattr(breaker, what)(ticket)
            if entered == epoch and until is None and (probe is None or ticket is probe):
                row = 0 if what == "succeeded" else row + (what == "failed")
                if what == "failed" and (ticket is probe or row >= 3):
                    until = now + 60.0
                if ticket is probe and what == "give_back":
                    until = now
                probe = None if ticket is probe else probe
        assert breaker.state == ("open" if until is not None else "probing" if probe else "closed")
        assert breaker.failures == row
