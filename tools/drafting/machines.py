"""Round costs of machines that were not measured here: bytes over bandwidth, for gpt-oss-120b with the lmsys head."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["H200", "SPARK", "Machine"]

DENSE_GB = 5.045 - 1.906  # of one token with 1k of context: everything but its 4 experts in each of 36 layers
EXPERT_GB = 1.906 / 4  # one expert in each layer
NUM_EXPERTS = 128
EXPERTS_PER_TOKEN = 4
HEAD_GB = 0.565
KV_GB = 0.043  # of each further sequence


@dataclass(frozen=True)
class Machine:
    """A round takes `fixed_s`, its bytes over `gb_s`, and for each pass of the head its bytes and `step_s`.

    A prompt row takes `prompt_row_s`: on an H200 as measured.
    """

    name: str
    gb_s: float
    fixed_s: float = 0.5e-3
    step_s: float = 0.05e-3
    prompt_row_s: float = 23e-6

    def seconds(self, num_sequences: int, num_rows: int, num_steps: int) -> float:
        experts = NUM_EXPERTS * (1 - (1 - EXPERTS_PER_TOKEN / NUM_EXPERTS) ** num_rows)
        gigabytes = DENSE_GB + experts * EXPERT_GB + (num_sequences - 1) * KV_GB
        return self.fixed_s + gigabytes / self.gb_s + num_steps * (HEAD_GB / self.gb_s + self.step_s)

    def prompt_seconds(self, num_rows: int) -> float:
        """Seconds of a pass over prompt rows, which reads all experts; 0 for none."""
        return (DENSE_GB + NUM_EXPERTS * EXPERT_GB) / self.gb_s + num_rows * self.prompt_row_s if num_rows else 0.0


H200 = Machine("H200", gb_s=4600 * 0.85)
SPARK = Machine("DGX Spark", gb_s=273 * 0.85, prompt_row_s=350e-6)
