"""Rounds whose logits are screened: which of them, what the screen is told, and that no token or report changes."""

from dataclasses import replace

import pytest
import torch
from tests.engine.support.exactness import build, near_tie, random_prompts, reference_of, run

from eyas.base.types import Request, SamplingParams
from eyas.engine.sampling.screened_logits import _needs_all
from eyas.kernels.layouts.dense import BlockedMatrix
from eyas.kernels.layouts.int8 import RoughMatrix
from eyas.kernels.reference.layers.norm import inverse_rms
from eyas.kernels.reference.rounds.screen import error_of, screen_ref

RULED_OUT = -1e30  # the plain sampler takes -inf for a failure


class PlainScreen:
    """Implements `Screen` in plain PyTorch; keeps the numbers of rows, of tiles, and of rounds that wanted all."""

    max_rows, nbytes = 6, 0

    def __init__(self, core):
        self._target, self._state, self._ops = core.runner.target, core.runner.state, core.runner.row_ops
        self._rough = RoughMatrix.of(BlockedMatrix.pack(self._target.weights.lm_head_VH))
        self.rows, self.tiles, self.num_whole = set(), [], 0

    def expect(self, sequences, has_masks):
        self._is_random = any(sequence.request.params.temperature > 0 for sequence in sequences)
        self._is_whole = has_masks or any(map(_needs_all, sequences))

    def logits(self, normed, slots_S, live_SR, out_TV):
        logits = self._target.logits(normed, self._ops, out_TV)
        self.rows.add(len(logits))
        self.num_whole += self._is_whole
        if self._is_whole:
            return logits, None
        eps, num_rows = self._target.config.rms_norm_eps, live_SR.shape[1]
        approximate = normed.rows_TH @ self._rough.plain().float().T * inverse_rms(normed, eps)
        positions = self._state.length_S[slots_S].unsqueeze(1) + torch.arange(num_rows)
        rows = self._state.sampling.take(slots_S.repeat_interleave(num_rows))._replace(any_random=self._is_random)
        tiles = screen_ref(approximate, error_of(normed, eps, self._rough), positions.flatten(), rows)
        self.tiles.append(int(tiles.any(0).sum()))
        return torch.where(tiles.any(0).repeat_interleave(16), logits, RULED_OUT), None


WISHES = ({}, {"temperature": 0.0}, {"temperature": 0.5}, {"logprobs": 3}, {"top_p": 0.8}, {"frequency_penalty": 0.5})


@pytest.mark.parametrize("lag", [pytest.param(0, marks=pytest.mark.slow), 1])
@pytest.mark.parametrize("ties", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.slow
def test_tokens_and_reports_are_those_of_all_logits(random_model, ties, lag):
    lm_head = random_model.weights.lm_head_VH.bfloat16().float()
    model = replace(random_model, weights=replace(random_model.weights, lm_head_VH=lm_head))
    if ties:
        model = near_tie(model)
        model.weights.lm_head_VH.copy_(model.weights.lm_head_VH.bfloat16())
    prompts = random_prompts(2 * len(WISHES), model.config.vocab_size)
    requests = [
        Request(
            request_id=str(number),
            prompt_ids=tuple(prompt),
            params=SamplingParams(max_tokens=12 + number, ignore_eos=True, seed=number, **WISHES[number % len(WISHES)]),
        )
        for number, prompt in enumerate(prompts)
    ]
    allowed = replace(requests[0].params, allowed_token_ids=tuple(range(0, 200, 7)))
    requests.append(replace(requests[0], request_id="masked", params=allowed))
    expected, num_tiles, num_whole = reference_of(model, requests), set(), 0
    for drafter, draft_tokens, concurrency in (("eagle3", 1, 3), ("ngram", 4, 2), ("none", 0, 2)):
        core = build(model, drafter=drafter, draft_tokens=draft_tokens, concurrency=concurrency, lag=lag)
        core.runner.screen = screen = PlainScreen(core)
        assert run(core, requests) == expected
        assert screen.rows and max(screen.rows) <= screen.max_rows
        num_tiles.update(screen.tiles)
        num_whole += screen.num_whole
    assert num_whole > 0 and min(num_tiles) < model.config.vocab_size // 16 / 2
