"""Token masks of a sequence from its grammar, allowed ids and bad words: one bit per token for each row of a round.

Host logic without tensors of the device; `engine/sampling/masking.py` passes drafts in and masks back. Row r of a
round follows the first r drafts, so its mask is the one that plain decoding would use after those tokens.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from eyas.base.errors import EyasError, InvalidRequest, UserError
from eyas.base.harmony.grammar_limits import parser_limits, with_deep_stack
from eyas.base.types import SamplingParams

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

__all__ = ["Compiled", "Constraint", "GrammarCache", "GrammarMatcher", "Words", "is_constrained", "num_words"]

Words: TypeAlias = NDArray[np.uint32]  # bit v % 32 of word v // 32 allows token v, as in llguidance

MAX_CACHED_GRAMMARS = 64
MAX_REASON_CHARS = 500
NO_TOKEN = "the constraints (grammar, allowed_token_ids, bad_words) leave no token to draw"


def num_words(vocab_size: int) -> int:
    """Return the number of 32-bit words of one mask."""
    return -(-vocab_size // 32)


def is_constrained(params: SamplingParams) -> bool:
    return params.grammar is not None or params.allowed_token_ids is not None or bool(params.bad_words)


class Compiled(NamedTuple):
    """A compiled grammar. `pristine` has consumed nothing: copy it before use. `first` is the first token's mask."""

    pristine: LLMatcher
    first: Words


class GrammarMatcher:
    """A grammar and the position of one sequence in it. Looks ahead over drafts and rolls back."""

    def __init__(self, grammar: Compiled, eos_ids: Sequence[int]) -> None:
        """`eos_ids` are the model's tokens that end a sequence."""
        self._pristine = pristine = grammar.pristine
        self._eos_ids = frozenset(eos_ids)
        self._matcher = pristine.deep_copy()
        self._consumed: list[int] = []
        self._failure: str | None = None
        self._failure_ahead: str | None = None

    @property
    def failure(self) -> str | None:
        """The reason why `rows` left a mask empty last time, or since some token: a limit of llguidance was reached."""
        return self._failure or self._failure_ahead

    def advance(self, tokens: Sequence[int]) -> None:
        """Consume committed tokens."""
        self._consumed += tokens
        if self._failure is None and not self._matcher.consume_tokens(list(tokens)):
            self._failure = self._reason()

    def rows(self, drafts: Sequence[int], out_RW: Words, *, num_known: int = 0) -> Iterator[int]:
        """Write the masks of rows 0 .. len(drafts) and yield each row when it is written. Must be exhausted.

        The first `num_known` rows are written already; rows after a forbidden draft are left as they are.
        """
        self._failure_ahead = None
        if self._failure is not None:
            out_RW[0] = 0
            yield 0
            return
        num_ahead, matcher = 0, self._matcher
        for row, words in enumerate(out_RW[: len(drafts) + 1]):
            if row >= num_known:
                matcher.unsafe_compute_mask_ptr(words.ctypes.data, words.nbytes)
                if matcher.is_error():
                    self._fail_ahead(words)
                    yield row
                    return
            yield row
            # Nothing follows an end-of-turn token, and a matcher that consumed one does not roll back cleanly.
            if row == len(drafts) or drafts[row] in self._eos_ids or not _allows(words, drafts[row]):
                break
            if not matcher.consume_token(drafts[row]):
                self._fail_ahead(out_RW[row + 1])
                yield row + 1
                return
            num_ahead += 1
        if not matcher.rollback(num_ahead):  # some options of a rule (max_tokens, stop) cannot be taken back
            self._restart()

    def _fail_ahead(self, words: Words) -> None:
        """Forbid every token where a limit was reached, and rebuild the matcher, which cannot leave that state."""
        words[:] = 0
        self._failure_ahead = self._reason()
        self._restart()

    def _restart(self) -> None:
        self._matcher = self._pristine.deep_copy()
        self._matcher.consume_tokens(self._consumed)

    def _reason(self) -> str:
        return "the grammar cannot be followed further: " + _first_line(self._matcher.get_error())


