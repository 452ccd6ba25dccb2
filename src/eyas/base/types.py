"""Messages between the HTTP side and an engine: requests in, token events out.

Token ids only: nothing here knows text, tensors or HTTP.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import NamedTuple

from eyas.base.errors import InvalidRequest

__all__ = [
    "FILTERS",
    "EngineStats",
    "FinishReason",
    "ModelInfo",
    "PageOwner",
    "Request",
    "RoundTrace",
    "SamplingParams",
    "StepReport",
    "TokenEvent",
    "TokenLogprob",
    "check_prompt_logprobs",
]

MAX_CHOICES = 16
MAX_TOP_LOGPROBS = 20
MAX_LOGIT_BIAS = 300
MAX_STOP_IDS = 16
MAX_DRAFTS = 16  # of a sequence in a round
MAX_BAD_WORDS = 64
MAX_BAD_WORD_IDS = 64
MAX_GRAMMAR_CHARS = 1 << 20
MAX_CACHE_SALT_CHARS = 256
MAX_PROMPT_LOGPROBS = 1 << 18  # entries a request: 128k tokens with one alternative each
MAX_COUNT = 2**31 - 1

# Filters of the scaled scores, in the order in which they apply, and the value that switches each off. Samplers have a
# tensor of the same name for each (`kernels.reference.rounds.sample.SamplingRows`).
FILTERS: Mapping[str, float] = MappingProxyType({"top_k": 0, "top_p": 1.0, "min_p": 0.0})


class FinishReason(StrEnum):
    STOP = "stop"  # a stop token, or an end-of-turn token of the model
    LENGTH = "length"  # max_tokens or the context is used up
    CANCELLED = "cancelled"
    INVALID = "invalid"  # the request cannot be served, which only the engine could find out
    ERROR = "error"


@dataclass(frozen=True, kw_only=True, slots=True)
class SamplingParams:
    """Sampling parameters, with vLLM's names: penalties, bias, then / temperature, then top-k, top-p, min-p.

    `temperature` below 1e-5 is greedy. `top_k` 0 or -1, `top_p` 1, `min_p` 0 switch a filter off. `seed` None draws
    one. `max_tokens` None means up to the end of the context. `logprobs` n asks for the chosen token's
    log-probability and the n most likely ones, of the raw logits before penalties and temperature;
    `prompt_logprobs` the same for the prompt's tokens, the first left out.

    Three settings say which tokens may be drawn at all; a token that they forbid has probability 0, also as a draft.
    `allowed_token_ids` is a fixed set; `bad_words` are sequences of ids that never become complete; `grammar` is a Lark
    grammar in llguidance's dialect over everything generated, special tokens and the end-of-turn token included.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    n: int = 1
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    logprobs: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    prompt_logprobs: int | None = None
    allowed_token_ids: tuple[int, ...] | None = None
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: str | None = None

    def __post_init__(self) -> None:
        def check(ok: bool, param: str, wanted: str) -> None:
            if not ok:
                raise InvalidRequest(f"{param} must be {wanted}, got {getattr(self, param)!r}", param=param)

        check(0.0 <= self.temperature <= 100.0, "temperature", "between 0 and 100")
        check(0.0 < self.top_p <= 1.0, "top_p", "above 0 and at most 1")
        check(-1 <= self.top_k <= MAX_COUNT, "top_k", f"between 1 and {MAX_COUNT}, or 0 or -1 for off")
        check(0.0 <= self.min_p <= 1.0, "min_p", "between 0 and 1")
        check(self.seed is None or 0 <= self.seed < 2**63, "seed", "between 0 and 2^63 - 1")
        check(1 <= self.n <= MAX_CHOICES, "n", f"between 1 and {MAX_CHOICES}")
        check(len(self.stop_token_ids) <= MAX_STOP_IDS, "stop_token_ids", f"at most {MAX_STOP_IDS} ids")
        check(0 <= self.min_tokens <= MAX_COUNT, "min_tokens", f"between 0 and {MAX_COUNT}")
        check(
            self.max_tokens is None or 1 <= self.max_tokens <= MAX_COUNT,
            "max_tokens",
            f"1 or more, at most {MAX_COUNT}",
        )
        check(self.max_tokens is None or self.min_tokens <= self.max_tokens, "min_tokens", "at most max_tokens")
        check(
            self.logprobs is None or 0 <= self.logprobs <= MAX_TOP_LOGPROBS,
            "logprobs",
            f"between 0 and {MAX_TOP_LOGPROBS}",
        )
        check(-2.0 <= self.presence_penalty <= 2.0, "presence_penalty", "between -2 and 2")
        check(-2.0 <= self.frequency_penalty <= 2.0, "frequency_penalty", "between -2 and 2")
        check(0.0 < self.repetition_penalty <= 10.0, "repetition_penalty", "above 0 and at most 10")
        check(len(self.logit_bias) <= MAX_LOGIT_BIAS, "logit_bias", f"a map of at most {MAX_LOGIT_BIAS} tokens")
        check(all(-100.0 <= b <= 100.0 for b in self.logit_bias.values()), "logit_bias", "within -100 and 100")
        check(
            self.prompt_logprobs is None or 0 <= self.prompt_logprobs <= MAX_TOP_LOGPROBS,
            "prompt_logprobs",
            f"between 0 and {MAX_TOP_LOGPROBS}",
        )
        check(self.allowed_token_ids is None or len(self.allowed_token_ids) > 0, "allowed_token_ids", "at least one id")
        check(len(self.bad_words) <= MAX_BAD_WORDS, "bad_words", f"at most {MAX_BAD_WORDS} words")
        check(
            all(1 <= len(word) <= MAX_BAD_WORD_IDS for word in self.bad_words),
            "bad_words",
            f"words of 1 to {MAX_BAD_WORD_IDS} tokens",
        )
        if self.grammar is not None:
            self._check_grammar(self.grammar)

    def filters(self) -> dict[str, float]:
        """The values of all FILTERS, by name; a `top_k` of -1 is 0."""
        return {name: max(0, getattr(self, name)) for name in FILTERS}

    def _check_grammar(self, grammar: str) -> None:
        """Refuse a grammar combined with other rules: together they may leave no token to draw."""
        if len(grammar) > MAX_GRAMMAR_CHARS:
            raise InvalidRequest(f"the grammar has more than {MAX_GRAMMAR_CHARS} characters", param="grammar")
        _check_text(grammar, "grammar")
        others = ("min_tokens", "ignore_eos", "allowed_token_ids", "bad_words", "stop_token_ids")
        for name in others:
            if getattr(self, name):
                raise InvalidRequest(f"{name} cannot be combined with a grammar or a schema", param=name)


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A prompt of token ids and how to continue it. `n` choices come back under the same id.

    Cached prompt pages are shared among requests of equal `cache_salt` only.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams = field(default_factory=SamplingParams)
    cache_salt: str = ""

    def __post_init__(self) -> None:
        if len(self.cache_salt) > MAX_CACHE_SALT_CHARS:
            raise InvalidRequest(f"cache_salt wants at most {MAX_CACHE_SALT_CHARS} characters", param="cache_salt")
        _check_text(self.cache_salt, "cache_salt")
        check_prompt_logprobs(len(self.prompt_ids), self.params.prompt_logprobs)


