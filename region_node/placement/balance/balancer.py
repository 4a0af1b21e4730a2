"""Balancer: reports what this broker carries, sees what the others do, says where bundles go, and, where it leads, has
bundles moved.

Is: the shell: the load report under the broker's lease, one leader among the brokers (a key under its lease) that runs
the shedder, and the calls of `Ownership.transfer`. Isn't: on the way of a lookup: without a leader nothing is shed, and
all else goes on.
Invariants: a report is written at most every `report_s`, and only where it says something new; the leader acts on
reports that are not older than three of them; while /balance/paused stands nothing moves; a bundle that its broker may
not serve is moved before anything is shed.
Source: docs/protocols/balancing.md.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Protocol

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.bundles import BundleTable
from heliograph.model.errors import CorruptData, HeliographError, VersionConflict
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from local_meta import keys
from region_node.placement.balance.balance_book import BalanceBook
from region_node.placement.balance.bundle_divider import BundleDivider
from region_node.placement.balance.bundle_quotas import QuotaBook
from region_node.placement.balance.bundle_splitting import Splitter
from region_node.placement.balance.load_report import CONNECTIONS, HELD_MAX, MEMORY, LoadReport, Pause
from region_node.placement.balance.load_score import BundleTraffic, LoadBook
from region_node.placement.balance.load_shedding import BrokerLoad, Bundle, Move, Shedder
from region_node.placement.balance.settings import BalanceSettings
from region_node.placement.isolation.broker_isolation import together
from region_node.placement.ownership.broker_records import BrokerRecord

log = logging.getLogger("region_node.balance.service")

_CHANGE = 0.02
"""A load that differs by so much is news."""
_STALE_REPORTS = 3
_SAY_AGAIN = 6
"""Reports without news between two that are written all the same."""
_RECENT = 50


class Mover(Protocol):
    """The part of Ownership that is used."""

    async def transfer(self, namespace: str, bundle: int, to: str) -> bool: ...

    def brokers(self) -> Sequence[BrokerRecord]: ...

    def misplaced(self) -> list[tuple[Bundle, str]]: ...

    def permitted(self, bundle: Bundle) -> Sequence[str]: ...

    def owned(self) -> list[Bundle]: ...

    def bundles(self, namespace: str) -> BundleTable | None: ...

    @property
    def lease(self) -> int: ...


class Gauge(Protocol):
    """What this broker measures of itself."""

    def used(self) -> dict[str, float]:
        """Shares of what there is (1.0 is all), since the last call: `cpu` of one core, `memory`, `connections`."""

    async def traffic(self) -> tuple[Mapping[Bundle, BundleTraffic], tuple[float, float]]:
        """Returns what each owned bundle carried since the last call; and bytes/s (in, out) of all."""


class Balancer:
    def __init__(
        self,
        *,
        broker: str,
        mover: Mover,
        meta: MetadataStore,
        gauge: Gauge,
        book: BalanceBook,
        settings: BalanceSettings | None = None,
        divider: BundleDivider | None = None,
        quotas: QuotaBook | None = None,
        upkeep: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """book: kept from here, and asked by who needs it before this is made. divider: by which bundles above their
        limits are split; None: none are. quotas: what is set aside for bundles; it is started and stopped here.

        upkeep: of the region, by whoever leads, each cycle that is not paused.
        """
        self._upkeep = upkeep
        self.settings = settings or BalanceSettings()
        self.divider, self.quotas = divider, quotas
        self.broker = broker
        self.book, self.reports = book, book.reports
        self.leader = ""
        self.moves = 0
        """That this broker had made while it led."""
        self.failures = 0
        """Moves that it wanted and did not get."""
        self.recent: deque[dict[str, Any]] = deque(maxlen=_RECENT)
        """Both, the newest last: at_ms, namespace, bundle, from, to, load, moved."""
        self._mover, self._meta, self._gauge, self._clock, self._rng = mover, meta, gauge, book.clock, book.rng
        self._carried = LoadBook()
        self._heard: dict[str, float] = {}
        self._since: dict[str, float] = {}
        """Since when this broker, leading, has known each of them."""
        self._seen_in: dict[Bundle, float] = {}
        """The load that whoever had a bundle last saw in it; those worth naming."""
        self._shedder = Shedder(self.settings.shedding, book.rng)
        self._splitter = Splitter(self.settings.split)
        self._written: LoadReport | None = None
        self._unwritten = 0
        self._tasks = TaskSet("balancing has ended")
        self._stops: list[Callable[[], None]] = []

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._stops = [self._meta.watch(keys.LOADS, self._on_load), self._meta.watch(keys.BALANCE, self._on_balance)]
        if self.quotas is not None:
            self.quotas.start()
            self._stops.append(self.quotas.stop)
        self._tasks.spawn(self._report_on())
        self._tasks.spawn(
            every(
                lambda: self.settings.cycle_s * self._rng.uniform(0.95, 1.05),
                self._lead,
                failed=lambda error: log.warning("balance.cycle_failed", extra={"error": str(error)}),
            )
        )

    async def stop(self) -> None:
        for stop in self._stops:
            stop()
        await self._tasks.close()

    # -- answers ------------------------------------------------------------------------------------------------------

    async def set_pause(self, by: str, seconds: float) -> None:
        """Nothing is shed in this region for so long; 0 ends an earlier pause. Raises MetadataUnavailable."""
        if seconds <= 0:
            await self._meta.delete(keys.BALANCE_PAUSED)
        else:
            await self._meta.put(keys.BALANCE_PAUSED, Pause(by, self._clock.wall_ms() + int(seconds * 1000)).encode())

    # -- reports ------------------------------------------------------------------------------------------------------

    async def _report_on(self) -> None:
        self._gauge.used()
        await self._gauge.traffic()
        await every(
            lambda: self.settings.report_s * self._rng.uniform(0.9, 1.1),
            self._report,
            failed=lambda error: log.warning("balance.report_failed", extra={"error": str(error)}),
        )

    async def _report(self) -> None:
        used = self._gauge.used()
        traffic, (bytes_in_s, bytes_out_s) = await self._gauge.traffic()
        most = self.settings.network_mb_s * 1e6
        used |= {"network_in": bytes_in_s / most, "network_out": bytes_out_s / most}
        for bundle in traffic:
            if bundle not in self._carried:
                self._carried.comes(bundle, self._seen_in.get(bundle))
        reserved = (
            {bundle: share for bundle in self._mover.owned() if (share := self.quotas.share(bundle))}
            if self.quotas is not None
            else {}
        )
        work = {name: share for name, share in used.items() if name != MEMORY}
        most_used = max(work, key=lambda name: work[name])
        carried = self._carried.sample(
            self._clock.monotonic(), work[most_used], traffic, reserved, by_sessions=most_used == CONNECTIONS
        )
        report = LoadReport(
            carried, self._clock.wall_ms(), len(traffic), {name: round(share, 4) for name, share in used.items()}
        )
        self._unwritten += 1
        await self._split_on(traffic, carried)
        if self._written is not None and self._unwritten < _SAY_AGAIN and not _news(self._written, report):
            return
        if self._mover.lease:
            await self._meta.put(keys.load(self.broker), report.encode(), lease=self._mover.lease)
            self._written, self._unwritten = report, 0

    async def _split_on(self, traffic: Mapping[Bundle, BundleTraffic], carried: BrokerLoad) -> None:
        """Bundles of this broker that are above their limits; a pause holds this, too."""
        if self.divider is None or self.book.paused:
            return
        due = self._splitter.due(traffic, dict(carried.bundles), self._count, self._clock.monotonic())
        for bundle, way, reason in due:
            self._splitter.done(bundle, self._clock.monotonic())
            where = {"namespace": bundle[0], "bundle": bundle[1], "way": way, "reason": reason}
            try:
                self._carried.divided(bundle, await self.divider.split(bundle, way))
            except HeliographError as error:
                log.info("balance.split_refused", extra={**where, "error": str(error)})
            else:
                log.info("balance.split", extra=where)

    def _count(self, namespace: str) -> int:
        table = self._mover.bundles(namespace)
        return table.count if table is not None else 0

    def _on_load(self, key: str, value: bytes | None, version: int) -> None:
        broker = keys.id_of(key)
        if value is None:
            self.reports.pop(broker, None)
            self._heard.pop(broker, None)
            return
        try:
            report = LoadReport.decode(value)
        except CorruptData as error:  # of a newer version: it is placed and shed by that one's brokers
            log.warning("balance.report_unknown", extra={"broker": broker, "error": str(error)})
            return
        self.reports[broker], self._heard[broker] = report, self._clock.monotonic()
        self._seen_in.update(report.carried.bundles)

    # -- the leader ---------------------------------------------------------------------------------------------------

    def _on_balance(self, key: str, value: bytes | None, version: int) -> None:
        if key == keys.BALANCE_LEADER:
            self.leader = value.decode() if value is not None else ""
        elif key == keys.BALANCE_PAUSED:
            try:
                self.book.pause = Pause.decode(value) if value is not None else None
            except CorruptData as error:
                log.warning("balance.pause_unknown", extra={"error": str(error)})

    async def _lead(self) -> None:
        if self.settings.enabled and await self._leads() and not self.book.paused:
            await self._cycle()
            if self._upkeep is not None:
                await self._upkeep()

    async def _cycle(self) -> None:
        misplaced = self._mover.misplaced()
        self._rng.shuffle(misplaced)  # one that cannot move holds nobody up
        for bundle, source in misplaced[: self.settings.misplaced_per_cycle]:
            if permitted := self._mover.permitted(bundle):
                await self._move(
                    Move(bundle, source, self.book.place(permitted, bundle), self._seen_in.get(bundle, 0.0))
                )
        known = self._known()
        pinned = {bundle: self._mover.permitted(bundle) for carried in known.values() for bundle, _ in carried.bundles}
        full = {name for name in known if self.reports[name].held > HELD_MAX}
        for group in together(
            known, pinned.values()
        ):  # the average of brokers between which nothing may move says nothing
            for move in self._shedder.plan(
                {name: known[name] for name in group}, self._clock.monotonic(), pinned, full
            ):
                await self._move(move)

    async def _leads(self) -> bool:
        if not self.leader and self._mover.lease:
            try:
                await self._meta.put(keys.BALANCE_LEADER, self.broker.encode(), expected=-1, lease=self._mover.lease)
            except VersionConflict:
                return False
            self.leader = self.broker
            log.info("balance.leads", extra={"broker": self.broker})
        return self.leader == self.broker

    def _known(self) -> dict[str, BrokerLoad]:
        """Returns what each broker that has spoken lately carries; who is silent is neither relieved nor filled. {}
        while a new one is still to speak.
        """
        now = self._clock.monotonic()
        self._since = {record.broker: self._since.get(record.broker, now) for record in self._mover.brokers()}
        if any(
            name not in self.reports and now - at < _STALE_REPORTS * self.settings.report_s
            for name, at in self._since.items()
        ):
            return {}
        oldest = now - _STALE_REPORTS * _SAY_AGAIN * self.settings.report_s
        return {name: report.carried for name, report in self.reports.items() if self._heard[name] >= oldest}

    async def _move(self, move: Move) -> None:
        (namespace, index), moved = move.bundle, False
        if self.book.paused:
            self._shedder.undone(move)
            return
        try:
            moved = await self._mover.transfer(namespace, index, move.to)
        except HeliographError as error:
            log.warning(
                "balance.move_failed",
                extra={"namespace": namespace, "bundle": index, "to": move.to, "error": str(error)},
            )
        row = {
            "at_ms": self._clock.wall_ms(),
            "namespace": namespace,
            "bundle": index,
            "from": move.source,
            "to": move.to,
            "load": move.load,
            "moved": moved,
        }
        self.recent.append(row)
        if not moved:
            self.failures += 1
            self._shedder.undone(move)
            return
        self.moves += 1
        log.info(
            "balance.moved",
            extra={
                "namespace": namespace,
                "bundle": index,
                "from": move.source,
                "to": move.to,
                "load": round(move.load, 3),
            },
        )
        self._moved(move)

    def _moved(self, move: Move) -> None:
        """Until both have reported anew, what they said is read as if they had."""
        for name, sign in ((move.source, -1), (move.to, 1)):
            if (report := self.reports.get(name)) is not None:
                bundles = [(b, load) for b, load in report.carried.bundles if b != move.bundle]
                carried = BrokerLoad(
                    max(0.0, report.carried.load + sign * move.load), bundles + [(move.bundle, move.load)] * (sign > 0)
                )
                self.reports[name] = LoadReport(carried, report.at_ms, report.bundles + sign, report.used)


def _news(before: LoadReport, after: LoadReport) -> bool:
    if (
        max(abs(before.carried.load - after.carried.load), abs(before.held - after.held)) >= _CHANGE
        or before.bundles != after.bundles
    ):
        return True
    known = dict(before.carried.bundles)
    return any(abs(load - known.get(bundle, 0.0)) >= _CHANGE for bundle, load in after.carried.bundles)
