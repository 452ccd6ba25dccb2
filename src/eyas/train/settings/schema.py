"""Settings of a training run, each written once: the keys of the YAML file, their checks and their help texts."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from eyas.base.settings.config import int_from, one_of, true_or_false
from eyas.model.config import FINAL_NORM_TAP

__all__ = [
    "DataSettings",
    "EvalSettings",
    "HeadSettings",
    "RunSettings",
    "StatesSettings",
    "TargetSettings",
    "TrainSettings",
]

BYTES = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30, "kb": 10**3, "mb": 10**6, "gb": 10**9}
MAX_DECAY_RATE = 0.999999  # of a moment: 1 would never move


def _setting(
    default: Any,
    help_text: str,
    parse: Callable[[str], Any] = str,
    *,
    is_list: bool = False,
    length: int | None = None,
) -> Any:
    """Declare a key; `parse` raises ValueError for a bad value. With `is_list` it reads each item of a list.

    `length` is the number of items that a list must have.
    """
    metadata = {"help": help_text, "parse": parse, "is_list": is_list, "length": length}
    return field(default=default, metadata=metadata)


def _number(low: float, high: float = math.inf) -> Callable[[str], float]:
    def parse(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            raise ValueError(f"wants a number, got '{text}'") from None
        if not low <= value <= high or math.isinf(value):
            bounds = f"{low:g} to {high:g}" if high < math.inf else f"at least {low:g}"
            raise ValueError(f"wants {bounds}, got {text}")
        return value

    return parse


def _or_word(word: str, parse: Callable[[str], Any]) -> Callable[[str], Any]:
    return lambda text: word if text == word else parse(text)


def _tap(text: str) -> int:
    return FINAL_NORM_TAP if text == str(FINAL_NORM_TAP) else int_from(0)(text)


def _bytes(text: str) -> int:
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in BYTES:
        raise ValueError(f"wants a size such as 2GiB or 500MiB, got '{text}'")
    return int(float(match[1]) * BYTES[match[2]])


@dataclass(frozen=True, kw_only=True, slots=True)
class TargetSettings:
    """The frozen model that the head drafts for."""

    SHORT: ClassVar[str] = "model"  # `target: demo` stands for `target: {model: demo}`

    model: str = _setting("demo", "folder, hub id (ORG/NAME), or 'demo': the one in this package")
    revision: str | None = _setting(None, "branch, tag or commit of a model from the hub")
    offline: bool = _setting(False, "use only hub files that are already on this machine", true_or_false)
    device: str = _setting("auto", "cpu, cuda, cuda:1, ...; 'auto' takes a GPU where there is one")


@dataclass(frozen=True, kw_only=True, slots=True)
class HeadSettings:
    """The draft head. Sizes that are not given are the target's; with `init` all of them come from that head."""

    kind: str = _setting("eagle3", "kind of head")
    init: str | None = _setting(None, "head to start from (folder or hub id); a fresh one if not given")
    init_taps: Literal["auto", "boundary", "output"] = _setting(
        "auto",
        "meaning of the layer ids of `init`: HS[i] ('boundary') or HS[i + 1] ('output'); 'auto' tries both where the "
        "file does not say, and takes the better one",
        one_of("auto", "boundary", "output"),
    )
    draft_vocab: int | Literal["full"] = _setting(
        32000, "size of the draft vocabulary, or 'full'", _or_word("full", int_from(16))
    )
    intermediate_size: int | None = _setting(None, "width of its MLP; six times the target's hidden size", int_from(1))
    num_heads: int | None = _setting(None, "query heads", int_from(1))
    num_kv_heads: int | None = _setting(None, "key and value heads", int_from(1))
    head_dim: int | None = _setting(None, "width of an attention head", int_from(2))
    taps: tuple[int, ...] | None = _setting(
        None,
        "residual-stream boundaries of the target that feed the head, e.g. [2, 18, 33]; -1 is the final norm's output; "
        "HS[2], HS[L/2], HS[L-3] if not given, the default of every engine",
        _tap,
        is_list=True,
    )
    rope: Literal["target", "default", "linear", "yarn", "llama3"] = _setting(
        "target",
        "scaling of its rotary frequencies; 'target' takes the target's own",
        one_of("target", "default", "linear", "yarn", "llama3"),
    )
    rope_theta: float = _setting(10000.0, "base of the rotary frequencies, unless rope is 'target'", _number(1))
    rope_factor: float = _setting(1.0, "factor of linear, yarn and llama3", _number(1))
    rope_original_context: int = _setting(4096, "context before scaling, for yarn and llama3", int_from(1))
    norm_before_residual: bool = _setting(False, "the residual is the normed state", true_or_false)
    norm_before_fc: bool = _setting(False, "one norm over the tapped states, before fc", true_or_false)
    fc_norm: bool = _setting(False, "one norm for each tapped state, before fc (EAGLE-3.1)", true_or_false)
    norm_output: bool = _setting(False, "the normed output is fed back (EAGLE-3.1)", true_or_false)


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSettings:
    """Chats, and what of them is taught."""

    chats: tuple[str, ...] = _setting((), "JSONL files of chats (OpenAI messages, or ShareGPT)", is_list=True)
    held_out: tuple[str, ...] = _setting((), "JSONL files of chats for the evaluation, never trained on", is_list=True)
    held_out_share: float = _setting(
        0.02,
        "share of the chats kept for the evaluation, chosen by hash, where held_out names no file",
        _number(0, 0.5),
    )
    context: int = _setting(4096, "tokens of the longest document: a turn and everything before it", int_from(16))
    too_long: Literal["error", "skip", "truncate"] = _setting(
        "error", "a document longer than that stops the run, is left out, or loses its end",
        one_of("error", "skip", "truncate"),
    )  # fmt: skip
    supervise: Literal["loose", "faithful"] = _setting(
        "loose",
        "predictions that are taught: of every generated token ('loose', as other trainers do), or only those that an "
        "engine could make, after a generated token of the same answer ('faithful')",
        one_of("loose", "faithful"),
    )
    call_headers: Literal["written", "rendered"] = _setting(
        "written",
        "order of the words in the headers of taught calls: as the model writes them (channel, then recipient), or as "
        "prompts render them (recipient, then channel)",
        one_of("written", "rendered"),
    )
    effort: Literal["low", "medium", "high"] = _setting(
        "medium", "reasoning effort in the system message, where a chat does not say", one_of("low", "medium", "high")
    )
    date: str | None = _setting(None, "date in the system message (YYYY-MM-DD), where a chat does not say")


