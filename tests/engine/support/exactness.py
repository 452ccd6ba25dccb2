"""The exactness harness: requests, set-ups of an engine that pairwise cover all factors, and the comparison.

The claim under test: a request's tokens and log-probabilities are those of the same request alone on a cold engine
without drafting, bit for bit, whatever the drafter, the number of drafts, the batch, the cache, the pages and
preemption.
"""

import itertools
import json
import random
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from eyas.base.errors import UserError
from eyas.base.harmony.rendering import Message, render_conversation
from eyas.base.types import Request, SamplingParams
from eyas.engine.draft_length.choice import FixedDraftLength
from eyas.engine.drafters.base import Drafter
from eyas.engine.round.types import Drafts
from eyas.engine.startup.build import EngineOptions, build_engine

HELD_OUT = Path(__file__).parents[2] / "assets" / "demo_heldout.jsonl"
CONTEXT = 512
FACTORS = {
    "drafter": ("eagle3", "ngram", "oracle"),
    "draft_tokens": (0, 1, 3, 7, "auto"),
    "concurrency": (1, 3, 8),
    "page_size": (8, 16, 32),
    "cache": ("cold", "warm"),
    "memory": ("plenty", "tight"),
    "lag": (0, 1),
    "chunk_tokens": (37, 64, 512),
    "kv_dtype": ("auto", "fp8"),
}


@dataclass(frozen=True, kw_only=True)
class Model:
    config: object
    weights: object
    head: object
    codec: object = None
    tokenizer_json: object = None


class OracleDrafter(Drafter):
    """Drafts what the reference run produced, each token wrong with some chance and sometimes fewer than asked for."""

    name = "oracle"

    def __init__(self, reference, vocab_size):
        self.reference = reference
        self.vocab_size = vocab_size
        self.random = random.Random(0)

    def propose(self, state, slots_S, sequences, num_drafts, max_length):
        ids, valid = [], []
        lengths, remaining = state.length_S[slots_S].tolist(), state.remaining_S[slots_S].tolist()
        for sequence, length, left in zip(sequences, lengths, remaining, strict=False):
            known = self.reference[sequence.request.request_id, sequence.choice][0]
            truth = known[length - sequence.prompt_length :][:num_drafts]
            truth = truth + [0] * (num_drafts - len(truth))
            ids.append([t if self.random.random() < 0.8 else self.random.randrange(self.vocab_size) for t in truth])
            valid.append(min(self.random.choice((num_drafts, self.random.randint(0, num_drafts))), max(left - 1, 0)))
        dead = len(slots_S) - len(sequences)
        ids, valid = ids + [[0] * num_drafts] * dead, valid + [0] * dead
        return Drafts(*(torch.tensor(rows, device=state.device) for rows in (ids, valid)))


class Scripted(FixedDraftLength):
    """A given schedule of draft lengths, over and over. Keeps what became of the rounds."""

    def __init__(self, schedule):
        super().__init__(0)
        self._schedule, self.outcomes = itertools.cycle(schedule), []

    def choose(self, slots, caps, matches=None, **facts):
        self.num_drafts = next(self._schedule)
        return super().choose(slots, caps, matches, **facts)

    def observe(self, outcome):
        self.outcomes.append(outcome)


def random_prompts(num_prompts, vocab_size, *, seed=0):
    """Half of them repetitive and a third sharing a prefix."""
    rng = random.Random(seed)
    shared = [rng.randrange(vocab_size) for _ in range(150)]
    prompts = []
    for index in range(num_prompts):
        prompt = [rng.randrange(vocab_size) for _ in range(rng.randint(1, 90))]
        if index % 2:
            prompt = (prompt[:12] * 9)[: rng.randint(20, 100)]
        if index % 3 == 0:
            prompt = shared[: rng.choice((33, 96, 150))] + prompt
        prompts.append(prompt)
    return prompts


# None of them ends within the tokens that a request may draw.
GRAMMARS = (
    "start: /[a-z ]{2000}/",
    '%llguidance {}\nstart: <|channel|> "final" <|message|> body\nbody: %json {"type": "array", "minItems": 500,'
    ' "items": {"type": "object", "properties": {"id": {"type": "integer"}, "name": {"type": "string"}}}}',
)


