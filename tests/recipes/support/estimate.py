"""An expected speed for plans in tests that are about something else."""

from eyas.recipes.plan import Range, SpeedEstimate

ONE = Range(low=1.0, high=1.0)
SPEED = SpeedEstimate(
    round_bytes=1.0,
    baseline_bytes=1.0,
    break_even_length=1.0,
    acceptance=None,
    tokens_per_second=ONE,
    baseline_tokens_per_second=ONE,
    speedup=ONE,
    first_token_s=ONE,
    load_s=ONE,
)
