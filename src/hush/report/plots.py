"""Pictures as values: what is drawn is said once, and rendered as inline SVG for a page or by Matplotlib for a file.

Colours are those of Okabe and Ito, told apart by colour-blind readers; lines differ by their dashes as well, so that a
grey print will do.  The SVG names classes rather than colours: the page's style sheet has one set for light and one for
dark screens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from hush.runs.buying import Bought

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#6b6b6b", "#56B4E9", "#E69F00", "#000000")
"""On white; the style sheet of the page has lighter sisters of the first five for dark screens."""
DASHES = ("", "7 4", "2 3", "10 3 2 3", "4 3", "14 4", "10 3 2 3 2 3", "1 4")

_RAISED = str.maketrans("-0123456789", "\u207b\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079")
WIDTH, HEIGHT = 600, 430
LEFT, RIGHT, TOP, BOTTOM = 88, 32, 16, 66
_ROOM = 0.15  # of the height, for words below a point
_FEW = 3  # lines whose names find a place between them


@dataclass(frozen=True)
class Line:
    """A curve; `style` picks colour and dashes, `dots` marks its points."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    style: int = 0
    dots: bool = False


@dataclass(frozen=True)
class Band:
    """What lies between two curves."""

    label: str
    x: Sequence[float]
    low: Sequence[float]
    high: Sequence[float]
    style: int = 0


@dataclass(frozen=True)
class Mark:
    """A point with words beside it, a line or two: to its right or, in the right half, to its left.

    slope   of the curve it is on, if that falls (-1) or rises (1): the words go above or below, where the curve doesn't
    apart   where the words begin instead, as shares of the axes; a thin line leads there
    """

    x: float
    y: float
    words: str
    slope: int = 0
    apart: tuple[float, float] | None = None

    def side(self, plot: Plot) -> tuple[int, int]:
        """Left (-1) or right (1) of the point; below (-1), level (0) or above (1)."""
        across = -1 if plot.x.place(self.x) > 0.5 else 1
        up = -self.slope * across
        return across, 0 if up < 0 and plot.y.place(self.y) < _ROOM else up


@dataclass(frozen=True)
class Axis:
    """A label, a range, and whether steps multiply."""

    label: str
    low: float
    high: float
    log: bool = False
    percent: bool = False

    def place(self, value: float) -> float:
        """From 0 at the low end to 1 at the high end, values beyond put at the ends."""
        if self.log:
            low, high, at = math.log10(self.low), math.log10(self.high), math.log10(max(value, self.low))
        else:
            low, high, at = self.low, self.high, value
        return min(max((at - low) / (high - low), 0.0), 1.0)

    @property
    def _powers(self) -> range:
        """The powers of ten on a logarithmic axis."""
        return range(math.ceil(math.log10(self.low) - 1e-9), math.floor(math.log10(self.high) + 1e-9) + 1)

    @property
    def _by_powers(self) -> bool:
        """Whether these are enough ticks."""
        return self.log and len(self._powers) > 3

    def ticks(self) -> list[float]:
        if self._by_powers:
            return [10.0**power for power in self._powers[:: max(1, math.ceil((len(self._powers) - 1) / 6))]]
        if self.log:
            first, last = self._powers.start, self._powers.stop - 1
            near = (k * 10.0**power for power in range(first - 1, last + 1) for k in (1, 2, 5))
            return [value for value in near if self.low <= value <= self.high]
        span = self.high - self.low
        rough = span / 5
        unit = 10.0 ** math.floor(math.log10(rough))
        step = next(unit * factor for factor in (1, 2, 2.5, 5, 10) if unit * factor >= rough * 0.999)
        start = math.ceil(self.low / step - 1e-9)
        return [k * step for k in range(start, math.floor(self.high / step + 1e-9) + 1)]

    def name(self, value: float) -> str:
        if self._by_powers:
            return "10" + str(round(math.log10(value))).translate(_RAISED)
        if self.log and not 9.9e-4 < value < 1e4:
            return f"{value:.0e}".replace("e-0", "e-").replace("e+0", "e")
        return f"{100 * value:.10g}%" if self.percent else f"{value:.10g}"


@dataclass(frozen=True)
class Plot:
    """A picture: its axes, what is on it, and the same in words for whoever can't see it."""

    name: str
    words: str
    x: Axis
    y: Axis
    lines: tuple[Line, ...] = ()
    bands: tuple[Band, ...] = ()
    marks: tuple[Mark, ...] = ()


# SVG


