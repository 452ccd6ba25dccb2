"""What the logs in `assets/logs` show: each names its source, its engine and what must be found in it, in order."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eyas.recipes.advice.issues import known_issues
from eyas.recipes.advice.symptoms import HEAD_CHARS, TAIL_CHARS, explain, symptoms

ASSETS = Path(__file__).parents[2] / "assets"
LOGS = ASSETS / "logs"
HEADER = re.compile(r"# source: (.+)\n# engine: (.+)\n# shows: ?(.*)\n")
ENGINES = ("eyas", "sglang", "vllm", "tensorrt-llm", "llama.cpp", "ollama")


def logs():
    """Name, engine, expected findings and text of each log, without its header."""
    for path in sorted(LOGS.glob("*.log")):
        text = path.read_text(encoding="utf-8")
        header = HEADER.match(text)
        assert header is not None, path.name
        expected = tuple(filter(None, header[3].split(", ")))
        yield path.stem, None if header[2] == "any" else header[2], expected, text[header.end() :]


def rows(name):
    """The fields of each line of a table of lines; the engine None where any may have written it."""
    for line in (ASSETS / name).read_text(encoding="utf-8").splitlines()[1:]:
        yield tuple(None if field == "any" else field for field in line.split("\t"))


@pytest.mark.parametrize(("engine", "expected", "text"), [pytest.param(*log[1:], id=log[0]) for log in logs()])
def test_a_log_shows_what_its_header_says_and_nothing_else(engine, expected, text):
    found = explain(text, engine)
    assert tuple(finding.name for finding in found) == expected
    for finding in found:
        assert re.search(finding.pattern, finding.line)
        assert finding.line in text
        assert finding.meaning and finding.remedy and finding.sources


def test_lines_of_public_reports_are_explained_rightly():
    """The line must get the findings of its row and no other; at least 95 of 100 lines do."""
    failures = list(rows("failures.tsv"))
    wrong = []
    for expected, engine, thread, line in failures:
        names = ", ".join(finding.name for finding in explain(line, engine))
        if names != expected:
            wrong.append((thread, line, expected, names))
    assert len(failures) >= 120 and len({thread for _, _, thread, _ in failures}) >= 90
    assert len(wrong) <= 0.05 * len(failures), wrong


def test_no_alarm_over_healthy_lines():
    """Whatever engine is named, and for each line alone and for all of them."""
    lines = list(rows("healthy.tsv"))
    assert len(lines) >= 200 and sum("!!!!" in line for _, _, line in lines) >= 10
    for engine, _, line in lines:
        assert explain(line, engine) == explain(line) == (), line
    assert explain("\n".join(line for _, _, line in lines)) == ()


def test_every_pattern_of_a_symptom_or_an_issue_is_found_in_a_log_of_its_engine():
    unseen = []
    seen = [(engine, text) for _, engine, _, text in logs()]
    seen += [(engine, line) for _, engine, _, line in rows("failures.tsv")]
    for known in (*symptoms(), *known_issues()):
        patterns = known.log_patterns if hasattr(known, "log_patterns") else known.patterns
        texts = [text for engine, text in seen if not known.engines or engine is None or engine in known.engines]
        unseen += [(known.name, pattern) for pattern in patterns if not any(re.search(pattern, one) for one in texts)]
    assert unseen == []


def test_there_is_a_healthy_log_of_each_engine():
    healthy = {engine for name, engine, expected, _ in logs() if name.startswith("healthy-") and expected == ()}
    assert healthy == set(ENGINES)


def test_findings_come_in_the_order_of_the_log_and_each_once():
    first, second = "CUDA out of memory", "No space left on device"
    names = [finding.name for finding in explain("\n".join([second, first, second, first]))]
    assert names == ["disk-full", "cuda-out-of-memory"]


def test_the_engine_decides_which_symptoms_are_looked_for():
    assert explain("!" * 40, "eyas")[0].name == "exclamation-marks"
    assert explain("!" * 40, "tensorrt-llm")[0].issue == "TRTLLM-8615"
    assert {finding.name for finding in explain("!" * 40)} == {"exclamation-marks", "TRTLLM-8615", "SGL-36716"}


def test_colours_and_progress_bars_do_not_hide_a_symptom():
    log = "loading 10%\rloading 20%\r\x1b[31mCUDA out\x1b[0m of memory\x1b[0m\r\n"
    assert explain(log)[0].line == "CUDA out of memory"


def test_keys_in_a_line_are_hidden():
    tokens = ("hf_abcdefghijklmnopqrstuvwxyz", "nvapi-0123456789abcdef", "sk-0123456789abcdef", "s3cretvalue99")
    log = f"{tokens[0]} {tokens[1]} {tokens[2]} Authorization: Bearer {tokens[3]}: No space left on device"
    line = explain(log)[0].line
    assert "No space left on device" in line
    assert not any(token in line for token in tokens)


def test_of_a_huge_log_the_beginning_and_the_end_are_read():
    filler = "all is well\n" * 10
    middle = filler * ((HEAD_CHARS + TAIL_CHARS) // len(filler))
    log = "No space left on device\n" + middle + "CUDA out of memory\n" + middle + "Host key verification failed\n"
    assert [finding.name for finding in explain(log)] == ["disk-full", "ssh-host-key"]


def test_a_line_is_shown_around_its_symptom_only():
    line = explain("x" * 100_000 + " No space left on device " + "y" * 100_000)[0].line
    assert "No space left on device" in line and len(line) <= 600


@pytest.mark.timeout(60)  # it takes a second; a pattern that backtracks would take days
def test_one_hostile_line_of_all_beginnings_is_read_to_its_end():
    starts = sorted({re.split(r"[.\\\[(?{!]", pattern, maxsplit=1)[0] for pattern in _patterns()})
    hostile = "".join((start + " ") * 300 for start in starts if start)
    assert len(hostile) > 250_000 and "\n" not in hostile
    found = explain(hostile)
    assert {"ssh-host-key", "scheduler-died", "disk-full"} <= {finding.name for finding in found}
    assert all(len(finding.line) <= 600 for finding in found)


def _patterns():
    return [
        *(pattern for symptom in symptoms() for pattern in symptom.patterns),
        *(pattern for issue in known_issues() for pattern in issue.log_patterns),
    ]


def test_no_pattern_repeats_without_a_bound():
    for pattern in _patterns():
        re.compile(pattern)
        unescaped = re.sub(r"\\.", "", pattern)
        assert not re.search(r"[*+]|\{\d*,\}", unescaped), pattern
