"""What a heartbeat tells of topics that its target may not have, as bytes."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.errors import PeerError
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.link_commands import LinkHeartbeat, Risk, StreamBeat
from heliograph.wire.links.unopened_topics import ROWS_MAX, UnopenedRow, UnopenedTopics

TOLD = UnopenedTopics("us", "b", False, {"t/n": UnopenedRow(1, 2, 3, 4)})


def content(beat: LinkHeartbeat) -> tuple[int, memoryview]:
    return wire.command_content(b"".join(map(bytes, wire.heartbeat_frame(beat)))[8:])


@pytest.mark.parametrize("told", (TOLD, UnopenedTopics("us", "b"), None))
def test_a_heartbeat_brings_it_beside_its_streams(told: UnopenedTopics | None) -> None:
    beat = LinkHeartbeat(1, 2, 3, (StreamBeat(1, None, {}, Risk(1, 2, 3, 4)),), told)
    assert wire.read_heartbeat(wire.parse(*content(beat))[1]) == beat


def test_a_version_that_does_not_know_it_reads_a_stream_that_is_not_open() -> None:
    """It wants of each item a number, a coordinate or nothing, a table, and a risk of four numbers."""
    item = TOLD.item()
    assert item[:4] == [0, None, {}, [0, 0, 0, 0]]


@pytest.mark.parametrize(
    "item",
    (
        ["us"],
        ["us", "b", True, 7],
        ["us", "b", True, {"t/n": [1, 2]}],
        ["us", "b", True, {"t/n": [1, 2, 3, -1]}],
        ["", "b", True, {}],
        ["us", "b", True, {str(number): [1, 1, 1, 1] for number in range(ROWS_MAX + 1)}],
    ),
)
def test_what_cannot_be_read_ends_the_connection(item: list[Any]) -> None:
    with pytest.raises(PeerError):
        wire.read_heartbeat([1, 2, 3, [0, None, {}, [0, 0, 0, 0], item]])
