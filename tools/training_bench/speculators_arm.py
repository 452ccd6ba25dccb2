"""Times `Eagle3DraftModel` of speculators 0.9.0 beside our step on the same tensors, until it runs out of memory.

    python -m tools.training_bench.speculators_arm [--tokens N,N] [--lines FILE] [--repeats 3]

At 4,096, 8,192, 16,384, ... tokens, or those given, all supervised: the shape of a head of gpt-oss-120b, seven depths,
its fused loss (kl_div), flex attention without a window, compiled as it compiles itself, weights in fp32 under autocast
to bf16 and AdamW as its trainer has them. Two things differ in its favour: its lm_head is frozen, and no gradient is
clipped. Steps of both take turns; memory is what a step needs beyond weights, gradients, optimiser and the target's
matrices, states included. Data is random (SIMULATED).

It needs the wheels of speculators 0.9.0, hs-connectors and loguru, with transformers 5.0 to 5.19 and pydantic.
`datasets` and `openai` may be absent: its data loading alone uses them. `--small` is for a CPU.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from eyas.bench.report import listed, positive_int, provenance
from eyas.bench.training.modes import Ours, warmed_up
from eyas.bench.training.steps import Bench, open_bench
from eyas.model.hardware import hardware

DOUBLINGS = 6  # of 4,096 tokens
UNUSED = {  # by its models: modules, and what is imported from them
    "datasets": ("load_from_disk", "Dataset", "load_dataset", "concatenate_datasets"),
    "openai": ("AsyncClient", "AsyncOpenAI", "Client", "OpenAI"),
    "openai.types": (),
    "openai.types.chat": ("ChatCompletion", "ChatCompletionMessageParam"),
    "openai.types.completion": ("Completion",),
}


def library() -> tuple[Any, ...]:
    """Return speculators' model, its configurations and its loss. Exits with what is missing."""
    for name, members in UNUSED.items():
        try:
            __import__(name)
        except ModuleNotFoundError:
            module = ModuleType(name)
            for member in members:
                setattr(module, member, object)
            sys.modules[name] = module
    try:
        from speculators.losses import fused, resolve_loss_config
        from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
        from transformers import LlamaConfig
    except ImportError as error:
        sys.exit(
            f"speculators cannot be imported: {error}; install speculators==0.9.0, hs-connectors, loguru, pydantic"
        )
    # Its two kernels share a list of configurations, which the compiler of torch 2.11 refuses in one graph.
    fused.loss_backward_kernel.configs = list(fused.loss_backward_kernel.configs)
    return Eagle3DraftModel, Eagle3SpeculatorConfig, LlamaConfig, resolve_loss_config


class Theirs:
    """Steps of speculators' model on a bench's tensors."""

    def __init__(self, bench: Bench, length: int, seed: int = 0) -> None:
        model_class, config_class, llama, resolve = library()
        ours = bench.head_config(length)
        torch.manual_seed(seed)
        layer = llama(
            hidden_size=ours.hidden_size, intermediate_size=ours.intermediate_size, num_hidden_layers=1,
            num_attention_heads=ours.num_heads, num_key_value_heads=ours.num_kv_heads, head_dim=ours.head_dim,
            vocab_size=ours.vocab_size, rms_norm_eps=ours.rms_norm_eps, max_position_embeddings=length + 16,
            pad_token_id=None,
        )  # fmt: skip
        # Flex attention has no backward pass on a CPU.
        layer._attn_implementation = "simple_flex_attention" if bench.device.type == "cuda" else "eager"
        config = config_class(
            transformer_layer_config=layer,
            draft_vocab_size=ours.draft_vocab_size,
            eagle_aux_hidden_state_layer_ids=list(ours.taps),
        )
        self.bench, self.depths = bench, bench.train.depths
        self.model = model_class(config).to(bench.device)
        ids_V = bench.ids_V.to(bench.device)
        with torch.no_grad():
            self.model.embed_tokens.weight.copy_(bench.teacher.embed_VH)
            for matrix in (self.model.lm_head, self.model.verifier_lm_head):
                matrix.weight.copy_(bench.teacher.lm_head_VH[ids_V])
        self.loss = resolve("kl_div", "fused" if bench.device.type == "cuda" else "eager")  # fused: Triton
        self.batch, self.source = bench.batch(length, 1.0), bench.source(length)
        trained = [p for p in self.model.parameters() if p.requires_grad]
        self.gradients = sum(p.nbytes for p in trained)
        self.optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=bench.device.type == "cuda")

    def step(self) -> float:
        """Take a step and return its loss."""
        states = self.source.states(self.batch)
        assert states.last_TH is not None
        ids_T = self.batch.ids_T
        following_T = torch.cat((ids_T[1:], ids_T[-1:]))  # a row is paired with the token behind it
        with torch.autocast(self.bench.device.type, torch.bfloat16):
            _, loss, _ = self.model(
                hidden_states=states.taps_TC[None],
                input_ids=following_T[None],
                document_ids=torch.zeros_like(ids_T)[None],
                loss_mask=torch.ones_like(ids_T, dtype=torch.bool)[None],
                # The target of a row is what follows its newest token.
                verifier_last_hidden_states=torch.cat((states.last_TH[1:], states.last_TH[-1:]))[None],
                ttt_steps=self.depths,
                loss_config=self.loss,
            )
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return float(loss.detach())


