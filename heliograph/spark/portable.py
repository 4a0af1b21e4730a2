"""Rows of a micro-batch in tasks and places that are the same in every region, for a query whose micro-batches may be
finished in another one.

Is: which task a row is in, by its topic; and for the sink, where, by its coordinate, or by what it holds. Isn't:
reading, or writing.
Why: the sink numbers rows by task and place, and the brokers of all regions know which numbers are stored. A region's
copy has an order of its own and tasks are cut by its ledgers, so without this a micro-batch that is finished elsewhere
has other numbers for the same rows. Its price is a shuffle. (Spark sorts no stream, not even within tasks: so the sink
does.)
Invariants: the same rows give the same tasks and the same places, whatever order and tasks they came in; each origin's
rows of a topic keep their order.
Source: docs/spark.md, "To another region".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from heliograph.model.errors import ConfigError

if TYPE_CHECKING:
    import pyarrow as pa  # the command line imports this module also where Spark is not installed

_ROWS = 8192


def portable(rows: Any, tasks: int = 4) -> Any:
    """rows: a DataFrame of the source with topic and coordinate, or _topic and _coordinate; call it before anything
    else, and keep what follows row by row.

    What is handed to the sink must have the coordinate, as `coordinate`. tasks: stays what it is while a micro-batch is
    unfinished. Raises ConfigError where a column is missing.
    """
    found = next(
        (
            (topic, at)
            for topic, at in (("topic", "coordinate"), ("_topic", "_coordinate"))
            if {topic, at} <= set(rows.columns)
        ),
        None,
    )
    if found is None:
        raise ConfigError(
            "an order that holds in every region wants the columns topic and coordinate, or, beside declared columns, "
            "_topic string and _coordinate"
            " struct<region:int,epoch:int,incarnation:string,ledger:bigint,entry:bigint,batch_index:int>"
        )
    if tasks < 1:
        raise ConfigError(f"{tasks} tasks cannot be: at least 1")
    return rows.repartition(tasks, found[0])


def placed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task's rows by their coordinates, and without them; rows of one message as they came. All of them are held.
    Raises ConfigError where one has none.
    """
    import pyarrow as pa

    held = list(batches)
    if not held:
        return
    rows = pa.Table.from_batches(held)
    at = rows.column("coordinate").combine_chunks()
    if at.null_count:
        raise ConfigError("a row has no coordinate: take the source's column as it is")
    fields = at.flatten()
    keys = {f"{number}": column for number, column in enumerate(fields)} | {
        "row": pa.array(range(rows.num_rows), pa.int64())
    }
    order = pa.table(keys).sort_by([(name, "ascending") for name in keys])["row"]
    yield from rows.drop_columns(["coordinate"]).take(order).combine_chunks().to_batches(_ROWS)


def by_content(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """A task's rows by what they hold: in the same order, whatever order they came in, but for rows that are alike. All
    of them are held.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    held = list(batches)
    if not held:
        return
    rows = pa.Table.from_batches(held)
    keys: dict[str, Any] = {}
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if pa.types.is_map(column.type):
            column = pa.array(
                [None if pairs is None else json.dumps(sorted(pairs)) for pairs in column.to_pylist()], pa.string()
            )
        keys[name] = column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
    order = pc.sort_indices(pa.table(keys), sort_keys=[(name, "ascending") for name in keys])
    yield from rows.take(order).combine_chunks().to_batches(_ROWS)


def tasks_of(given: str) -> int:
    """Reads how many tasks the option asks for, 1 to 10,000. Raises ConfigError."""
    try:
        tasks = int(given)
    except ValueError:
        tasks = 0
    if not 1 <= tasks <= 10_000:
        raise ConfigError(f"portable_tasks is {given!r}; it is a number of tasks, from 1 to 10,000")
    return tasks
