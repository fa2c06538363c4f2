"""Line charts as SVG text, without a plotting library, so that every machine draws the same bytes.

A chart is a light card, which reads well on light and dark pages.
"""

from xml.sax.saxutils import escape

COLOURS = ["#0b5fa5", "#d1495b", "#2a9d5c", "#8e5bbf", "#b8860b", "#444444", "#17a2b8", "#e07b39", "#999999",
           "#6b8e23", "#c71585", "#5f7a99", "#7b3f00"]
WIDTH, HEIGHT, TOP, BOTTOM, LEFT, GAP = 860, 400, 46, 96, 56, 40
FONT = 'font-family="DejaVu Sans, Verdana, sans-serif"'


def nice_ceiling(value):
    """The next multiple of 200 at or above value, at least 200."""
    return max(200, -(-int(value + 0.999) // 200) * 200)


def text(x, y, content, anchor="middle", size=12, colour="#333333"):
    return (f'<text x="{x:.1f}" y="{y:.1f}" {FONT} font-size="{size}" fill="{colour}" text-anchor="{anchor}">'
            f"{escape(content)}</text>")


def line(x1, y1, x2, y2, colour="#dddddd"):
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def curve(points, colour, dash):
    """A polyline with a dot at each point."""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dashes = ' stroke-dasharray="5 4"' if dash else ""
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>' for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dashes}/>{dots}'


def legend(colours, dashed):
    """Four entries a line, below the panels."""
    parts = []
    for i, (name, colour) in enumerate(colours.items()):
        x, y = LEFT + i % 4 * 200, HEIGHT - BOTTOM + 50 + i // 4 * 18
        dashes = ' stroke-dasharray="5 4"' if name in dashed else ""
        parts.append(f'<line x1="{x}" y1="{y}" x2="{x + 24}" y2="{y}" stroke="{colour}" stroke-width="2"{dashes}/>')
        parts.append(text(x + 30, y + 4, name, "start", 11))
    return parts


def line_chart(title, y_title, names, panels, dashed=()):
    """panels: [(title, {series: {x: y}})], side by side with one y axis from 0; x is spaced evenly in the order of its
    values. names: of all series that such charts have, so that each keeps its colour (as many as COLOURS, at most).
    dashed: names of series drawn so. Returns the text of an SVG file."""
    colours = {name: colour for name, colour in zip(names, COLOURS)
               if any(series.get(name) for _, series in panels)}
    xs = sorted({x for _, series in panels for values in series.values() for x in values})
    top = nice_ceiling(max(y for _, series in panels for values in series.values() for y in values.values()))
    panel_width = (WIDTH - LEFT - 16 - GAP * (len(panels) - 1)) / len(panels)
    y_of = lambda y: HEIGHT - BOTTOM - y / top * (HEIGHT - BOTTOM - TOP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'role="img">',
        f"<title>{escape(title)}</title>",
        f'<rect x="0.5" y="0.5" width="{WIDTH - 1}" height="{HEIGHT - 1}" rx="6" fill="#ffffff" stroke="#cccccc"/>',
        text(LEFT, 20, f"{title}: {y_title}", "start", 13, "#111111"),
    ]
    for index, (panel_title, series) in enumerate(panels):
        left = LEFT + index * (panel_width + GAP)
        x_of = lambda x: left + (xs.index(x) + 0.5) / len(xs) * panel_width
        parts.append(text(left + panel_width / 2, TOP - 8, panel_title))
        for y in range(0, top + 1, 200):
            parts.append(line(left, y_of(y), left + panel_width, y_of(y), "#888888" if y == 0 else "#dddddd"))
            parts.append(text(left - 6, y_of(y) + 4, str(y), "end", 10))
        for x in xs:
            parts.append(text(x_of(x), HEIGHT - BOTTOM + 16, str(x), size=10))
        parts.append(text(left + panel_width / 2, HEIGHT - BOTTOM + 32, "tokens", size=10))
        for name, colour in colours.items():
            points = [(x_of(x), y_of(y)) for x, y in sorted(series.get(name, {}).items())]
            if points:
                parts.append(curve(points, colour, name in dashed))
    return "\n".join([*parts, *legend(colours, dashed), "</svg>"]) + "\n"