def svg(plot: Plot) -> str:
    """The picture as inline SVG that takes its colours from the page."""
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(plot.words)}" '
        'xmlns="http://www.w3.org/2000/svg">'
    ]
    parts += _frame(plot)
    for band in plot.bands:
        there = _points(plot, band.x, band.high)
        back = _points(plot, list(reversed(band.x)), list(reversed(band.low)))
        parts.append(f'<polygon class="band c{band.style}" points="{there} {back}"/>')
    for line in plot.lines:
        dash = f' stroke-dasharray="{DASHES[line.style]}"' if DASHES[line.style] else ""
        parts.append(f'<polyline class="line c{line.style}"{dash} points="{_points(plot, line.x, line.y)}"/>')
        if line.dots:
            pairs = zip(line.x, line.y, strict=True)
            parts += [f'<circle class="dot c{line.style}" {_at(plot, x, y)} r="3.2"/>' for x, y in pairs]
    for mark in plot.marks:
        left, top = _pixel(plot, mark.x, mark.y)
        parts.append(f'<circle class="dot c0" cx="{left:.1f}" cy="{top:.1f}" r="4.5"/>')
        across, up = mark.side(plot)
        words = mark.words.split("\n")
        if mark.apart is not None:
            across, up, point = 1, 0, (left, top)
            left, top = (
                LEFT + mark.apart[0] * (WIDTH - LEFT - RIGHT),
                TOP + (1 - mark.apart[1]) * (HEIGHT - TOP - BOTTOM),
            )
            ends = f'x1="{point[0]:.1f}" y1="{point[1]:.1f}" x2="{left:.1f}" y2="{top:.1f}"'
            parts.append(f'<line class="leader" {ends}/>')
        anchor, more = "start" if across > 0 else "end", len(words) - 1
        first = (0.35 - 0.575 * more, -0.45 - 1.15 * more, 1.2)[up]  # in lines: around the point's height, above, below
        spans = [
            f'<tspan x="{left + 10 * across:.1f}" dy="{rise:.3g}em">{escape(line)}</tspan>'
            for rise, line in zip([first, *[1.15] * more], words, strict=True)
        ]
        parts.append(f'<text class="mark" y="{top:.1f}" text-anchor="{anchor}">{"".join(spans)}</text>')
    return "".join([*parts, "</svg>"])


def _frame(plot: Plot) -> list[str]:
    right, bottom = WIDTH - RIGHT, HEIGHT - BOTTOM
    parts = []
    for value in plot.x.ticks():
        at, _ = _pixel(plot, value, plot.y.low)
        parts.append(f'<line class="grid" x1="{at:.1f}" y1="{TOP}" x2="{at:.1f}" y2="{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{at:.1f}" y="{bottom + 24}" text-anchor="middle">{plot.x.name(value)}</text>'
        )
    for value in plot.y.ticks():
        _, at = _pixel(plot, plot.x.low, value)
        parts.append(f'<line class="grid" x1="{LEFT}" y1="{at:.1f}" x2="{right}" y2="{at:.1f}"/>')
        parts.append(
            f'<text class="tick" x="{LEFT - 8}" y="{at + 5:.1f}" text-anchor="end">{plot.y.name(value)}</text>'
        )
    middle_x, middle_y = (LEFT + right) / 2, (TOP + bottom) / 2
    parts.append(f'<path class="axis" d="M{LEFT} {TOP}V{bottom}H{right}"/>')
    parts.append(
        f'<text class="label" x="{middle_x}" y="{HEIGHT - 10}" text-anchor="middle">{escape(plot.x.label)}</text>'
    )
    parts.append(
        f'<text class="label" transform="translate(20 {middle_y}) rotate(-90)" text-anchor="middle">'
        f"{escape(plot.y.label)}</text>"
    )
    return parts


def legend(plot: Plot) -> str:
    """The names of lines and bands beside samples of them, as HTML: text that wraps on a narrow screen."""
    named = [(line.label, line.style, False) for line in plot.lines if line.label]
    named += [(band.label, band.style, True) for band in plot.bands if band.label]
    parts = []
    for label, style, filled in named:
        dash = f' stroke-dasharray="{DASHES[style]}"' if DASHES[style] else ""
        sample = f'<line class="line c{style}"{dash} x1="1" y1="7" x2="35" y2="7"/>'
        if filled:
            sample = f'<rect class="band c{style}" x="1" y="1" width="34" height="12"/>'
        parts.append(f'<span><svg viewBox="0 0 36 14" aria-hidden="true">{sample}</svg>{escape(label)}</span>')
    return f'<div class="legend">{"".join(parts)}</div>' if parts else ""


