"""A month of tenants' use as a picture: one SVG, bars by day, a colour for each tenant.

Is: text out of rows, without a library. Isn't: the rows (`usage`), or a file.
Invariants: whatever a tenant is called, it stands in the picture as text; the bars of a day add up to what the table
says of that day.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from xml.sax.saxutils import escape

COLOURS = ("#3366aa", "#cc6633", "#339966", "#aa3377", "#888833", "#5599cc", "#994433", "#666666")
SHOWN_MAX = len(COLOURS) - 1
"""Tenants with a colour of their own; the others share the last one."""
_PANELS = (("bytes_in", "Bytes in"), ("bytes_out", "Bytes out"), ("storage_byte_hours", "Stored, bytes times hours"))
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 900, 150, 90, 60, 60


def plot(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """rows: {period (a day), tenant, bytes_in, bytes_out, storage_byte_hours}; those of several regions are added
    up.
    """
    days = sorted({row["period"] for row in rows})
    totals: dict[str, int] = {}
    for row in rows:
        totals[row["tenant"]] = totals.get(row["tenant"], 0) + row["bytes_in"] + row["bytes_out"]
    tenants = sorted(totals, key=lambda tenant: (-totals[tenant], tenant))
    colour = {tenant: COLOURS[min(at, SHOWN_MAX)] for at, tenant in enumerate(tenants)}
    height = _TOP + len(_PANELS) * (_HEIGHT + _GAP)
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 20}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_LEFT}" y="24" font-size="16">{escape(title)}</text>',
    ]
    named = [(tenant, colour[tenant]) for tenant in tenants[:SHOWN_MAX]]
    if len(tenants) > SHOWN_MAX:
        named.append((f"{len(tenants) - SHOWN_MAX} others", COLOURS[-1]))
    for at, (name, fill) in enumerate(named):
        x = _LEFT + at * _WIDTH // len(COLOURS)
        out.append(
            f'<rect x="{x}" y="34" width="10" height="10" fill="{fill}"/><text x="{x + 14}" '
            f'y="43">{escape(name)}</text>'
        )
    for number, (field, label) in enumerate(_PANELS):
        out += _panel(rows, days, tenants, colour, field, label, _TOP + number * (_HEIGHT + _GAP))
    return "\n".join([*out, "</svg>", ""])


def _panel(
    rows: Sequence[Mapping[str, Any]],
    days: Sequence[str],
    tenants: Sequence[str],
    colour: Mapping[str, str],
    field: str,
    label: str,
    top: int,
) -> list[str]:
    sums: dict[tuple[str, str], int] = {}
    for row in rows:
        key = row["period"], row["tenant"]
        sums[key] = sums.get(key, 0) + row[field]
    most = max([sum(sums.get((day, tenant), 0) for tenant in tenants) for day in days], default=0) or 1
    bottom, step = top + _HEIGHT, _WIDTH / max(1, len(days))
    out = [
        f'<text x="{_LEFT}" y="{top + 4}">{escape(label)}</text>',
        f'<line x1="{_LEFT}" y1="{bottom}" x2="{_LEFT + _WIDTH}" y2="{bottom}" stroke="black"/>',
        f'<text x="{_LEFT - 6}" y="{top + 20}" text-anchor="end">{_short(most)}</text><text x="{_LEFT - 6}" '
        f'y="{bottom}" text-anchor="end">0</text>',
    ]
    scale = (_HEIGHT - 16) / most
    for at, day in enumerate(days):
        x, y = _LEFT + at * step, float(bottom)
        for tenant in tenants:
            value = sums.get((day, tenant), 0)
            if value:
                y -= value * scale
                where = f'x="{x + step * 0.1:.1f}" y="{y:.2f}" width="{step * 0.8:.1f}" height="{value * scale:.2f}"'
                out.append(
                    f'<rect {where} fill="{colour[tenant]}"><title>{escape(f"{day} {tenant}: {value}")}</title></rect>'
                )
        if len(days) <= 10 or at % 5 == 0:
            out.append(f'<text x="{x + step / 2:.1f}" y="{bottom + 14}" text-anchor="middle">{escape(day[5:])}</text>')
    return out


def _short(value: int) -> str:
    units = ("", " k", " M", " G", " T", " P")
    at, shown = 0, float(value)
    while shown >= 1000 and at < len(units) - 1:
        at, shown = at + 1, shown / 1000
    return f"{shown:.3g}{units[at]}"