def _check_text(text: str, param: str) -> None:
    """Raise InvalidRequest for half a surrogate pair: JSON can name one, but no encoding of Unicode can."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"{param} has half a surrogate pair at position {error.start}", param=param) from error


def check_prompt_logprobs(num_tokens: int, num_top: int | None) -> None:
    """Raise InvalidRequest if prompts of this many tokens have too many log-probabilities for one response."""
    if num_top is not None and num_tokens * (1 + num_top) > MAX_PROMPT_LOGPROBS:
        raise InvalidRequest(
            f"log-probabilities of {num_tokens} prompt tokens with {num_top} alternatives each are more than "
            f"{MAX_PROMPT_LOGPROBS} numbers; ask for fewer, or in several requests",
            param="prompt_logprobs",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenLogprob:
    """Raw log-probability of one emitted token and of the most likely ids at its position, best first."""

    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class RoundTrace(NamedTuple):
    """Drafts of one round for one sequence: `num_accepted` counts accepted drafts, the bonus token excluded."""

    draft_ids: tuple[int, ...]
    num_accepted: int


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenEvent:
    """The tokens that one round committed for one choice of one request.

    An event with `finish` is the last of its choice. A stop token is included in `token_ids`.
    `round` is None for the token that the prompt's last position yields. `num_cached` is the number of
    prompt tokens served from the prefix cache. `error` is set with INVALID and ERROR only.
    `prompt_logprobs` comes with the first event of choice 0: entry i is of prompt token i + 1.
    `began` is the launch of the choice's first step by `time.perf_counter()`, one clock for all processes; 0 if none.
    """

    request_id: str
    choice: int
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] | None = None
    finish: FinishReason | None = None
    round: RoundTrace | None = None
    num_cached: int = 0
    error: str | None = None
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None
    began: float = field(default=0.0, compare=False)


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelInfo:
    """Facts that the HTTP side needs about the model that an engine serves."""

    name: str
    context: int  # tokens, prompt and output together
    vocab_size: int
    eos_ids: tuple[int, ...]
    drafter: str  # "none", "ngram", or the kind of its head, such as "eagle3"
    details: Mapping[str, str] = field(default_factory=dict)  # what else was loaded, for people
    page_size: int = 0  # tokens of a KV page
    simulated: bool = False  # random weights: speeds are real, acceptance and text mean nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class EngineStats:
    """Counters since the start and gauges of now; `memory_bytes` is the map of memory by owner."""

    num_running: int = 0
    num_waiting: int = 0
    num_rounds: int = 0
    num_prompt_tokens: int = 0
    num_cached_tokens: int = 0
    num_generated_tokens: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    num_preemptions: int = 0
    num_restarts: int = 0  # of the engine's process
    pages_used: Mapping[str, int] = field(default_factory=dict)
    pages_idle: Mapping[str, int] = field(default_factory=dict)  # held by no request, kept for prompts that begin alike
    pages_total: Mapping[str, int] = field(default_factory=dict)
    memory_bytes: Mapping[str, int] = field(default_factory=dict)


class PageOwner(NamedTuple):
    """Pages that one choice of a running request holds, shared ones included."""

    request_id: str
    choice: int
    num_full: int
    num_sliding: int


@dataclass(frozen=True, kw_only=True, slots=True)
class StepReport:
    """Report of a step of the engine, for traces and the live view: what it committed, and the pages held at its end.

    `num_drafts` were drafted for each sequence; `ms` is the time that the step took on its device. A step without
    a round (prompts only) has `num_drafts` 0 and events of first tokens only. `num_prompt_tokens` were computed, those
    from the prefix cache left out. `undrafted_ms` is what the round would take without drafts, where the engine has
    learnt that.
    """

    step: int
    ms: float
    num_drafts: int
    events: tuple[TokenEvent, ...]
    stats: EngineStats
    pages: tuple[PageOwner, ...] = ()
    num_prompt_tokens: int = 0
    undrafted_ms: float | None = None

    @property
    def num_tokens(self) -> int:
        """Prompt tokens computed and tokens generated."""
        return self.num_prompt_tokens + sum(len(event.token_ids) for event in self.events)
