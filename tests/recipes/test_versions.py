"""The order of versions as engines print them, and ranges; `packaging` is the judge where it knows the form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.specifiers import SpecifierSet

from eyas.base.errors import UserError
from eyas.recipes.versions import compare, satisfies

NUMBERS = st.integers(0, 12)
RELEASES = st.lists(NUMBERS, min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
SUFFIXES = st.sampled_from(["", "rc1", "rc12", "-rc2", ".dev41", "rc7.dev41", ".post1", "+cu130"])
VERSIONS = st.one_of(
    st.tuples(st.sampled_from(["", "v"]), RELEASES, SUFFIXES).map("".join),
    st.integers(0, 99999).map(lambda build: f"b{build}"),
)
ASCENDING = [
    ["0.5.4", "0.5.6", "0.5.10", "0.5.23", "0.6"],
    ["1.1.0rc0", "1.2.0rc1", "1.2.0rc6", "1.2.0", "1.2.1", "1.3.0rc2", "1.3.0rc12", "1.3.0rc13", "1.3.0", "1.4.0rc1"],
    ["0.11.1rc7.dev41", "0.11.1rc7", "0.11.1", "0.11.2", "0.14.1", "0.25.1", "0.33.0"],
    ["b6000", "b10157", "b10158", "b10488", "0.1.0", "0.3.2"],
    ["26.04", "26.05", "26.05.post1", "26.10"],
    ["v0.32.1", "v0.33.0-rc2", "v0.33.0"],
]


@pytest.mark.parametrize("versions", ASCENDING, ids=lambda versions: versions[0])
def test_versions_as_engines_print_them(versions):
    for index, version in enumerate(versions):
        assert [compare(version, other) for other in versions] == [
            (index > place) - (index < place) for place in range(len(versions))
        ]


@pytest.mark.parametrize(
    "same", ["0.33.0 v0.33.0", "0.33.0 0.33.0+cu130", "1.3.0rc12 1.3.0-rc12", "b10158 b10158-9af3"]
)
def test_other_spellings_of_one_version(same):
    assert compare(*same.split()) == 0


@given(VERSIONS, VERSIONS, VERSIONS)
def test_the_order_is_total(a, b, c):
    assert compare(a, b) == -compare(b, a)
    assert compare(a, a) == 0
    if compare(a, b) <= 0 and compare(b, c) <= 0:
        assert compare(a, c) <= 0


@given(VERSIONS, VERSIONS)
def test_ranges_agree_with_the_order(a, b):
    order = compare(a, b)
    assert satisfies(a, f"<{b}") == (order < 0)
    assert satisfies(a, f"<={b}") == (order <= 0)
    assert satisfies(a, f"=={b}") == (order == 0)
    assert satisfies(a, f"!={b}") == (order != 0)
    assert satisfies(a, f">={b}, <={b}") == (order == 0)
    assert satisfies(a, f">{b}") == (order > 0)


@given(RELEASES, RELEASES, RELEASES)
def test_releases_are_judged_as_installers_judge_them(version, low, high):
    spec = f">={low},<{high}"
    assert satisfies(version, spec) == (version in SpecifierSet(spec))


@pytest.mark.parametrize(
    ("version", "spec", "holds"),
    [
        ("0.5.9", ">=0.5.6,<0.5.10", True),
        ("0.5.10", ">=0.5.6,<0.5.10", False),
        ("1.3.0rc12", "<1.3.0", True),  # plain order: installers would leave a pre-release out
        ("1.3.0rc12", ">=1.3.0rc12", True),
        ("1.3.0rc12", ">=1.3.0", False),
        ("b10157", ">=b10158", False),
        ("b10488", ">=b10158", True),
        ("0.33.0+cu130", "<=0.33.0", True),
        ("26.05.post1", ">26.05", True),
        ("0.1", "", True),
        ("0.1", "*", True),
    ],
)
def test_ranges(version, spec, holds):
    assert satisfies(version, spec) is holds


@pytest.mark.parametrize("version", ["", "latest", "1.x", "b", "bee10", "cu130-nightly"])
def test_what_is_no_version_is_said_in_one_line(version):
    with pytest.raises(UserError, match=r"is not a version; write e\.g\. 0\.5\.23") as caught:
        compare(version, "1.0")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", ["0.5", ">=0.5,", "~0.5", "=>0.5", "> = 1"])
def test_what_is_no_range_is_an_error(spec):
    with pytest.raises(ValueError, match="is not a range"):
        satisfies("0.5", spec)
