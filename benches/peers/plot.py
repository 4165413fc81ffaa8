"""Bars of what `report` tabulates, as one SVG: a panel for each operation, seconds to the right.

Bars are medians; the thin line over each is least..most. Light and dark backgrounds both do.
"""
from html import escape
from statistics import median

from tools import TOOLS

WIDTH, LABEL, RIGHT = 820, 190, 150
ROW, HEAD, GAP = 22, 34, 18
# the same three in both themes: contrast against white and black is above 3
FILL = {"own": "#2f7fd0", "bound": "#8a8a8a", "peer": "#d0762f"}
NAMES = {"own": "mover", "bound": "bounds", "peer": "other tools"}


def plot(groups, seconds_of):
    """The document. `groups` as `report.read` gives them; `seconds_of` gives a tool's times."""
    body, top = [legend()], HEAD
    for key in sorted(groups):
        drawn, height = panel(key, groups[key], seconds_of, top)
        body.append(drawn)
        top += height + GAP
    style = "text{font:13px system-ui,sans-serif;fill:#777}.t{font-weight:600}"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top}" role="img">'
    return "\n".join([head, f"<style>{style}</style>", *body, "</svg>", ""])


def legend():
    parts = []
    for at, role in enumerate(FILL):
        x = LABEL + at * 120
        parts.append(f'<rect x="{x}" y="8" width="12" height="12" fill="{FILL[role]}"/>')
        parts.append(f'<text x="{x + 18}" y="19">{NAMES[role]}</text>')
    return "".join(parts)


def panel(key, tools, seconds_of, top):
    mode, volume, operation = key
    title = f"{operation} of {volume} ({mode}), seconds"
    parts = [f'<text class="t" x="8" y="{top + 16}">{escape(title)}</text>']
    times = {name: seconds_of(rows) for name, rows in tools.items()}
    order = sorted(times, key=lambda name: median(times[name]))
    scale = (WIDTH - LABEL - RIGHT) / max(max(t) for t in times.values())
    for at, name in enumerate(order):
        role = TOOLS[name].role if name in TOOLS else "peer"
        parts.append(bar(name, times[name], scale, top + HEAD + at * ROW, FILL[role]))
    return "\n".join(parts), HEAD + len(order) * ROW


def bar(name, times, scale, y, fill):
    middle, low, high = median(times), LABEL + min(times) * scale, LABEL + max(times) * scale
    said = f"{middle:.2f} ({len(times)} rounds)"
    return (
        f'<text x="{LABEL - 8}" y="{y + 13}" text-anchor="end">{escape(name)}</text>'
        f'<rect x="{LABEL}" y="{y + 2}" width="{middle * scale:.1f}" height="14" fill="{fill}"/>'
        f'<path d="M{low:.1f} {y + 9}H{high:.1f}" stroke="#777" stroke-width="2"/>'
        f'<text x="{max(high, LABEL + middle * scale) + 8:.1f}" y="{y + 13}">{said}</text>'
    )
