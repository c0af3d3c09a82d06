#!/usr/bin/env python3
"""Draws the panels of a Grafana dashboard as one HTML page, from the answers of a running Prometheus.

Usage: dashboard-picture.py DASHBOARD.json PROMETHEUS-URL MINUTES OUTPUT.html
Titles, places, queries, legends and units are those of the dashboard; the widgets are plain lines and numbers, not Grafana's own. A panel
whose query fails ends the program; one without data says so.
"""
import html, json, re, sys, time, urllib.parse, urllib.request

CELL_WIDTH, CELL_HEIGHT, GAP = 60, 30, 8
COLORS = ["#7eb26d", "#eab839", "#6ed0e0", "#ef843c", "#e24d42", "#1f78c1", "#ba43a9", "#705da0", "#508642", "#cca300"]
STEP = 2


def ask(url, path, **query):
    with urllib.request.urlopen(f"{url}/api/v1/{path}?{urllib.parse.urlencode(query)}") as answer:
        return json.load(answer)["data"]["result"]


def expression(text):
    """Puts values in the place of Grafana's variables: all nodes and repositories, and four scrapes."""
    text = text.replace("$__rate_interval", "20s").replace("$__interval", f"{STEP}s").replace("$__range", "1h")
    return text.replace("$instance", ".*").replace("$repository", ".*")


def legend(pattern, labels):
    return re.sub(r"\{\{(\w+)\}\}", lambda match: labels.get(match[1], ""), pattern or "value")


def scaled(value, steps):
    for factor, name in steps:
        if abs(value) >= factor:
            return f"{value / factor:.3g} {name}"
    return f"{value / steps[-1][0]:.3g} {steps[-1][1]}" if value else f"0 {steps[-1][1]}"


def number(value, unit):
    if unit == "percentunit":
        return f"{value * 100:.3g} %"
    if unit == "s":
        return scaled(value, [(86400, "days"), (3600, "h"), (60, "min"), (1, "s"), (1e-3, "ms"), (1e-6, "µs")])
    if unit in ("bytes", "Bps"):
        per = "/s" if unit == "Bps" else ""
        return scaled(value, [(1 << 30, "GiB" + per), (1 << 20, "MiB" + per), (1 << 10, "KiB" + per), (1, "B" + per)])
    return f"{value:.4g}" + {"reqps": " req/s", "ops": " ops/s"}.get(unit, "")


def chart(series, unit, begin, end, width, height):
    """Returns lines over time as SVG, with an axis from zero to the highest value."""
    left, bottom, top = 70, 18, 6
    values = [value for _, points in series for _, value in points]
    highest = max(values, default=0) or 1
    x = lambda at: left + (at - begin) / (end - begin) * (width - left - 4)
    y = lambda value: top + (1 - value / highest) * (height - bottom - top)
    parts = []
    for share in (0, 0.25, 0.5, 0.75, 1):
        at = y(highest * share)
        parts.append(f'<path d="M{left} {at:.1f}H{width}" stroke="#e4e7eb"/>')
        parts.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{number(highest * share, unit)}</text>')
    for share in (0, 0.5, 1):
        clock = time.strftime("%H:%M:%S", time.gmtime(begin + (end - begin) * share))
        anchor = ("start", "middle", "end")[int(share * 2)]
        parts.append(f'<text x="{x(begin + (end - begin) * share):.1f}" y="{height - 3}" text-anchor="{anchor}">{clock}</text>')
    for place, (_, points) in enumerate(series):
        path = "L".join(f"{x(at):.1f} {y(value):.1f}" for at, value in points)
        parts.append(f'<path d="M{path}" fill="none" stroke-width="1.5" stroke="{COLORS[place % len(COLORS)]}"/>')
    return f'<svg width="{width}" height="{height}">{"".join(parts)}</svg>'


def content(panel, url, begin, end, width, height):
    unit = panel.get("fieldConfig", {}).get("defaults", {}).get("unit")
    series = []
    for target in panel["targets"]:
        query = expression(target["expr"])
        if panel["type"] == "stat":
            answers = ask(url, "query", query=query, time=end)
            series += [(legend(target.get("legendFormat"), one["metric"]), [one["value"]]) for one in answers]
        else:
            answers = ask(url, "query_range", query=query, start=begin, end=end, step=STEP)
            series += [(legend(target.get("legendFormat"), one["metric"]), one["values"]) for one in answers]
    series = [(name, [(at, float(text)) for at, text in points if text != "NaN"]) for name, points in series]
    series = [(name, points) for name, points in series if points]
    if not series:
        return '<p class="none">no data</p>'
    if panel["type"] == "stat":
        return f'<p class="stat">{number(series[0][1][0][1], unit)}</p>'
    # The largest ones, as far as there is room for their names.
    series.sort(key=lambda one: -max(value for _, value in one[1]))
    names = "".join(
        f'<span><i style="background:{COLORS[place % len(COLORS)]}"></i>{html.escape(name)}</span>'
        for place, (name, _) in enumerate(series[: len(COLORS)])
    )
    return chart(series[: len(COLORS)], unit, begin, end, width, height - 22) + f'<div class="names">{names}</div>'


def main():
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    dashboard, url, minutes, output = json.load(open(sys.argv[1])), sys.argv[2].rstrip("/"), float(sys.argv[3]), sys.argv[4]
    end = time.time()
    begin, boxes, lowest = end - minutes * 60, [], 0
    for panel in dashboard["panels"]:
        grid = panel["gridPos"]
        left, top = grid["x"] * CELL_WIDTH, grid["y"] * CELL_HEIGHT
        width, height = grid["w"] * CELL_WIDTH - GAP, grid["h"] * CELL_HEIGHT - GAP
        lowest = max(lowest, top + height)
        inner = "" if panel["type"] == "row" else content(panel, url, begin, end, width - 16, height - 32)
        boxes.append(
            f'<section class="{panel["type"]}" style="left:{left}px;top:{top}px;width:{width}px;height:{height}px">'
            f'<h2>{html.escape(panel["title"])}</h2>{inner}</section>'
        )
    style = (
        "body{margin:12px;background:#f4f5f5;font:12px sans-serif;color:#24292e}h1{font-size:18px;margin:0 0 10px}main{position:relative}"
        "section{position:absolute;box-sizing:border-box;background:#fff;border:1px solid #dce1e6;padding:6px 8px;overflow:hidden}"
        "section.row{background:none;border:0;padding:2px 0}h2{font-size:13px;margin:0 0 4px;font-weight:600}svg text{font-size:10px;fill:#6a737d}"
        ".stat{font-size:30px;text-align:center;margin:14px 0;color:#37872d}.none{color:#8a939d;text-align:center;margin-top:30px}"
        ".names{white-space:nowrap}.names span{margin-right:10px;font-size:11px}i{display:inline-block;width:10px;height:3px;margin:0 4px 3px 0}"
    )
    with open(output, "w") as file:
        file.write(
            f'<!doctype html><meta charset="utf-8"><style>{style}</style><h1>{html.escape(dashboard["title"])}</h1>'
            f'<main style="width:{24 * CELL_WIDTH}px;height:{lowest}px">{"".join(boxes)}</main>\n'
        )


main()
