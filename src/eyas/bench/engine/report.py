"""Report of `eyas bench engine`: tables for people, rows for the JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from eyas.base.synthetic import SimulatedAcceptance
from eyas.bench.engine.arms import Arm
from eyas.bench.report import table
from eyas.bench.stats import Spread, paired_ratio, ratio_of_medians

__all__ = ["DEFINITIONS", "Setting", "batch_lines", "figures_of", "summary_lines"]

NAMES = {"plain": "plain F.linear", "whole": "whole lm_head", "bf16": "bf16"}  # of arms to compare with
DEFINITIONS = """\
prefill   prompt tokens over the time until each prompt of the batch has its first token; nothing was cached
decode    tokens committed over time, in rounds in which the whole batch decodes and no prompt is read; all of it
          before the prefills, which leave a GPU hot and its clock low for a while
drafts    per round; 0 is without a drafter; plain F.linear has no row tiles and is not exact; whole lm_head is
          without the 8-bit copy that screens it; bf16 reads no copies of weights in 12 bits
against   ratios of runs of the same repeat; above 1 is faster. Repeats have other prompts and seeds, as far as there
          are; all arms of a repeat the same. `auto` has learned from those of the warm-up, as a server has from others
[95 %]    percentile bootstrap over the repeats; of fewer than 5 no more than the range of their ratios
AL        acceptance length: tokens committed per round and answer, bonus token and Harmony headers included
          (`eyas bench acceptance` leaves headers out)
