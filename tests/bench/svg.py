"""Small plots as SVG: lines over an axis, and groups of bars. The same numbers give the same bytes.

Libraries were weighed: matplotlib brings six packages and writes letters as outlines, and pygal 3.1 puts an importer
of its own into every process that imports it, which Python warns about.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

Points = Sequence[tuple[float, float]]

WIDTH, HEIGHT = 760, 380
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 70
"""Margins, in pixels."""
COLOURS = ("#1f6feb", "#d1242f", "#57606a", "#1a7f37", "#8250df", "#bf8700", "#0a7d91")
INK, GRID = "#24292f", "#d8dee4"
TICKS = 5
LEGEND_PIXELS = 7.2
"""A letter of the legend is about as wide."""


@dataclass(frozen=True, slots=True)
class Scale:
    """Values to pixels, from `low` at `start` to `high` at `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (self._flat(each) for each in (self.low, self.high, value))
        return self.start + (self.end - self.start) * ((at - low) / ((high - low) or 1))

    def ticks(self) -> list[float]:
        """Round values, or powers of ten."""
        if self.logarithmic:
            first, last = (round(self._flat(each)) for each in (self.low, self.high))
            return [10.0**power for power in range(first, last + 1)]
        step = round_step((self.high - self.low) / TICKS)
        return [self.low + step * number for number in range(int((self.high - self.low) / step + 1e-9) + 1)]

    def _flat(self, value: float) -> float:
        return math.log10(max(value, 1e-12)) if self.logarithmic else value


def round_step(minimum: float) -> float:
    """1, 2 or 5 times a power of ten, not below `minimum`."""
    power = 10.0 ** math.floor(math.log10(minimum))
    return next(power * digit for digit in (1, 2, 5, 10) if power * digit >= minimum * (1 - 1e-9))


def lines(title: str, x: str, y: str, series: Mapping[str, Points], *, logarithmic: bool = False) -> str:
    """Lines through points, both axes from zero, or in powers of ten."""
    points = [point for each in series.values() for point in each]
    across = _scale([point[0] for point in points], LEFT, WIDTH - RIGHT, logarithmic)
    up = _scale([point[1] for point in points], HEIGHT - BOTTOM, TOP, logarithmic)
    drawn = [*_grid_up(up), *(_label(across(tick), HEIGHT - BOTTOM + 16, short(tick)) for tick in across.ticks())]
    for colour, each in zip(_colours(), series.values(), strict=False):
        path = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in each)
        drawn.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
        drawn += [f'<circle cx="{across(at):.1f}" cy="{up(value):.1f}" r="3" fill="{colour}"/>' for at, value in each]
    drawn.append(_label(LEFT + (WIDTH - LEFT - RIGHT) / 2, HEIGHT - BOTTOM + 34, x))
    return _document(title, y, list(series), drawn)


def bars(title: str, y: str, labels: Sequence[str], series: Mapping[str, Sequence[float | None]]) -> str:
    """A group of bars for each label."""
    up = _scale([value for each in series.values() for value in each if value is not None], HEIGHT - BOTTOM, TOP, False)
    group = (WIDTH - LEFT - RIGHT) / max(1, len(labels))
    wide = 0.8 * group / max(1, len(series))
    drawn = list(_grid_up(up))
    for number, (colour, each) in enumerate(zip(_colours(), series.values(), strict=False)):
        for index, value in enumerate(each):
            if value is not None:
                left = LEFT + group * (index + 0.1) + wide * number
                drawn.append(_bar(left, up(value), wide, HEIGHT - BOTTOM - up(value), colour))
                drawn.append(_label(left + wide / 2, up(value) - 4, short(value), size=10))
    drawn += [_label(LEFT + group * (n + 0.5), HEIGHT - BOTTOM + 18, label) for n, label in enumerate(labels)]
    return _document(title, y, list(series), drawn)


def shares(title: str, values: Mapping[str, float]) -> str:
    """One bar across for each name; 1 is marked."""
    height, room = TOP + 20 + 34 * len(values), 330
    across = Scale(0.0, max(1.2, *values.values()), room, WIDTH - RIGHT - 50)
    drawn = []
    for number, (name, value) in enumerate(values.items()):
        top = TOP + 34 * number
        drawn.append(_bar(room, top, across(value) - room, 22, COLOURS[3] if value >= 1 else COLOURS[1]))
        drawn.append(_label(room - 8, top + 15, name, anchor="end"))
        drawn.append(_label(across(value) + 6, top + 15, f"{value:.2f}", anchor="start"))
    one = across(1.0)
    drawn.append(f'<path d="M{one:.1f} {TOP - 6}V{height - 14}" stroke="{INK}" stroke-dasharray="4 3"/>')
    return _document(title, "", [], drawn, height)


def short(value: float) -> str:
    """Three digits with a unit: 1M, 2.5k, 40, 0.02."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if abs(value) >= unit:
            return f"{value / unit:.3g}{letter}"
    return f"{value:.3g}"


def _scale(values: Sequence[float], start: float, end: float, logarithmic: bool) -> Scale:
    positive = [value for value in values if value > 0] or [1.0]
    if logarithmic:
        low, high = 10.0 ** math.floor(math.log10(min(positive))), 10.0 ** math.ceil(math.log10(max(positive)))
        return Scale(low, high if high > low else low * 10, start, end, True)
    step = round_step(max(positive) / TICKS)
    return Scale(0.0, step * math.ceil(max(positive) / step - 1e-9), start, end)


def _grid_up(scale: Scale) -> Iterator[str]:
    for tick in scale.ticks():
        yield f'<path d="M{LEFT} {scale(tick):.1f}H{WIDTH - RIGHT}" stroke="{GRID}"/>'
        yield _label(LEFT - 8, scale(tick) + 4, short(tick), anchor="end")


def _label(x: float, y: float, text: str, *, anchor: str = "middle", size: int = 12) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}">{escape(text)}</text>'


def _bar(left: float, top: float, wide: float, high: float, colour: str) -> str:
    size = f'width="{max(wide, 0):.1f}" height="{max(high, 0):.1f}"'
    return f'<rect x="{left:.1f}" y="{top:.1f}" {size} fill="{colour}"/>'


def _colours() -> Iterator[str]:
    while True:
        yield from COLOURS


def _legend(names: Sequence[str]) -> Iterator[str]:
    left: float = LEFT
    for colour, name in zip(_colours(), names, strict=False):
        yield _bar(left, HEIGHT - 22, 12, 12, colour)
        yield _label(left + 18, HEIGHT - 12, name, anchor="start")
        left += 34 + LEGEND_PIXELS * len(name)


def _document(title: str, y: str, names: Sequence[str], drawn: Sequence[str], height: int = HEIGHT) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}"'
    paper = f'<rect width="{WIDTH}" height="{height}" fill="#ffffff"/>'
    heading = f'<text x="{WIDTH / 2}" y="22" text-anchor="middle" font-size="15">{escape(title)}</text>'
    turned = f'transform="translate(16 {height / 2}) rotate(-90)"'
    side = f'<text {turned} text-anchor="middle" font-size="12">{escape(y)}</text>'
    body = [paper, heading, side if y else "", *drawn, *_legend(names)]
    font = f'font-family="Helvetica, Arial, sans-serif" fill="{INK}"'
    return "\n".join([f"{head} {font}>", *filter(None, body), "</svg>"]) + "\n"
