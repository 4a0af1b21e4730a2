"""A row says its right, or the broker does not start; what comes before CONNECT, and on a link, goes by the rows."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.commands.command_rights import CommandRight, CommandRow, checked
from region_node.faces.pulsar.commands.command_table import SERVED

K = pb.BaseCommand


def _handler(connection: Any, command: pb.BaseCommand) -> None: ...


@pytest.mark.parametrize(
    "row",
    [(K.PING, CommandRight.NONE, _handler), CommandRow(K.PING, "any", _handler), CommandRow(K.PING, None, _handler)],
)
def test_a_row_without_a_right_ends_the_start(row: Any) -> None:
    with pytest.raises(TypeError, match="says no right"):
        checked([row])


def test_two_rows_of_one_command_end_the_start() -> None:
    row = CommandRow(K.PING, CommandRight.ANY_ROLE, _handler)
    assert checked([row]) == {K.PING: row}
    with pytest.raises(ValueError, match="PING has two rows"):
        checked([row, row])


def test_nothing_but_connect_is_for_everybody() -> None:
    assert [row.kind for row in SERVED.values() if row.right is CommandRight.NONE] == [K.CONNECT]


def test_links_are_answered_nothing_that_reads_or_writes_a_topic() -> None:
    links = {row.right for row in SERVED.values() if row.links}
    assert links == {CommandRight.NONE, CommandRight.ANY_ROLE, CommandRight.LOOK_UP}
