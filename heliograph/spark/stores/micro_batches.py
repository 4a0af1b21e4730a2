"""Whether a micro-batch of a query is in a table already. Isn't: how a table knows; nor anything that wants a library,
as commands read it, too.

Invariant: of one query the last micro-batch alone may come again. One below it is of a checkpoint that was put back
from a backup: it has the number of one that is there, and other rows.
"""

from __future__ import annotations

from heliograph.model.errors import ConfigError


def is_in(table: str, done: int | None, batch: int | None) -> bool:
    """done: the last one of the query that the table has. batch None: no micro-batch. Raises ConfigError where `done`
    is a later one.
    """
    if done is None or batch is None or done < batch:
        return False
    if done > batch:
        raise ConfigError(older(f"table {table}", batch, done))
    return True


def older(what: str, batch: int, done: int) -> str:
    """What to do where `what` has `done`, a later one."""
    return (
        f"the checkpoint is older than {what}: that has micro-batch {done} of the query, and this is {batch}, whose "
        "rows are in part there already: put the newer checkpoint back, or what the query writes to as it was then, or "
        "start with a new checkpoint folder and write elsewhere; and see that no other driver runs the query"
    )
