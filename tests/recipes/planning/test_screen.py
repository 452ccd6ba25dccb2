"""The screen of a plan: its size for every box, what is cut, which warnings stay, and the screens in docs/plan.md."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from tools.plan_screens import PAGE, page

from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.plan import MemoryRow, Note, Range
from eyas.recipes.planning.planner import Ask, make_plan
from eyas.recipes.planning.screen import COLUMNS, LINES, screen

GOOD = make_plan(Ask(model="gpt-oss-120b", on="spark", engine="vllm"))


def fits(text: str) -> bool:
    lines = text.splitlines()
    return len(lines) <= LINES == 24 and max(map(len, lines)) <= COLUMNS == 100


@pytest.mark.parametrize("engine", sorted(knowledge().engines))
def test_every_engine_fits(engine):
    for purpose in ("chat", "claude-code"):
        made = make_plan(Ask(model="gpt-oss-120b", on="rtx-pro-6000", engine=engine, purpose=purpose))
        text = screen(made)
        assert fits(text), text
        assert "tok/s for each of" in text and "first token" in text and "together" in text


def test_what_is_too_long_is_cut():
    many = tuple(Note(text=f"warning {number} " + "word " * 80) for number in range(30))
    long = replace(
        GOOD,
        warnings=many,
        reasons=(Note(text="because " * 90),),
        choice=replace(GOOD.choice, model="m" * 200, image="i" * 300),
        memory=replace(GOOD.memory, rows=tuple(MemoryRow(owner="o" * 40, num_bytes=1 << 40) for _ in range(20))),
    )
    text = screen(long)
    assert fits(text)
    assert "more with --explain" in text and "20480.00 GiB of 95.74 GiB" in text and " ..." in text


def test_the_gravest_warnings_stay():
    other = tuple(Note(text=f"of little weight {number} " + "x " * 60, issue="SGL-32459") for number in range(8))
    text = screen(replace(GOOD, warnings=(*other, Note(text="it will crash", issue="TRTLLM-8615"))))
    assert "[TRTLLM-8615] it will crash" in text
    assert text.index("TRTLLM-8615") < text.index("SGL-32459")


def test_one_conversation_has_one_speed():
    one = make_plan(Ask(model="gpt-oss-120b", on="h200", concurrency=1))
    assert "for each of" not in screen(one)
    speed = replace(GOOD.speed, tokens_per_second=Range(low=100, high=200), at_once=2)
    text = screen(replace(GOOD, speed=speed, choice=replace(GOOD.choice, concurrency=8)))
    assert "50..100 tok/s for each of 2, 100..200 together" in text


def test_plans_of_others_are_shown():
    """Of several machines, and of vectors."""
    assert "more launches with --explain" in screen(make_plan(Ask(model="gpt-oss-120b", on="2xspark", engine="vllm")))
    vectors = screen(make_plan(Ask(model="nomic-embed-text-v1.5", on="spark")))
    assert "the vector of" in vectors and "tok/s" not in vectors


def test_the_command_is_that_of_the_first_machine():
    text = " ".join(screen(make_plan(Ask(model="gpt-oss-120b", on="2xspark", engine="sglang"))).split())
    assert "--node-rank 0" in text and "--node-rank 1" not in text


def test_the_page_is_fresh():
    text = Path(PAGE).read_text(encoding="utf-8")
    assert page(text) == text, "run python tools/plan_screens.py"
