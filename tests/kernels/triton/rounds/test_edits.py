"""Edited logits against the engine's plain sampler: greedy rows show the argmax, log-probabilities the raw logits."""

from types import SimpleNamespace

import pytest
import torch
from tests.kernels.support.rows import DEVICE, rows_of

from eyas.engine.round.state import DeviceState
from eyas.engine.sampling.sampler import sample_rows
from eyas.kernels.triton.rounds.edits import Edits
from eyas.kernels.triton.rounds.sample import SampleSpace, draw

SLOTS, V = 5, 700
EDITS = {
    "none": {},
    "repetition": {"repetition_penalty": 1.7},
    "frequency": {"frequency_penalty": 0.8},
    "negative": {"presence_penalty": -1.0, "frequency_penalty": -0.3},
    "bias": {"logit_bias": {0: 4.0, 699: 6.0, 300: -100.0, 301: 5.0}},
    "min_tokens": {"min_tokens": 7},
    "all": {
        "repetition_penalty": 1.3,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.4,
        "logit_bias": {i: (-1.0) ** i * 2 for i in range(0, 600, 9)},
        "min_tokens": 20,
    },
}


def state_of(params, generator):
    """A device state in which every slot has its own share of `params`."""
    state = DeviceState(
        num_slots=SLOTS,
        max_positions=64,
        page_size=16,
        vocab_size=V,
        tap_width=4,
        tap_ring=8,
        tap_dtype=torch.float32,
        device=torch.device(DEVICE),
    )
    rows = len(state.length_S)
    state.length_S[:] = torch.randint(5, 30, (rows,), generator=generator)
    state.stop_ids_SN[:] = -1
    state.stop_ids_SN[:, :3] = torch.randint(0, V, (rows, 3), generator=generator)
    state.first_stop_S[:] = 5 + params.get("min_tokens", 0)
    state.presence_S[:] = params.get("presence_penalty", 0.0)
    state.frequency_S[:] = params.get("frequency_penalty", 0.0)
    state.repetition_S[:] = params.get("repetition_penalty", 1.0)
    state.output_counts_SV = torch.randint(0, 40, (rows, V), generator=generator).sub(36).clamp(min=0).int().to(DEVICE)
    state.in_prompt_SV = (torch.rand(rows, V, generator=generator) < 0.05).to(DEVICE)
    state._enter_bias(torch.arange(rows, device=DEVICE), [params.get("logit_bias", {})] * rows)
    state.sampling = rows_of(rows, temperature=0.0)
    return state


@pytest.mark.parametrize("name", EDITS)
def test_equals_the_plain_sampler(name):
    generator = torch.Generator().manual_seed(len(name))
    params = EDITS[name]
    state = state_of(params, generator)
    slots = torch.tensor([3, 0, 4], device=DEVICE)
    logits = (torch.randn(3, 3, V, generator=generator) * 2).to(DEVICE)
    drafts = logits.topk(4).indices[:, 0, :2].contiguous()  # so that counting them matters
    drafts[1, 1] = drafts[1, 0]
    defaults = {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "logprobs": 2, "logit_bias": {}}
    neutral = {"presence_penalty": 0.0, "frequency_penalty": 0.0, "repetition_penalty": 1.0, "min_tokens": 0}
    sequences = [SimpleNamespace(request=SimpleNamespace(params=SimpleNamespace(**defaults | neutral | params)))] * 3
    expected = sample_rows(logits, state.length_S[slots], drafts, state, sequences, slots)

    num_bias = torch.full_like(state.length_S, len(params.get("logit_bias", {})))
    edits = Edits(
        presence_S=state.presence_S,
        frequency_S=state.frequency_S,
        repetition_S=state.repetition_S,
        output_counts_SV=state.output_counts_SV,
        in_prompt_SV=state.in_prompt_SV,
        bias_ids_SN=state.bias_ids_SN,
        bias_SN=state.bias_SN,
        num_bias_S=num_bias,
        stop_ids_SN=state.stop_ids_SN,
        first_stop_S=state.first_stop_S,
    )
    drawn = draw(
        logits.flatten(0, 1),
        slots,
        state.length_S,
        state.sampling,
        SampleSpace(9, V, DEVICE, chunk_size=256),
        edits=edits,
        ancestors_SK=drafts,
        num_top_S=torch.full_like(state.length_S, 2),
    )
    assert torch.equal(drawn.ids_T.view(3, 3), expected.ids_SR)
    assert torch.equal(drawn.failed_T.view(3, 3), expected.failed_SR)
    torch.testing.assert_close(drawn.logprobs_T.view(3, 3), expected.logprobs.chosen_SR)
    assert torch.equal(drawn.top_ids_TN[:, :2].view(3, 3, 2), expected.logprobs.top_ids_SRn)
