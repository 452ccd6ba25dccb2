"""Published set-ups as plans, pinned: each case is a command line of `eyas plan` and the source of what it reproduces.

After a change that is meant: `python -m tests.recipes.planning.test_golden`, then read the difference.
"""

import hashlib
import shlex
from functools import cache
from pathlib import Path

import pytest
import yaml

from eyas.cli import _Parser
from eyas.fleet.commands.plan import add_arguments, ask_of
from eyas.recipes.emit.words import shell
from eyas.recipes.measured import drafts_of
from eyas.recipes.plan import Plan
from eyas.recipes.planning.planner import make_plan

HERE = Path(__file__).parent
CASES = yaml.safe_load((HERE / "golden_cases.yaml").read_text(encoding="utf-8"))


@cache
def plan_for(command: str) -> Plan:
    parser = _Parser(prog="eyas plan")
    add_arguments(parser)
    return make_plan(ask_of(parser.parse_args(shlex.split(command))))


def pinned(case: dict) -> str:
    """What a person would start, line by line, without sentences that may be worded anew."""
    plan = plan_for(case["plan"])
    choice = plan.choice
    lines = [
        f"# eyas plan {case['plan']}",
        *(f"# source: {source}" for source in case["sources"]),
        f"# {case['status']}",
        "",
        f"engine   {choice.engine} {choice.version}",
        f"image    {choice.image}",
        f"draft    {choice.method} {choice.head} {drafts_of(choice)}",
        f"warned   {' '.join(note.issue for note in plan.warnings if note.issue) or '-'}",
    ]
    for launch in plan.emission.launches:
        lines += ["", f"[{launch.name} on {choice.nodes[launch.node].name}]"]
        if launch.container:
            lines.append("docker   " + " ".join(map(shlex.quote, launch.container.options)))
            lines += [f"mount    {shell(mount.source)} {mount.target}" for mount in launch.container.mounts]
        lines += [f"inside   {launch.inside}"] if launch.inside else []
        lines += [f"env      {one.name}={shell(one.value)}" for one in launch.env]
        lines += _folded([_short(shell(word)) for word in launch.argv])
    for file in plan.emission.files:
        lines += [
            "",
            f"[file {file.path} on {', '.join(choice.nodes[node].name for node in file.nodes)}]",
            file.content.rstrip(),
        ]
    lines += ["", *(f"download {one.repo} {' '.join(one.include)}".rstrip() for one in plan.emission.downloads)]
    return "\n".join(lines) + "\n"


def _short(word: str) -> str:
    """A script of several lines is pinned by its digest."""
    return (
        word if "\n" not in word else f"'{word.count(chr(10))} lines {hashlib.sha256(word.encode()).hexdigest()[:12]}'"
    )


def _folded(words: list[str]) -> list[str]:
    """One flag with its values a line."""
    lines: list[str] = []
    for word in words:
        if word.startswith("-") or not lines or len(lines) == 1:
            lines.append(word)
        else:
            lines[-1] += f" {word}"
    return ["command  " + lines[0], *(f"         {line}" for line in lines[1:])]


@pytest.mark.parametrize("case", CASES["rows"], ids=lambda case: case["name"])
def test_a_published_row_is_what_plan_says(case):
    assert pinned(case) == (HERE / "golden" / f"{case['name']}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("pair", CASES["pairs"], ids=lambda pair: pair["name"])
def test_one_flag_alone_changes_the_head_or_the_engine(pair):
    (first, second), (flag,) = pair["plans"], pair["only"]
    words = [shlex.split(command) for command in (first, second)]
    differing = [index for index, (a, b) in enumerate(zip(*words, strict=True)) if a != b]
    assert [words[0][index - 1] for index in differing] == [flag]
    for command, expected in zip((first, second), pair["expect"], strict=True):
        choice = plan_for(command).choice
        assert {"engine": choice.engine, "head": choice.head, "draft_tokens": choice.draft_tokens} == expected


def test_every_golden_file_has_a_case():
    assert {path.stem for path in (HERE / "golden").glob("*.txt")} == {case["name"] for case in CASES["rows"]}


if __name__ == "__main__":
    for case in CASES["rows"]:
        (HERE / "golden" / f"{case['name']}.txt").write_text(pinned(case), encoding="utf-8")
