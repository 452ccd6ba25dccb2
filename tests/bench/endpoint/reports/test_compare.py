"""What changed between two runs: how often the intervals are wrong, and what is said to be not alike."""

import random
from math import exp, log

import pytest
import scipy
from tests.bench.endpoint.support.synthetic import synthetic_run, write_journal

from eyas import cli
from eyas.base.errors import UserError
from eyas.bench.endpoint.journal import Header, Run
from eyas.bench.endpoint.records import Stamp
from eyas.bench.endpoint.reports.compare import changes, differences, ratio
from eyas.bench.endpoint.reports.summary import summary
from eyas.bench.stats import student_t

SMALL = {"arms": (0, 3), "concurrencies": (1, 2), "num_requests": 4}


def with_stamp(run, **fields):
    old = {name: getattr(run.header.stamp, name) for name in run.header.stamp.__struct_fields__}
    header = Header(stamp=Stamp(**old | fields), settings=run.header.settings, run=run.header.run)
    return Run(header=header, windows=run.windows)


def test_student_t_is_scipys():
    for degrees in (1, 2, 3, 4, 7, 8, 20, 200):
        assert student_t(0.975, degrees) == pytest.approx(scipy.stats.t.ppf(0.975, degrees), rel=1e-9)


def test_the_interval_is_welchs():
    """As scipy's, but for degrees of freedom that are rounded down."""
    rng = random.Random(3)
    for size in (3, 5, 9):
        above, below = ([rng.lognormvariate(0.1, 0.2) for _ in range(size)] for _ in range(2))
        logs = [[log(value) for value in values] for values in (above, below)]
        theirs = scipy.stats.ttest_ind(*logs, equal_var=False).confidence_interval(0.95)
        ours = ratio(above, below)
        low, high = (exp(end) for end in (theirs.low, theirs.high))
        assert ours.low <= low * (1 + 1e-9) and ours.high >= high * (1 - 1e-9)  # fewer degrees: never narrower
        assert (ours.low, ours.high) == pytest.approx((low, high), rel=0.12)


@pytest.mark.parametrize("sizes", [(3, 3), (5, 5), (3, 9)])
def test_no_change_is_seldom_one(sizes):
    rng, num_trials = random.Random(7), 1000
    wrong = 0
    for _ in range(num_trials):
        one, other = ([rng.lognormvariate(0, 0.03) for _ in range(size)] for size in sizes)
        found = ratio(one, other)
        wrong += not found.low <= 1 <= found.high
    assert wrong / num_trials <= 0.06


def test_a_change_of_ten_percent_is_found():
    rng = random.Random(8)
    runs = [[[rng.lognormvariate(log(faster), 0.03) for _ in range(5)] for faster in (1.1, 1.0)] for _ in range(300)]
    assert sum(ratio(above, below).low > 1 for above, below in runs) >= 0.9 * 300


def test_few_windows_have_no_interval():
    assert ratio([1.0, 1.1], [1.0, 1.1, 1.2]) is None
    assert ratio([1.0, 1.1, 0.0], [1.0, 1.1, 1.2]) is None
    assert ratio([2.0] * 3, [1.0] * 3).text(2) == "2.00 [2.00, 2.00]"


def test_slower_is_worse_and_nothing_else_is_said():
    before, after = synthetic_run(**SMALL, seed=1), synthetic_run(**SMALL, seed=2, slower=1.25)
    found = changes(summary(before), summary(after))
    speeds = [one for one in found if one.figure in ("user_tok_s", "gap_p50_s")]
    assert len(speeds) == 8 and {one.says for one in speeds} == {"worse"}
    for one in speeds:
        expected = 1 / 1.25 if one.is_more_better else 1.25
        assert one.ratio.low <= expected * 1.05 and one.ratio.high >= expected * 0.95
    assert {one.says for one in found if one.figure == "acceptance_length"} == {"not shown"}


def test_the_same_run_differs_in_nothing():
    run = synthetic_run(**SMALL)
    assert {one.says for one in changes(summary(run), summary(run))} == {"not shown"}
    assert [one.name for one in differences(run, run)] == []


