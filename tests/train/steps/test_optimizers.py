"""Optimisers: they do what torch's do, follow the schedule, and go on from their saved state bit for bit."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import nn

from eyas.train.settings.schema import TrainSettings
from eyas.train.steps.optimizers import Optimizers
from eyas.train.steps.schedule import learning_rate_factor


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 4, bias=False)
        self.norm = nn.Parameter(torch.ones(4))
        self.lm_head = nn.Linear(4, 8, bias=False)


def module():
    torch.manual_seed(0)
    return Small()


def backward(head, number):
    generator = torch.Generator().manual_seed(number)
    head.lm_head(head.norm * head.fc(torch.randn(5, 6, generator=generator))).square().sum().backward()


SETTINGS = TrainSettings(lr=1e-2, clip=0.5, warmup=0.3, weight_decay=0.1)


def test_adamw_is_that_of_torch_with_clipping():
    ours, theirs = module(), module()
    optimizers = Optimizers(ours, replace(SETTINGS, schedule="constant", warmup=0), 5)
    adam = torch.optim.AdamW(theirs.parameters(), lr=1e-2, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for number in range(5):
        backward(ours, number), backward(theirs, number)
        norm, lr = optimizers.step(number)
        assert norm == pytest.approx(float(nn.utils.clip_grad_norm_(theirs.parameters(), 0.5))) and lr == 1e-2
        adam.step(), adam.zero_grad()
    assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), theirs.parameters(), strict=True))


@pytest.mark.parametrize("name", ["adamw", "muon"])
def test_a_saved_state_goes_on_bit_for_bit(name):
    settings = replace(SETTINGS, optimizer=name)
    whole, first = module(), module()
    one, two = Optimizers(whole, settings, 8), Optimizers(first, settings, 8)
    for number in range(8):
        backward(whole, number)
        one.step(number)
    for number in range(4):
        backward(first, number)
        two.step(number)
    state = {name: tensor.clone() for name, tensor in two.tensors().items()}
    second = module()
    second.load_state_dict(first.state_dict())
    three = Optimizers(second, settings, 8)
    three.load(state)
    for number in range(4, 8):
        backward(second, number)
        three.step(number)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), second.parameters(), strict=True))


def test_muon_moves_hidden_matrices_alone():
    head = module()
    optimizers = Optimizers(head, replace(SETTINGS, optimizer="muon", muon_lr=0.0, weight_decay=0.0), 2)
    before = head.fc.weight.clone(), head.lm_head.weight.clone()
    backward(head, 0)
    optimizers.step(0)
    assert torch.equal(head.fc.weight, before[0]) and not torch.equal(head.lm_head.weight, before[1])


@pytest.mark.parametrize("schedule", ["cosine", "linear", "constant"])
def test_the_learning_rate_rises_then_falls(schedule):
    factors = [learning_rate_factor(s, 100, schedule=schedule, warmup=0.1, final=0.2) for s in range(100)]
    assert factors[:10] == pytest.approx([(s + 1) / 10 for s in range(10)])
    assert all(a >= b for a, b in pairwise(factors[9:]))
    assert factors[-1] == pytest.approx(1.0 if schedule == "constant" else 0.2)


def test_one_step_has_a_rate():
    assert learning_rate_factor(0, 1, schedule="cosine", warmup=0.015, final=0.0) == 1.0
