"""UsageDays: what each tenant used on each day, kept in the region's metadata, so that a month's report outlives
restarts.

Is: the difference of a broker's sums (`region_node.usage.tenant_usage`) since its last writing, added to the day's
value by compare-and-set, some times an hour, when the day (UTC) ends, and when the broker drains. Isn't: the counting,
or a limit.
Invariants: a difference is added once, also where the answer to a write is lost: the value says the last writing of
each broker, by a number that only grows; what could not be written is kept, and written later to the day it was counted
on. A broker that is killed loses what it counted since its last writing.
Keys: /usage/days/{YYYY-MM-DD}/{tenant} (UsageDay), removed after `days_kept`.
Source: docs/decisions/0096-logs-and-support-files.md; docs/security.md, "Usage of a tenant".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, NoReturn

from heliograph.kv.metadata_store import ABSENT, MetadataStore
from heliograph.model.configuration.configuration_records import _Value
from heliograph.model.errors import (
    CorruptData,
    HeliographError,
    MetadataUnavailable,
    NotAllowed,
    OutcomeUnknown,
    VersionConflict,
)
from heliograph.runtime.clock import Clocks
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from region_node.usage.settings import UsageSettings
from region_node.usage.tenant_usage import Usage

if TYPE_CHECKING:
    from region_node.topics.topic import Topic

log = logging.getLogger("region_node.usage")

DAYS = "/usage/days/"
LIVES = "usage/lives"
"""Counter: a number for each start of a broker, so that numbers of writings only grow, whatever its clock says."""
COUNTED = ("messages_in", "bytes_in", "messages_out", "bytes_out")
STORED = "storage_byte_seconds"
"""Bytes stored, times the seconds they were."""
_DAY_MS = 86_400_000
_TRIES = 8
_SLICE = 1000


async def stored_by_tenant(topics: Iterable[Topic]) -> dict[str, int]:
    """Bytes of each tenant's open ledgers, looked at in slices: the topics may be very many."""
    found: dict[str, int] = {}
    for at, topic in enumerate(list(topics)):
        if at % _SLICE == _SLICE - 1:
            await asyncio.sleep(0)
        if not topic.closed:
            found[topic.name.tenant] = found.get(topic.name.tenant, 0) + topic.ledger.open_bytes
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class UsageDay(_Value):
    """One tenant's, of one day and region. `by`: broker -> number of its last writing that is in the sums."""

    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    storage_byte_seconds: int = 0
    by: dict[str, int] = field(default_factory=dict)

    def sums(self) -> dict[str, int]:
        return {name: getattr(self, name) for name in (*COUNTED, STORED)}

    def with_added(self, added: Mapping[str, int], broker: str, number: int) -> UsageDay:
        """The same object where this writing is in it already."""
        if self.by.get(broker, -1) >= number:
            return self
        sums = {name: value + added.get(name, 0) for name, value in self.sums().items()}
        return replace(self, **sums, by={**self.by, broker: number})


@dataclass(frozen=True, slots=True)
class _Writing:
    """Not known to be stored yet."""

    day: str
    number: int
    added: Mapping[str, int]


def day_of(wall_ms: int) -> str:
    """Returns the day (UTC) of a wall time, as YYYY-MM-DD."""
    return datetime.fromtimestamp(wall_ms / 1000, UTC).strftime("%Y-%m-%d")


def check_month(text: str) -> str:
    """Returns `text` where it is a month, as YYYY-MM with four and two digits. Raises NotAllowed."""
    try:
        if datetime.strptime(text, "%Y-%m").strftime("%Y-%m") == text:
            return text
    except ValueError:
        pass
    raise NotAllowed(f"{text!r} is no month: expected one such as 2026-11")


async def days_of(store: MetadataStore, month: str, tenant: str = "") -> list[tuple[str, str, UsageDay]]:
    """(day, tenant, used) of a month, YYYY-MM, in order; of one tenant, or of all. Raises CorruptData."""
    begin = f"{DAYS}{month}-"
    rows: list[tuple[str, str, UsageDay]] = []
    while found := await store.range(begin, f"{DAYS}{month}-~"):
        for key, value, _ in found:
            day, _, whose = key.removeprefix(DAYS).partition("/")
            if tenant in ("", whose):
                rows.append((day, whose, UsageDay.decode(value)))
        begin = found[-1][0] + "\0"
    return rows


