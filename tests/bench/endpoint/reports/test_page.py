"""The HTML report: what is drawn equals the data, read off the pictures by a parser of their own."""

import json
from collections import Counter
from statistics import median

import pytest
from tests.bench.endpoint.support.pictures import parse, pictures
from tests.bench.endpoint.support.synthetic import CATEGORIES, RATES, synthetic_run

from eyas.bench.endpoint.figures import figures_of
from eyas.bench.endpoint.journal import Run
from eyas.bench.endpoint.records import Counts, Window
from eyas.bench.endpoint.reports.page import page
from eyas.bench.endpoint.reports.summary import summary
from eyas.bench.endpoint.verdict import verdict

ARMS = (0, 1, 3)
LOADS = (1, 4, 8)
PLOTS = {
    *("pareto", "speed-up", "by-position", "histogram", "first-text", "gap", "category-acceptance"),
    "category-speed-up",
}


def html_of(run):
    return page(run, summary(run))


def with_windows(run, windows):
    return Run(header=run.header, windows=tuple(windows))


def changed(window, **fields):
    return Window(**{name: getattr(window, name) for name in window.__struct_fields__} | fields)


@pytest.fixture(scope="module")
def run():
    return synthetic_run(arms=ARMS, concurrencies=LOADS, turns=5, num_requests=5)


@pytest.fixture(scope="module")
def html(run):
    return html_of(run)


@pytest.fixture(scope="module")
def drawn(html):
    return pictures(html)


def windows_of(run, arm, concurrency):
    return [w for w in run.windows if w.arm == arm and w.load.concurrency == concurrency]


def names(run):
    return list(dict.fromkeys(w.arm for w in run.windows))


def test_every_plot_is_there(drawn):
    assert set(drawn) == PLOTS
    assert len(drawn["gap"]) == len(drawn["first-text"]) == len(LOADS)


def test_pareto_has_the_speeds_of_the_windows(run, drawn):
    (plot,) = drawn["pareto"]
    for index, arm in enumerate(names(run)):
        expected = []
        for concurrency in LOADS:
            figures = [figures_of(w) for w in windows_of(run, arm, concurrency)]
            each, every = [1 / median(f.tpot_s) for f in figures], [f.tokens_per_s for f in figures]
            expected.append((median(each), median(every), min(each), max(each), min(every), max(every)))
        points = plot.points(index)
        assert len(points) == len(LOADS)
        for (x, y, said), (each, every, *_), concurrency in zip(points, expected, LOADS, strict=True):
            assert (x, y) == pytest.approx((each, every), rel=0.01)
            assert said.startswith(f"{arm}, {concurrency} at once:")
        ranges = plot.whiskers(index)
        assert len(ranges) == 2 * len(LOADS)
        for i, (*_, low_x, high_x, low_y, high_y) in enumerate(expected):
            vertical, horizontal = ranges[2 * i], ranges[2 * i + 1]
            assert [y for _, y in vertical] == pytest.approx([low_y, high_y], rel=0.01)
            assert [x for x, _ in horizontal] == pytest.approx([low_x, high_x], rel=0.01)
        assert plot.corners(index) == [pytest.approx((each, every), rel=0.01) for each, every, *_ in expected]


def test_speed_ups_have_the_intervals_of_the_verdict(run, drawn):
    (plot,) = drawn["speed-up"]
    (rule,) = plot.svg.all("line", "rule")
    assert plot.y(rule.number("y1")) == pytest.approx(1.0, abs=0.004)
    for index, arm in enumerate(names(run)[1:], 1):
        findings = verdict(run.windows, base=names(run)[0], arm=arm).findings
        assert [f.load.concurrency for f in findings] == list(LOADS)
        points, ranges = plot.points(index), plot.whiskers(index)
        for (_, y, said), ((_, low), (_, high)), found in zip(points, ranges, findings, strict=True):
            assert (y, low, high) == pytest.approx(
                (found.speed_up.value, found.speed_up.low, found.speed_up.high), abs=0.01
            )
            assert said.endswith(found.says) or found.why in said
        shown = [f.says != "not shown" for f in findings]
        assert [bool(found) for found in shown] == [point in plot.points(index, is_hollow=False) for point in points]


