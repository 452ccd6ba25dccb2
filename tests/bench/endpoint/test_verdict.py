"""Verdicts from made windows whose true speed-up is known: how often they are wrong, and what they say."""

import random
from collections import Counter

import msgspec
import pytest

from eyas.bench.endpoint.records import Chunk, Counts, Lag, Load, Record, Window
from eyas.bench.endpoint.verdict import MIN_PAIRS, Verdict, total_speed, verdict

NUM_RUNS = 200
NOISE = 0.03  # of a window's speed, as a share


def window(arm, speed, *, turn=0, concurrency=1, rate=None, **more):
    """A window in which each conversation gets `speed` tokens a second after its first."""
    tokens, load = 101, Load(concurrency=None if rate else concurrency, rate=rate, max_tokens=101)
    end = 1 + (tokens - 1) / speed
    chunks = (Chunk(1.0, "text", 4, 1), Chunk(end, "text", 400, tokens))
    record = Record(
        prompt="chat/0", category="chat", scheduled_s=0.5, sent_s=0.5, ended_s=end, chunks=chunks, output_tokens=tokens
    )
    lag = Lag(loop_p99_s=0.001, send_p99_s=0.001, cpu_share=0.1)
    return Window(arm=arm, load=load, turn=turn, started_s=0.0, ended_s=2 * end, records=(record,), lag=lag, **more)


def normal(rng):
    return rng.gauss(0, NOISE)


def heavy(rng):
    """One window in ten is three times as noisy; the spread is that of the others."""
    return rng.gauss(0, NOISE / 1.8**0.5) * (3 if rng.random() < 0.1 else 1)


def run(rng, speed_up, *, pairs=MIN_PAIRS, loads=(1,), noise=normal, drift=0.0):
    """Windows in turns, ABAB; `drift` is by how much the machine slows down from one turn to the next, as a share."""
    windows = []
    for turn in range(pairs):
        slow = (1 - drift) ** turn
        for concurrency in loads:
            windows += [
                window("off", 100 * slow * (1 + noise(rng)), turn=turn, concurrency=concurrency),
                window("3-drafts", 100 * slow * speed_up * (1 + noise(rng)), turn=turn, concurrency=concurrency),
            ]
    return verdict(windows, base="off", arm="3-drafts")


def said(speed_up, pairs, num_runs, **more):
    """How many runs of one load say what."""
    rng = random.Random(24)
    found = Counter(run(rng, speed_up, pairs=pairs, **more).findings[0].says for _ in range(num_runs))
    print(f"{num_runs} runs of {pairs} pairs, true speed-up {speed_up:.2f}: {dict(found)}")
    return found


RUNS = [(5, 1000), (8, NUM_RUNS)]  # pairs, runs: with five of them both rates are close to their bars


@pytest.mark.parametrize(("pairs", "num_runs"), RUNS)
@pytest.mark.parametrize("noise", [normal, heavy])
def test_nothing_is_said_of_no_difference(pairs, num_runs, noise):
    found = said(1.0, pairs, num_runs, noise=noise)
    assert found["pays"] + found["loses"] <= 0.05 * num_runs


@pytest.mark.parametrize(("pairs", "num_runs"), RUNS)
@pytest.mark.parametrize(("speed_up", "says"), [(1.1, "pays"), (1 / 1.1, "loses")])
def test_ten_percent_are_found(pairs, num_runs, speed_up, says):
    found = said(speed_up, pairs, num_runs)
    assert found[says] >= 0.9 * num_runs


def test_a_machine_that_slows_down_is_no_difference():
    """Arms that take turns share its state: it loses 5 % from each turn to the next."""
    assert said(1.0, 8, NUM_RUNS, drift=0.05)["not shown"] >= 0.95 * NUM_RUNS


def test_several_loads_together_err_more_often_and_the_verdict_says_so():
    rng, loads = random.Random(0), (1, 2, 4, 8, 16)
    runs = [run(rng, 1.0, loads=loads) for _ in range(NUM_RUNS)]
    wrong = sum(any(one.says != "not shown" for one in found.findings) for found in runs)
    kept = sum("these hold" in found.together for found in runs)
    print(f"of {NUM_RUNS} runs of {len(loads)} loads without a difference {wrong} say one somewhere, {kept} after Holm")
    assert 0.05 * NUM_RUNS < wrong <= (1 - 0.95**5) * NUM_RUNS
    assert kept <= 0.05 * NUM_RUNS
    assert "by chance in up to 23% of runs" in runs[0].together


def series(speed_ups, **more):
    """A run without noise but for a trifle, which an interval needs."""
    wobble = (0.999, 1.001, 1.0, 0.998, 1.002)
    windows = []
    for concurrency, speed_up in speed_ups.items():
        for turn, factor in enumerate(wobble):
            windows.append(window("off", 100.0, turn=turn, concurrency=concurrency))
            spread = 1 + (factor - 1) * (30 if speed_up == 1 else 10)
            windows.append(window("3-drafts", 100 * speed_up * spread, turn=turn, concurrency=concurrency, **more))
    return windows


