"""`eyas bench report`: files, printed Markdown, preset tables, and errors in one line."""

import json
import re
from statistics import median

import msgspec
import pytest
from tests.bench.endpoint.support.pictures import parse
from tests.bench.endpoint.support.synthetic import synthetic_run, write_journal

from eyas import cli
from eyas.bench.endpoint.figures import figures_of
from eyas.bench.endpoint.journal import Run
from eyas.bench.endpoint.lossless.command import Result
from eyas.bench.endpoint.lossless.replies import Divergence
from eyas.bench.endpoint.lossless.summary import Comparison, Losslessness
from eyas.bench.endpoint.records import Memory, Record, Window
from eyas.bench.endpoint.reports.run_file import load_run
from eyas.bench.endpoint.verdict import total_speed, verdict


def report(capsys, *argv):
    code = cli.main(["bench", "report", *map(str, argv)])
    out, err = capsys.readouterr()
    return code, out, err


def fields(item):
    return {name: getattr(item, name) for name in item.__struct_fields__}


@pytest.fixture(scope="module")
def run():
    return synthetic_run(arms=(0, 3), concurrencies=(1, 2, 10), turns=5, num_requests=2)


@pytest.fixture(scope="module")
def file(run, tmp_path_factory):
    path = tmp_path_factory.mktemp("run") / "run.jsonl"
    write_journal(path, run)
    return path


def cells(line):
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def rows(text, head):
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {head}"))
    found = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            return cells(lines[start]), found
        found.append(cells(line))
    return cells(lines[start]), found


def test_markdown_is_printed_with_one_json_line_last(capsys, file, run):
    code, out, _ = report(capsys, file)
    assert code == 0
    head, table = rows(out, "arm")
    assert len(table) == 6
    figures = json.loads(out.splitlines()[-1])
    assert figures["bench"] == "report" and len(figures["cells"]) == 6
    for row, cell in zip(table, figures["cells"], strict=True):
        found = dict(zip(head, row, strict=True))
        assert found["arm"] == cell["arm"] and found["load"] == f"{cell['concurrency']} at once"
        spread = cell["total_tok_s"]
        assert found["tok/s"] == f"{spread['median']:,.1f} ({spread['min']:,.1f}..{spread['max']:,.1f})"
    stamp = run.header.stamp
    for words in (stamp.date, f"commit {stamp.commit}", f"**{stamp.simulated}**", f"hardware: {stamp.hardware}"):
        assert words in out
    (sentence,) = [line for line in out.splitlines() if line.startswith("* 3 drafts pay")]
    assert sentence == f"* {verdict(run.windows, base='off', arm='3 drafts').sentence}"


def test_files_are_written(capsys, file, run, tmp_path):
    html, markdown, data = (tmp_path / name for name in ("a.html", "a.md", "a.json"))
    code, out, err = report(capsys, file, "--html", html, "--markdown", markdown, "--json", data)
    assert (code, err, out.count("wrote ")) == (0, "", 3)
    assert parse(html.read_text()) and markdown.read_text().startswith("### Does speculation pay here?")
    assert load_run(data) == run
    assert report(capsys, data)[1].splitlines()[:-1] == report(capsys, file)[1].splitlines()[:-1]


def test_another_base(capsys, file):
    _, out, _ = report(capsys, file, "--base", "3 drafts")
    assert json.loads(out.splitlines()[-1])["base"] == "3 drafts" and "* off loses" in out


def test_goodput_by_slo(capsys, file):
    _, out, _ = report(capsys, file, "--slo", "ttft=10s")
    cells = json.loads(out.splitlines()[-1])["cells"]
    assert all(cell["good_per_s"]["median"] > 0 for cell in cells)
    _, out, _ = report(capsys, file, "--slo", "ttft=1ms")
    assert all(cell["good_per_s"]["median"] == 0 for cell in json.loads(out.splitlines()[-1])["cells"])


def test_schema(capsys):
    code, out, _ = report(capsys, "--schema")
    assert code == 0 and "eyas bench endpoint 1" in json.dumps(json.loads(out))


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        ([], "name the file of a run"),
        (["/no/such/file"], "cannot be read"),
        (["FILE", "--base", "of"], "there is no arm 'of' (did you mean 'off'?)"),
        (["FILE", "--html", "/no/such/folder/a.html"], "cannot be written: No such file"),
        (["FILE", "--json", "/dev/full"], "/dev/full cannot be written: No space left on device"),
        (["FILE", "--slo", "speed=1s"], "--slo knows no 'speed'"),
    ],
)
def test_errors_are_one_line(capsys, file, argv, words):
    code, out, err = report(capsys, *(file if word == "FILE" else word for word in argv))
    assert (code, out) == (1, "")
    assert words in err and err.startswith("eyas: error: ") and err.count("\n") == 1


def test_a_cut_file_is_reported_with_a_word(capsys, file, tmp_path):
    (tmp_path / "cut").write_bytes(file.read_bytes()[:-9])
    code, out, err = report(capsys, tmp_path / "cut")
    assert code == 0 and "the last line was cut short" in err and out.startswith("### ")


