"""Line charts as one SVG file, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP = 460, 320, 60, 50, 20
_COLOURS = ("#1f6feb", "#0b3d91", "#d1242f", "#bf8700", "#57606a")
_TICKS = 5


@dataclass(frozen=True, slots=True)
class Line:
    """A named line through points."""

    name: str
    xs: Sequence[float]
    ys: Sequence[float]


def draw(charts: Sequence[tuple[str, Sequence[Line]]], y_name: str) -> str:
    """Return an SVG of charts, each with the name of its x axis; all axes begin at 0."""
    rows = max(len(lines) for _, lines in charts)
    width, height = _WIDTH * len(charts), _HEIGHT + 20 * rows + 10
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
    )
    parts = [head, f'<rect width="{width}" height="{height}" fill="white"/>']
    for n, (x_name, lines) in enumerate(charts):
        parts.append(f'<g transform="translate({n * _WIDTH},0)">')
        parts += _chart(x_name, y_name, lines)
        parts.append("</g>")
    return "\n".join([*parts, "</svg>", ""])


def _chart(x_name: str, y_name: str, lines: Sequence[Line]) -> list[str]:
    x_max = max(x for line in lines for x in line.xs)
    y_max = max(y for line in lines for y in line.ys) * 1.05
    across, up = _WIDTH - _LEFT - 30, _HEIGHT - _BOTTOM - _TOP

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / x_max * across, _HEIGHT - _BOTTOM - y / y_max * up

    parts = []
    for n in range(_TICKS + 1):
        value = y_max * n / _TICKS
        x, y = place(0, value)
        parts.append(f'<path d="M{x},{y:.1f}h{across}" stroke="#d0d7de"/>')
        parts.append(f'<text x="{x - 6}" y="{y + 4:.1f}" text-anchor="end">{value:.3g}</text>')
    for value in sorted({x for line in lines for x in line.xs}):
        x, y = place(value, 0)
        parts.append(f'<text x="{x:.1f}" y="{y + 16}" text-anchor="middle">{value:g}</text>')
    middle = _LEFT + across / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 12}" text-anchor="middle">{escape(x_name)}</text>'
    )
    parts.append(f'<text x="{_LEFT}" y="13">{escape(y_name)}</text>')
    for n, line in enumerate(lines):
        colour = _COLOURS[n % len(_COLOURS)]
        points = [place(x, y) for x, y in zip(line.xs, line.ys, strict=True)]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in points]
        at = _HEIGHT + 20 * n + 8
        parts.append(f'<rect x="{_LEFT}" y="{at - 9}" width="14" height="4" fill="{colour}"/>')
        parts.append(f'<text x="{_LEFT + 20}" y="{at}">{escape(line.name)}</text>')
    return parts
