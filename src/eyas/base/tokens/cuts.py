"""Places where a text may be cut without changing its tokens, under the pre-tokenizers that are known here.

A pre-tokenizer splits a text from left to right, and BPE never merges across its splits. Between two characters that no
alternative of its pattern matches next to each other there is always a split. Where no alternative looks past such a
place either, both sides have the tokens that they have within the whole text.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from eyas.base.errors import InvalidRequest

if TYPE_CHECKING:
    import tokenizers

__all__ = ["DEMO", "MAX_RUN", "O200K", "PIECE", "cut_after", "is_known"]

_CONTRACTION = "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_OTHER = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_START = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
# gpt-oss's pattern, tiktoken's o200k_base
O200K = rf"{_START}{_UPPER}*{_LOWER}+{_CONTRACTION}|{_START}{_UPPER}+{_LOWER}*{_CONTRACTION}|\p{{N}}{{1,3}}|{_OTHER}"
# the demo model's pattern: digits one by one, and no marks
DEMO = rf"{_START}\p{{Lu}}*\p{{Ll}}+{_CONTRACTION}|{_START}\p{{Lu}}+{_CONTRACTION}|{_START}\p{{L}}+|\p{{N}}|{_OTHER}"

PIECE = 32 << 10  # characters; digits are the worst case, with 10 MB while they are encoded
MAX_RUN = 256 << 10  # bytes without a place to cut; 40 MB while they are encoded

# Blanks only begin a piece or follow other white space. A letter or digit is followed only by its own kind or by an
# apostrophe. The sets hold only characters that every version of Unicode puts into the same class.
_KANJI_KANA = "\u3041-\u3094\u30a1-\u30f6\u4e00-\u9fa5"
_CUT = re.compile(
    r"(?<=\S) "
    r"|(?<=[A-Za-z0-9])[\n!-&(-/:-@\[-`{-~]"
    r"|(?<=[A-Za-z])[0-9]|(?<=[0-9])[A-Za-z]"
    rf"|(?<=[{_KANJI_KANA}])[\n\u3001\u3002\uff01\uff0c\uff1a\uff1b\uff1f]"
)


def is_known(inner: tokenizers.Tokenizer) -> bool:
    """Whether `cut_after` holds for this tokenizer: byte-level, with a pattern checked here, and nothing else."""
    others = (inner.normalizer, inner.truncation, inner.padding)
    added = inner.get_added_tokens_decoder().values()
    if inner.pre_tokenizer is None or any(one is not None for one in others) or not all(one.special for one in added):
        return False
    rule = json.loads(inner.pre_tokenizer.__getstate__())
    *splits, last = rule["pretokenizers"] if rule["type"] == "Sequence" else [rule]
    if last["type"] != "ByteLevel" or last["add_prefix_space"]:
        return False
    if last["use_regex"]:  # GPT-2's
        return not splits
    return len(splits) == 1 and _is_known_split(splits[0])


def _is_known_split(step: dict[str, Any]) -> bool:
    return (
        step["type"] == "Split"
        and step["pattern"].get("Regex") in (O200K, DEMO)
        and step["behavior"] == "Isolated"
        and not step["invert"]
    )


def cut_after(text: str, start: int) -> int:
    """Return where to end the piece of `text` that begins at `start`: a little after PIECE characters, or at the end.

    Raises InvalidRequest for more than MAX_RUN bytes without a place to cut: they would be merged all at once, in 150
    times their size.
    """
    if len(text) - start <= PIECE:
        return len(text)
    match = _CUT.search(text, start + PIECE, start + MAX_RUN)
    stop = match.start() if match else min(len(text), start + MAX_RUN + 1)
    if stop - start > MAX_RUN // 4 and len(text[start:stop].encode("utf-8", "surrogatepass")) > MAX_RUN:
        raise InvalidRequest(
            f"the text has a run of more than {MAX_RUN >> 10} KiB without a word boundary, such as one endless word or "
            "number, or nothing but blanks; break it up"
        )
    return stop