def test_acceptance_is_that_of_the_counters(run, drawn):
    (positions,), (rounds,) = drawn["by-position"], drawn["histogram"]
    for index, arm in enumerate(names(run)):
        counts = [w.counts for w in run.windows if w.arm == arm and w.counts]
        if not counts:
            assert positions.points(index) == [] and rounds.bars(index) == []
            continue
        num_rounds = sum(c.rounds for c in counts)
        accepted = [sum(column) for column in zip(*(c.by_position for c in counts), strict=True)]
        of_all = positions.points(index, is_hollow=False)
        assert [y for _, y, _ in of_all] == pytest.approx([100 * a / num_rounds for a in accepted], abs=0.5)
        before = [num_rounds, *accepted]
        of_tested = positions.points(index, is_hollow=True)
        tested = [100 * a / b for a, b in zip(accepted, before, strict=False)]
        assert [y for _, y, _ in of_tested] == pytest.approx(tested, abs=0.5)
        assert [x for x, *_ in of_all] == pytest.approx(list(range(1, len(accepted) + 1)), abs=0.02)
        histogram = Counter()
        for one in counts:
            histogram.update(dict(enumerate(one.histogram)))
        bars = rounds.bars(index)
        tops = [rounds.y(bar.number("y")) for bar in bars]
        assert tops == pytest.approx([100 * histogram[k] / num_rounds for k in range(len(bars))], abs=0.5)
        assert all(
            rounds.y(bar.number("y") + bar.number("height")) == pytest.approx(0, abs=0.5) for bar in bars
        ) and len(bars) == len(histogram)


