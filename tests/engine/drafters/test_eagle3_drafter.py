"""What the EAGLE-3 drafter drafts, against heads run densely: the pairing of hidden states and tokens, which no
comparison of outputs can see, since a wrong pairing costs acceptance and never a token.

The oracle shares no code with the serving path: taps come from transformers' hidden states, drafts from the plain
`train.reference` head in fp64 over whole answers. Every row t of step 0 is the true pair (a_t, x_{t+1}); the later
steps feed each row its own drafts.
"""

from dataclasses import replace

import pytest
import torch
import transformers
from safetensors.torch import load_file
from tests.engine.support.exactness import Model, Scripted, build, reference_of, run

from eyas.base.types import Request, SamplingParams
from eyas.engine.drafters.eagle3 import Eagle3Drafter
from eyas.engine.round.types import Drafts
from eyas.engine.startup.build import MAX_BACKLOG
from eyas.kernels.reference.rounds.noise import gumbel
from eyas.model.checkpoints.loader import load_head, load_target
from eyas.model.config import FINAL_NORM_TAP
from eyas.model.making.make import make_head, make_target
from eyas.model.making.presets import EAGLE3_VARIANTS, PRESETS, head_of_kind
from eyas.model.networks.rope import rope_table
from eyas.model.taps import default_taps
from eyas.train.reference import ReferenceHead, Steps

TARGET = replace(PRESETS["tiny"], num_layers=4, layer_is_sliding=(True, False) * 2, eos_ids=())
MAX_DRAFTS = 5
CPU = torch.device("cpu")
CLEAR = 1e-3  # a choice by less than this margin may fall either way in fp32


