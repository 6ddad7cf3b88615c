"""Small SVG charts, narrow enough for a phone. Needs only the standard library; equal data gives identical files.

    figure(lines("title", "x", "y", {"name": [(x, y), ...]}), bars("title", [("label", value), ...]))
"""
import math
from html import escape

WIDTH, LEFT, RIGHT, PANEL, TOP = 480, 58, 24, 250, 34
COLOURS = ["#1f618d", "#b03a2e", "#1e8449", "#9a7d0a", "#6c3483", "#34495e", "#d35400", "#148f77", "#7b241c", "#808b96"]


def text(x, y, words, anchor="middle", size=12, colour="#222"):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{escape(str(words))}</text>'


def short(value):
    """Text of a tick: 0.25, 1,500."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


class Axis:
    """Maps a range of numbers to a range of pixels, linearly or logarithmically, and chooses ticks."""

    def __init__(self, values, start, end, log=False, ticks=None):
        self.log, self.start, self.end = log, start, end
        low, high = min(values), max(values)
        if not log and not ticks:
            margin = (high - low or abs(high) or 1) * 0.06
            low, high = low - (margin if low else 0), high + margin
        elif log and not ticks:
            low, high = low / 1.15, high * 1.15
        self.low, self.high = self.place(low), self.place(high)
        self.ticks = ticks or (self.log_ticks() if log else self.linear_ticks())

    def place(self, value):
        return math.log(value) if self.log else value

    def at(self, value):
        return self.start + (self.place(value) - self.low) / ((self.high - self.low) or 1) * (self.end - self.start)

    def linear_ticks(self):
        rough = (self.high - self.low) / 5
        base = 10 ** math.floor(math.log10(rough))
        step = next(m * base for m in (1, 2, 5, 10) if m * base >= rough)
        first = math.ceil(self.low / step - 1e-9)
        return [i * step for i in range(first, math.floor(self.high / step + 1e-9) + 1)]

    def log_ticks(self):
        decades = range(math.floor(self.low / math.log(10)), math.ceil(self.high / math.log(10)) + 1)
        within = [m * 10.0**e for e in decades for m in (1, 2, 5) if self.low <= math.log(m * 10.0**e) <= self.high]
        return within if len(within) > 1 else [math.exp(self.low), math.exp(self.high)]


def lines(title, x_label, y_label, series, log_x=False, log_y=False, x_ticks=None, scatter=False):
    """A chart with one line per name; points (x, y) or (x, y, standard error) are sorted by x. scatter: points only, above
    the line y = x, and both axes have one range. Returns (height, function that draws it at a given y)."""
    series = {name: sorted(points) for name, points in series.items() if points}
    if not series:
        return nothing(title)
    legend_rows = math.ceil(len(series) / 2)
    height = TOP + PANEL + 46 + 18 * legend_rows

    def draw(top):
        points = [point[:2] for line in series.values() for point in line]
        errors = [point for line in series.values() for point in line if len(point) > 2 and not log_y]
        ends = [y + sign * error for _, y, error in errors for sign in (-1, 1)]
        bottom = top + TOP + PANEL
        both = [value for point in points for value in point]
        x = Axis(both if scatter else [p[0] for p in points], LEFT, WIDTH - RIGHT, log_x, x_ticks)
        y = Axis(both if scatter else [p[1] for p in points] + ends, bottom, top + TOP, log_y)
        out = [text(WIDTH / 2, top + 20, title, size=14)]
        for tick in x.ticks:
            out += [f'<line x1="{x.at(tick):.1f}" y1="{top + TOP}" x2="{x.at(tick):.1f}" y2="{bottom}" stroke="#e4e4e4"/>',
                    text(x.at(tick), bottom + 16, short(tick))]
        for tick in y.ticks:
            out += [f'<line x1="{LEFT}" y1="{y.at(tick):.1f}" x2="{WIDTH - RIGHT}" y2="{y.at(tick):.1f}" stroke="#e4e4e4"/>',
                    text(LEFT - 6, y.at(tick) + 4, short(tick), "end")]
        out += [text((LEFT + WIDTH - RIGHT) / 2, bottom + 34, x_label),
                f'<g transform="translate(13 {(top + TOP + bottom) / 2:.1f}) rotate(-90)">{text(0, 0, y_label)}</g>']
        if scatter:
            low, high = min(both), max(both)
            out.append(f'<line x1="{x.at(low):.1f}" y1="{y.at(low):.1f}" x2="{x.at(high):.1f}" y2="{y.at(high):.1f}" stroke="#888"/>')
        for i, (name, line) in enumerate(series.items()):
            colour = COLOURS[i % len(COLOURS)]
            path = " ".join(f"{x.at(a):.1f},{y.at(b):.1f}" for a, b, *_ in line)
            if not scatter:
                out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"/>')
            if scatter or len(line) <= 16:
                out += [f'<circle cx="{x.at(a):.1f}" cy="{y.at(b):.1f}" r="3" fill="{colour}"/>' for a, b, *_ in line]
            bar = lambda a, low, high: f'<line x1="{x.at(a):.1f}" y1="{y.at(low):.1f}" x2="{x.at(a):.1f}" y2="{y.at(high):.1f}" stroke="{colour}"/>'
            out += [bar(a, b - error[0], b + error[0]) for a, b, *error in line if error and not log_y]
            column, row = i % 2, i // 2
            at_x, at_y = LEFT + column * (WIDTH - LEFT) / 2, bottom + 54 + 18 * row
            out += [f'<rect x="{at_x:.1f}" y="{at_y - 9:.1f}" width="14" height="4" fill="{colour}"/>',
                    text(at_x + 20, at_y - 2, name, "start")]
        return out

    return height, draw


def number(value, error=None):
    if error is None:
        return f"{value:,.4g}"
    digits = 2 if abs(value) >= 0.1 else 4
    return f"{value:.{digits}f} ± {error:.{digits}f}"


def bars(title, items, unit=""):
    """A chart with one horizontal bar per label, followed by its number, and by its standard error where an item has one.
    Numbers below 0 have no bar."""
    items = [item for item in items if item[1] is not None]
    if not items:
        return nothing(title)
    height = TOP + 40 * len(items) + 8

    def draw(top):
        most = max(max(item[1] for item in items), 0) or 1
        out = [text(WIDTH / 2, top + 20, title, size=14)]
        for i, (label, value, *error) in enumerate(items):
            y = top + TOP + 40 * i
            length = max(value, 0) / most * (WIDTH - 2 * RIGHT - (130 if error else 90))
            out += [text(RIGHT, y + 12, label, "start"),
                    f'<rect x="{RIGHT}" y="{y + 17}" width="{max(length, 1):.1f}" height="14" fill="{COLOURS[i % len(COLOURS)]}"/>',
                    text(RIGHT + length + 6, y + 29, number(value, *error) + unit, "start")]
        return out

    return height, draw


def nothing(title):
    return TOP, lambda top: [text(WIDTH / 2, top + 20, f"{title}: not measured", size=14)]


def figure(*panels):
    """An SVG with the panels below each other."""
    body, top = [], 0
    for height, draw in panels:
        body += draw(top)
        top += height
    return "\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" font-family="sans-serif">',
                      f'<rect width="{WIDTH}" height="{top}" fill="white"/>', *body, "</svg>", ""])
