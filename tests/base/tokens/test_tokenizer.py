"""The byte-level tokenizer against tiktoken, and what it says of files that it cannot use."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.base.errors import UserError
from eyas.base.tokens.tokenizer import CONTROL_TOKENS, SHORT, Tokenizer

TEXTS = [
    "",
    "Hello, world!",
    "  two  spaces\n\n\ttabs ",
    "na\u00efve \u4f60\u597d \U0001f600\u200d\U0001f4a8 \u0e01\u0e33",
    "".join(CONTROL_TOKENS),
    "a<|end|>b <|endoftext|>",
]


@given(text=st.text())
def test_text_comes_back(small, text):
    assert small.decode(small.encode(text)) == text


@given(parts=st.lists(st.sampled_from([*CONTROL_TOKENS, "<|with space|>", "x", " ", "<|", "|>"])))
def test_spelling_a_special_token_does_not_make_one(small, parts):
    ids = small.encode("".join(parts))
    assert not set(ids) & set(small.special.values())
    assert small.decode(ids) == "".join(parts)


def test_ids_and_bytes_agree_with_the_library(small, small_folder):
    import tokenizers

    inner = tokenizers.Tokenizer.from_file(str(small_folder / "tokenizer.json"))
    assert small.vocab_size == inner.get_vocab_size() == 600
    assert small.special == {name: inner.token_to_id(name) for name in [*CONTROL_TOKENS, "<|with space|>"]}
    for text in TEXTS[:4]:
        assert small.encode(text) == inner.encode(text).ids
    for token_id in range(600):
        assert small.decode([token_id]) == inner.decode([token_id], skip_special_tokens=False)
    singles = [small.token_bytes(token_id) for token_id in range(600)]
    assert {bytes([byte]) for byte in range(256)} <= set(singles)
    assert all(small.token_bytes(token_id) == name.encode() for name, token_id in small.special.items())


@given(part=st.text(min_size=1, max_size=40) | st.sampled_from(CONTROL_TOKENS), more=st.integers(0, 40))
def test_long_texts_have_the_ids_that_the_library_gives_them(small, part, more):
    text = part * (SHORT // len(part) + more)
    inner = small._inner
    assert small.encode(text) == inner.encode(text, add_special_tokens=False).ids


def test_others_go_on_while_a_long_text_is_encoded(small):
    done = threading.Event()

    def work() -> None:
        small.encode(" x1" * 400_000)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    num_turns = 0
    while not done.is_set():
        time.sleep(0.001)
        num_turns += 1
    thread.join()
    assert num_turns > 20


def test_no_threads_are_started_and_nothing_is_said_of_forks(small_folder):
    code = (
        "import os, sys, pathlib\n"
        "from eyas.base.tokens.tokenizer import Tokenizer\n"
        "tokenizer = Tokenizer.load(pathlib.Path(sys.argv[1]))\n"
        "before = os.listdir('/proc/self/task')\n"
        "tokenizer.encode('x ' * 5000)\n"
        "assert os.listdir('/proc/self/task') == before\n"
        "if os.fork() == 0:\n    tokenizer.encode('x ' * 5000)\n    os._exit(0)\n"
        "assert os.wait()[1] == 0"
    )
    command = [sys.executable, "-c", code, str(small_folder)]
    environment = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_lone_surrogates_and_unknown_ids_become_replacement_characters(small):
    assert small.decode(small.encode("a\ud800b")) == "a\ufffdb"
    assert small.decode(small.encode("\ud83d\ude00")) == "\U0001f600"
    assert small.decode([600, 10**9, -1]) == "\ufffd" * 3


@pytest.mark.parametrize("size", [3000, pytest.param(199_998, marks=pytest.mark.slow)])
def test_real_vocabulary_against_tiktoken(ranks, o200k_pattern, tmp_path, size):
    """tokenizer.json from transformers' tiktoken converter, as gpt-oss's was made; its first ranks, and all of them."""
    import tiktoken
    from transformers.convert_slow_tokenizer import TikTokenConverter

    few = {piece: rank for piece, rank in ranks.items() if rank < size}
    special = {name: size + i for i, name in enumerate(CONTROL_TOKENS)}
    theirs = tiktoken.Encoding("few", pat_str=o200k_pattern, mergeable_ranks=few, special_tokens=special)
    converter = TikTokenConverter(pattern=o200k_pattern, extra_special_tokens=list(CONTROL_TOKENS))
    converter.load_tiktoken_bpe = lambda _: few
    converter.converted().save(str(tmp_path / "tokenizer.json"))
    ours = Tokenizer.load(tmp_path)
    assert ours.special == special
    assert ours.vocab_size == size + len(special)
    for text in [*TEXTS, Path(__file__).read_text()]:
        assert ours.encode(text) == theirs.encode_ordinary(text)
    for token_id in range(size + len(special)):
        assert ours.token_bytes(token_id) == theirs.decode_single_token_bytes(token_id)


def edit(folder: Path, source: Path, change) -> Path:
    spec = json.loads((source / "tokenizer.json").read_text())
    change(spec)
    (folder / "tokenizer.json").write_text(json.dumps(spec))
    return folder


def test_errors_name_what_is_missing(small_folder, tmp_path):
    with pytest.raises(UserError, match=r"has no tokenizer\.json"):
        Tokenizer.load(tmp_path)

    def drop_two(spec):
        spec["added_tokens"] = [t for t in spec["added_tokens"] if t["content"] not in ("<|call|>", "<|end|>")]

    with pytest.raises(UserError, match=r"<\|end\|>, <\|call\|>"):
        Tokenizer.load(edit(tmp_path, small_folder, drop_two))
    with pytest.raises(UserError, match="byte-level"):
        Tokenizer.load(edit(tmp_path, small_folder, lambda spec: spec["model"]["vocab"].update({"\u2581the": 600})))
    (tmp_path / "tokenizer.json").write_text((small_folder / "tokenizer.json").read_text()[:1000])
    with pytest.raises(UserError, match="cannot be read"):
        Tokenizer.load(tmp_path)


def test_importing_loads_no_library():
    modules = "eyas.base.tokens.tokenizer, eyas.base.harmony.parser"
    code = f"import sys, {modules}; print({{'tokenizers', 'torch'}} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