def judged(windows, **more):
    return verdict(windows, base="off", arm="3-drafts", **more)


def test_a_sentence_says_where_it_pays_and_where_not():
    assert judged(series({8: 1, 1: 1.35, 4: 1.27, 2: 1.31, 16: 0.8})).sentence == (
        "3-drafts pay from 1 to 4 conversations (x1.31, 1.28..1.34), not shown at 8 conversations "
        "(x1.00, 0.94..1.06: the interval crosses 1), lose at 16 conversations (x0.80, 0.78..0.82)"
    )
    assert judged(series({1: 1.35, 8: 1, 16: 1})).sentence == (
        "3-drafts pay at 1 conversation (x1.35, 1.32..1.38), not shown from 8 conversations on "
        "(x1.00, 0.94..1.06: the interval crosses 1)"
    )
    assert judged(series({1: 1})).sentence.startswith("3-drafts: not shown at 1 conversation (x1.00")
    assert judged([]).sentence == "3-drafts: nothing was measured"
    other = verdict(series({1: 1.35}), base="3-drafts", arm="off")
    assert other.sentence == "off loses at 1 conversation (x0.74, 0.73..0.76)"


def test_by_rate():
    windows = [
        window(arm, speed * wobble, turn=turn, rate=rate)
        for rate in (0.5, 2.0)
        for turn, wobble in enumerate((0.999, 1.001, 1.0, 0.998, 1.002))
        for arm, speed in (("off", 100.0), ("auto", 120.0))
    ]
    found = verdict(windows, base="off", arm="auto")
    assert found.sentence == "auto pays from 0.5 to 2 requests a second (x1.20, 1.20..1.20)"


@pytest.mark.parametrize("pairs", range(MIN_PAIRS))
def test_fewer_than_five_pairs_say_nothing(pairs):
    windows = [one for one in series({1: 2.0}) if one.turn < pairs]
    if not windows:
        return
    (finding,) = judged(windows).findings
    assert (finding.says, finding.why) == ("not shown", f"{pairs} of at least 5 pairs")
    assert (finding.speed_up is None) == (pairs < 2)


def test_void_windows_do_not_count():
    windows = series({1: 2.0})
    assert judged(windows).findings[0].says == "pays"
    windows[3] = msgspec.structs.replace(windows[3], void="the client was the bottleneck")
    (finding,) = judged(windows).findings
    assert (finding.says, finding.why, finding.num_void) == ("not shown", "4 of at least 5 pairs", 1)


def test_a_window_without_its_other_half_does_not_count():
    windows = [one for one in series({1: 2.0}) if (one.arm, one.turn) != ("off", 2)]
    assert judged(windows).findings[0].why == "4 of at least 5 pairs"


def test_one_odd_window_decides_nothing():
    """Four pairs show a small loss each, one a large gain: the mean is above 1, its pairs are not."""
    ratios = [2.0, 2.1, 1.9, 2.0, 2.1, 2.2, 0.99, 0.99]
    windows = [
        window(arm, 100 * factor, turn=turn)
        for turn, ratio in enumerate(ratios)
        for arm, factor in (("off", 1.0), ("3-drafts", ratio))
    ]
    (finding,) = judged(windows).findings
    assert finding.speed_up.low > 1
    assert (finding.says, finding.why) == ("not shown", "2 of 8 pairs point the other way")


def test_break_even_is_the_acceptance_length_over_the_speed_up():
    """A round of 2.5 tokens that takes 2 steps' time: speculation breaks even at 2 tokens a round."""
    counts = Counts(rounds=1000, accepted=1500, source="/metrics")
    (finding,) = judged(series({1: 1.25}, counts=counts)).findings
    assert finding.acceptance_length == 2.5
    assert finding.break_even.value == pytest.approx(2.0, rel=1e-3)
    assert finding.break_even.low < 2.0 < finding.break_even.high


def test_energy_is_per_token():
    windows = [
        msgspec.structs.replace(one, energy_j=(30.3 if one.arm == "off" else 20.2) * (1 + one.turn / 1000))
        for one in series({1: 1.5})
    ]
    (finding,) = judged(windows).findings
    assert finding.joules == pytest.approx(20.2 / 101, rel=0.01)
    assert finding.energy.value == pytest.approx(2 / 3)
    assert judged(series({1: 1.5})).findings[0].energy is None


def test_an_endpoint_that_counts_no_tokens():
    windows = [
        msgspec.structs.replace(one, records=tuple(msgspec.structs.replace(r, output_tokens=None) for r in one.records))
        for one in series({1: 1.5})
    ]
    assert judged(windows).findings[0].why == "the endpoint does not say how many tokens it sends"


def test_total_speed_is_another_measure():
    (finding,) = judged(series({1: 1.5}), speed=total_speed).findings
    assert finding.says == "pays"


def test_it_survives_json():
    found = judged(series({1: 1.35, 8: 1}))
    again = msgspec.json.decode(msgspec.json.encode(found), type=Verdict)
    assert again == found and again.sentence == found.sentence
