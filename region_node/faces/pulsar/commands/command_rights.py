"""Which right each command of Pulsar's wants: it stands in the row that names its handler.

Is: the rights, the form of a row, the check of a table of rows. Isn't: the rows (`command_table`), or the check of a
client: each handler makes it (`Identity`), since each command's refusal has another form.
Invariants: a row without a right ends the start; before a client has signed in, only what its row says is for everybody
is handled, and on a link only what its row says is for links.
Source: docs/protocols/pulsar.md, "Rights of commands"; docs/decisions/0221-a-request-says-its-right.md.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, NamedTuple

from heliograph.wire.pulsar import pulsar_pb2 as pb

Kind = pb.BaseCommand


class CommandRight(Enum):
    NONE = "anybody: a client signs in by it"
    ANY_ROLE = "any role: it names nothing that anybody has"
    LOOK_UP = "produce to or consume the topic; of the topic that coordinators are found by, a grant somewhere"
    PRODUCE = "produce to the topic; with an initial subscription consume it, too"
    CONSUME = "consume the topic, by the subscription"
    LIST = "produce to or consume all topics of the namespace"
    OPENED = "what this connection has opened: PRODUCER, SUBSCRIBE, or WATCH_TOPIC_LIST was checked"
    ANY_GRANT = "a grant to produce, to consume, or to administer somewhere"
    OWN_TXN = "the transaction: the role that began it"
    OWN_TXN_PRODUCE = "the transaction, and produce to each topic that joins it"
    OWN_TXN_CONSUME = "the transaction, and consume each topic that joins it, by the subscription"
    BROKERS = "brokers of the region, and super users"
    NOBODY = "nobody: it is refused to all"


class CommandRow(NamedTuple):
    """One row. links: a link listener answers it, too."""

    kind: int
    right: CommandRight
    handler: Callable[[Any, pb.BaseCommand], None]
    links: bool = False


def checked(rows: Iterable[CommandRow]) -> dict[int, CommandRow]:
    """The rows by their commands. Raises TypeError where one says no right, ValueError where a command has two."""
    found: dict[int, CommandRow] = {}
    for row in rows:
        if not isinstance(row, CommandRow) or not isinstance(row.right, CommandRight):
            raise TypeError(f"{row!r:.200} says no right: write CommandRow(kind, CommandRight.…, handler)")
        if row.kind in found:
            raise ValueError(f"{Kind.Type.Name(row.kind)} has two rows: leave one")  # type: ignore[arg-type]
        found[row.kind] = row
    return found
