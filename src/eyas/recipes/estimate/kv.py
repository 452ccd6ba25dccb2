"""KV cache of one GPU by engine and version: bytes from tokens and sequences, and the reverse.

Engines differ in what they keep for layers with a sliding window: everything (SGLang before 0.5.10), a pool in
proportion to that of the full layers (SGLang since), or the window and the tokens in flight: of all requests together
(vLLM, TensorRT-LLM) or of each slot (llama.cpp without a unified cache: src/llama-kv-cache-iswa.cpp, build b10488).
"""

from __future__ import annotations

from msgspec import Struct

from eyas.base.settings.config import MAX_AUTO_DRAFTS
from eyas.recipes.knowledge.tables import knowledge
from eyas.recipes.measured import drafts_of
from eyas.recipes.plan import Box, Choice
from eyas.recipes.records import CPU, Head, Model
from eyas.recipes.versions import satisfies

__all__ = [
    "CHECKPOINTS",
    "STEP_TOKENS",
    "KvLayout",
    "head_share",
    "host_cache_bytes",
    "kv_layout",
    "prompt_cache_mib",
    "round_rows",
    "step_tokens",
]

SLIDING_POOL_RATIO = 0.8  # SGLang's --swa-full-tokens-ratio
STEP_TOKENS = {"vllm": 8192, "tensorrt-llm": 8192, "llama.cpp": 2048, "ollama": 512}  # of prompts
PICTURE_STEP = 512  # llama.cpp beside others: as many logits take 0.5 GB of gemma-3's vocabulary; a picture has 256
SLOT_CELLS = 256  # llama.cpp: a slot's cache grows in such steps
EYAS_PAGE = 16  # tokens, eyas.engine.startup.build
EYAS_CHUNK, EYAS_CPU_CHUNK = 8192, 512  # prompt tokens of a step, eyas.engine.startup.backend
EYAS_ROUND_ROWS = 2048  # of all sequences at most, eyas.kernels.cuda.moe.moe
CHECKPOINTS = 8  # llama.cpp: states of a slot to go back to; its own default is 32
PROMPT_CACHE_SHARE = 32  # llama.cpp: 1/32 of a unified memory, 3.7 GiB of a Spark; its default is 8 GiB
MIB = 1 << 20
UNLIMITED = 1 << 40  # tokens, where none is kept


class KvLayout(Struct, frozen=True, kw_only=True):
    """Bytes per token on one GPU: of layers with full attention, with a window, and of the head (or draft model).

    `ratio` sizes the pool of the windowed layers in tokens of the full one. None: they hold `window` tokens of each
    sequence and `in_flight` tokens over all, or all tokens if these are fewer.
    """

    full: float
    sliding: float
    head: float
    ratio: float | None
    window: int = 0
    in_flight: int = 0

    @property
    def per_token(self) -> float:
        """Bytes of one more token of a long sequence."""
        return self.full + self.head + (self.sliding * self.ratio if self.ratio is not None else 0)

    def target_bytes(self, tokens: float, sequences: int) -> float:
        """Return the target's bytes for `tokens` in all over `sequences`."""
        if self.ratio is not None:
            return tokens * (self.full + self.ratio * self.sliding)
        return tokens * self.full + self.sliding * min(tokens, sequences * self.window + self.in_flight)

    def head_bytes(self, tokens: float) -> float:
        return tokens * self.head

    def max_tokens(self, room: float, sequences: int) -> int:
        """Return the most tokens over `sequences` that `room` bytes hold, with the head's."""
        if room <= 0:
            return 0
        if self.full + self.sliding + self.head == 0:
            return UNLIMITED
        if self.ratio is not None:
            return int(room / self.per_token)
        held = sequences * self.window + self.in_flight
        short = room / (self.full + self.head + self.sliding)
        return int(short if short <= held else (room - held * self.sliding) / (self.full + self.head))


