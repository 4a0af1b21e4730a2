"""The page of a run, for people: one HTML file that needs nothing else, its plots inside it as SVG.

Is: form. Isn't: a fact that the report has not; no script, no font, no address of anything outside.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from html import escape

from region_node.chaos.report import ChaosReport, FaultRecord

_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#666666")
"""Told apart also by who sees few colours; more series than that begin again, dashed."""
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 960, 220, 64, 12, 22, 28
_POINTS_MAX = 1200
_PLOTS = (
    ("Messages sent a second, by region", ("sent",), ""),
    ("Messages acknowledged to publishers a second, by region", ("acknowledged",), ""),
    ("Messages read by the subscription a second, by region", ("read",), ""),
    ("Publish latency in ms, 99 of 100 are below it, by region", ("latency_ms_p99",), "ms"),
    ("Publish latency in ms, median, by region", ("latency_ms_p50",), "ms"),
    ("Messages at risk, as their source reports it, by link", ("at risk",), ""),
)
_STYLE = """
:root { color-scheme: light dark; --line: #8884; --band: #d55e0022; --ink: CanvasText; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: 0; } h2 { font-size: 1.1rem; margin-top: 2rem; }
.verdict { font-weight: 600; padding: .5rem .8rem; border-left: .4rem solid #009e73; background: #009e7318; }
.verdict.broken { border-color: #d55e00; background: #d55e0018; }
table { border-collapse: collapse; } th, td { text-align: left; padding: .2rem .8rem .2rem 0; }
th { font-weight: 600; border-bottom: 1px solid var(--line); } td.n { text-align: right; }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: var(--ink); }
.grid { stroke: var(--line); } .band { fill: var(--band); stroke: #d55e0066; }
.key { display: inline-block; margin-right: 1.2rem; } .key i { display: inline-block; width: 1.2rem;
border-top: 3px solid; vertical-align: middle; margin-right: .4rem; }
"""


def page(run: ChaosReport) -> str:
    """HTML of a whole page, with its style and its plots inside."""
    title = f"Chaos: {run.scenario}"
    day = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(run.began))
    verdict = (
        '<p class="verdict">Every promise was kept.</p>'
        if run.kept
        else f'<p class="verdict broken">Promises were broken: {len(run.broken)} findings below.</p>'
    )
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(day)} UTC, {run.took_s:.0f} s, run {escape(run.run)}, seed {run.seed}, heliograph "
        f"{escape(run.version)}; topic {escape(run.topic)} by {escape(run.client)} in "
        f"{escape(', '.join(run.regions))}.</p>",
        verdict,
    ]
    if run.broken:
        parts += ["<h2>What was broken</h2>", _table(("promise", "where", "what"), _broken_rows(run))]
    parts += [
        "<h2>Faults</h2>",
        _table(("fault", "where", "line", "from s", "to s", "whole again after s"), _fault_rows(run.faults)),
        "<h2>Messages</h2>",
        _table(("region", "sent", "acknowledged", "refused", "read", "redelivered"), _region_rows(run)),
        f"<p>Reports compared with the truth: {escape(_compared(run))}.</p>",
        *(f"<p>Not compared: {escape(why)}.</p>" for why in run.not_compared),
    ]
    for name, series, unit in _PLOTS:
        rows = {region: points for one in series for region, points in run.series.get(one, {}).items()}
        if rows:
            parts += [f"<h2>{escape(name)}</h2>", plot(rows, run.faults, run.took_s, name, unit)]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body>\n" + "\n".join(parts) + "\n</body></html>\n"
    )


def plot(
    rows: Mapping[str, Sequence[Sequence[float]]],
    faults: Sequence[FaultRecord],
    took_s: float,
    name: str,
    unit: str = "",
) -> str:
    """SVG: a line for each row of [second, value], faults as bands behind them, and a legend. name: what it shows, for
    who cannot see it.
    """
    most = max((value for points in rows.values() for _, value in points), default=0.0) or 1.0
    span = max(took_s, 1.0)

    def x(at_s: float) -> float:
        return _LEFT + min(at_s, span) / span * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return _HEIGHT - _BOTTOM - value / most * (_HEIGHT - _TOP - _BOTTOM)

    drawn = [f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{escape(name)}">']
    for share in (0.0, 0.5, 1.0):
        at = y(most * share)
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        drawn.append(f'<text x="{_LEFT - 6}" y="{at + 4:.1f}" text-anchor="end">{_number(most * share)}</text>')
    for share in (0.0, 0.25, 0.5, 0.75, 1.0):
        anchor = "end" if share == 1.0 else "middle"
        drawn.append(
            f'<text x="{x(span * share):.1f}" y="{_HEIGHT - 8}" text-anchor="{anchor}">{span * share:.0f} s</text>'
        )
    for fault in faults:
        left, right = x(fault.began_s), max(x(fault.ended_s), x(fault.began_s) + 2)
        said = escape(f"{fault.fault} at {fault.where}, {fault.began_s:.1f} to {fault.ended_s:.1f} s")
        drawn.append(
            f'<g><title>{said}</title><rect class="band" x="{left:.1f}" y="{_TOP}" width="{right - left:.1f}" '
            f'height="{_HEIGHT - _TOP - _BOTTOM}"/><text x="{left + 2:.1f}" y="{_TOP - 6}">{escape(fault.fault)}</text>'
            "</g>"
        )
    legend = []
    for index, (row, points) in enumerate(rows.items()):
        color = _COLORS[index % len(_COLORS)]
        dash = ' stroke-dasharray="5 3"' if index >= len(_COLORS) else ""
        line = " ".join(f"{x(at):.1f},{y(value):.1f}" for at, value in _thinned(points))
        peak = max((value for _, value in points), default=0.0)
        drawn.append(
            f'<polyline fill="none" stroke="{color}" stroke-width="2"{dash} points="{line}">'
            f"<title>{escape(row)}</title></polyline>"
        )
        shown = f"{escape(row)}, at most {_number(peak)}{' ' + unit if unit else ''}"
        legend.append(f'<span class="key"><i style="border-color:{color}"></i>{shown}</span>')
    return "\n".join([*drawn, "</svg>", "<p>" + "".join(legend) + "</p>"])


def _thinned(points: Sequence[Sequence[float]]) -> list[Sequence[float]]:
    """As many as a screen shows, each the highest of its neighbours: no peak is left out."""
    if len(points) <= _POINTS_MAX:
        return list(points)
    step = -(-len(points) // _POINTS_MAX)
    return [max(points[at : at + step], key=lambda point: point[1]) for at in range(0, len(points), step)]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.1f}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(column)}</th>" for column in columns)
    body = "".join("<tr>" + "".join(map(_cell, row)) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f'<td class="n">{value:.1f}</td>'
    return f'<td class="n">{value:,}</td>' if isinstance(value, int) else f"<td>{escape(str(value))}</td>"


def _broken_rows(run: ChaosReport) -> list[tuple[object, ...]]:
    return [(one.promise, one.where, one.text) for one in run.broken]


def _fault_rows(faults: Sequence[FaultRecord]) -> list[tuple[object, ...]]:
    return [
        (one.fault, one.where, one.line, one.began_s, one.ended_s, "-" if one.whole_s is None else one.whole_s)
        for one in faults
    ]


def _region_rows(run: ChaosReport) -> list[tuple[object, ...]]:
    return [
        (
            region,
            *(run.published.get(region, {}).get(name, 0) for name in ("sent", "acknowledged", "refused")),
            *(run.read.get(region, {}).get(name, 0) for name in ("messages", "again")),
        )
        for region in run.regions
    ]


def _compared(run: ChaosReport) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(run.compared.items())) or "none"
