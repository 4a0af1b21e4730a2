"""`heliograph status`: the links, and how old is what is told of each."""

from __future__ import annotations

from typing import Any

import pytest
from rich.console import Console

from region_node.commands.entry import links_table
from replicator.health.incoming_stats import SILENT_S


def link(silent_s: float | None, **changed: Any) -> dict[str, Any]:
    numbers = {"backlog_messages": 0, "backlog_bytes": 0, "age_s": 0.0, "silent_s": silent_s}
    return {"source": "us", "target": "eu", "topic": "x", "state": "open", "connected": True, **numbers, **changed}


def shown(*links: dict[str, Any], column: str) -> list[str]:
    """The cells of one column, row by row."""
    (found,) = (one for one in links_table(list(links)).columns if one.header == column)
    return [str(cell) for cell in found.cells]


@pytest.mark.parametrize(
    ("silent_s", "told"), [(None, "-"), (0.0, "-"), (SILENT_S, "-"), (SILENT_S + 0.1, "2.1"), (40.0, "40.0")]
)
def test_above_two_seconds_the_silence_of_a_target_stands_beside_its_numbers(silent_s: float | None, told: str) -> None:
    """Also where the link is connected still; a link to a Pulsar cluster without a connection has no silence."""
    away = link(silent_s, connected=False, state="broken", topic="y")
    assert shown(link(silent_s), away, column="silent s") == [told, told]
    assert shown(link(silent_s), away, column="backlog msgs") == ["0", "0"]


def test_a_region_of_an_earlier_version_that_tells_no_silence_is_shown() -> None:
    earlier = link(None)
    del earlier["silent_s"]
    assert shown(earlier, column="silent s") == ["-"]


def test_the_column_is_in_what_a_person_sees(capsys: pytest.CaptureFixture[str]) -> None:
    Console(width=160).print(links_table([link(12.34)]))
    said = capsys.readouterr().out
    assert "silent s" in said and "12.3" in said
