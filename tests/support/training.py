"""Small heads, packed batches and states in fp64, and the same batch as the reference trainer takes it."""

import itertools

import torch

from eyas.model.config import FINAL_NORM_TAP, Eagle3Config, RopeConfig
from eyas.train.heads.eagle3 import Eagle3TrainableHead
from eyas.train.reference import ReferenceHead, TttBatch
from eyas.train.types import Batch, States, Teacher

VOCAB, DRAFT = 37, 19
VARIANTS = {
    "classic": {},
    "norm-before": {"norm_before_residual": True, "norm_before_fc": True},
    "fc-norm": {"fc_norm": True, "norm_output": True},
    "final-norm": {"taps": (FINAL_NORM_TAP,), "has_fc": False},
    "one-tap": {"taps": (2,), "norm_output": True, "norm_before_residual": True},
    "full-vocabulary": {"draft_vocab_size": VOCAB},
    "no-groups": {"num_kv_heads": 4, "rope": RopeConfig(theta=100.0, kind="yarn", factor=4.0, original_context=8)},
    "own-width": {"target_hidden_size": 20},
}


def head_config(**changes):
    base = {
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT,
        "hidden_size": 16,
        "target_hidden_size": 16,
        "intermediate_size": 24,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "taps": (1, 2, 3),
        "rope": RopeConfig(theta=100.0),
        "max_context": 512,
    }
    return Eagle3Config(**(base | changes))


def new_head(config, *, seed=0, num_depths=3, dtype=torch.float64, **options):
    """A head of normal values, norms included, with an embedding of its own iff the target's has another width."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(config.vocab_size, generator=generator)[: config.draft_vocab_size].sort().values
    if config.target_hidden_size != config.hidden_size:
        embed = torch.randn(config.vocab_size, config.hidden_size, generator=generator, dtype=torch.float64)
        options["embed_VH"] = embed.to(dtype)
    head = Eagle3TrainableHead(config, ids, num_depths=num_depths, **options).to(dtype)
    with torch.no_grad():
        for parameter in head.parameters():
            drawn = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            scale = parameter.shape[-1] ** -0.5 if parameter.ndim == 2 else 1
            parameter.copy_(drawn * scale + (parameter.ndim == 1))
    return head


def reference_of(head):
    reference = ReferenceHead(head.config, head.target_ids_V).to(next(head.parameters()).dtype)
    reference.load_state_dict(head.state_dict())
    return reference


def packed(lengths, *, seed=0, given=0.3, vocab=VOCAB):
    """A batch of documents of these lengths: random tokens, each token given or of a run that its neighbours share."""
    generator = torch.Generator().manual_seed(seed)
    starts = (0, *itertools.accumulate(lengths))
    total = starts[-1]
    generated = torch.rand(total, generator=generator) >= given
    runs = torch.full((total,), -1)
    for start, stop in itertools.pairwise(starts):
        number = 0
        for at in range(start, stop):
            if generated[at]:
                runs[at] = number
            elif at > start and generated[at - 1]:
                number += 1
    sizes = torch.tensor(lengths)
    return Batch(
        ids_T=torch.randint(0, vocab, (total,), generator=generator),
        runs_T=runs,
        segments_T=(runs >= 0).to(torch.uint8),
        documents_T=torch.arange(len(lengths)).repeat_interleave(sizes),
        positions_T=torch.cat([torch.arange(n) for n in lengths]),
        starts=starts,
        sources=tuple(f"test:{i}" for i in range(len(lengths))),
    )


def states_for(config, batch, *, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)

    width = config.target_hidden_size
    teacher = Teacher(normal(config.vocab_size, width), normal(config.vocab_size, width))
    return States(normal(batch.num_tokens, len(config.taps) * width), normal(batch.num_tokens, width)), teacher


def reference_batch(batch, states, teacher, embed_VH=None):
    """The batch as the reference takes it: a row for each document, so that positions are those of the document."""
    longest = max(stop - start for start, stop in itertools.pairwise(batch.starts))
    embedded = (teacher.embed_VH if embed_VH is None else embed_VH)[batch.ids_T]
    logits = states.last_TH @ teacher.lm_head_VH.T

    def rows(x, fill=0):
        out = x.new_full((len(batch.sources), longest, *x.shape[1:]), fill)
        for row, (start, stop) in enumerate(itertools.pairwise(batch.starts)):
            out[row, : stop - start] = x[start:stop]
        return out

    return TttBatch(
        tokens_BT=rows(batch.ids_T),
        taps_BTC=rows(states.taps_TC),
        embedded_BTH=rows(embedded),
        target_logits_BTV=rows(logits),
        generated_BT=rows(batch.runs_T >= 0),
        documents_BT=rows(batch.documents_T, -1),
    )
