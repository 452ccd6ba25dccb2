"""The list of checks: what each needs comes first, and the manual has a row for each of them and for each tip."""

from pathlib import Path

from eyas.bench.check.smoke import CHECKS
from eyas.fleet.advice.tips import TIPS

PAGE = Path(__file__).parents[3] / "docs" / "check.md"


def test_a_check_comes_after_those_that_it_needs():
    names = [check.name for check in CHECKS]
    assert len(set(names)) == len(names)
    assert all(need in names[:place] for place, check in enumerate(CHECKS) for need in check.needs)


def test_the_manual_has_them_all():
    rows = [line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    assert rows[rows.index("check") + 1 : rows.index("advice")] == [*(check.name for check in CHECKS), "/v1/messages"]
    assert rows[rows.index("advice") + 1 :] == [tip.rule for tip in TIPS]
