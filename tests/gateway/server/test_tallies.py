"""Counts with labels that clients choose are bounded."""

from concurrent.futures import ThreadPoolExecutor

from eyas.gateway.server.tallies import MAX_VALUES, OTHER, Tallies, Tally

TALLY = Tally(name="eyas:x", text="X.", labels=("a", "b"))


def test_labels_are_new_once_and_bounded():
    tallies = Tallies()
    found = [tallies.count(TALLY, str(number % 100), "b") for number in range(1000)]
    assert sum(found) == MAX_VALUES and found[:MAX_VALUES] == [True] * MAX_VALUES
    ((tally, counts),) = tallies.items()
    assert tally is TALLY and len(counts) == MAX_VALUES + 1 and sum(counts.values()) == 1000
    assert counts["0", "b"] == 10 and counts[OTHER, OTHER] == 10 * (100 - MAX_VALUES)


def test_no_count_is_lost_in_threads():
    tallies = Tallies()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda number: tallies.count(TALLY, "a", "b"), range(2000)))
    assert list(tallies.items()) == [(TALLY, {("a", "b"): 2000})]