def make_requests(prompts, vocab_size, *, seed=0, min_tokens=64, with_grammars=False):
    """All kinds of sampling, `min_tokens` or a few more long."""
    rng = random.Random(seed)
    requests = []
    for index, prompt in enumerate(prompts):
        params = SamplingParams(
            temperature=rng.choice((0, 0, 0.7, 1, 1.5)),
            top_p=rng.choice((1, 1, 0.9)),
            top_k=rng.choice((0, 0, 20)),
            min_p=rng.choice((0, 0, 0.05)),
            seed=rng.randrange(2**63),
            n=2 if index % 10 == 4 else 1,
            max_tokens=rng.randint(min_tokens, min_tokens + 6),
            min_tokens=min_tokens,
            stop_token_ids=tuple(rng.randrange(vocab_size) for _ in range(3)) if index % 5 == 0 else (),
            logprobs=rng.choice((None, 0, 3)),
            presence_penalty=rng.choice((0, 0, 0, 0.6)),
            frequency_penalty=rng.choice((0, 0, 0, 0.4)),
            repetition_penalty=rng.choice((1, 1, 1, 1.3)),
            logit_bias={rng.randrange(vocab_size): 3.0} if index % 7 == 3 else {},
        )
        if index % 10 == 1:
            params = replace(params, **vocabulary_rules(rng, vocab_size))
        if with_grammars and index % 10 == 5:
            grammar = GRAMMARS[index // 10 % len(GRAMMARS)]
            params = replace(params, grammar=grammar, min_tokens=0, stop_token_ids=())
        requests.append(Request(request_id=str(index), prompt_ids=tuple(prompt), params=params))
    return requests


def vocabulary_rules(rng, vocab_size):
    """A few allowed ids, or words of them that never become complete."""
    ids = [rng.randrange(vocab_size) for _ in range(24)]
    words = tuple(tuple(rng.choices(ids, k=rng.randint(1, 3))) for _ in range(30))
    return {"allowed_token_ids": tuple(ids), "bad_words": words[: rng.choice((0, 30))]}


def requests_for(model, num_requests, *, seed=0, min_tokens=64, max_prompt=300):
    """Ends of real chats for the demo model, random ids for a random one."""
    if model.codec is None:
        prompts = random_prompts(num_requests, model.config.vocab_size, seed=seed)
    else:
        lines = [json.loads(line) for line in HELD_OUT.read_text().splitlines()]
        chats = [[Message(**m) for m in line["messages"]] for line in lines if "messages" in line]
        chats = (chats * (num_requests // len(chats) + 1))[:num_requests]
        prompts = [render_conversation(model.codec, chat)[-max_prompt:] for chat in chats]
    with_grammars = model.codec is not None
    return make_requests(
        prompts, model.config.vocab_size, seed=seed, min_tokens=min_tokens, with_grammars=with_grammars
    )


def covering_array(factors=FACTORS, *, seed=0):
    """Set-ups such that every pair of values of every two factors occurs in one of them (greedy construction)."""
    names = list(factors)
    uncovered = {((a, x), (b, y)) for a, b in itertools.combinations(names, 2) for x in factors[a] for y in factors[b]}
    rng, rows = random.Random(seed), []
    while uncovered:
        best, best_new = None, set()
        seeded = rng.choice(sorted(uncovered, key=repr))
        for _ in range(60):
            row = {name: rng.choice(factors[name]) for name in names} | dict(seeded)
            new = {pair for pair in itertools.combinations(row.items(), 2) if pair in uncovered}
            if len(new) > len(best_new):
                best, best_new = row, new
        rows.append(best)
        uncovered -= best_new
    return rows


def build(model, *, reference=None, cache="cold", memory="plenty", drafter="none", **options):
    # Oracle drafts come from the test; the n-gram drafter's engine has the same sizes.
    kind = "ngram" if drafter == "oracle" else drafter
    fixed = {"context": CONTEXT, "kv_bytes": 1 << 28, "seed": 0, "tokenizer_json": model.tokenizer_json}
    fixed |= {"busy_chunk_tokens": 72}  # so that prompts are cut where they are not when a request runs alone
    settings = EngineOptions(drafter=kind, **fixed | options)
    if memory == "tight":
        settings = replace(settings, kv_bytes=least_bytes(model, settings) * 5 // 4)
    core = build_engine(model.config, model.weights, settings, head=model.head).core
    if drafter == "oracle":
        core.runner.drafter = OracleDrafter(reference, model.config.vocab_size)
    return core


def least_bytes(model, settings):
    """The smallest KV cache with which an engine starts: one conversation of full length."""
    low, high = 0, settings.kv_bytes
    while high - low > 1024:
        middle = (low + high) // 2
        try:
            build_engine(model.config, model.weights, replace(settings, kv_bytes=middle), head=model.head)
            high = middle
        except UserError:
            low = middle
    return high


def run(core, requests, *, check=False):
    """{(request id, choice): (tokens, finish, logprobs)} of all requests together."""
    events = {}
    for request in requests:
        core.add(request, lambda event: events.setdefault((event.request_id, event.choice), []).append(event))
    while not core.is_idle:
        core.step()
        if check:
            core.scheduler.check()
    return {
        key: (
            [token for event in run for token in event.token_ids],
            run[-1].finish,
            [item for event in run for item in event.logprobs or ()],
        )
        for key, run in events.items()
    }


def reference_of(model, requests, **options):
    """Each request alone, on a cold engine, without drafting."""
    reference = {}
    for request in requests:
        reference |= run(build(model, concurrency=request.params.n, **options), [request])
    return reference


def differing(model, requests, reference, setup):
    """Keys whose tokens, finish or logprobs differ from the reference under a set-up, and the engine's counters."""
    core = build(model, reference=reference, **setup)
    if setup.get("cache") == "warm":
        run(core, [replace(r, params=replace(r.params, max_tokens=2, min_tokens=0)) for r in requests[::2]])
    results = run(core, requests)
    core.scheduler.check()
    assert core.scheduler.full.num_held == core.scheduler.sliding.num_held == 0
    assert results.keys() == reference.keys()
    return [key for key in reference if results[key] != reference[key]], core.stats()


def near_tie(model, *, seed=0):
    """The same model with vocabulary rows in pairs that differ in their last bits: rounding decides each token."""
    lm_head = model.weights.lm_head_VH.clone()
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(lm_head[::2].shape, generator=generator) * 1e-7
    lm_head[1::2] = lm_head[::2] * (1 + noise[: len(lm_head[1::2])])
    return replace(model, weights=replace(model.weights, lm_head_VH=lm_head))
