"""What tests of table stores have in common: rows to hand over, and a death at any step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest

from heliograph.spark.stores.rows import Upsert

NOON, ONE = datetime(2026, 1, 31, 12, tzinfo=UTC), datetime(2026, 1, 31, 13, tzinfo=UTC)
PERIOD = pa.timestamp("us", "UTC")


class Died(BaseException):
    """The process, as far as a test is concerned."""


def given(
    batch: int | None, rows: list[tuple[Any, ...]], columns: str = "clicks", writer: str = "online", query: str = "q1"
) -> Upsert:
    """rows: (period, key, value of each of `columns`)."""
    names = columns.split()
    table = {
        "period": pa.array([row[0] for row in rows], PERIOD),
        "user": pa.array([row[1] for row in rows], pa.string()),
    }
    table |= {name: pa.array([row[2 + at] for row in rows], pa.int64()) for at, name in enumerate(names)}
    return Upsert("t", ("period", "user"), pa.table(table), writer, query, batch)


@contextmanager
def dying(owner: Any, name: str, call: int, *, after: bool) -> Iterator[list[int]]:
    """The process dies at that call of a method, or behind it. Gives a list with how many calls there were; without a
    death when there are fewer.
    """
    genuine: Callable[..., Any] = getattr(owner, name)
    calls = [0]

    def dies(*args: Any, **more: Any) -> Any:
        calls[0] += 1
        if calls[0] == call and not after:
            raise Died
        found = genuine(*args, **more)
        if calls[0] == call:
            raise Died
        return found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(owner, name, dies)
        try:
            yield calls
        except Died:
            return