@pytest.mark.parametrize(
    ("other", "name"),
    [
        (with_stamp(synthetic_run(**SMALL), hardware="NVIDIA H200"), "hardware"),
        (with_stamp(synthetic_run(**SMALL), simulated=""), "simulated"),
        (with_stamp(synthetic_run(**SMALL), client="another"), "measured by"),
        (synthetic_run(**SMALL, mode="fixed"), "mode"),
        (synthetic_run(**SMALL, categories=("law", "medicine")), "sets of prompts"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unlike_conditions_are_said(other, name):
    found = differences(synthetic_run(**SMALL), other)
    assert [one.name for one in found if one.is_condition] == [name]


def test_unknown_hardware_is_never_alike():
    run = with_stamp(synthetic_run(**SMALL), hardware="")
    (found,) = differences(run, run)
    assert (found.name, found.before, found.after, found.is_condition) == ("hardware", "not known", "not known", True)


def test_versions_are_what_a_comparison_is_about():
    found = differences(synthetic_run(**SMALL), with_stamp(synthetic_run(**SMALL), commit="abc", command="other"))
    assert [(one.name, one.is_condition) for one in found] == [("eyas", False), ("command", False)]


def test_runs_without_a_common_load_are_refused():
    one, other = synthetic_run(**SMALL), synthetic_run(**SMALL | {"concurrencies": (4,)})
    with pytest.raises(UserError, match=r"2 at once \(natural, 512 tokens\); off, 3 drafts at 4 at once"):
        changes(summary(one), summary(other))


def test_single_arms_are_compared_whatever_their_names():
    one, other = (synthetic_run(**SMALL | {"arms": (0,)}, names={0: name}) for name in ("vllm", "eyas"))
    assert {change.arm for change in changes(summary(one), summary(other))} == {"vllm"}


def test_the_command(capsys, tmp_path):
    before = synthetic_run(**SMALL)
    after = with_stamp(synthetic_run(**SMALL, seed=5, slower=0.8), hardware="NVIDIA H200", commit="fedcba")
    for name, run in (("a", before), ("b", after)):
        write_journal(tmp_path / name, run)
    assert cli.main(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    out = capsys.readouterr().out.splitlines()
    stamp = before.header.stamp
    assert out[1].startswith(f"before  SIMULATED ({stamp.simulated}), none, {stamp.date}, eyas 0.1.0 (commit 0123")
    assert out[2].startswith("after   SIMULATED") and "NVIDIA H200" in out[2] and "commit fedcba" in out[2]
    assert out[4].startswith("NOT ALIKE") and out[5] == "  hardware: none / NVIDIA H200"
    assert any(line.startswith("  eyas: 0.1.0, commit 0123456789ab / 0.1.0, commit fedcba") for line in out)
    (row,) = [line for line in out if line.lstrip().startswith("off, 1 at once") and "tok/s user" in line]
    assert row.endswith("better")
    assert out[-1].startswith('{"bench": "compare"') and '"not_alike": [{"name": "hardware"' in out[-1]


def test_the_command_says_which_file_ends_in_half_a_line(capsys, tmp_path):
    for name in ("a", "b"):
        write_journal(tmp_path / name, synthetic_run(**SMALL))
    (tmp_path / "b").write_bytes((tmp_path / "b").read_bytes()[:-20])
    assert cli.main(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 0
    assert capsys.readouterr().err == f"eyas: {tmp_path / 'b'}: the last line was cut short and is left out\n"


def test_the_command_refuses_what_is_no_run(capsys, tmp_path):
    (tmp_path / "a").write_text("{}")
    assert cli.main(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 1
    err = capsys.readouterr().err
    assert err.startswith("eyas: error: ") and err.count("\n") == 1


def test_terminals_get_no_escapes_of_names(capsys, tmp_path):
    run = synthetic_run(**SMALL, names={0: "\x1b[31mred\x1b]0;title\x07", 3: "b"})
    write_journal(tmp_path / "a", run)
    assert cli.main(["bench", "compare", str(tmp_path / "a"), str(tmp_path / "a")]) == 0
    assert "\x1b" not in capsys.readouterr().out