def timed(step: Any, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    began = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - began


def beyond(step: Any, gradients: int, states: int, device: torch.device) -> int | None:
    """Return the bytes of a step beyond weights, gradients and optimiser; None where no GPU counts them."""
    if device.type != "cuda":
        return None
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    step()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before - gradients + states


def measured(bench: Bench, length: int, repeats: int) -> dict[str, Any]:
    """Return speed and memory of both at a length; theirs is absent if its memory is out."""
    device = bench.device
    ours = warmed_up(Ours, bench, bench.batch(length, 1.0), bench.source(length))
    theirs: Theirs | None = None
    found: dict[str, Any] = {"tokens": length, "ours": None, "theirs": None}
    try:
        theirs = Theirs(bench, length)
        found["losses"] = [theirs.step(), theirs.step()]
    except torch.OutOfMemoryError:
        theirs = None
    both = {"ours": ours, "theirs": theirs}
    seconds: dict[str, list[float]] = {name: [] for name in both}
    for _ in range(repeats):
        for name, one in both.items():
            if one is not None:
                seconds[name].append(timed(one.step, device))
    for name, one in both.items():
        if one is None:
            continue
        values = sorted(seconds[name])
        states: list[Tensor | None] = list(one.source.states(one.batch))
        size = sum(x.nbytes for x in states if x is not None)
        gradients = one.gradients if isinstance(one, Theirs) else sum(p.nbytes for p in one.head.parameters())
        found[name] = {
            "tokens_per_s": length / values[len(values) // 2],
            "step_s": values,
            "peak_bytes": beyond(one.step, gradients, size, device),
        }
    return found


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--lines", type=Path, metavar="FILE", help="file to which results are added")
parser.add_argument(
    "--tokens", type=listed(positive_int), metavar="N,N", help="lengths (default: 4,096, doubled until memory is out)"
)
parser.add_argument("--repeats", type=positive_int, default=3, metavar="N", help="measured steps (default: 3)")
parser.add_argument("--small", action="store_true", help="small sizes, on a CPU")


def main() -> None:
    args = parser.parse_args()
    library()
    shape, device = ("demo", "cpu") if args.small else ("gpt-oss-120b", "cuda")
    bench, _ = open_bench(shape=shape, file=None, device=device, chunk=4096, tile=2048)
    lines, origin = provenance(hardware(bench.device), libraries=("torch", "transformers"))
    print("\n".join(["SIMULATED: data is random", *lines]), flush=True)
    lengths = args.tokens or ((96,) if args.small else [4096 << n for n in range(DOUBLINGS)])
    for length in lengths:
        found = {"part": "speculators", "simulated": True, **origin} | measured(bench, length, args.repeats)
        print(json.dumps(found), flush=True)
        if args.lines is not None:
            with args.lines.open("a") as file:
                file.write(json.dumps(found) + "\n")
        if found["theirs"] is None:
            break
        if device == "cuda":
            torch.compiler.reset()  # shapes of a length are compiled as they are, not as what may change
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
