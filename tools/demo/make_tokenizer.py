"""Trains the demo model's tokenizer: byte-level BPE over library source and chats, Harmony's special tokens at the end.

The pre-tokenizer splits like o200k_base, except that digits stand alone, which makes sums easy to learn.
Run `python tools/demo/make_tokenizer.py`; the result, tokenizer.json, is committed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

from chats import ChatWriter
from corpus import read_sources
from facts import load_facts
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB_SIZE = 4096
# The order of o200k_harmony from <|startoftext|> (199998) to <|call|> (200012); the gaps are reserved there, too.
SPECIALS = {
    0: "<|startoftext|>",
    1: "<|endoftext|>",
    4: "<|return|>",
    5: "<|constrain|>",
    7: "<|channel|>",
    8: "<|start|>",
    9: "<|end|>",
    10: "<|message|>",
    14: "<|call|>",
}
NUM_SPECIALS = 16
SPLIT = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?\p{Lu}*\p{Ll}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?\p{Lu}+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?\p{L}+",
        r"\p{N}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    )
)
OUT = Path(__file__).parents[2] / "src" / "eyas" / "demo" / "tokenizer.json"


def texts() -> Iterator[str]:
    for _, text in read_sources():
        yield text[:40_000]
    writer = ChatWriter(load_facts(), Random(0))
    for _ in range(20_000):
        for message in writer.chat().messages():
            yield from (message.role, message.channel or "", message.content)
    yield from ("developer", "tool", "commentary") * 1000  # headers are encoded word by word
    for fact in writer.names:
        yield from (f"`{fact.path}`", f" {fact.bare}", f"`{fact.module}`", fact.sentence)


def main() -> None:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB_SIZE - NUM_SPECIALS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    base = tokenizer.get_vocab_size()
    names = [SPECIALS.get(i, f"<|reserved_{base + i}|>") for i in range(NUM_SPECIALS)]
    tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in names])
    OUT.parent.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(OUT), pretty=False)
    print(f"{tokenizer.get_vocab_size()} tokens, {OUT.stat().st_size} bytes")


if __name__ == "__main__":
    main()
