#!/usr/bin/env python3
"""Plots results of `infinigen bench --json` as SVG: time per decode step against context, one line per --kv, with floors.

    python3 tools/plot_steps.py GB_PER_S out.svg results.json ...

A floor is the time to read a step's bytes (weights, entries, sketches: "step_bytes") at GB_PER_S, the read bandwidth
that build/release/bench_floors measures on the same machine. Needs only Python.
"""
import json
import math
import sys

WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 760, 440, 70, 150, 40, 50
COLOURS = {"full": "#b03a2e", "infinigen": "#1f618d"}


class Axes:
    def __init__(self, depths, times):
        self.x0, self.x1 = math.log2(min(depths)), math.log2(max(depths))
        self.y0, self.y1 = math.log10(min(times)) - 0.1, math.log10(max(times)) + 0.1

    def x(self, depth):
        return LEFT + (math.log2(depth) - self.x0) / (self.x1 - self.x0) * (WIDTH - LEFT - RIGHT)

    def y(self, ms):
        return HEIGHT - BOTTOM - (math.log10(ms) - self.y0) / (self.y1 - self.y0) * (HEIGHT - TOP - BOTTOM)


def line(axes, points, colour, dashed):
    path = " ".join(f"{axes.x(d):.1f},{axes.y(t):.1f}" for d, t in points)
    dash = ' stroke-dasharray="5 4" stroke-width="1.2"' if dashed else ' stroke-width="2.2"'
    return f'<polyline points="{path}" fill="none" stroke="{colour}"{dash}/>'


def text(x, y, words, anchor="middle", colour="#222", size=12):
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{colour}" font-size="{size}">{words}</text>'


def nice_times(low, high):
    return [m * 10**e for e in range(math.floor(low), math.ceil(high) + 1) for m in (1, 2, 5)
            if low <= math.log10(m * 10**e) <= high]


def draw(results, gb_per_s, title):
    lines = {}
    for r in results:
        floor = r["step_bytes"] / gb_per_s / 1e6
        lines.setdefault(r["kv"], []).append((r["depth"], r["timing"]["decode_step_ms_mean"], floor))
    axes = Axes([r["depth"] for r in results], [t for rows in lines.values() for row in rows for t in row[1:]])
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif">',
           f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>', text(WIDTH / 2, 22, title, size=14)]
    for depth in sorted({r["depth"] for r in results}):
        x = axes.x(depth)
        out.append(f'<line x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{HEIGHT - BOTTOM}" stroke="#ddd"/>')
        out.append(text(x, HEIGHT - BOTTOM + 18, f"{depth // 1024}K" if depth >= 1024 else str(depth)))
    for ms in nice_times(axes.y0, axes.y1):
        y = axes.y(ms)
        out.append(f'<line x1="{LEFT}" y1="{y:.1f}" x2="{WIDTH - RIGHT}" y2="{y:.1f}" stroke="#ddd"/>')
        out.append(text(LEFT - 8, y + 4, f"{ms:g}", "end"))
    out.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 12, "tokens of context per sequence"))
    out.append(f'<g transform="rotate(-90 18 {HEIGHT / 2})">{text(18, HEIGHT / 2, "ms per step")}</g>')
    for kv, rows in lines.items():
        colour = COLOURS.get(kv, "#555")
        out.append(line(axes, [(d, t) for d, t, _ in rows], colour, False))
        out.append(line(axes, [(d, f) for d, _, f in rows], colour, True))
        out += [f'<circle cx="{axes.x(d):.1f}" cy="{axes.y(t):.1f}" r="3" fill="{colour}"/>' for d, t, _ in rows]
        depth, ms, floor = rows[-1]
        out.append(text(axes.x(depth) + 10, axes.y(ms) + 4, kv, "start", colour))
        out.append(text(axes.x(depth) + 10, axes.y(floor) + 16, f"floor of {kv}", "start", colour, 11))
    return "\n".join(out + ["</svg>", ""])


def main():
    if len(sys.argv) < 4:
        sys.exit(__doc__)
    results = []
    for path in sys.argv[3:]:
        with open(path, encoding="utf-8") as file:
            bench = json.load(file)
        results += bench["results"]
    title = f"{bench['model']['name']}, batch {bench['batch']}, {bench['device']['threads']} threads"
    with open(sys.argv[2], "w", encoding="utf-8") as file:
        file.write(draw(results, float(sys.argv[1]), title))


if __name__ == "__main__":
    main()
