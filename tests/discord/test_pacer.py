"""What a channel sees of random wishes, answers, limits and failures, and what the pacer does in each case."""

import heapq
from collections import defaultdict
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.discord.pacer import Pacer, Rate

EVERY_S = 2.0
KEYS = ["a", "b", "c"]
EMOJI = ["T", "W", "D"]


class Channel:
    """A channel that answers after a while, within a bucket for edits and one for reactions; it keeps what it saw."""

    def __init__(self, pacer, size, window_s, latencies, faults):
        self.pacer = pacer
        self.size, self.window_s = size, window_s
        self.latencies, self.faults = latencies, faults
        self.spent = defaultdict(list)
        self.sent = []  # (time of arrival, request)
        self.shown = defaultdict(list)  # (time, content) by message
        self.reactions = defaultdict(set)
        self.limits = []  # (kind or None, number of requests before, until): 429s as the caller knows them

    def answer(self, send, now):
        """When the request is answered, and what the caller then says."""
        number = len(self.sent)
        self.sent.append((now, send))
        after = now + self.latencies[number % len(self.latencies)]
        fault = self.faults[number % len(self.faults)]
        if fault in ("429", "global"):
            return after, lambda at: self.limit(send, at, 3.0, is_global=fault == "global")
        spent = self.spent[send.kind]
        recent = [one for one in spent if now - one < self.window_s - 1e-9]
        if send.kind in ("edit", "react") and len(recent) >= self.size:
            left = recent[0] + self.window_s - now
            return after, lambda at: self.limit(send, at, left, is_global=False)
        if fault == "lost":
            return after, lambda at: self.pacer.postpone(send, at, 1.0)
        spent.append(now)
        rate = Rate(remaining=self.size - len(recent) - 1, reset_after_s=(recent or [now])[0] + self.window_s - now)
        self.apply(send, now)
        return after, lambda at: self.pacer.done(send, at, rate if send.kind in ("edit", "react") else None)

    def limit(self, send, at, after_s, *, is_global):
        self.limits.append((None if is_global else send.kind, len(self.sent), at + after_s))
        self.pacer.postpone(send, at, after_s, is_global=is_global)

    def apply(self, send, now):
        if send.kind == "react":
            (self.reactions[send.key].add if send.is_added else self.reactions[send.key].discard)(send.emoji)
        elif send.kind != "delete":
            self.shown[send.key].append((now, send.content))


def play(pacer, channel, wishes, until=600.0):
    """Let wishes (time, function) happen and requests be answered; return when nothing was left to do."""
    events, count = [], 0
    for at, wish in wishes:
        heapq.heappush(events, (at, count := count + 1, wish))
    now = 0.0
    while True:
        while (send := pacer.next(now)) is not None:
            after, outcome = channel.answer(send, now)
            heapq.heappush(events, (after, count := count + 1, outcome))
        times = [at for at in (events[0][0] if events else None, pacer.next_at()) if at is not None]
        if not times:
            return now
        assert min(times) >= now or pacer.next(now) is None
        now = max(now, min(times))
        assert now < until, "never done"
        while events and events[0][0] <= now:
            _, _, happen = heapq.heappop(events)
            happen(now)


@st.composite
def runs(draw):
    """Wishes for three messages: contents that only grow, with a last one each, and reactions."""
    wishes, last = [], {}
    now = defaultdict(float)
    for number in range(draw(st.integers(1, 40))):
        key = draw(st.sampled_from(KEYS))
        now[key] += draw(st.sampled_from([0.0, 0.1, 0.7, 2.0, 5.0]))
        if draw(st.integers(0, 3)):
            wishes.append((now[key], "want", key, number, False))
        else:
            wishes.append((now[key], "react", key, draw(st.sampled_from(EMOJI)), draw(st.booleans())))
    for key in KEYS:
        if any(wish[1:3] == ("want", key) for wish in wishes) and draw(st.booleans()):
            wishes.append((now[key], "want", key, 1000, True))
    wishes.sort(key=lambda wish: wish[0])
    for wish in wishes:
        if wish[1] == "want":
            last[wish[2]] = wish[3]
    return wishes, last


