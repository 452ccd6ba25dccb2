"""Advice and measurement rows from windows of known speeds, and what the planner makes of them."""

import random
from math import exp

import pytest
from msgspec.structs import replace
from tests.tune.support.bench import window

from eyas.base.errors import UserError
from eyas.recipes.knowledge.boxes import parse_box
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import Box
from eyas.recipes.planning.ask import Ask
from eyas.recipes.planning.planner import make_plan
from eyas.recipes.planning.screen import screen
from eyas.recipes.planning.show import show
from eyas.recipes.records import CPU
from eyas.tune.advice import advise, lines, rows
from eyas.tune.arms import candidates, contest_of, expected, is_shared, main_cell, served, sweep_cells
from eyas.tune.schedule import Cell

HERE = replace(parse_box("h200"), name="here", is_probed=True)
ASK = Ask(model="random:gpt-oss-120b", simulate_acceptance="0.7")
CELLS = {Cell(128, 1): 1.0, Cell(128, 4): 2.0, Cell(128, 16): 1.0}


def planned(ask):
    return make_plan(ask, box=HERE)


@pytest.fixture(scope="module")
def arms():
    found, declined = candidates(served(ASK, CELLS, 128, 131_072), "eyas", planned)
    assert declined == []
    return found


def windows_of(arms, speeds, *, turns=5, noise=0.005):
    """Windows of arms by what `speeds(drafts, cell)` says; None for none."""
    rng, found = random.Random(0), []
    for one in arms:
        for cell in CELLS:
            speed = speeds(one.drafts, cell.concurrency)
            for turn in range(turns if speed else 0):
                found.append(window(one.name, cell, turn, speed * exp(rng.gauss(0, noise)), length=2.5))
    return found


# docs/benchmarks.md, "Never slower", acceptance rate 0.7 on one H200: ratio of `auto` to none, and to the best of 0, 1,
# 3 and 5 drafts, which is named. tok/s without drafts are of the table above it.
NONE = {1: 576, 4: 1333, 16: 2169}
BEST = {1: (3, 1.230 / 1.011), 4: (1, 1.032 / 0.994), 16: (3, 1.175 / 0.999)}


def of_table(drafts, concurrency):
    best, gain = BEST[concurrency]
    if drafts == "auto":
        return None
    return NONE[concurrency] * (1.0 if drafts == 0 else gain if drafts == best else gain - 0.05 * abs(drafts - best))


def test_the_advice_is_the_best_static_number_of_the_table(arms):
    found = advise([arms], list(CELLS), windows_of(arms, of_table))
    assert {one.cell.concurrency: one.led.drafts for one in found.choices} == {1: 3, 4: 1, 16: 3}
    assert [one.finding.says for one in found.choices] == ["pays", "pays", "pays"]
    assert [one.drafts.drafts for one in found.choices] == [3, 1, 3]
    text = "\n".join(lines(found))
    assert "16 at once, prompts of 128 tokens: eyas 3 drafts: 2,5" in text and "pays, x1.2" in text


def test_too_few_pairs_or_noise_show_nothing_and_the_advice_is_none(arms):
    few = advise([arms], list(CELLS), windows_of(arms, of_table, turns=4))
    uneven = [
        window(one.name, cell, turn, 1000 * (1.0 if one is arms[0] else factor))
        for one in arms
        for cell in CELLS
        for turn, factor in enumerate((1.04, 0.97, 1.02, 0.98, 1.03))
    ]
    close = advise([arms], list(CELLS), uneven)
    for found in (few, close):
        assert {one.drafts.name for one in found.choices} == {"eyas no drafts"}
    assert "not shown: 4 of at least 5 pairs" in "\n".join(lines(few))
    assert advise([arms], list(CELLS), []).choices == ()


def test_of_arms_that_are_all_alike_one_pays_in_five_percent_of_sweeps_at_most(arms):
    """Each finding alone would be wrong in 5 %, the best of seven more often."""
    (cell, *_), wrong, num_sweeps = CELLS, 0, 150
    for seed in range(num_sweeps):
        rng = random.Random(seed)
        alike = [window(one.name, cell, turn, 1000 * exp(rng.gauss(0, 0.03))) for one in arms for turn in range(5)]
        (choice,) = advise([arms], [cell], alike).choices
        wrong += choice.finding.says != "not shown"
    assert wrong <= 0.05 * num_sweeps, wrong


def test_rows_stand_next_to_what_the_model_expected(arms):
    found = rows([arms], list(CELLS), windows_of(arms, of_table), "2026-11-26")
    assert {(one.draft_tokens, one.concurrency) for one in found} == {
        (one.drafts, cell.concurrency) for one in arms if one.drafts != "auto" for cell in CELLS
    }
    one = next(row for row in found if (row.draft_tokens, row.concurrency) == (3, 16))
    assert one.windows == 5 and one.interval.low < one.tokens_per_second < one.interval.high
    assert one.finding == "pays" and one.acceptance_length == pytest.approx(2.5) and one.first_token_s == 1.0
    base = next(row for row in found if row.draft_tokens == 0)
    assert base.speedup is None and base.expected == expected(arms[0], Cell(128, base.concurrency))
    single = rows([arms], list(CELLS), windows_of(arms, of_table, turns=1), "2026-11-26")
    assert single[0].interval is None and single[0].windows == 1