@pytest.mark.parametrize("place", range(len(LOADS)))
@pytest.mark.parametrize("sample", ["first-text", "gap"])
def test_cumulative_shares_are_those_of_the_requests(run, drawn, sample, place):
    order = (LOADS[0], LOADS[-1], *LOADS[1:-1])  # the least and the largest load come first
    plot = drawn[sample][place]
    for index, arm in enumerate(names(run)):
        figures = [figures_of(w) for w in windows_of(run, arm, order[place])]
        values = [v for f in figures for v in (f.first_text_s if sample == "first-text" else f.gaps_s)]
        values = sorted(max(0.1, 1000 * value) for value in values)
        corners = plot.corners(index)
        assert len(corners) > 20 and corners[-1][1] == pytest.approx(100, abs=0.5)
        for x, y in corners[1::7]:
            at_most, below = sum(v <= x * 1.01 for v in values), sum(v < x * 0.99 for v in values)
            assert 100 * below / len(values) - 1.1 <= y <= 100 * at_most / len(values) + 1.1
        for percent, (x, _, said) in zip((50, 99), plot.points(index), strict=True):
            assert x == pytest.approx(values[-(-percent * len(values) // 100) - 1], rel=0.03)
            assert said.startswith(f"{arm}: {percent} % within")


def test_categories(run, drawn):
    (lengths,), (speeds,) = drawn["category-acceptance"], drawn["category-speed-up"]
    for index, arm in enumerate(names(run)[1:], 1):
        bars = lengths.bars(index)
        assert len(bars) == len(CATEGORIES)
        for bar, category in zip(bars, CATEGORIES, strict=True):
            counts = [
                r.counts
                for w in run.windows
                if w.arm == arm
                for r in w.records
                if r.category == category and r.is_measured
            ]
            expected = 1 + sum(c.accepted for c in counts) / sum(c.rounds for c in counts)
            end = lengths.x(bar.number("x") + bar.number("width"))
            assert end == pytest.approx(expected, abs=0.02)
            assert next(bar.all("title")).text().startswith(f"{arm}, {category}: {expected:.2f}")
        points = speeds.points(index)
        assert len(points) == len(speeds.whiskers(index)) == len(CATEGORIES)
        for (x, _, said), ((low, _), (high, _)) in zip(points, speeds.whiskers(index), strict=True):
            assert low - 0.01 <= x <= high + 0.01 and f": {x:.1f}"[:-1] in said
    fastest = max(RATES, key=RATES.get)
    best = max(speeds.points(2))[2]
    assert fastest in best


def test_table_has_a_row_for_each_arm_and_load(run, html):
    (table,) = parse(html).all("table")
    rows = list(next(table.all("tbody")).all("tr"))
    assert len(rows) == len(ARMS) * len(LOADS)
    for row, (arm, load) in zip(rows, [(arm, load) for arm in names(run) for load in LOADS], strict=True):
        cells = [cell.text() for cell in row.children]
        speed = median(figures_of(w).tokens_per_s for w in windows_of(run, arm, load))
        assert cells[:2] == [arm, f"{load} at once"] and cells[2].startswith(f"{speed:,.1f}")


def test_the_run_itself_is_in_the_page(run, html):
    (script,) = [node for node in parse(html).all("script") if node.attributes.get("id") == "run"]
    data = json.loads(script.text())
    assert len(data["windows"]) == len(run.windows)
    assert [len(w["records"]) for w in data["windows"]] == [len(w.records) for w in run.windows]
    assert data["header"]["stamp"]["simulated"] == run.header.stamp.simulated


def test_simulated_is_loud(run, html):
    tree = parse(html)
    (banner,) = tree.all("div", "simulated")
    assert banner.text() == run.header.stamp.simulated
    assert next(tree.all("title")).text().startswith("SIMULATED")
    for name, plots in pictures(html).items():
        for plot in plots:
            assert [t.text() for t in plot.svg.all("text", "simulated-mark")] == ["SIMULATED"], name


def test_all_of_the_stamp_is_shown(run, html):
    text = parse(html).text()
    stamp = run.header.stamp
    for words in (
        stamp.date,
        stamp.command,
        stamp.eyas,
        stamp.commit,
        stamp.client,
        stamp.hardware,
        *stamp.endpoint.values(),
    ):
        assert words in text


def test_a_run_of_one_point(run):
    (window,) = [w for w in run.windows if w.arm == "3 drafts" and w.turn == 0 and w.load.concurrency == 1]
    drawn = pictures(html_of(with_windows(run, [window])))
    assert set(drawn) == PLOTS - {"speed-up", "category-speed-up"}
    ((x, y, _),) = drawn["pareto"][0].points(0)
    figures = figures_of(window)
    assert (x, y) == pytest.approx((1 / median(figures.tpot_s), figures.tokens_per_s), rel=0.01)


def test_one_pair_has_a_speed_up_without_interval(run):
    pair = [w for w in run.windows if w.turn == 0 and w.load.concurrency == 4 and w.arm != "1 drafts"]
    (plot,) = pictures(html_of(with_windows(run, pair)))["speed-up"]
    ((_, y, said),) = plot.points(1, is_hollow=True)
    assert y == pytest.approx(verdict(pair, base="off", arm="3 drafts").findings[0].ratios[0], abs=0.01)
    assert plot.whiskers(1) == [] and "no interval" in said


@pytest.mark.parametrize(
    "records",
    [(), "failed", "without chunks", "one chunk"],
)
def test_windows_with_nothing_to_draw(run, records):
    """No picture, and a line that says why; nothing breaks."""
    record = run.windows[0].records[0]
    fields = {name: getattr(record, name) for name in record.__struct_fields__}
    changes = {
        "failed": {"error": "connection refused"},
        "without chunks": {"chunks": ()},
        "one chunk": {"chunks": record.chunks[:1]},
    }
    made = () if records == () else (type(record)(**fields | changes[records]),)
    window = changed(run.windows[0], records=made, counts=None)
    html = html_of(with_windows(run, [window]))
    tree = parse(html)
    assert "pareto" not in pictures(html)
    assert any("No window has both speeds." in note.text() for note in tree.all("p", "empty"))
    assert ("connection refused" in tree.text()) == (records == "failed")


def test_void_windows_count_nowhere_and_are_listed(run):
    void = changed(run.windows[0], void="the client was the bottleneck", records=(), turn=99)
    html = html_of(with_windows(run, [*run.windows, void]))
    assert "void, in no figure: off, 1 at once: the client was the bottleneck" in parse(html).text()
    assert pictures(html)["pareto"][0].points(0) == pictures(html_of(run))["pareto"][0].points(0)


def test_many_arms_and_an_open_loop():
    arms = tuple(range(11))
    run = synthetic_run(arms=arms, concurrencies=(2,), turns=2, num_requests=3)
    open_loop = [changed(w, load=type(w.load)(rate=2.5, max_tokens=64)) for w in run.windows]
    drawn = pictures(html_of(with_windows(run, open_loop)))
    assert len(list(drawn["pareto"][0].svg.all("g", "point"))) == len(arms)
    shapes = {next(g.all("path")).attributes["d"] for g in drawn["pareto"][0].svg.all("g", "point")}
    assert len(shapes) == 8  # as many as colours
    assert "2.5 a second" in drawn["gap"][0].figure.text()


def test_a_vast_interval_does_not_flatten_the_picture(run):
    """Two pairs that disagree have an interval over decades: the axis keeps to the ratios, lines end at the edge."""
    pairs = [w for w in run.windows if w.turn < 2 and w.load.concurrency == 1 and w.arm != "1 drafts"]
    slow = [changed(w, records=slower(w.records, 3 if w.turn else 1)) for w in pairs if w.arm == "3 drafts"]
    windows = [*slow, *(w for w in pairs if w.arm == "off")]
    windows.sort(key=lambda w: w.arm != "off")
    (finding,) = verdict(windows, base="off", arm="3 drafts").findings
    assert finding.speed_up.high > 100
    (plot,) = pictures(html_of(with_windows(run, windows)))["speed-up"]
    ((_, y, said),) = plot.points(1)
    assert y == pytest.approx(finding.speed_up.value, abs=0.02) and "not shown" in said
    ticks = [float(tick.text()) for tick in plot.svg.all("text", "tick", "y")]
    assert max(ticks) < 5 * finding.speed_up.value and min(ticks) >= 0


def slower(records, factor):
    """The same requests with their chunks further apart."""
    made = []
    for record in records:
        first = record.chunks[0].at_s
        chunks = tuple(type(c)(first + factor * (c.at_s - first), c.kind, c.num_chars, c.tokens) for c in record.chunks)
        made.append(type(record)(**{n: getattr(record, n) for n in record.__struct_fields__} | {"chunks": chunks}))
    return tuple(made)


def test_what_may_be_wrong_is_said(run):
    fixed = type(run.windows[0].load)(concurrency=1, mode="fixed", max_tokens=10_000)
    chunks = tuple(type(c)(c.at_s, c.kind, c.num_chars) for c in run.windows[0].records[0].chunks)
    record = type(run.windows[0].records[0])(
        **{n: getattr(run.windows[0].records[0], n) for n in run.windows[0].records[0].__struct_fields__}
        | {"chunks": chunks}
    )
    window = changed(run.windows[0], load=fixed, is_warm=False, warm_up_s=30.0, records=(record,))
    text = parse(html_of(with_windows(run, [window]))).text()
    assert "1 of 1 windows began before their speed was steady" in text
    assert "1 answers ended before their fixed length" in text
    assert "~: the server does not count tokens along" in text
    assert "ended before" not in parse(html_of(run)).text()
    none = parse(html_of(with_windows(run, [changed(run.windows[0], is_warm=False, warm_up_s=0.0)]))).text()
    assert "no warm-up before 1 of 1 windows" in none and "began before" not in none


def test_counters_that_saw_no_round_give_way_to_what_requests_say(run):
    window = next(one for one in run.windows if one.records[0].counts is not None)
    silent = changed(window, counts=Counts(rounds=0, accepted=0))
    (cell,) = summary(with_windows(run, [silent])).cells.values()
    assert cell.counts is not None and cell.counts.rounds == sum(one.counts.rounds for one in window.records)