channels = st.tuples(
    st.integers(1, 5),
    st.sampled_from([0.25, 1.0, 5.0]),
    st.lists(st.sampled_from([0.0, 0.05, 0.3, 2.5]), min_size=1, max_size=7),
    st.lists(st.sampled_from(["", "", "", "", "429", "global", "lost"]), min_size=1, max_size=11).filter(
        lambda faults: "" in faults
    ),
)


def wish_of(pacer, at, kind, key, what, flag):
    if kind == "want":
        return at, lambda now: pacer.want(key, what, now, is_final=flag)
    return at, lambda now: pacer.react(key, what, now, is_added=flag)


@settings(max_examples=60)
@given(runs(), channels)
def test_what_holds_of_every_channel(run, circumstances):
    wishes, last = run
    pacer = Pacer(edit_every_s=EVERY_S)
    channel = Channel(pacer, *circumstances)
    wanted = defaultdict(dict)
    for _, kind, key, what, flag in wishes:
        if kind == "react":
            wanted[key][what] = flag
    for key in KEYS:
        if all(one[1:3] != ("want", key) for one in wishes):
            pacer.adopt(key)
    play(pacer, channel, [wish_of(pacer, *rest) for rest in wishes])

    assert pacer.is_idle
    assert {key: states[-1][1] for key, states in channel.shown.items()} == last, "the final state was not shown"
    for states in channel.shown.values():
        contents = [content for _, content in states]
        assert contents == sorted(set(contents)), "an older state was shown after a newer one"
        times = [at for at, content in states if content != 1000]
        assert all(later - earlier >= EVERY_S - 1e-9 for earlier, later in pairwise(times))
    for kind, before, until in channel.limits:
        for at, send in channel.sent[before:]:
            assert at >= until or kind not in (None, send.kind), "sent while a 429 was on"
    for key, flags in wanted.items():
        assert channel.reactions[key] == {emoji for emoji, is_on in flags.items() if is_on}


@settings(max_examples=60)
@given(runs(), st.lists(st.sampled_from([0.0, 0.05, 0.3]), min_size=1, max_size=7))
def test_announced_limits_are_never_run_into(run, latencies):
    """With what the headers say and one request of a kind at a time, none is refused."""
    pacer = Pacer(edit_every_s=0.5)
    channel = Channel(pacer, 2, 5.0, latencies, [""])
    wishes = [wish_of(pacer, *rest) for rest in run[0]]
    for key in KEYS:
        if all(one[1:3] != ("want", key) for one in run[0]):
            pacer.adopt(key)
    play(pacer, channel, wishes)
    assert not channel.limits


def drained(pacer, now):
    found = []
    while (send := pacer.next(now)) is not None:
        found.append(send)
    return found


@pytest.fixture
def pacer():
    return Pacer(edit_every_s=EVERY_S)


def shown(pacer, key="a", at=0.0):
    """Create a message."""
    pacer.want(key, f"{key}0", at)
    (send,) = drained(pacer, at)
    pacer.done(send, at)


def test_a_message_is_created_then_edited_with_the_newest_state(pacer):
    shown(pacer)
    pacer.want("a", "a1", 0.5)
    pacer.want("a", "a2", 1.0)
    assert drained(pacer, 1.9) == [] and pacer.next_at() == 2.0
    (send,) = drained(pacer, 2.0)
    assert (send.kind, send.content) == ("edit", "a2")
    pacer.want("a", "a3", 2.1, is_final=True)
    assert drained(pacer, 9.0) == [] and pacer.next_at() is None and not pacer.is_idle, "one is on its way"
    pacer.done(send, 9.0)
    (send,) = drained(pacer, 9.0)
    assert send.content == "a3"


