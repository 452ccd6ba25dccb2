"""All chats of a run: the split, the digest, and limits."""

from __future__ import annotations

import json

import pytest
from tests.train.data.support.chats import chat, chat_json

from eyas.base.errors import UserError
from eyas.train.data.corpus import is_held_out, read_corpus
from eyas.train.data.documents import DocumentOptions, documents_of

NUM_CHATS = 30
OPTIONS = DocumentOptions()


def question(text, answer="Yes."):
    return {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]}


def written(tmp_path, values, name="chats.jsonl"):
    path = tmp_path / name
    path.write_text("".join(json.dumps(value) + "\n" for value in values))
    return path


@pytest.fixture
def path(tmp_path):
    return written(tmp_path, map(chat_json, range(NUM_CHATS)))


def ids(documents):
    return [document.ids_T.tolist() for document in documents]


def test_a_corpus_has_all_documents_in_order(demo, path):
    corpus = read_corpus([path], demo, OPTIONS)
    tally = corpus.tally
    expected = [d for n in range(NUM_CHATS) for d in documents_of(demo, chat(chat_json(n)), OPTIONS, type(tally)())]
    assert ids(corpus.training) == ids(expected) and not corpus.held_out
    assert tally.num_chats == NUM_CHATS
    assert corpus.training[0].source == f"{path}:1, turn 1"


def test_a_chat_is_on_one_side_wherever_it_stands(demo, path, tmp_path):
    corpus = read_corpus([path], demo, OPTIONS, held_out=0.3)
    assert len(corpus.training) + len(corpus.held_out) == len(read_corpus([path], demo, OPTIONS).training)
    lines = [{document.source.split(",")[0] for document in side} for side in (corpus.training, corpus.held_out)]
    assert not lines[0] & lines[1] and len(lines[1]) >= 3
    other = written(tmp_path, [*map(chat_json, range(40, 50)), *map(chat_json, reversed(range(NUM_CHATS)))], "b.jsonl")
    again = read_corpus([other], demo, OPTIONS, held_out=0.3)
    assert {*map(tuple, ids(corpus.held_out))} <= {*map(tuple, ids(again.held_out))}
    assert not {*map(tuple, ids(corpus.held_out))} & {*map(tuple, ids(again.training))}


def test_the_share_held_out_is_about_the_one_asked_for_and_grows_with_it():
    chats = [chat(question(f"What is {number} + 1?")) for number in range(2000)]
    sides = {share: {n for n, one in enumerate(chats) if is_held_out(one, share)} for share in (0.0, 0.05, 0.2, 1.0)}
    assert not sides[0.0] and len(sides[1.0]) == 2000
    assert 60 < len(sides[0.05]) < 140 and 330 < len(sides[0.2]) < 470
    assert sides[0.05] < sides[0.2]


def test_answers_to_one_question_are_on_one_side():
    for number in range(50):
        answers = [chat(question(f"Why {number}?", text) | {"reasoning_effort": "low"}) for text in ("a", "b", "c")]
        assert len({is_held_out(one, 0.5) for one in answers}) == 1


def test_the_split_is_the_one_that_is_written_down_here():
    """A change of it would let held-out chats of earlier runs into training."""
    found = [number for number in range(40) if is_held_out(chat(question(f"What is {number} + 1?")), 0.2)]
    assert found == KNOWN


KNOWN = [0, 5, 12, 16, 17, 24, 35]


def test_the_digest_changes_with_tokens_masks_and_split(demo, path, tmp_path):
    digests = {
        read_corpus([path], demo, OPTIONS).digest,
        read_corpus([path], demo, OPTIONS, held_out=0.3).digest,
        read_corpus([path], demo, DocumentOptions(date="2026-11-24")).digest,
        read_corpus([written(tmp_path, map(chat_json, range(NUM_CHATS - 1)), "c.jsonl")], demo, OPTIONS).digest,
    }
    assert len(digests) == 4
    copy = written(tmp_path, map(chat_json, range(NUM_CHATS)), "d.jsonl")
    assert read_corpus([copy], demo, OPTIONS).digest in digests


UNANSWERED = {"messages": [{"role": "user", "content": "Hi"}]}


def test_nothing_to_learn_is_an_error(demo, tmp_path):
    empty, unanswered = written(tmp_path, [], "empty.jsonl"), written(tmp_path, [UNANSWERED] * 3)
    with pytest.raises(UserError, match=rf"^{empty}: no supervised token in 0 chats"):
        read_corpus([empty], demo, OPTIONS)
    with pytest.raises(UserError, match=r": no supervised token in 3 chats: the assistant says nothing in them"):
        read_corpus([unanswered], demo, OPTIONS)
    long = written(tmp_path, [question("Hi")], "long.jsonl")
    with pytest.raises(UserError, match="1 turns are longer than the context; set a longer one"):
        read_corpus([long], demo, DocumentOptions(context=8, too_long="skip"))


def test_a_side_without_chats_is_an_error(demo, tmp_path):
    same = written(tmp_path, [question("Hi", text) for text in "abc"])
    for share, empty in ((1e-9, "held out"), (1.0, "left to train on")):
        with pytest.raises(UserError, match=rf"a share of {share} held out, none of 3 chats is {empty}"):
            read_corpus([same], demo, OPTIONS, held_out=share)


def test_memory_is_bounded(demo, path):
    whole = sum(map(len, read_corpus([path], demo, OPTIONS).training))
    assert read_corpus([path], demo, OPTIONS, max_tokens=whole)
    with pytest.raises(UserError, match=rf"^{path}:\d+, turn \d: the documents up to here have {whole} tokens"):
        read_corpus([path], demo, OPTIONS, max_tokens=whole - 1)