rounds    share that committed 1, 2, ... tokens
experts   distinct experts that a round reads in a layer, mean
same      answers with exactly the tokens of those without drafts
limit     bytes that a round reads (weights with the distinct experts, keys and values, the head), each once,
          over the bandwidth of a streaming read in the same run; of an lm_head with a screen, its copy in 8 bits"""


class Setting(NamedTuple):
    """A setting at which all arms are measured, one after the other."""

    acceptance: SimulatedAcceptance | None
    prompt_tokens: int
    batch: int

    def text(self) -> str:
        acceptance = "" if self.acceptance is None else f", acceptance {self.acceptance.text} (SIMULATED)"
        return f"batch {self.batch}, prefill of {self.prompt_tokens} tokens a prompt{acceptance}"


def _ratios(arm: Arm, arms: Sequence[Arm]) -> dict[str, Spread]:
    """Return the speedup over no drafting and, if measured, with each other way to compute."""
    names = {"tiled": "vs_no_draft", "plain": "vs_plain", "whole": "vs_whole", "bf16": "vs_bf16"}
    return {
        names[base.tiles]: paired_ratio(Spread(tuple(arm.decode)), Spread(tuple(base.decode)))
        for base in arms
        if base.drafts == 0 and base is not arm
    }


def figures_of(arm: Arm, arms: Sequence[Arm], setting: Setting) -> dict[str, Any]:
    """Return one row for the JSON."""
    return {
        "batch": setting.batch,
        "prompt_tokens": setting.prompt_tokens,
        "acceptance": None if setting.acceptance is None else setting.acceptance.text,
        "matmul": arm.tiles,
        "draft_tokens": arm.drafts,
        "prefill_tok_s": Spread(tuple(arm.prefill)).json() if arm.prefill else None,
        "decode_tok_s": Spread(tuple(arm.decode)).json(),
        "round_ms": Spread(tuple(1e3 * seconds for seconds in arm.rounds_s)).json(),
        "round_parts_ms": None if arm.budget is None else arm.budget.json(),
        "round_limit": None if arm.limit is None else arm.limit.json(),
        **{name: ratio.json() for name, ratio in _ratios(arm, arms).items()},
        **(_auto_ratios(arm, arms) if arm.drafts == "auto" else {}),
        **arm.counts.json(),
        "experts_per_layer_and_round": round(arm.experts, 3),
        "same_answers": _num_same(arm, arms) if setting.acceptance is None else None,
        "answers": len(arm.answers),
    }


def _auto_ratios(auto: Arm, arms: Sequence[Arm]) -> dict[str, Any]:
    """Return ratios of medians, with intervals."""
    none = next(arm for arm in arms if arm.tiles == "tiled" and arm.drafts == 0)
    against = _auto_against_best(arms)
    assert against is not None
    best, decode = against[0], Spread(tuple(auto.decode))
    return {
        "auto_vs_none": ratio_of_medians(decode, Spread(tuple(none.decode))).json(),
        "auto_vs_best": ratio_of_medians(decode, Spread(tuple(best.decode))).json(),
        "best_fixed": best.drafts,
    }


def _num_same(arm: Arm, arms: Sequence[Arm]) -> int:
    """Count the answers with the same tokens as decoding without drafts."""
    base = next(other for other in arms if other.tiles == "tiled" and other.drafts == 0)
    return sum(a == b for a, b in zip(arm.answers, base.answers, strict=True))


def batch_lines(arms: Sequence[Arm], setting: Setting) -> list[str]:
    lines = [
        setting.text(),
        *_prefill_lines(arms, setting),
        *_speed_table(arms),
        "",
        *_round_table(arms, has_same=setting.acceptance is None),
    ]
    against = _auto_against_best(arms)
    if against is not None:
        best, ratio = against
        lines += ["", f"auto against the fastest fixed row here, {_drafts_text(best)} drafts: {ratio.text(2)}"]
    budgets = [f"{_drafts_text(arm)}: {arm.budget.text()}" for arm in arms if arm.budget is not None]
    lines += ["", "a round by drafts, ms", *budgets] if budgets else []
    return lines + _limit_lines(arms)


def _limit_lines(arms: Sequence[Arm]) -> list[str]:
    rows = [
        [
            _drafts_text(arm), f"{arm.limit.num_bytes / 1e9:.2f}", f"{1e3 * arm.limit.seconds:.3f}",
            f"{1e3 * seconds:.3f}", f"{100 * arm.limit.seconds / seconds:.0f} %",
        ]
        for arm in arms
        if arm.limit is not None
        for seconds in [Spread(tuple(arm.rounds_s)).median]
    ]  # fmt: skip
    return ["", *table(["drafts", "GB a round", "limit, ms", "a round, ms", "of the limit"], rows)] if rows else []


def _prefill_lines(arms: Sequence[Arm], setting: Setting) -> list[str]:
    tokens = setting.batch * setting.prompt_tokens
    return [
        f"prefill, {_engine_name(arm)}: {rate.text(0)} tok/s; all first tokens after "
        f"{Spread(tuple(1e3 * tokens / value for value in rate.values)).text(1)} ms"
        for arm in arms
        if arm.prefill
        for rate in [Spread(tuple(arm.prefill))]
    ]


def summary_lines(figures: Sequence[dict[str, Any]]) -> list[str]:
    """Compare `auto`, where it was measured, with the other arms, with 95 % intervals."""
    rows = [
        [
            str(figure["batch"]), str(figure["acceptance"] or "real"), str(figure["prompt_tokens"]),
            *(f"{ratio['value']:.3f} [{ratio['low']:.3f}, {ratio['high']:.3f}]" for ratio in ratios),
            str(figure["best_fixed"]),
        ]
        for figure in figures
        if "auto_vs_none" in figure
        for ratios in [(figure["auto_vs_none"], figure["auto_vs_best"])]
    ]  # fmt: skip
    head = ["batch", "acceptance", "prompt", "auto against none [95 %]", "against the best fixed [95 %]", "which is"]
    return table(head, rows) if rows else []


def _speed_table(arms: Sequence[Arm]) -> list[str]:
    others = [arm.tiles for arm in arms if arm.tiles != "tiled"]
    names = ["vs_no_draft", *(f"vs_{name}" for name in others)]
    rows = []
    for arm in arms:
        ratios = _ratios(arm, arms)
        cells = [ratios[name].text(2) if name in ratios else "-" for name in names]
        rows.append([_drafts_text(arm), Spread(tuple(arm.decode)).text(1), *cells])
    return table(["drafts", "decode tok/s", "against 0 drafts", *(f"against {name}" for name in others)], rows)


def _round_table(arms: Sequence[Arm], *, has_same: bool) -> list[str]:
    widest = max(max(arm.counts.histogram) for arm in arms)
    head = ["drafts", "AL", "rounds of 1", *(str(size) for size in range(2, widest + 1)), "experts", "same answers"]
    rows = []
    for arm in arms:
        counts = arm.counts
        shares = [f"{100 * counts.histogram[size] / counts.num_rounds:.0f}%" for size in range(1, widest + 1)]
        same = f"{_num_same(arm, arms)} of {len(arm.answers)}" if has_same else "-"
        rows.append([_drafts_text(arm), f"{counts.length:.2f}", *shares, f"{arm.experts:.1f}", same])
    return table(head, rows)


def _auto_against_best(arms: Sequence[Arm]) -> tuple[Arm, Spread] | None:
    """Return the fastest of the fixed draft lengths, none included, and the speed of `auto` over its speed."""
    auto = next((arm for arm in arms if arm.drafts == "auto"), None)
    if auto is None:
        return None
    fixed = [arm for arm in arms if arm.tiles == "tiled" and arm is not auto]
    best = max(fixed, key=lambda arm: Spread(tuple(arm.decode)).median)
    return best, paired_ratio(Spread(tuple(auto.decode)), Spread(tuple(best.decode)))


def _drafts_text(arm: Arm) -> str:
    if arm.drafts == "auto":
        return f"auto, mean {arm.counts.num_drafts / arm.counts.num_rounds:.1f}"
    return f"0, {NAMES[arm.tiles]}" if arm.tiles in NAMES else str(arm.drafts)


def _engine_name(arm: Arm) -> str:
    if arm.drafts == 0:
        return NAMES.get(arm.tiles, "no drafter")
    return "with drafter"