def test_the_last_state_waits_for_no_interval(pacer):
    shown(pacer)
    pacer.want("a", "end", 0.1, is_final=True)
    assert [send.content for send in drained(pacer, 0.1)] == ["end"]


def test_what_is_shown_already_is_not_sent(pacer):
    shown(pacer)
    pacer.want("a", "a1", 0.5)
    pacer.want("a", "a0", 1.0)
    assert drained(pacer, 9.0) == [] and pacer.is_idle


def test_messages_are_created_in_order_and_one_at_a_time(pacer):
    for key in "abc":
        pacer.want(key, key, 0.0)
    for key in "abc":
        (send,) = drained(pacer, 0.0)
        assert (send.kind, send.key) == ("create", key)
        pacer.done(send, 0.0)


def test_messages_of_a_channel_take_turns_where_edits_are_scarce(pacer):
    for key in KEYS:
        shown(pacer, key)
    order, now = [], 2.0
    for number in range(30):
        for key in KEYS:
            pacer.want(key, f"{key}{number + 1}", now)
        (send,) = drained(pacer, now)
        order.append(send.key)
        pacer.done(send, now, Rate(remaining=0, reset_after_s=1.0))
        now += 1.0
    assert len(order) == 30 and {key: order.count(key) for key in KEYS} == {"a": 10, "b": 10, "c": 10}
    assert all(set(order[at : at + 3]) == set(KEYS) for at in range(27))


def test_edits_are_spread_over_what_the_headers_leave_but_not_the_last(pacer):
    shown(pacer, "a")
    shown(pacer, "b")
    pacer.want("a", "a1", 0.0)
    (send,) = drained(pacer, 2.0)
    pacer.done(send, 2.0, Rate(remaining=1, reset_after_s=5.0))
    pacer.want("b", "b1", 2.0)
    assert pacer.next_at() == 4.5
    pacer.want("b", "b2", 2.0, is_final=True)
    (send,) = drained(pacer, 2.0)
    pacer.done(send, 2.0, Rate(remaining=0, reset_after_s=4.0))
    pacer.want("a", "a2", 2.1, is_final=True)
    assert drained(pacer, 5.9) == [] and pacer.next_at() == 6.0


def test_reactions_go_in_order_behind_edits(pacer):
    shown(pacer)
    pacer.adopt("question")
    for emoji, is_added in (("T", True), ("T", False), ("W", True)):
        pacer.react("question", emoji, 0.0, is_added=is_added)
    pacer.want("a", "end", 0.0, is_final=True)
    first, second = drained(pacer, 0.0)
    assert first.kind == "edit" and (second.kind, second.emoji, second.is_added) == ("react", "T", True)
    pacer.done(second, 0.1, Rate(remaining=0, reset_after_s=0.25))
    assert drained(pacer, 0.3) == []
    (third,) = drained(pacer, 0.35)
    assert (third.emoji, third.is_added) == ("T", False)


def test_while_a_429_is_on_only_the_last_reactions_count(pacer):
    pacer.react("question", "T", 0.0)
    (send,) = drained(pacer, 0.0)
    pacer.react("question", "T", 0.1, is_added=False)
    pacer.react("question", "W", 0.1)
    pacer.postpone(send, 0.2, 5.0)
    pacer.react("question", "W", 1.0, is_added=False)
    pacer.react("question", "D", 1.0)
    assert drained(pacer, 5.1) == []
    (send,) = drained(pacer, 5.2)
    assert (send.emoji, send.is_added) == ("D", True)


def test_a_reaction_on_its_way_counts_as_there(pacer):
    pacer.react("question", "T", 0.0)
    (away,) = drained(pacer, 0.0)
    shown(pacer)
    pacer.want("a", "a1", 0.0, is_final=True)
    (edit,) = drained(pacer, 0.0)
    pacer.postpone(edit, 0.0, 5.0)
    pacer.react("question", "T", 0.1, is_added=False)
    pacer.done(away, 0.2)
    (send,) = drained(pacer, 0.2)
    assert (send.emoji, send.is_added) == ("T", False)


