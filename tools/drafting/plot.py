"""`python -m tools.drafting.plot`: docs/images/drafting.svg, speed by draft tokens and acceptance on two machines.

The curves are what the bytes of a round say (`machines.py`), not measurements; the plot says SIMULATED.
"""

from __future__ import annotations

from pathlib import Path

from tools.drafting.machines import H200, SPARK, Machine
from tools.drafting.simulate import expected_tokens

__all__ = ["PLOT", "drawing"]

PLOT = Path(__file__).parents[2] / "docs" / "images" / "drafting.svg"
MAX_DRAFTS = 7
ACCEPTANCES = {0.3: "#8c6bb1", 0.5: "#d95f02", 0.7: "#1b9e77", 0.8: "#e7298a", 0.9: "#2166ac"}
PANELS = ((H200, 1), (SPARK, 1), (H200, 16))
WIDTH, HEIGHT, MARGIN, GAP, TOP, BOTTOM = 240, 240, 40, 66, 62, 44
TITLE = "Tokens per second against no drafts, by conditional acceptance (SIMULATED: bytes of gpt-oss-120b)"
LOW, HIGH = 0.2, 2.6


def speedup(machine: Machine, batch: int, chance: float, num_drafts: int) -> float:
    """Tokens per second against none drafted, the same number for every sequence."""
    seconds = machine.seconds(batch, batch * (num_drafts + 1), num_drafts)
    return expected_tokens(chance, num_drafts) * machine.seconds(batch, batch, 0) / seconds


def drawing() -> str:
    width = MARGIN + len(PANELS) * (WIDTH + GAP) + 16
    height = TOP + HEIGHT + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="system-ui, sans-serif" font-size="12" fill="#222">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        _text(MARGIN, 20, TITLE, 14),
    ]
    for index, (machine, batch) in enumerate(PANELS):
        parts += _panel(machine, batch, MARGIN + index * (WIDTH + GAP))
    return "\n".join([*parts, "</svg>", ""])


def _panel(machine: Machine, batch: int, left: float) -> list[str]:
    parts = [_text(left, 46, f"{machine.name}, {batch} sequence{'s' * (batch > 1)}", 13)]
    for level in (0.5, 1.0, 1.5, 2.0, 2.5):
        y = _y(level)
        stroke = "#888" if level == 1 else "#e4e4e4"
        parts.append(f'<line x1="{left}" x2="{left + WIDTH}" y1="{y:.1f}" y2="{y:.1f}" stroke="{stroke}"/>')
        parts.append(_text(left - 6, y + 4, f"{level:g}", anchor="end"))
    for number in range(MAX_DRAFTS + 1):
        parts.append(_text(_x(left, number), TOP + HEIGHT + 16, str(number), anchor="middle"))
    parts.append(_text(left + WIDTH / 2, TOP + HEIGHT + 34, "draft tokens", anchor="middle"))
    for chance, color in ACCEPTANCES.items():
        speeds = [speedup(machine, batch, chance, k) for k in range(MAX_DRAFTS + 1)]
        best = max(range(len(speeds)), key=speeds.__getitem__)
        points = " ".join(f"{_x(left, k):.1f},{_y(speed):.1f}" for k, speed in enumerate(speeds))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>')
        parts.append(f'<circle cx="{_x(left, best):.1f}" cy="{_y(speeds[best]):.1f}" r="4.5" fill="{color}"/>')
        parts.append(_text(left + WIDTH + 9, _y(speeds[-1]) + 4, f"{chance:g}", fill=color))
    return parts


def _x(left: float, num_drafts: int) -> float:
    return left + WIDTH * num_drafts / MAX_DRAFTS


def _y(level: float) -> float:
    return TOP + HEIGHT * (HIGH - level) / (HIGH - LOW)


def _text(x: float, y: float, text: str, size: int = 12, anchor: str = "start", fill: str = "#222") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" fill="{fill}">{text}</text>'


if __name__ == "__main__":
    PLOT.write_text(drawing(), encoding="utf-8")
    print(PLOT)
