"""The demo model's data: rendered as Harmony, split before training, reproducible."""

import json
from pathlib import Path
from random import Random

import numpy as np
import pytest
from chats import ChatWriter, is_held_out
from data import CONTEXT, GENERATED, TEXT, CachedCodec, RowPacker, held_out_prompts, prompt_ids, render_chat
from evaluate import final_text, is_right
from facts import load_facts
from make_tokenizer import SPECIALS, VOCAB_SIZE
from shapes import TARGET

from eyas.base.harmony.rendering import CHANNELS, ROLES, render_conversation
from eyas.base.tokens.tokenizer import Tokenizer

ROOT = Path(__file__).parents[2]
HELD_OUT = ROOT / "tests" / "assets" / "demo_heldout.jsonl"


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.load(ROOT / "src" / "eyas" / "demo")


def test_tokenizer_has_the_special_tokens_in_their_places(tokenizer):
    base = VOCAB_SIZE - 16
    assert tokenizer.vocab_size == VOCAB_SIZE == TARGET.vocab_size
    assert all(tokenizer.special[name] == base + offset for offset, name in SPECIALS.items())
    assert TARGET.eos_ids == tuple(tokenizer.special[name] for name in ("<|return|>", "<|endoftext|>", "<|call|>"))
    text = "What's 12 + 34?\n\n\tdef f(x): return `os.path`  # \u00e9\u4e2d\U0001f600"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert len(tokenizer.encode("2024")) == 4
    assert all(len(tokenizer.encode(word)) == 1 for word in (*ROLES, *CHANNELS))


def test_training_chats_are_what_the_renderer_says(tokenizer):
    writer, codec = ChatWriter(load_facts(), Random(0)), CachedCodec(tokenizer)
    for _ in range(150):
        chat = writer.chat()
        ids, codes = render_chat(codec, chat)
        messages = chat.messages()
        assert ids == render_conversation(tokenizer, messages, purpose="training")
        assert len(codes) == len(ids)
        prompt = render_conversation(tokenizer, chat.given(), purpose="completion")
        assert ids[: len(prompt)] == prompt
        assert set(codes[len(prompt) :]) == {GENERATED}
        supervised = [token for token, code in zip(ids[: len(prompt)], codes, strict=False) if code == GENERATED]
        earlier = [tokenizer.encode(turn.answer) for turn in chat.turns[:-1]]
        assert supervised == [token for answer in earlier for token in answer]


def test_training_never_sees_what_is_held_out():
    facts = load_facts()
    train, held = ChatWriter(facts, Random(1)), ChatWriter(facts, Random(1), held_out=True)
    assert not any(is_held_out(turn) for _ in range(300) for turn in train.chat().turns)
    assert all(is_held_out(turn) for _ in range(100) for turn in held.chat().turns)


def test_committed_held_out_prompts_are_those_of_the_seed():
    rows = [json.loads(line) for line in HELD_OUT.read_text(encoding="ascii").splitlines()]
    prompts = [row for row in rows if row["kind"] != "text"]
    assert prompts == held_out_prompts(len(prompts), seed=0)
    assert len(rows) > len(prompts) >= 300


def test_rows_are_full_and_a_function_of_the_seed(tokenizer):
    text = [np.array(tokenizer.encode("import os\n" * 400), np.uint16)]
    first, again, other = (
        RowPacker(CachedCodec(tokenizer), text, 512, seed).shard(6) for seed in ("0:1", "0:1", "0:2")
    )
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not np.array_equal(first.ids, other.ids)
    assert first.ids.dtype == np.uint16 and first.ids.max() < VOCAB_SIZE
    assert {CONTEXT, GENERATED, TEXT} <= set(first.codes.flatten().tolist())
    for docs in first.docs:
        assert np.array_equal(np.unique(docs), np.arange(docs[-1] + 1)) and (np.diff(docs.astype(int)) >= 0).all()


def test_an_answer_is_judged_by_module_and_sentence(tokenizer):
    row = next(row for row in held_out_prompts(40, seed=1) if row["module"])
    chat_ids = tokenizer.encode(row["answer"])
    special = tokenizer.special
    header = [special["<|channel|>"], *tokenizer.encode("final"), special["<|message|>"]]
    ids = header + chat_ids + [special["<|return|>"]]
    assert final_text(tokenizer, ids) == row["answer"] and is_right(row, final_text(tokenizer, ids))
    assert not is_right(row, row["answer"].replace(row["sentence"], ""))
    assert prompt_ids(tokenizer, row)[-2] == special["<|start|>"]
