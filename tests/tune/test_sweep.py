"""A sweep over engines that are only numbers: what is started, kept, left out and stopped, by a fake clock."""

import pytest
from tests.tune.support.bench import FakeHands, names_of, window

from eyas.tune.schedule import MIN_PAIRS, Arm, Belief, Cell, Contest, leader
from eyas.tune.sweep import Durations, arm_and_context, progress_of, sweep, window_name

SHORT, LONG = Cell(128, 4), Cell(2048, 4)
TRUTH = {"none": 100.0, "1": 120.0, "3": 150.0, ("3", LONG): 90.0, "7": 80.0}


def contest(is_shared=True, first_turn=0):
    return Contest(
        base="none",
        base_start_s=10.0,
        arms=tuple(
            Arm(name=name, start_s=10.0, prior=dict.fromkeys((SHORT, LONG), Belief(0.0, 0.3))) for name in "137"
        ),
        weights={SHORT: 2.0, LONG: 1.0},
        is_shared=is_shared,
        first_turn=first_turn,
    )


class Swept:
    """One sweep, its windows and what it said."""

    def __init__(self, hands, *, budget_s=900.0, grace_s=0.0, windows=(), one=None):
        self.hands, self.windows, self.kept, self.said = hands, list(windows), [], []
        self.contest = one or contest()
        self.outcome = sweep(
            self.contest,
            hands,
            self,
            windows=self.windows,
            overhead_s=3.0,
            answers_s=dict.fromkeys((SHORT, LONG), 1.0),
            deadline=hands.now + budget_s,
            end=hands.now + budget_s + grace_s,
            clock=hands.clock,
            say=self.said.append,
        )

    def add(self, one):
        self.kept.append(one)

    def progress(self):
        return progress_of(self.contest, self.windows, window_s=dict.fromkeys((SHORT, LONG), 4.0))


@pytest.mark.parametrize("is_shared", [True, False])
def test_the_fastest_of_each_load_is_found_and_everything_is_stopped(is_shared):
    swept = Swept(FakeHands(TRUTH), one=contest(is_shared))
    progress = swept.progress()
    assert [leader(swept.contest, progress, cell) for cell in (SHORT, LONG)] == ["3", "1"]
    assert len(progress.ratios["3", SHORT]) >= MIN_PAIRS
    assert swept.kept == swept.windows and swept.hands.up == [] and not swept.outcome.failed
    starts = [line for line in swept.hands.log if line[0] == "+"]
    assert starts[0] == "+none" and (starts.count("+none") == 1) == is_shared


def test_it_ends_in_time_and_learns_how_long_a_start_takes():
    hands = FakeHands(TRUTH, start_s=60.0)
    swept = Swept(hands, budget_s=200.0)
    assert hands.now <= 200.0 and swept.outcome.reason == "the time is over" and hands.up == []


def test_what_takes_longer_than_anything_before_is_cut_off_at_the_end():
    hands = FakeHands(TRUTH)
    hands.slow_s = [4.0, 4.0, 4.0, 1000.0]
    swept = Swept(hands, budget_s=200.0, grace_s=10.0)
    assert hands.now == 210.0 and swept.outcome.reason == "the time is over" and hands.up == []
    assert len(swept.kept) == 6 and swept.said[-1].endswith("is cut off: the time is over")


def test_a_start_that_does_not_end_is_given_up_at_the_end():
    hands = FakeHands(TRUTH, start_s=1000.0)
    swept = Swept(hands, budget_s=200.0)
    assert hands.now == 200.0 and swept.outcome.reason == "none: it is not ready"


def test_arms_that_do_not_start_or_answer_are_left_out_with_the_reason():
    swept = Swept(FakeHands(TRUTH, broken={"7"}, silent={"3"}))
    assert swept.outcome.failed == {"7": "it ended: out of memory", "3": "no answer"}
    assert leader(swept.contest, swept.progress(), SHORT) == "1" and swept.hands.up == []
    assert any("7 is left out: it ended" in line for line in swept.said)


def test_void_windows_count_for_nothing_and_three_in_a_row_are_enough():
    swept = Swept(FakeHands(TRUTH, void={"3"}))
    assert swept.outcome.failed == {"3": "the server restarted"}
    assert ("3", SHORT) not in swept.progress().ratios
    assert sum(arm_and_context(one.arm)[0] == "3" for one in swept.kept) == 3  # kept all the same


def test_two_pairs_in_a_row_that_fail_are_the_fault_of_the_base():
    swept = Swept(FakeHands(TRUTH, silent={"none"}))
    assert swept.outcome.reason == "none: no answer" and len(swept.outcome.failed) == 2 and swept.hands.up == []


def test_without_its_base_a_contest_is_over():
    swept = Swept(FakeHands(TRUTH, broken={"none"}))
    assert swept.outcome.reason == "none: it ended: out of memory" and swept.kept == []


def test_a_ctrl_c_stops_the_engines_and_what_was_kept_is_gone_on_with():
    hands = FakeHands(TRUTH)
    hands.interrupt_after = 60.0
    windows = []
    with pytest.raises(KeyboardInterrupt):
        sweep(
            contest(),
            hands,
            Kept(),
            windows=windows,
            overhead_s=3.0,
            answers_s=dict.fromkeys((SHORT, LONG), 1.0),
            deadline=900.0,
            end=900.0,
            clock=hands.clock,
            say=lambda _: None,
        )
    assert hands.up == [] and windows
    again = Swept(FakeHands(TRUTH, seed=1), windows=windows)
    assert again.windows[: len(windows)] == windows and len(again.kept) == len(again.windows) - len(windows)
    whole = Swept(FakeHands(TRUTH))
    assert abs(len(again.windows) - len(whole.windows)) <= 10
    turns = [(one.arm, one.load.concurrency, one.turn) for one in again.windows]
    assert len(turns) == len(set(turns))


class Kept:
    def add(self, one):
        pass


def test_contests_are_paired_within_themselves():
    own = [window("none", SHORT, 0, 100), window("3", SHORT, 0, 150), window("none", SHORT, 1000, 100)]
    assert progress_of(contest(), own, window_s={}).base_turns == {SHORT: 1}
    later = progress_of(contest(first_turn=1000), own, window_s={})
    assert later.base_turns == {SHORT: 1} and later.ratios == {}
    swept = Swept(FakeHands(TRUTH), windows=own, one=contest(first_turn=1000))
    assert {one.turn for one in swept.kept} <= set(range(1000, 1100)) and names_of(swept.kept) == {"none", *"137"}


def test_names_of_windows():
    assert arm_and_context(window_name("llama.cpp 3 drafts", 2048)) == ("llama.cpp 3 drafts", 2048)


def test_windows_are_expected_to_take_what_the_model_says_until_it_was_wrong():
    durations = Durations(3.0, {SHORT: 1.0, LONG: 20.0})
    assert (durations.expected(SHORT), durations.expected(LONG)) == (4.0, 23.0)
    durations.add(SHORT, 3.5)  # faster than expected says nothing of long prompts
    assert (durations.expected(SHORT), durations.expected(LONG)) == (3.5, 23.0)
    durations.add(SHORT, 10.5)
    assert (durations.expected(SHORT), durations.expected(LONG)) == (7.0, 83.0)
    for seconds in (60.0, 62.0, 64.0):
        durations.add(LONG, seconds)
    assert durations.expected(LONG) == 62.0