@dataclass(frozen=True, kw_only=True, slots=True)
class StatesSettings:
    """Source of the target's hidden states: the model itself, unless a folder is named."""

    folder: str | None = _setting(None, "folder written by `eyas train capture`")
    cache: int = _setting(2 << 30, "bytes of states kept in host memory between epochs", _bytes)


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainSettings:
    """Loss, optimiser and schedule."""

    loss: Literal["kl", "lk", "tv", "hard"] = _setting(
        "kl",
        "kl: the target's distribution over the draft vocabulary; lk: its acceptance; tv: 1 - acceptance; hard: its "
        "most likely token",
        one_of("kl", "lk", "tv", "hard"),
    )
    lk_form: Literal["alpha", "lambda"] = _setting(
        "alpha", "-log(acceptance), or a mixture of kl and tv that moves to tv", one_of("alpha", "lambda")
    )
    lk_scale: float = _setting(1.0, "weight of kl in lk's mixture where acceptance is 0", _number(0, 1))
    lk_decay: float = _setting(3.0, "rate at which that weight falls with acceptance", _number(0))
    compat: Literal["none", "specforge"] = _setting(
        "none", "specforge: divide each loss by all rows instead of the taught ones", one_of("none", "specforge")
    )
    depths: int = _setting(7, "drafts that are unrolled (training-time test)", int_from(1, 16))
    decay: float = _setting(0.8, "weight of each depth relative to the one before", _number(0, 1))
    batch_tokens: int | None = _setting(None, "tokens of one packed batch; data.context if not given", int_from(16))
    buckets: int = _setting(1, "groups of documents by length; a batch holds documents of one group", int_from(1, 1024))
    accumulate: int = _setting(1, "batches of one step", int_from(1))
    steps: int | None = _setting(None, "steps of the run; if not given, `epochs` decides", int_from(1))
    epochs: int = _setting(1, "passes over the chats", int_from(1))
    optimizer: Literal["adamw", "muon"] = _setting(
        "adamw", "muon updates the matrices of the layer and fc, and leaves norms and lm_head to AdamW",
        one_of("adamw", "muon"),
    )  # fmt: skip
    lr: float = _setting(1e-4, "peak learning rate of AdamW", _number(0))
    muon_lr: float = _setting(0.01, "peak learning rate of Muon", _number(0))
    betas: tuple[float, ...] = _setting(
        (0.9, 0.95), "AdamW's decay rates", _number(0, MAX_DECAY_RATE), is_list=True, length=2
    )
    eps: float = _setting(1e-8, "AdamW's epsilon", _number(0))
    weight_decay: float = _setting(0.0, "decoupled weight decay", _number(0))
    schedule: Literal["cosine", "linear", "constant"] = _setting(
        "cosine", "decay of the learning rate after the warm-up", one_of("cosine", "linear", "constant")
    )
    warmup: float = _setting(0.015, "share of the steps in which the learning rate rises from 0", _number(0, 1))
    final_lr: float = _setting(0.0, "learning rate at the end, as a share of the peak", _number(0, 1))
    clip: float = _setting(0.5, "largest norm of the gradient; 0: not clipped", _number(0))
    precision: Literal["auto", "fp32", "bf16"] = _setting(
        "auto", "of the head's products; weights stay fp32. 'auto': bf16 on a GPU, fp32 on a CPU",
        one_of("auto", "fp32", "bf16"),
    )  # fmt: skip
    share: Literal["rows", "sequences"] = _setting(
        "rows", "work of several processes (torchrun): rows of the same batches, or batches of their own",
        one_of("rows", "sequences"),
    )  # fmt: skip
    attention: Literal["auto", "plain", "kernels", "flash", "cudnn"] = _setting(
        "auto",
        "attention of the head: plain operations; on a GPU our kernels, which give the same bits in every run, or "
        "these and flash attention or cuDNN for keys that all rows see; 'auto' takes the fastest at the run's start",
        one_of("auto", "plain", "kernels", "flash", "cudnn"),
    )
    device: str | None = _setting(
        None, "device of the head where it is not the target's: another GPU of this machine, to which states are copied"
    )
    deterministic: bool = _setting(
        False, "only what gives the same bits in every run on the same GPU; slower there, and no change on a CPU",
        true_or_false,
    )  # fmt: skip
    tile: int | None = _setting(
        None, "target positions of one tile of the loss; if not given, 512 on a CPU, on a GPU up to 4096 as fit",
        int_from(1),
    )  # fmt: skip
    chunk: int | None = _setting(
        None,
        "rows of the head computed at a time; if not given, 2048 on a CPU, on a GPU up to 8192 as fit",
        int_from(1),
    )
    seed: int = _setting(0, "seed of the fresh head and of the order of chats", int_from(0))
    log_every: int = _setting(10, "steps between lines of progress", int_from(1))
    save_every: int = _setting(
        200, "steps between checkpoints; others are written of the best evaluation and at the end", int_from(1)
    )
    keep: int = _setting(2, "newest checkpoints kept beside the best one", int_from(1))
    tensorboard: bool = _setting(False, "write TensorBoard events beside metrics.jsonl", true_or_false)

    @property
    def rows_of_pass(self) -> int:
        return self.chunk or 2048

    @property
    def rows_of_tile(self) -> int:
        return self.tile or 512


@dataclass(frozen=True, kw_only=True, slots=True)
class EvalSettings:
    """Evaluation on the held-out chats, and early stopping by it."""

    every: int = _setting(0, "steps between evaluations; 0: at the end only", int_from(0))
    draft_tokens: int = _setting(4, "drafts of a round in the acceptance length that decides", int_from(1, 16))
    documents: int = _setting(200, "held-out documents used, at most", int_from(1))
    patience: int = _setting(
        0, "stop after this many evaluations without a longer acceptance length; 0: never", int_from(0)
    )
    prompts: str | None = _setting(
        None, "JSONL file of prompts that the real engine answers with the exported head at the end"
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class RunSettings:
    """One run: `eyas train run FILE`."""

    target: TargetSettings = field(default_factory=TargetSettings)
    head: HeadSettings = field(default_factory=HeadSettings)
    data: DataSettings = field(default_factory=DataSettings)
    states: StatesSettings = field(default_factory=StatesSettings)
    train: TrainSettings = field(default_factory=TrainSettings)
    eval: EvalSettings = field(default_factory=EvalSettings)
    out: str = _setting("runs/head", "folder of checkpoints, metrics and the exported head")