class Recorder(Eagle3Drafter):
    """Keeps what the drafter drafts, and proposes the coming tokens instead, some wrong, so that rounds accept some."""

    def __init__(self, drafter, reference):
        super().__init__(drafter.parts)
        self.reference = reference
        self.seen = []  # (request id, choice), length, drafts

    def propose(self, state, slots_S, sequences, num_drafts, max_length):
        before = self.cache.k.clone()
        drafts = super().propose(state, slots_S, sequences, num_drafts, max_length)
        written = (self.cache.k != before).flatten(1).any(1).nonzero().flatten().tolist()
        own = {page for s in sequences for page in s.full_pages[s.num_cached // self.cache.page_size :]}
        assert own.issuperset(set(written) - {0}), "pages of other sequences were written"
        steered = drafts.ids_SK.clone()
        for row, (slot, valid) in enumerate(zip(slots_S.tolist(), drafts.num_valid_S.tolist(), strict=True)):
            key = (sequences[row].request.request_id, sequences[row].choice)
            length = state.length_S[slot].item()
            if state.live_S[slot]:
                self.seen.append((key, length, drafts.ids_SK[row, :valid].tolist()))
            coming = self.reference[key][0][length - sequences[row].prompt_length :][:num_drafts]
            steered[row, : len(coming)] = torch.tensor(coming)
            if length % 3:
                steered[row, length % num_drafts] += 1
        return Drafts(steered % state.vocab_size, drafts.num_valid_S)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    folder = make_target(TARGET, tmp_path_factory.mktemp("eagle3") / "target", seed=1)
    oracle = transformers.AutoModelForCausalLM.from_pretrained(
        folder,
        quantization_config=transformers.Mxfp4Config(dequantize=True),
        attn_implementation="eager",
    ).float()  # some versions leave the experts in bf16 whatever dtype says
    return folder, load_target(folder, device=CPU, dtype=torch.float32), oracle


@pytest.fixture(scope="module")
def alone(target):
    """What each of some requests says alone, which no head has a part in: computed once for all heads."""
    config, weights = target[1]
    model, known = Model(config=config, weights=weights, head=None), {}

    def results(requests):
        if (key := repr(requests)) not in known:
            known[key] = reference_of(model, requests)
        return known[key]

    return results


FEW = ("specforge",)


@pytest.fixture(
    scope="module",
    params=[kind if kind in FEW else pytest.param(kind, marks=pytest.mark.slow) for kind in EAGLE3_VARIANTS],
)
def heads(request, target, tmp_path_factory):
    """A model with a head of each kind, and the same head as the reference loads it."""
    _, (config, weights), _ = target
    head_config, style = head_of_kind(request.param, config)
    if head_config.taps == default_taps(config.num_layers):
        head_config = replace(head_config, taps=(2, 3, 4))  # so few layers have no three default taps
    out = make_head(head_config, tmp_path_factory.mktemp("eagle3") / request.param, target=config, seed=3, style=style)
    head = load_head(out, config, weights, device=CPU, dtype=torch.float32)
    assert head.config.taps == head_config.taps
    return Model(config=config, weights=weights, head=head), reference_head(head_config, out)


def reference_head(config, folder):
    tensors = load_file(folder / "model.safetensors")
    offsets = tensors.pop("d2t", torch.zeros(config.draft_vocab_size, dtype=torch.int64))
    tensors.pop("t2d", None)
    head = ReferenceHead(config, offsets + torch.arange(config.draft_vocab_size)).double()
    head.load_state_dict({name.replace("layers.0.", "midlayer."): tensor for name, tensor in tensors.items()})
    return head


def taps_of(oracle, taps, tokens):
    """fp64 [T, C] from transformers: the stream entering layer i, the last layer's output, its norm."""
    last = []
    handle = oracle.model.layers[-1].register_forward_hook(lambda _module, _args, output: last.append(output))
    states = oracle(torch.tensor([tokens]), output_hidden_states=True).hidden_states
    handle.remove()
    by_tap = dict(enumerate(states[:-1])) | {len(states) - 1: last[0], FINAL_NORM_TAP: states[-1]}
    return torch.cat([by_tap[tap][0] for tap in taps], dim=-1).double()


@torch.inference_mode()
def dense_drafts(oracle, head, tokens, request):
    """Drafts behind every prefix x_0 .. x_{t+1} as [T - 1, K] target ids, and the margin of each choice."""
    params, config = request.params, head.config
    embedding = oracle.get_input_embeddings().weight.double()
    num_rows = len(tokens) - 1
    hidden = head.fuse(taps_of(oracle, config.taps, tokens)[None, :num_rows])
    cos, sin = (table.double() for table in rope_table(config.rope, config.head_dim, len(tokens) + MAX_DRAFTS, CPU))
    mask = torch.ones(1, num_rows, num_rows).tril().bool()
    following, steps = torch.tensor(tokens[1:]), Steps([], [])
    drafts, margins = [], []
    for j in range(MAX_DRAFTS):
        rope = (cos[j : j + num_rows], sin[j : j + num_rows])
        hidden = head.step(hidden, embedding[following][None], steps, mask, rope)
        scores = head.logits(hidden)[0]
        if params.temperature:
            seed, choice = torch.full((2, num_rows), params.seed)[0], torch.zeros(num_rows, dtype=torch.int64)
            positions = torch.arange(num_rows) + 2 + j
            noise = gumbel(seed, choice, positions, ids_V=head.target_ids_V)
            scores = scores / params.temperature + noise
        best = scores.topk(2, dim=-1)
        following = head.target_ids_V[best.indices[:, 0]]
        drafts.append(following)
        margins.append(best.values[:, 0] - best.values[:, 1])
        hidden = head.recur(hidden)
    return torch.stack(drafts, 1), torch.stack(margins, 1)


def compare(oracle, head, requests, results, seen):
    """Every draft up to the first choice that rounding may decide; returns how many drafts were compared."""
    by_id = {request.request_id: request for request in requests}
    dense, total, compared = {}, 0, 0
    for key, length, drafts in seen:
        if key not in dense:
            request = by_id[key[0]]
            dense[key] = dense_drafts(oracle, head, list(request.prompt_ids) + results[key][0], request)
        expected, margins = (table[length - 2] for table in dense[key])
        clear = len(drafts) if (margins > CLEAR).all() else int((margins <= CLEAR).int().argmax())
        assert drafts[:clear] == expected[: len(drafts)][:clear].tolist(), f"{key} at length {length}"
        total, compared = total + len(drafts), compared + min(clear, len(drafts))
    assert compared >= 0.95 * total
    return compared


def requests_of(num_requests, *, temperature=0, prefix=80, own=1, max_tokens=40):
    """Prompts that share a prefix and differ behind it, by `own` tokens or some more."""
    generator = torch.Generator().manual_seed(3)
    shared = torch.randint(TARGET.vocab_size, (prefix,), generator=generator).tolist()
    requests = []
    for index in range(num_requests):
        rest = torch.randint(TARGET.vocab_size, (own + 13 * index % 37,), generator=generator).tolist()
        params = SamplingParams(temperature=temperature, seed=index, max_tokens=max_tokens)
        requests.append(Request(request_id=str(index), prompt_ids=tuple(shared + rest), params=params))
    return requests


def drafted(model, alone, requests, schedule, **options):
    """All requests together under a schedule of draft lengths: their results, the drafts, and the engine's counters."""
    reference = alone(requests)
    core = build(model, drafter="eagle3", draft_tokens=MAX_DRAFTS, **options)
    core.draft_length = Scripted(schedule)
    core.runner.drafter = Recorder(core.runner.drafter, reference)
    results = run(core, requests, check=True)
    assert results == reference
    return results, core.runner.drafter.seen, core.stats()


@pytest.fixture
def check(target, heads, alone):
    """`check(requests, schedule, **options)`: every draft is the dense head's; the engine's counters."""
    (model, head), oracle = heads, target[2]

    def check(requests, schedule, **options):
        results, seen, stats = drafted(model, alone, requests, schedule, **options)
        assert compare(oracle, head, requests, results, seen) >= 40
        return stats

    return check


@pytest.mark.parametrize("temperature", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_rounds_that_accept(check, temperature):
    """Several sequences in one batch, each round committing 1 to 6 tokens, up to the last token of each budget."""
    stats = check(requests_of(4, temperature=temperature), [5, 3, 4, 1], concurrency=4, page_size=8)
    assert stats.num_accepted_tokens > 20


@pytest.mark.slow
def test_rounds_without_drafts_are_caught_up(check):
    """After 32 tokens, a full backlog, the drafts are those of a head that never paused."""
    check(requests_of(2, max_tokens=80), [3, *[0] * (MAX_BACKLOG - 4), 5, 2, 0, 4], concurrency=2)


@pytest.mark.slow
def test_prefix_cache_hits(check):
    """One slot: each later request starts from pages, and the tap row of the last one, that an earlier one left."""
    stats = check(requests_of(3), [4], concurrency=1, page_size=8, chunk_tokens=37)
    assert stats.num_cached_tokens >= 2 * 64


@pytest.mark.parametrize("heads", ["specforge", pytest.param("fc-norm", marks=pytest.mark.slow)], indirect=True)
@pytest.mark.slow
def test_preempted_sequences(check):
    """Swapped out and back while others draft, one step ahead of the host, after rounds without drafts."""
    requests = requests_of(5, prefix=8, own=120, max_tokens=60)
    schedule = [*[0] * 26, *[3] * 400]  # swapped out with tokens that the head has not seen
    stats = check(requests, schedule, concurrency=5, memory="tight", lag=1)
    assert stats.num_preemptions > 0


@pytest.mark.parametrize("heads", ["specforge"], indirect=True)
@pytest.mark.slow
def test_drafts_beyond_the_budget_touch_no_page_of_others(check):
    """Answers that end with a page, in slots whose page tables still name pages of longer answers before them."""
    requests = []
    for index, request in enumerate(requests_of(9, prefix=7)):
        max_tokens = 100 if index < 3 else 16 - len(request.prompt_ids) % 8
        requests.append(replace(request, params=replace(request.params, max_tokens=max_tokens)))
    check(requests, [5, 4], concurrency=3, page_size=8)


@pytest.mark.parametrize("heads", ["specforge"], indirect=True)
def test_the_comparison_notices_a_hidden_state_off_by_one(target, heads, alone):
    """The oracle has teeth: paired with the state of one token later, few drafts are the same."""
    (model, head), oracle = heads, target[2]
    requests = requests_of(1)
    results, seen, _ = drafted(model, alone, requests, [3], concurrency=1)
    expected, _ = dense_drafts(oracle, head, list(requests[0].prompt_ids) + results["0", 0][0], requests[0])
    shifted = [drafts[0] == expected[length - 3, 0] for _, length, drafts in seen if drafts]
    assert sum(shifted) < len(shifted) / 4
