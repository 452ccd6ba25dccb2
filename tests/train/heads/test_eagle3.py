"""The trainable EAGLE-3 head: its names, its passes, what it refuses."""

import pytest
import torch
from tests.support.training import VARIANTS, head_config, new_head, packed, reference_of, states_for

from eyas.base.errors import UserError
from eyas.train.heads.eagle3 import Eagle3TrainableHead
from eyas.train.heads.registry import HEADS


@pytest.mark.parametrize("variant", VARIANTS)
def test_state_dicts_interchange_with_the_reference_head(variant):
    head = new_head(head_config(**VARIANTS[variant]))
    reference = reference_of(head)
    assert {n: p.shape for n, p in head.named_parameters()} == {n: p.shape for n, p in reference.named_parameters()}
    fresh = HEADS["eagle3"](head.config, head.target_ids_V, embed_VH=head.embed_VH).double()
    fresh.load_state_dict(reference.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(fresh.parameters(), head.parameters(), strict=True))


def test_a_pass_not_taken_backward_is_an_error_and_without_gradients_none_is_needed():
    batch, config = packed((9, 8)), head_config()
    states, teacher = states_for(config, batch)
    head = new_head(config, rows_of_pass=4)
    with pytest.raises(RuntimeError, match="no_grad"):
        list(head.passes(batch, states, teacher, rule="loose"))
    with torch.no_grad():
        assert len(list(head.passes(batch, states, teacher, rule="loose"))) > 1
    assert all(p.grad is None for p in head.parameters())


def test_matrices_compute_in_the_teachers_dtype_and_gradients_are_the_parameters():
    batch, config = packed((12, 9)), head_config()
    head = new_head(config, dtype=torch.float32)
    states, teacher = states_for(config, batch, dtype=torch.bfloat16)
    exact_states, exact_teacher = states_for(config, batch, dtype=torch.float32)
    outputs = []
    for some_states, some_teacher in ((states, teacher), (exact_states, exact_teacher)):
        head.zero_grad()
        for one in head.passes(batch, some_states, some_teacher, rule="loose"):
            outputs.append(one.outputs[-1])
            one.backward([torch.ones_like(x) for x in one.outputs])
        assert all(p.grad is None or p.grad.dtype == torch.float32 for p in head.parameters())
    narrow, exact = outputs
    assert (narrow.dtype, exact.dtype) == (torch.bfloat16, torch.float32)
    assert (narrow.float() - exact).norm() < 0.05 * exact.norm()


@pytest.mark.parametrize(
    ("changes", "says"),
    [({"has_fc": False}, "without fc"), ({"target_hidden_size": 24}, "embedding of its own")],
)
def test_sizes_that_do_not_fit_are_one_clear_error(changes, says):
    config = head_config(**changes)
    with pytest.raises(UserError, match=says):
        Eagle3TrainableHead(config, torch.arange(config.draft_vocab_size))


def test_tokens_behind_the_end_of_a_document_change_no_bit():
    """Rows near an end read the next document's embeddings where they are not taught; nothing of it may remain."""
    config = head_config()
    head = new_head(config, num_depths=5)
    batch = packed((8, 7), given=0)
    states, teacher = states_for(config, batch)

    def first_document():
        head.zero_grad()
        for one in head.passes(batch, states, teacher, rule="loose"):
            grads = [torch.zeros_like(x) for x in one.outputs]
            for grad, output, cells in zip(grads, one.outputs, one.cells, strict=True):
                rows = cells.rows_N[one.rows_R[cells.rows_N] < 8]
                grad[rows] = output[rows]
            one.backward(grads)
        return [p.grad.clone() for p in head.parameters() if p.grad is not None]

    before = first_document()
    batch.ids_T[8:] = (batch.ids_T[8:] + 1) % config.vocab_size
    states.taps_TC[8:] += 1
    assert any(x.any() for x in before)
    assert all(torch.equal(one, other) for one, other in zip(before, first_document(), strict=True))