def test_table_s3(capsys, file, run):
    """The table of S3: throughput without and with, speed-up, concurrency falling."""
    code, out, _ = report(capsys, file, "--table", "s3")
    head, table = rows(out, "throughput")
    assert code == 0
    assert head == ["throughput (off), tok/s", "throughput (3 drafts), tok/s", "speedup", "concurrency"]
    assert [row[-1] for row in table] == ["8", "7", "6", "5", "4", "3", "2", "1"]
    assert all(row[:3] == ["-"] * 3 for row in table[:6])
    findings = verdict(run.windows, base="off", arm="3 drafts", speed=total_speed).findings
    for row, concurrency, found in zip(reversed(table), (1, 2), findings, strict=False):
        for cell, arm in zip(row[:2], ("off", "3 drafts"), strict=True):
            every = [
                figures_of(w).tokens_per_s for w in run.windows if (w.arm, w.load.concurrency) == (arm, concurrency)
            ]
            assert cell == f"{median(every):,.1f} ({min(every):,.1f}..{max(every):,.1f})"
        ends = (found.speed_up.value, found.speed_up.low, found.speed_up.high)
        assert row[2] == "{:+.1%} ({:+.1%}..{:+.1%})".format(*(end - 1 for end in ends))
    assert "A `-` was not measured: the table needs two arms at 8, 7, 6, 5, 4, 3, 2, 1 at once." in out
    assert "**SIMULATED" in out and "commit 0123456789ab" in out


def long_prompts(window, *, cached=0):
    """The same window with 8K prompts in every second request, whose first text is a second later."""
    records = []
    for number, record in enumerate(window.records):
        chunks = record.chunks
        if number % 2:
            chunks = tuple(type(c)(c.at_s + 1, c.kind, c.num_chars, c.tokens) for c in chunks)
        changes = {"prompt_tokens": 8100 if number % 2 else 200, "cached_tokens": cached if number % 2 else 0}
        records.append(Record(**fields(record) | changes | {"chunks": chunks}))
    memory = Memory(used_bytes=(70 << 30) + (window.arm != "off") * (5 << 30), source="driver")
    return Window(**fields(window) | {"records": tuple(records), "memory": memory})


def test_table_s0(capsys, run, tmp_path):
    """The table of S0: decoding alone, ten at once, first token of 8K, memory."""
    made = [long_prompts(w) if w.load.concurrency == 1 else w for w in run.windows]
    write_journal(tmp_path / "run", Run(header=run.header, windows=tuple(made)))
    _, out, _ = report(capsys, tmp_path / "run", "--table", "s0")
    head, table = rows(out, "Metric")
    assert head == ["Metric", "Without (off)", "With (3 drafts)", "Change"]
    single, ten, first, memory = table
    assert [row[0] for row in table] == [
        "Decode (single), tok/s", "Decode (10 concurrent), tok/s", "TTFT (8K context), s", "Memory usage, GiB",
    ]  # fmt: skip
    every = [figures_of(w).tokens_per_s for w in run.windows if (w.arm, w.load.concurrency) == ("off", 10)]
    assert ten[1].startswith(f"{median(every):,.1f} (")
    assert 1.0 < float(first[1].split()[0]) < 1.2
    assert memory == ["Memory usage, GiB", "70.0", "75.0", "+7.1%"]
    assert re.match(r"\+\d+\.\d% \(\+\d", single[3]) and "A `-` was not measured" not in out


def test_a_first_token_from_the_cache_is_none_of_s0(capsys, run, tmp_path):
    made = [long_prompts(w, cached=8000) if w.load.concurrency == 1 else w for w in run.windows]
    write_journal(tmp_path / "run", Run(header=run.header, windows=tuple(made)))
    _, out, _ = report(capsys, tmp_path / "run", "--table", "s0")
    assert rows(out, "Metric")[1][2] == ["TTFT (8K context), s", "-", "-", "-"]
    assert "with prompts of 8,192 tokens among those of 1 at once" in out


def test_a_table_without_any_of_its_windows_is_refused(capsys, tmp_path):
    write_journal(tmp_path / "run", synthetic_run(arms=(0, 1), concurrencies=(16,), turns=1, num_requests=1))
    code, out, err = report(capsys, tmp_path / "run", "--table", "s0")
    assert (code, out) == (1, "")
    assert "the table s0 needs two arms at 1, 10 at once, with prompts of 8,192 tokens" in err


def losslessness(*, token="b"):
    found = Divergence(
        prompt="chat/3", seed=None, at=17, unit="token", base="a", other=token, kind="defect", is_wide=True
    )
    greedy = Comparison(
        sampling="greedy", num_answers=40, num_identical=39, num_tokens=20_000, divergences=(found,),
    )  # fmt: skip
    seeded = Comparison(sampling="seeded")
    return Losslessness(base="off", other="3 drafts", near_tie=0.25, greedy=greedy, seeded=seeded)


def test_a_comparison_of_answers_is_added(capsys, file, run, tmp_path):
    evil = "<script>window.hacked=1</script>"
    found = losslessness(token=evil)
    (tmp_path / "lossless.json").write_bytes(msgspec.json.encode(Result(stamp=run.header.stamp, lossless=found)))
    html = tmp_path / "a.html"
    assert report(capsys, file, "--lossless", tmp_path / "lossless.json", "--html", html)[0] == 0
    tree = parse(html.read_text())
    shown = [item.text() for item in next(tree.all("ul", "lines")).all("li")]
    assert shown[:3] == [run.header.stamp.simulated, found.sentence, found.greedy.lines()[0]]
    assert any(evil in line for line in shown) and len(list(tree.all("script"))) == 2
    _, out, _ = report(capsys, file, "--lossless", tmp_path / "lossless.json")
    assert f"* {found.sentence}" in out and "<script>" not in out
    code, _, err = report(capsys, file, "--lossless", file)
    assert code == 1 and "is no comparison of answers" in err and err.count("\n") == 1