@pytest.mark.parametrize("concurrency", [cell.concurrency for cell in CELLS])
def test_plans_take_what_was_measured_and_cite_it(arms, concurrency):
    here = rows([arms], list(CELLS), windows_of(arms, of_table), "2026-11-26")
    ask = replace(ASK, concurrency=concurrency)
    plan = make_plan(ask, box=HERE, here=here)
    assert (plan.choice.draft_tokens, plan.choice.are_drafts_fixed) == (BEST[concurrency][0], True)
    assert plan.speed.measured in here
    for text in (screen(plan), show(plan)):
        assert "measured here on 2026-11-26" in text and "expect" in text
    assert f"--draft-tokens {plan.choice.draft_tokens}" in show(plan)
    assert make_plan(ask, box=HERE).speed.measured is None


def test_measurements_of_other_arms_are_not_used(arms):
    here = rows([arms], list(CELLS), windows_of(arms, of_table), "2026-11-26")
    plain = make_plan(replace(ASK, concurrency=4), box=HERE)
    for changed in (
        [replace(one, version="0.0.9") for one in here],
        [replace(one, concurrency=5) for one in here],
        [replace(one, head="other", draft_tokens=one.draft_tokens or "auto") for one in here],
    ):
        assert make_plan(replace(ASK, concurrency=4), box=HERE, here=changed) == plain


def test_an_engine_that_was_measured_is_planned_where_it_would_not_be_otherwise():
    """The demo model comes with eyas; llama-server is faster with it on a CPU."""
    box = Box(name="here", hardware=knowledge().hardware[CPU], architecture="x86_64", is_probed=True)
    ask = Ask(model="demo", concurrency=4)
    groups = [candidates(ask, engine, lambda one: make_plan(one, box=box))[0] for engine in ("eyas", "llama.cpp")]
    cell = Cell(128, 4)
    speeds = {"eyas auto": 900, "llama.cpp no drafts": 1500, "llama.cpp 1 draft": 1200}
    measured = [
        window(one.name, cell, turn, speeds.get(one.name, 300))
        for group in groups
        for one in group
        for turn in range(5)
    ]
    here = rows(groups, [cell], measured, "2026-11-26")
    plan = make_plan(ask, box=box, here=here)
    assert (plan.choice.engine, plan.choice.method) == ("llama.cpp", "none")
    assert "llama.cpp (llama-server): 1500 tokens per second" in " ".join(screen(plan).split())
    assert make_plan(ask, box=box).choice.engine == "eyas"
    best = make_plan(replace(ask, engine="eyas"), box=box, here=here)
    assert best.choice.method == "eagle3" and not best.choice.are_drafts_fixed  # as many as it chooses


def test_what_loses_here_is_not_planned(arms):
    slower = windows_of(arms, lambda drafts, _: 100.0 - 5 * (drafts if drafts != "auto" else 1))
    plan = make_plan(replace(ASK, concurrency=4), box=HERE, here=rows([arms], list(CELLS), slower, "2026-11-26"))
    assert plan.choice.method == "none" and plan.speed.measured is not None
    assert any(note.text.startswith("no speculation: ") and "loses here" in note.text for note in plan.reasons)


def test_arms_of_random_weights(arms):
    assert [one.drafts for one in arms] == [0, "auto", 1, 2, 3, 4, 5, 7]
    plan = next(one.plan for one in arms if one.drafts == 3)
    words = plan.emission.launches[0].argv
    assert words[:3] == ("eyas", "serve", "random:gpt-oss-120b") and plan.emission.downloads == ()
    assert " ".join(words).count("--draft eagle3") == 1 and "--simulate-acceptance 0.7 --draft-tokens 3" in " ".join(
        words
    )
    assert plan.emission.readiness.model == "random:gpt-oss-120b"
    assert plan.speed.acceptance.low == plan.speed.acceptance.high == pytest.approx(2.533)
    assert "--simulate-acceptance" not in arms[0].plan.emission.launches[0].argv
    assert not is_shared([one.plan for one in arms])  # 2 x 61 GiB and caches, of 133
    contest = contest_of(arms[0], arms[1:], CELLS, start_s=10.0, shares=False)
    assert contest.base == "eyas no drafts" and all(arm.prior.keys() == CELLS.keys() for arm in contest.arms)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"engine": "vllm"}, "random weights have none"),
        ({"simulate_acceptance": "x"}, "--simulate-acceptance wants an acceptance length"),
        ({"listen": "0.0.0.0", "api_key_env": "K"}, "served to one machine alone"),
        ({"model": "gpt-oss-120b"}, "such as random:gpt-oss-120b"),
        ({"model": "random:gpt-oss-7b"}, "unknown model 'gpt-oss-7b'"),
    ],
)
def test_what_no_plan_of_random_weights_can_have(fields, words):
    with pytest.raises(UserError, match=words):
        planned(replace(ASK, **fields))


def test_loads_and_their_weights():
    cells = sweep_cells(Ask(model="demo"), (2048, 128, 8192, 32_768), (1, 8), 3700)
    assert cells == {Cell(128, 1): 2.0, Cell(128, 8): 1.0, Cell(2048, 1): 1.0}
    assert main_cell(sweep_cells(Ask(model="demo"), (128,), (1, 4, 8), 3700)) == Cell(128, 4)
    assert main_cell(sweep_cells(Ask(model="demo", concurrency=2), (128,), (1, 4), 3700)) == Cell(128, 2)
    with pytest.raises(UserError, match="the model leaves 100 tokens"):
        sweep_cells(Ask(model="demo"), (128,), (1,), 100)
    asked = served(Ask(model="demo"), cells, 128, 4096)
    assert (asked.context, asked.concurrency) == (2048 + 512 + 128 + 256, 8)
