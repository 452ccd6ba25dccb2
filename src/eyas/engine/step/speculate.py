"""One speculative round: propose, verify, accept, commit.

All data stays on the device; `RoundOutput` is what the host copies and reads later.
"""

from __future__ import annotations

from functools import partial

from torch import Tensor

from eyas.engine.draft_length.round_drafts import RoundDrafts
from eyas.engine.drafters.base import Drafter
from eyas.engine.drafters.ngram import NgramDrafter
from eyas.engine.round.stages import Stages
from eyas.engine.round.state import DeviceState
from eyas.engine.round.types import Drafts, RoundOutput, RoundSpace, Sampler, Screen, Verified
from eyas.engine.sampling.masking import read_for_masks
from eyas.engine.sequences.sequence import Sequence
from eyas.kernels.reference.layers.ops import LayerCache, Ops
from eyas.kernels.reference.rounds.gather import Gather
from eyas.model.batch import RowBatch
from eyas.model.networks.gpt_oss import GptOss

__all__ = ["FINISH", "VERIFY", "speculative_round"]

VERIFY, FINISH = "verify", "finish"  # stages of a round


def speculative_round(
    target: GptOss,
    caches: list[LayerCache],
    drafter: Drafter,
    state: DeviceState,
    sequences: list[Sequence],
    slots_S: Tensor,
    planned: RoundDrafts,
    max_length: int,
    ops: Ops,
    space: RoundSpace | None,
    sampler: Sampler,
    stages: Stages,
    gather: Gather,
    *,
    ngram_drafter: NgramDrafter | None,
    screen: Screen | None,
    keeps_routing: bool,
) -> RoundOutput:
    """Run one round. `max_length` bounds the sequences' lengths; `slots_S` may end with dead slots beyond `sequences`.

    What the target computes is left in `space`, if it is given, so that graphs of all sizes share it.
    If some sequences use prompt lookup, `ngram_drafter` drafts for them and `drafter` only for the others.
    `screen` computes the logits of rounds that are not too large for it.
    """
    num_drafts = planned.num_drafts
    drafts = _propose(drafter, ngram_drafter, state, slots_S, sequences, planned, max_length)
    mask_input = read_for_masks(state, slots_S, sequences, drafts)
    if mask_input is not None and mask_input.is_ready:
        mask_input.ask(state.vocab_size)
    shape = (len(slots_S), num_drafts, keeps_routing)
    if screen is not None and len(slots_S) * (num_drafts + 1) > screen.max_rows:
        screen = None
    if screen is not None:
        screen.expect(sequences, mask_input is not None)

    def verify(slots_S: Tensor, ids_SK: Tensor, num_valid_S: Tensor) -> Verified:
        own = None if space is None else space.of(ids_SK.numel() + len(slots_S))
        rows = gather.verified(state.book, slots_S, ids_SK, num_valid_S, own and own.live_T)
        batch = RowBatch.of(rows, max_length + ids_SK.shape[1], ops)
        output = target.forward(batch, caches, own and own.taps_TC)
        logits_TV = own and own.logits_TV
        if screen is None:
            logits_TV, wanted = target.logits(output.normed, ops, logits_TV), None
        else:
            logits_TV, wanted = screen.logits(output.normed, slots_S, batch.live_SR, logits_TV)
        logits_SRV = logits_TV.unflatten(0, batch.tokens_SR.shape)
        return Verified(logits_SRV, output.taps_TC, output.choices if keeps_routing else (), batch.live_SR, wanted)

    def finish(verified: Verified, slots_S: Tensor, *own: Tensor) -> RoundOutput:
        return with_drafts(sampler.finish(verified, slots_S, sequences, Drafts(*own), None))

    def with_drafts(output: RoundOutput) -> RoundOutput:
        """Return it with the drafts that were given: as results of a stage, its own would be copied."""
        return output._replace(draft_SK=drafts.ids_SK, num_drafts_S=drafts.num_valid_S, levels_SN=drafts.levels_SN)

    # Two stages: the host waits for drafts and computes masks while the device verifies, whether or not there are any.
    verified = stages.run((VERIFY, shape), verify, slots_S, *drafts[:2])
    if mask_input is None:
        given = [part for part in drafts if part is not None]
        output = stages.run((FINISH, shape, len(given)), partial(finish, verified), slots_S, *given)
    else:
        masks, num_ready = mask_input.masks(state.vocab_size)
        output = sampler.finish(verified, slots_S, sequences, drafts, masks)._replace(num_ready=num_ready)
    return with_drafts(output)


def _propose(
    drafter: Drafter,
    ngram_drafter: NgramDrafter | None,
    state: DeviceState,
    slots_S: Tensor,
    sequences: list[Sequence],
    planned: RoundDrafts,
    max_length: int,
) -> Drafts:
    num_drafts, size = planned.num_drafts, len(slots_S)
    mixes = ngram_drafter is not None and num_drafts > 0 and planned.by_lookup
    num_proposed = planned.head_drafts if mixes else num_drafts
    drafts = state.no_drafts(size)
    if num_proposed:
        drafts = drafter.propose(state, slots_S, sequences, num_proposed, max_length)
    if ngram_drafter is not None and mixes:
        if not num_proposed:
            drafter.read_backlog(state, slots_S, num_drafts + 1, max_length)
            # Levels that nothing reads, so that one graph finishes all rounds of a size.
            drafts = drafts._replace(levels_SN=state.chain_end(size, num_drafts).levels_SK)
        drafts = ngram_drafter.replace(state, slots_S, drafts, num_drafts, max_length)
    return drafts