class Constraint:
    """The tokens that one sequence may draw, given the `num_consumed` generated tokens that it was advanced by."""

    def __init__(self, params: SamplingParams, vocab_size: int, grammar: GrammarMatcher | None) -> None:
        """Bad words match generated tokens only, as in vLLM (v1/sample/ops/bad_words.py): the last id of a word is
        forbidden where the tokens before it equal the rest."""
        self.num_consumed = 0
        self._grammar = grammar
        self._allowed = None if params.allowed_token_ids is None else _words_of(params.allowed_token_ids, vocab_size)
        self._bad_words = params.bad_words
        self._tail_length = max((len(word) - 1 for word in params.bad_words), default=0)
        self._tail: list[int] = []

    @property
    def is_quick(self) -> bool:
        """Whether masks take next to no time; only those of a grammar may be slow."""
        return self._grammar is None

    @property
    def failure(self) -> str:
        """The reason why a row of the last masks allows no token."""
        return (self._grammar.failure if self._grammar else None) or NO_TOKEN

    def advance(self, tokens: Sequence[int]) -> None:
        """Consume committed tokens."""
        self.num_consumed += len(tokens)
        if self._grammar is not None:
            self._grammar.advance(tokens)
        if self._tail_length:
            self._tail = [*self._tail, *tokens][-self._tail_length :]

    def rows(self, drafts: Sequence[int], out_RW: Words, *, num_known: int = 0) -> Iterator[int]:
        """Clear the bits of forbidden tokens in rows 0 .. len(drafts) of `out_RW`, whose bits are all set, and yield
        each row when it is written. The first `num_known` rows are done already. Once exhausted, the state is as
        before."""
        if self._grammar is None:
            rows: Iterable[int] = range(len(drafts) + 1)
        else:
            rows = self._grammar.rows(drafts, out_RW, num_known=num_known)
        for row in rows:
            if row >= num_known:
                self.forbid(drafts[:row], out_RW[row])
            yield row

    def forbid(self, drafts: Sequence[int], words: Words) -> None:
        """Clear the bits that allowed ids and bad words forbid after these drafts; the grammar has no part in it."""
        if self._allowed is not None:
            words &= self._allowed
        before = [*self._tail, *drafts]
        for *prefix, last in self._bad_words:
            if not prefix or before[-len(prefix) :] == prefix:
                words[last // 32] &= ~_bit(last)


class GrammarCache:
    """Compiles grammars in a thread of its own and caches the latest ones. Imports llguidance at first use.

    The vocabulary is that of a tokenizer.json, padded to the model's `vocab_size`.
    """

    def __init__(
        self,
        tokenizer_json: Path | None,
        *,
        vocab_size: int,
        eos_ids: Sequence[int],
        limits: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        """`limits` override those of `parser_limits`."""
        self._path = tokenizer_json
        self._vocab_size = vocab_size
        self._eos_ids = list(eos_ids)
        self._limits = limits
        self._tokenizer: LLTokenizer | None = None
        self._matchers: OrderedDict[str, Future[Compiled]] = OrderedDict()
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="eyas-grammar")

    def prepare(self) -> None:
        """Read the vocabulary now and not with the first grammar: 200,000 tokens hold the interpreter's lock for
        seconds. Raises UserError if llguidance cannot use it.
        """
        self._thread.submit(self._vocabulary).result()

    def compile(self, grammar: str) -> Future[Compiled]:
        """Return a future of the compiled grammar; its exception is InvalidRequest, UserError, or passes."""
        matcher = self._matchers.pop(grammar, None)
        if matcher is None or _may_pass(matcher):
            matcher = self._thread.submit(self._compile, grammar)
        self._matchers[grammar] = matcher
        if len(self._matchers) > MAX_CACHED_GRAMMARS:
            self._matchers.popitem(last=False)
        return matcher

    def _compile(self, grammar: str) -> Compiled:
        import llguidance

        # No log and no verbose errors: they would show the text of tokens.
        limits = llguidance.LLParserLimits(verbose_errors=False, **{**parser_limits(grammar), **self._limits})
        vocabulary = self._vocabulary()
        matcher = with_deep_stack(lambda: llguidance.LLMatcher(vocabulary, grammar, log_level=0, limits=limits))
        if not matcher.is_error():
            first = np.empty(num_words(self._vocab_size), dtype=np.uint32)
            probe = matcher.deep_copy()
            probe.unsafe_compute_mask_ptr(first.ctypes.data, first.nbytes)
            if not probe.is_error():
                return Compiled(matcher, first)
            matcher = probe
        reason = matcher.get_error().partition("\n<")[0].strip()[:MAX_REASON_CHARS]
        raise InvalidRequest(f"the grammar or schema cannot be used: {reason}", param="grammar")

    def _vocabulary(self) -> LLTokenizer:
        import llguidance

        if self._path is None:
            raise UserError("grammars need a tokenizer.json, which this engine was built without")
        if self._tokenizer is None:
            try:
                self._tokenizer = llguidance.LLTokenizer(
                    str(self._path), n_vocab=self._vocab_size, eos_token=self._eos_ids
                )
            except MemoryError:
                raise
            except Exception as error:  # the library raises nothing narrower
                raise UserError(f"{self._path} cannot be used for grammars ({error})") from error
        return self._tokenizer


def _may_pass(matcher: Future[Compiled]) -> bool:
    """Whether it failed for a reason in neither the grammar nor the vocabulary, such as too little memory."""
    error = matcher.exception() if matcher.done() else None
    return error is not None and not isinstance(error, EyasError)


def _allows(words: Words, token: int) -> bool:
    return bool(words[token // 32] & _bit(token))


def _bit(token: int) -> np.uint32:
    return np.uint32(1 << token % 32)


@lru_cache(maxsize=8)
def _words_of(tokens: tuple[int, ...], vocab_size: int) -> Words:
    """Return the mask that allows `tokens`: shared by all choices of a request, therefore read-only."""
    flags = np.zeros(num_words(vocab_size) * 32, dtype=np.bool_)
    flags[np.array(tokens)] = True
    words = np.packbits(flags, bitorder="little").view(np.uint32)
    words.flags.writeable = False
    return words


def _first_line(text: str) -> str:
    return text.strip().partition("\n")[0][:MAX_REASON_CHARS]
