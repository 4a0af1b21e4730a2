"""grouped: the global configuration, as many operations that go on side by side ask it: together.

Is: reads and transactions that come while others are on their way, made into a few: one read for those of the same
range, one range for keys that lie beside each other, one transaction for those of different keys. Isn't: a copy: what
is read was asked for after whoever reads it began.
Invariants: a transaction is made whole or not at all, by its own expectations alone: where one of a group is refused,
each is tried for itself; every read is linearizable.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

from heliograph.kv.checked_store import PassingStore
from heliograph.kv.metadata_store import OPS_MAX, MetadataStore, Op, Put
from heliograph.model.errors import HeliographError, LeaseLost, MetadataUnavailable, NotAllowed, VersionConflict
from heliograph.runtime.task_set import TaskSet, report_error

TOGETHER_MIN = 4
"""So many keys of a kind are read as one range."""
SPARE = 2
"""Such a range reads so many rows a key at most: where more lie between the keys, some are read one by one."""
GROUP_BYTES_MAX = 512 << 10
"""Transactions of more are not made together."""

Asked = TypeVar("Asked")
Row = tuple[str, bytes, int]


class _Groups(Generic[Asked]):
    """What is asked while a group is on its way is the next group."""

    def __init__(self, group: Callable[[list[tuple[Asked, asyncio.Future[Any]]]], Awaitable[None]]) -> None:
        self._group, self._next, self._busy = group, list[tuple[Asked, asyncio.Future[Any]]](), False
        self._tasks = TaskSet()

    async def ask(self, what: Asked) -> Any:
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._next.append((what, answer))
        if not self._busy:
            self._busy = True
            self._tasks.spawn(self._run())
        return await answer

    async def _run(self) -> None:
        try:
            while self._next:
                group, self._next = self._next, []
                try:
                    await self._group([one for one in group if not one[1].done()])
                except Exception as error:
                    report_error(error, "a group of the configuration's calls failed")
                finally:
                    _fail(MetadataUnavailable("the configuration was not asked to the end"), [one[1] for one in group])
        finally:
            self._busy = False


def grouped(store: MetadataStore) -> MetadataStore:
    """What is asked of it side by side is asked of `store` together."""
    calls = _Grouped(store)
    return PassingStore(store, reads=calls, writes=calls)


class _Grouped:
    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._reads = _Groups[str | tuple[str, str, int | None]](self._read)
        self._writes = _Groups[Sequence[Op]](self._write)

    # -- reads ---------------------------------------------------------------------------------------------------------

    async def get(self, key: str) -> tuple[bytes, int] | None:
        found: tuple[bytes, int] | None = await self._reads.ask(key)
        return found

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[Row]:
        rows: list[Row] = await self._reads.ask((start, end, limit))
        return list(rows)

    async def _read(self, group: list[tuple[Any, asyncio.Future[Any]]]) -> None:
        keys, ranges = (defaultdict[Any, list[asyncio.Future[Any]]](list) for _ in range(2))
        for what, answer in group:
            (keys if isinstance(what, str) else ranges)[what].append(answer)
        kinds = defaultdict[str, list[str]](list)
        for key in sorted(keys):
            kinds[key.rsplit("/", 2)[0]].append(key)
        await asyncio.gather(
            *(self._get_all(names, keys) for names in kinds.values()),
            *(_answer(self._store.range(start, end, limit=most), of) for (start, end, most), of in ranges.items()),
        )

    async def _get_all(self, names: Sequence[str], keys: dict[str, list[asyncio.Future[Any]]]) -> None:
        """names: in order, of one kind."""
        left = list(names)
        if len(names) >= TOGETHER_MIN:
            most = SPARE * len(names)
            try:
                rows = await self._store.range(names[0], f"{names[-1]}\0", limit=most)
            except HeliographError as error:
                _fail(error, [answer for name in names for answer in keys[name]])
                return
            found = {key: (value, version) for key, value, version in rows}
            behind = rows[-1][0] if len(rows) >= most else names[-1]
            for name in (name for name in names if name <= behind):
                _give(found.get(name), keys[name])
            left = [name for name in names if name > behind]
        await asyncio.gather(*(_answer(self._store.get(name), keys[name]) for name in left))

    # -- writes --------------------------------------------------------------------------------------------------------

    async def txn(self, ops: Sequence[Op]) -> int:
        version: int = await self._writes.ask(ops)
        return version

    async def _write(self, group: list[tuple[Sequence[Op], asyncio.Future[Any]]]) -> None:
        for part in _parts(group):
            if len(part) > 1:
                try:
                    version = await self._store.txn([op for ops, _ in part for op in ops])
                except (VersionConflict, LeaseLost, NotAllowed):  # of one of them, and nothing was done
                    pass
                except HeliographError as error:
                    _fail(error, [answer for _, answer in part])
                    continue
                else:
                    _give(version, [answer for _, answer in part])
                    continue
            await asyncio.gather(*(_answer(self._store.txn(ops), [answer]) for ops, answer in part))

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        return await self._store.delete(key, expected=expected)


def _parts(
    group: list[tuple[Sequence[Op], asyncio.Future[Any]]],
) -> Iterator[list[tuple[Sequence[Op], asyncio.Future[Any]]]]:
    """So many that no key is twice in one, and that each keeps its bounds; in order."""
    part, keys, size, count = list[tuple[Sequence[Op], asyncio.Future[Any]]](), set[str](), 0, 0
    for ops, answer in group:
        more, named = sum(map(_size, ops)), {op.key for op in ops}
        if part and (size + more > GROUP_BYTES_MAX or count + len(ops) > OPS_MAX or not keys.isdisjoint(named)):
            yield part
            part, keys, size, count = [], set(), 0, 0
        part.append((ops, answer))
        keys |= named
        size, count = size + more, count + len(ops)
    if part:
        yield part


def _size(op: Op) -> int:
    return 4 * len(op.key) + (len(op.value) if isinstance(op, Put) else 0)


async def _answer(call: Awaitable[Any], answers: Sequence[asyncio.Future[Any]]) -> None:
    try:
        _give(await call, answers)
    except HeliographError as error:
        _fail(error, answers)


def _give(value: Any, answers: Sequence[asyncio.Future[Any]]) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_result(value)


def _fail(error: HeliographError, answers: Sequence[asyncio.Future[Any]]) -> None:
    for answer in answers:
        if not answer.done():
            answer.set_exception(error)