def _pixel(plot: Plot, x: float, y: float) -> tuple[float, float]:
    across, up = plot.x.place(x), plot.y.place(y)
    return LEFT + across * (WIDTH - LEFT - RIGHT), TOP + (1 - up) * (HEIGHT - TOP - BOTTOM)


def _at(plot: Plot, x: float, y: float) -> str:
    left, top = _pixel(plot, x, y)
    return f'cx="{left:.1f}" cy="{top:.1f}"'


def _points(plot: Plot, xs: Sequence[float], ys: Sequence[float]) -> str:
    pixels = (_pixel(plot, x, y) for x, y in zip(xs, ys, strict=True) if math.isfinite(x) and math.isfinite(y))
    return " ".join(f"{left:.1f},{top:.1f}" for left, top in pixels)


# Files


def write_plot(plot: Plot, path: Path) -> None:
    """By Matplotlib, as the file's ending says: .png or .svg."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4.3), layout="constrained")
    _draw(plot, figure.subplots())
    figure.savefig(path, dpi=200)


def _draw(plot: Plot, axes: Axes) -> None:
    from matplotlib.ticker import NullLocator

    for band in plot.bands:
        axes.fill_between(
            band.x, band.low, band.high, color=COLOURS[band.style], alpha=0.2, lw=0, label=band.label or None
        )
    for line in plot.lines:
        dashes = [float(part) / 2 for part in DASHES[line.style].split()]
        style = (0, tuple(dashes)) if dashes else "solid"
        marker = "o" if line.dots else ""
        axes.plot(
            line.x,
            line.y,
            color=COLOURS[line.style],
            linestyle=style,
            lw=2,
            marker=marker,
            ms=4,
            label=line.label or None,
        )
    for mark in plot.marks:
        axes.plot([mark.x], [mark.y], "o", color=COLOURS[0], ms=6)
        across, up = mark.side(plot)
        at, font = (mark.x, mark.y), dict[str, Any](fontsize=9, weight="bold")
        if mark.apart is not None:
            leader = {"arrowstyle": "-", "color": COLOURS[4], "lw": 0.8}
            axes.annotate(mark.words, at, mark.apart, "data", "axes fraction", leader, va="center", **font)
            continue
        side, height = ("left" if across > 0 else "right"), ("center", "bottom", "top")[up]
        axes.annotate(mark.words, at, (8 * across, 4 * up), "data", "offset points", ha=side, va=height, **font)
    axes.set(xlabel=plot.x.label, ylabel=plot.y.label)
    if plot.x.log:
        axes.set_xscale("log")
    if plot.y.log:
        axes.set_yscale("log")
    axes.set(xticks=plot.x.ticks(), xticklabels=[plot.x.name(value) for value in plot.x.ticks()])
    axes.set(yticks=plot.y.ticks(), yticklabels=[plot.y.name(value) for value in plot.y.ticks()])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set(xlim=(plot.x.low, plot.x.high), ylim=(plot.y.low, plot.y.high))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    if any(line.label for line in plot.lines) or any(band.label for band in plot.bands):
        beside: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)} if len(plot.lines) > _FEW else {}
        axes.legend(frameon=False, fontsize=9, handlelength=3.5, **beside)


def _spread(values: list[float], count: int) -> list[float]:
    """At most so many of them, the first and the last among these."""
    if len(values) <= count:
        return values
    return [values[round(place * (len(values) - 1) / (count - 1))] for place in range(count)]


def buying_plot(bought: Bought) -> Plot:
    """The noise of a whole run against its epochs, a line for each batch size."""
    offers = bought.offers
    sizes = _spread(sorted({offer.batch for offer in offers}), len(COLOURS))
    lines = []
    for style, batch in enumerate(sizes):
        row = sorted((o for o in offers if o.batch == batch), key=lambda o: o.epochs)
        lines.append(
            Line(f"batch {batch:,.10g}", [o.epochs for o in row], [o.noise_per_step for o in row], style, True)
        )
    heights = [value for line in lines for value in line.y]
    lengths = [value for line in lines for value in line.x]
    least, most = min(lengths), max(lengths)
    return Plot(
        "plan",
        f"Noise of the average gradient against epochs for {bought.records} records.",
        Axis("epochs", least / 1.2, most * 1.2, log=True),
        Axis("noise of a step's average gradient (clip norms)", min(heights) / 1.5, max(heights) * 1.5, log=True),
        tuple(lines),
    )
