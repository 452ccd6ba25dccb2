"""A target that is a table: hidden states are a fixed function of the last two tokens. With documents to train on."""

import numpy as np
import torch

from eyas.model.config import Eagle3Config, GptOssConfig, RopeConfig
from eyas.train.heads.eagle3 import Eagle3TrainableHead
from eyas.train.types import Document, States, Teacher

TARGET = GptOssConfig(
    vocab_size=48,
    hidden_size=16,
    intermediate_size=16,
    num_layers=6,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    num_experts=2,
    experts_per_token=1,
    sliding_window=8,
    layer_is_sliding=(True, False) * 3,
    rope=RopeConfig(theta=10000.0),
    max_context=256,
)
HEAD = Eagle3Config(
    vocab_size=48,
    draft_vocab_size=32,
    hidden_size=16,
    target_hidden_size=16,
    intermediate_size=24,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    taps=(2, 3),
    rope=RopeConfig(theta=10000.0),
    max_context=256,
)


class TableStates:
    """Implements `HiddenStates`."""

    config, taps = TARGET, HEAD.taps

    def __init__(self, dtype=torch.float64):
        generator = torch.Generator().manual_seed(1)
        self.teacher = Teacher(
            *(torch.randn(48, 16, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2))
        )
        self._tables = [torch.randn(48, 32, generator=generator, dtype=torch.float64).to(dtype) for _ in range(2)]
        self.poisoned = None  # the source of a document whose states are not finite

    def states(self, batch):
        before = torch.where(batch.positions_T > 0, batch.ids_T.roll(1), 0)  # no document sees another
        taps = self._tables[0][batch.ids_T] + 0.5 * self._tables[1][before]
        last = taps[:, :16].clone()
        if self.poisoned in batch.sources:
            last[batch.starts[batch.sources.index(self.poisoned) + 1] - 2] = torch.nan
        return States(taps, last)


def documents(count, *, seed=0, length=(12, 40)):
    rng = np.random.default_rng(seed)
    found = []
    for number in range(count):
        size = int(rng.integers(*length))
        prompt = int(rng.integers(3, size - 4))
        runs = np.where(np.arange(size) < prompt, -1, 0).astype(np.int32)
        ids = rng.integers(0, 48, size).astype(np.int32)
        found.append(Document(ids_T=ids, runs_T=runs, segments_T=(runs >= 0).astype(np.uint8) * 3, source=f"d{number}"))
    return found


def head(dtype=torch.float64, num_depths=3):
    torch.manual_seed(0)
    return Eagle3TrainableHead(HEAD, torch.arange(8, 40), num_depths=num_depths).to(dtype)