def test_a_global_429_stops_all_and_others_only_their_kind(pacer):
    shown(pacer)
    pacer.want("a", "a1", 0.0, is_final=True)
    (edit,) = drained(pacer, 0.0)
    pacer.postpone(edit, 0.0, 5.0)
    pacer.want("b", "b0", 0.1)
    (create,) = drained(pacer, 0.1)
    pacer.postpone(create, 0.1, 10.0, is_global=True)
    assert drained(pacer, 10.0) == [] and pacer.next_at() == pytest.approx(10.1)
    assert {send.kind for send in drained(pacer, 10.2)} == {"edit", "create"}


def test_a_message_to_delete_is_edited_no_more(pacer):
    shown(pacer)
    pacer.want("a", "a1", 0.0)
    pacer.remove("a")
    assert not pacer.knows("a")
    (send,) = drained(pacer, 0.0)
    assert send.kind == "delete"
    pacer.done(send, 0.1)
    assert pacer.is_idle
    pacer.want("never", "x", 0.2)
    pacer.remove("never")
    assert drained(pacer, 9.0) == []


def test_messages_that_are_wanted_again_while_they_are_deleted_stand_in_their_order(pacer):
    """The last one goes first: it is created again behind the one that was not deleted yet."""
    for key in ("b", "c"):
        pacer.adopt(key, "old")
        pacer.remove(key)
    (send,) = drained(pacer, 0.0)
    assert (send.kind, send.key) == ("delete", "c")
    pacer.want("b", "b1", 0.1, is_final=True)
    pacer.want("c", "c1", 0.1, is_final=True)
    (edit,) = drained(pacer, 0.2)
    assert (edit.kind, edit.key, edit.content) == ("edit", "b", "b1")
    pacer.done(send, 0.3)
    pacer.done(edit, 0.3)
    (create,) = drained(pacer, 0.4)
    assert (create.kind, create.key, create.content) == ("create", "c", "c1")
    pacer.done(create, 0.5)
    assert pacer.is_idle and pacer.knows("c")


def test_a_message_that_is_being_created_is_deleted_afterwards(pacer):
    pacer.want("a", "a0", 0.0)
    (create,) = drained(pacer, 0.0)
    pacer.remove("a")
    assert drained(pacer, 0.0) == []
    pacer.done(create, 0.1)
    assert [send.kind for send in drained(pacer, 0.1)] == ["delete"]


def test_what_failed_for_good_is_given_up(pacer):
    shown(pacer)
    pacer.want("a", "a1", 0.0, is_final=True)
    (send,) = drained(pacer, 0.0)
    pacer.failed(send, 0.1)
    assert pacer.is_idle and not pacer.knows("a")
    pacer.react("question", "T", 0.2)
    (send,) = drained(pacer, 0.2)
    pacer.failed(send, 0.3)
    assert pacer.is_idle and pacer.knows("question")


def test_what_others_deleted_is_forgotten_while_a_request_is_on_its_way(pacer):
    shown(pacer)
    pacer.want("a", "a1", 0.0, is_final=True)
    (send,) = drained(pacer, 0.0)
    pacer.forget("a")
    pacer.done(send, 0.1)
    assert pacer.is_idle and drained(pacer, 9.0) == []


def test_a_released_message_is_forgotten_when_it_shows_what_is_wanted(pacer):
    shown(pacer)
    pacer.react("a", "D", 0.0)
    pacer.want("a", "end", 0.0, is_final=True)
    pacer.release("a")
    for send in drained(pacer, 0.0):
        assert pacer.knows("a")
        pacer.done(send, 0.1)
    assert not pacer.knows("a")
