"""The picture of a month's use: well-formed, whole, and nobody's name breaks it."""

from __future__ import annotations

import random
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from heliograph.cli.resources.usage_plot import SHOWN_MAX, plot

SVG = "{http://www.w3.org/2000/svg}"


def row(day: int, tenant: str, amount: int, region: str = "us") -> dict[str, Any]:
    return {
        "period": f"2026-11-{day:02d}",
        "region": region,
        "tenant": tenant,
        "bytes_in": amount,
        "bytes_out": 2 * amount,
        "storage_byte_hours": 3 * amount,
    }


def bars(text: str) -> list[tuple[str, float, str]]:
    """(what it says, height, colour) of each bar."""
    found = []
    for rect in ET.fromstring(text).iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None:
            found.append((str(title.text), float(rect.get("height", "0")), str(rect.get("fill"))))
    return found


@pytest.mark.parametrize("seed", range(10))
def test_every_days_use_is_there_in_its_proportion(seed: int) -> None:
    rng = random.Random(seed)
    rows = [
        row(day, f"t{tenant}", rng.randrange(1, 1 << 40))
        for day in range(1, 29)
        for tenant in range(rng.randrange(1, 5))
    ]
    found = bars(plot(rows, "November"))
    fields = ("bytes_in", "bytes_out", "storage_byte_hours")
    assert sorted(text for text, _, _ in found) == sorted(
        f"{r['period']} {r['tenant']}: {r[field]}" for r in rows for field in fields
    )
    ins = found[: len(rows)]
    amounts = [(int(text.rsplit(" ", 1)[1]), height) for text, height, _ in ins]
    most, highest = max(amounts)
    assert all(abs(height - highest * amount / most) < 0.02 for amount, height in amounts)
    days = {text[:10] for text, _, _ in ins}
    assert max(sum(height for text, height, _ in ins if text.startswith(day)) for day in days) == pytest.approx(
        134, abs=0.1
    ), "the highest day fills its panel"


def test_regions_are_added_up_and_names_are_text() -> None:
    name = "<b>&'\""
    text = plot([row(1, name, 5), row(1, name, 7, "eu")], "<November>")
    assert [found[0] for found in bars(text)] == [f"2026-11-01 {name}: {12 * times}" for times in (1, 2, 3)]
    assert name in [node.text for node in ET.fromstring(text).iter(f"{SVG}text")]


def test_many_tenants_share_the_last_colour_and_none_makes_an_empty_picture() -> None:
    rows = [row(1, f"t{at:02d}", 100 - at) for at in range(20)]
    colours = {text.split()[1]: colour for text, _, colour in bars(plot(rows, "x"))}
    assert (
        len(set(colours.values())) == SHOWN_MAX + 1
        and colours["t19:"] == colours[f"t{SHOWN_MAX:02d}:"] != colours["t00:"]
    )
    assert f"{20 - SHOWN_MAX} others" in plot(rows, "x")
    assert not bars(plot([], "x"))