def kv_layout(choice: Choice, box: Box, model: Model, head: Head | None) -> KvLayout:
    """Return the KV layout of the choice's engine. Where there are more GPUs than KV heads each holds a whole head."""
    if model.is_encoder:
        return KvLayout(full=0.0, sliding=0.0, head=0.0, ratio=None)
    share = head_share(model, choice.tensor_parallel)
    of_head = model.head_dim * (1 if choice.kv_dtype == "fp8" else 2)
    if choice.engine == "eyas" and choice.kv_dtype == "fp8":
        of_head += 1  # a scale for each token and head
    layer = 2 * model.num_kv_heads * of_head * share
    full, sliding = (model.num_layers - model.num_sliding_layers) * layer, model.num_sliding_layers * layer
    drafter = head.kv_bytes_per_token * share if head is not None else 0.0
    if choice.engine == "sglang":
        ratio = 1.0 if satisfies(choice.version, "<0.5.10") else SLIDING_POOL_RATIO
        return KvLayout(full=full, sliding=sliding, head=drafter, ratio=ratio)
    rows = _reserved_drafts(choice) + 1
    window, in_flight = model.window + rows, step_tokens(choice, 0)
    if not knowledge().engines[choice.engine].is_paged:
        window, in_flight = -(-(model.window + in_flight) // SLOT_CELLS) * SLOT_CELLS, 0
    if choice.engine == "eyas":  # eyas.engine.startup.memory: twice what can be in use, a row of taps for each page
        chunk = EYAS_CPU_CHUNK if box.hardware.compute_capability == CPU else EYAS_CHUNK
        window = 2 * EYAS_PAGE * (-(-(model.window + 2 * rows) // EYAS_PAGE) + 2)
        in_flight = 2 * chunk
        drafter += len(head.taps) * model.hidden_size * 2 / EYAS_PAGE if head is not None else 0.0
    return KvLayout(full=full, sliding=sliding, head=drafter, ratio=None, window=window, in_flight=in_flight)


def round_rows(choice: Choice, box: Box) -> int:
    """Return the rows of the largest round: the last token of each sequence and its drafts."""
    rows = choice.concurrency * (_reserved_drafts(choice) + 1)
    is_limited = choice.engine == "eyas" and box.hardware.compute_capability != CPU
    return min(rows, EYAS_ROUND_ROWS) if is_limited else rows


def _reserved_drafts(choice: Choice) -> int:
    """Return the drafts of a sequence that there must be room for: the most, where the engine chooses their number."""
    drafts = drafts_of(choice)
    return MAX_AUTO_DRAFTS if drafts == "auto" else drafts


def step_tokens(choice: Choice, otherwise: int) -> int:
    """Return the prompt tokens of one step, `otherwise` for an engine that is not known by its name alone."""
    if choice.engine == "llama.cpp" and choice.role == "vision":
        return PICTURE_STEP
    return STEP_TOKENS.get(choice.engine, otherwise)


def prompt_cache_mib(choice: Choice, box: Box) -> int | None:
    """Return llama.cpp's limit for earlier conversations outside its KV cache; None where that is not GPU memory.

    It is 0 beside other models: texts and pictures are asked about once.
    """
    if not box.hardware.unified:
        return None
    return box.hardware.usable_bytes // PROMPT_CACHE_SHARE // MIB if choice.role == "text" else 0


def host_cache_bytes(choice: Choice, box: Box, model: Model, layout: KvLayout) -> float:
    """Return bytes of llama.cpp's prompt cache and checkpoints, where they take from the GPU's memory.

    A checkpoint is the window of the sliding layers and, with a head, the head's whole cache.
    """
    prompt_cache = prompt_cache_mib(choice, box) if choice.engine == "llama.cpp" else None
    if not prompt_cache:
        return 0.0
    checkpoint = model.window * layout.sliding + choice.context * layout.head
    return prompt_cache * MIB + choice.concurrency * CHECKPOINTS * checkpoint


def head_share(model: Model, tensor_parallel: int) -> float:
    """Return the part of all KV heads that one of `tensor_parallel` GPUs holds, e.g. 1/8; never less than one head."""
    return -(-model.num_kv_heads // tensor_parallel) / model.num_kv_heads
