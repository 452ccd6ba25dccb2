"""Documents as people see them: nothing lost, nothing that a terminal would obey, marks around what is supervised."""

from __future__ import annotations

import re

import pytest
from tests.train.data.support.chats import chat, chat_json

from eyas.train.data.documents import DocumentOptions, Tally, documents_of
from eyas.train.data.show import COLOURS, legend, marked, summary_lines
from eyas.train.data.summary import Summary
from eyas.train.types import Segment


def documents(codec, value):
    return list(documents_of(codec, chat(value), DocumentOptions(), Tally()))


def supervised(document, codec):
    return [
        codec.decode(document.ids_T[document.runs_T == run].tolist()) for run in range(int(document.runs_T.max()) + 1)
    ]


@pytest.mark.parametrize("seed", range(10))
def test_marks_and_colours_stand_around_supervised_text(demo, seed):
    for document in documents(demo, chat_json(seed)):
        whole = demo.decode(document.ids_T.tolist())
        plain = "".join(marked(document, demo, colour=False))
        assert plain.replace("[[", "").replace("]]", "") == whole
        assert re.findall(r"\[\[(.*?)\]\]", plain, re.DOTALL) == supervised(document, demo)
        coloured = "".join(marked(document, demo, colour=True))
        assert re.sub(r"\033\[\d*m", "", coloured) == whole
        pieces = re.findall(r"(\033\[\d+m)(.*?)\033\[0m", coloured, re.DOTALL)
        for segment, mark in COLOURS.items():
            text = "".join(piece for colour, piece in pieces if colour == mark)
            assert text == demo.decode(document.ids_T[document.segments_T == segment].tolist())


def test_a_chat_cannot_command_the_terminal(demo):
    text = "\033]0;owned\007 \x9b31m \u202e \r \x7f ok\ttab\nline"
    value = {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": text}]}
    for colour in (False, True):
        shown = "".join("".join(marked(document, demo, colour=colour)) for document in documents(demo, value))
        shown = re.sub(r"\033\[\d*m", "", shown)
        assert all(char.isprintable() or char in "\n\t" for char in shown)
        assert shown.count("\\u001b]0;owned\\u0007 \\u009b31m \\u202e \\u000d \\u007f ok\ttab\nline") == 2


def test_the_legend_names_every_segment():
    assert all(segment.name.lower() in legend(colour=True) for segment in COLOURS) and len(COLOURS) == 5
    assert "[[" in legend(colour=False)


def test_counts_are_shown(demo):
    summary, tally = Summary(num_depths=3), Tally(num_chats=1, num_skipped=2, num_truncated=3, num_without_turns=4)
    (document,) = documents(
        demo, {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Yo"}]}
    )
    summary.add(document)
    own = int((document.runs_T >= 0).sum())
    text = "\n".join(summary_lines(summary, tally, "faithful", {Segment.FINAL: 0.5, None: 0.25}))
    assert f"{len(document)}, {own} supervised" in text
    assert f"faithful: {own - 1}, {own - 2}, {own - 3} at depths" in text
    assert "4 chats without an answer; 2 turns left out: longer than the context; 3 turns cut to the context" in text
    assert "50.00% of them in the draft vocabulary" in text and f"all         {own}, 25.00% of them" in text
