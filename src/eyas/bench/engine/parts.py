"""The parts of engine, model and kernels that benchmarks use: no other file of `bench` imports those packages.

It loads torch, so the commands import it when they run.
"""

from __future__ import annotations

import torch

from eyas.engine.draft_length.choice import AutoDraftLength, DraftLength, FixedDraftLength, RoundTimer
from eyas.engine.sampling.synthetic import SimulatedSampler
from eyas.engine.startup.build import auto_draft_length
from eyas.engine.startup.load import LoadedModel, find_checkpoints, load_tokenizer
from eyas.engine.startup.memory_map import driver_peak
from eyas.engine.startup.warm_up import capture, warm_up
from eyas.engine.step.core import EngineCore
from eyas.engine.step.runner import PROMPT_STAGES
from eyas.engine.step.speculate import FINISH, VERIFY
from eyas.engine.step.timed import timed_stages
from eyas.kernels.reference.layers.roles import PLAIN_OPS
from eyas.model.checkpoints.device_layout import num_copies, remove_copies, unread_bytes
from eyas.model.checkpoints.head_kinds import HEAD_KINDS
from eyas.model.checkpoints.shards import read_headers
from eyas.model.checkpoints.tensor_files import PIECE_BYTES, THREADS, read_exactly
from eyas.model.config import GptOssConfig
from eyas.model.devices import available_bytes, pick_device
from eyas.model.hardware import hardware
from eyas.model.prompt_memory import layer_page_bytes
from eyas.model.weights import num_bytes

__all__ = [
    "FINISH",
    "HEAD_KINDS",
    "PIECE_BYTES",
    "PLAIN_OPS",
    "PROMPT_STAGES",
    "THREADS",
    "VERIFY",
    "AutoDraftLength",
    "DraftLength",
    "EngineCore",
    "FixedDraftLength",
    "GptOssConfig",
    "LoadedModel",
    "RoundTimer",
    "SimulatedSampler",
    "auto_draft_length",
    "available_bytes",
    "capture",
    "driver_peak",
    "find_checkpoints",
    "hardware",
    "layer_page_bytes",
    "load_tokenizer",
    "num_bytes",
    "num_copies",
    "pick_device",
    "read_bandwidth",
    "read_exactly",
    "read_headers",
    "remove_copies",
    "timed_stages",
    "unread_bytes",
    "warm_up",
]


def read_bandwidth(device: torch.device) -> float:
    """Measure the bandwidth of a streaming read of the device's memory in bytes per second."""
    from eyas.kernels.triton import stream

    return stream.read_bandwidth(device)
