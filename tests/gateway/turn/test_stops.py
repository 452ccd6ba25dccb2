"""Stop strings: the same text whatever the chunking, against a search in the whole text."""

from hypothesis import given
from hypothesis import strategies as st

from eyas.gateway.turn.stops import StopMatcher

letters = st.text("ab", max_size=30)


def run(stops, pieces):
    matcher, shown = StopMatcher(stops), []
    for piece in pieces:
        shown.append(matcher.feed(piece))
        if matcher.stopped is not None:
            return "".join(shown), True
    return "".join(shown) + matcher.flush(), False


@given(letters, st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
def test_single_characters_end_where_the_first_stop_string_ends(text, stops):
    """Oracle: the shortest prefix that ends with a stop string, less the longest of those that end there."""
    expected = (text, False)
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            expected = (text[: end - max(map(len, ending))], True)
            break
    assert run(tuple(stops), text) == expected


@given(letters, st.text("ab", min_size=1, max_size=5), st.data())
def test_any_chunking_cuts_one_stop_string_at_its_first_place(text, stop, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert run((stop,), pieces) == (text.split(stop)[0], stop in text)


@given(letters, st.text("ab", min_size=1, max_size=5))
def test_never_shows_what_a_stop_string_may_still_take(text, stop):
    matcher, shown = StopMatcher((stop,)), ""
    for char in text:
        shown += matcher.feed(char)
        assert text.split(stop)[0].startswith(shown)
        if matcher.stopped is not None:
            break