class UsageDays:
    """One broker's. stored: tenant -> bytes of the ledgers that are open here."""

    def __init__(
        self,
        store: MetadataStore,
        usage: Usage,
        stored: Callable[[], Awaitable[Mapping[str, int]]],
        *,
        broker: str,
        clocks: Clocks,
        settings: UsageSettings,
    ) -> None:
        self._store, self._usage, self._stored, self._broker, self._clock, self._settings = (
            store,
            usage,
            stored,
            broker,
            clocks.now,
            settings,
        )
        self._expiry = clocks.expiry
        self._told: dict[str, dict[str, int]] = {}
        """Tenant -> sums of this broker that a writing was made of."""
        self.waiting: dict[str, list[_Writing]] = {}
        self._life = self._number = 0
        """Of this start of the broker, from a counter of the region (0: not asked yet), and of its newest writing."""
        self._day, self._counted_at = day_of(clocks.now.wall_ms()), clocks.now.monotonic()
        self._tasks = TaskSet("usage by day has ended")
        self._task: asyncio.Task[NoReturn] | None = None

    def start(self) -> None:
        self._task = self._tasks.spawn(every(self._pause_s, self._round))

    async def stop(self) -> None:
        """Ends the task, and writes what was counted since the last writing; nothing where `start` was not called."""
        if self._task is not None:
            await self._tasks.close()
            await self.write()

    def _pause_s(self) -> float:
        to_midnight_s = (_DAY_MS - self._clock.wall_ms() % _DAY_MS) / 1000
        return min(self._settings.write_s, to_midnight_s)

    async def _round(self) -> None:
        if day_of(self._clock.wall_ms()) != self._day:
            await self.forget()
        await self.write()

    async def write(self) -> None:
        """Writes what was counted since, to the day on which it was counted; what cannot be written waits for the next
        time.
        """
        self._usage.stored(await self._stored())
        self._count()
        for tenant in list(self.waiting):
            try:
                self._life = self._life or await self._store.next_ids(LIVES, at_least=1)
                while writings := self.waiting[tenant]:
                    await self._add(tenant, writings[0])
                    del writings[0]
                del self.waiting[tenant]
            except (MetadataUnavailable, OutcomeUnknown) as error:  # so would the others
                log.warning("usage.waits", extra={"tenants": len(self.waiting), "error": str(error)})
                return
            except HeliographError as error:
                log.warning("usage.waits", extra={"tenant": tenant, "error": str(error)})

    def _count(self) -> None:
        """Makes a writing of each tenant's difference. With the same day of one that was not begun it is one."""
        now, day = self._clock.monotonic(), self._day
        elapsed_s, self._counted_at, self._day = now - self._counted_at, now, day_of(self._clock.wall_ms())
        for tenant, row in self._usage.rows().items():
            told = self._told.get(tenant, {})
            added = {name: row[name] - told.get(name, 0) for name in COUNTED} | {
                STORED: int(row["storage_bytes"] * elapsed_s)
            }
            if not any(added.values()):
                continue
            self._told[tenant] = row
            waiting = self.waiting.setdefault(tenant, [])
            if (
                len(waiting) > 1 and waiting[-1].day == day
            ):  # the first may be stored, without our knowing: it stays as it is
                added = {name: value + waiting[-1].added[name] for name, value in added.items()}
                del waiting[-1]
            self._number += 1
            waiting.append(_Writing(day, self._number, added))

    async def _add(self, tenant: str, writing: _Writing) -> None:
        """Raises HeliographError where it is not known to be stored."""
        key, number = f"{DAYS}{writing.day}/{tenant}", self._life << 32 | writing.number
        for _ in range(_TRIES):
            found = await self._store.get(key)
            try:
                before = UsageDay.decode(found[0]) if found is not None else UsageDay()
            except CorruptData as error:
                log.error(
                    "usage.unreadable",
                    extra={"key": key, "error": str(error), "not_added": asdict(UsageDay()) | dict(writing.added)},
                )
                return
            after = before.with_added(writing.added, self._broker, number)
            if after is before:
                return
            try:
                await self._store.put(key, after.encode(), expected=found[1] if found is not None else ABSENT)
                return
            except VersionConflict:  # another broker wrote between
                continue
        raise NotAllowed(f"{key} is written by others all the time")

    async def forget(self) -> None:
        """Removes days beyond `days_kept`. Each broker does; a key that is gone is no error."""
        last = datetime.fromtimestamp(self._expiry.wall_ms() / 1000, UTC) - timedelta(days=self._settings.days_kept)
        try:
            while found := await self._store.range(DAYS, f"{DAYS}{last.strftime('%Y-%m-%d')}"):
                for key, _, _ in found:
                    await self._store.delete(key)
        except HeliographError as error:  # the next midnight tries again
            log.warning("usage.not_removed", extra={"error": str(error)})
