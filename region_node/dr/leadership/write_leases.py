"""WriteLeases: one broker's lease in the global configuration, renewed while there is an active-passive namespace or
subscription.

Is: the shell around `region_node.dr.leadership.write_gates`: grant, register, renew, tell what is obeyed. Isn't: a
rule.
Invariants: the time before a request is sent, by both clocks, is what its success counts from; before anything is
confirmed under a new lease, every leadership was read after it was registered; a broker that stops gives up first and
revokes then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heliograph.kv.metadata_store import MetadataStore, pages_under
from heliograph.model.configuration.kafka_brokers import KafkaBrokerInfo, kafka_broker
from heliograph.model.configuration.leadership import LEADERSHIP, SUBSCRIPTIONS, Leadership, Writer, name_of, writer
from heliograph.model.errors import CorruptData, HeliographError, LeaseLost, MetadataError
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import TaskSet
from region_node.dr.leadership.configuration_age import ConfigurationAge
from region_node.dr.leadership.write_gates import Gate, SubscriptionGate, Writing

log = logging.getLogger("region_node.dr")

LOOK_S = 10.0
"""Between two looks whether the configuration went back, where nothing else is to be told."""
_ROWS = 500
"""After so many leaderships others have their turn."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseSettings:
    """`ttl_ms`: how long a region that is cut off may go on confirming, and so how long a failover waits at most."""

    ttl_ms: int = 6000
    renew_s: float = 1.5
    drift: float = 0.1

    def __post_init__(self) -> None:
        assert 0 < self.renew_s < self.ttl_ms / 1000 * (1 - self.drift) and 0 <= self.drift < 1


class WriteLeases:
    """Keeps the leases of one broker, and the gates that stand and fall with them."""

    def __init__(
        self,
        store: MetadataStore,
        *,
        region: str,
        broker: str,
        clock: Clock,
        url_of: Callable[[str], str],
        beside: Callable[[], Sequence[str] | None] = lambda: None,
        age: ConfigurationAge | None = None,
        settings: LeaseSettings | None = None,
    ) -> None:
        """beside: the brokers that this region has; None: it is not known yet. age: of the configuration, which may go
        back; None: nobody looks.
        """
        self.settings = settings or LeaseSettings()
        self.core = Writing(
            region,
            ttl_s=self.settings.ttl_ms / 1000,
            drift=self.settings.drift,
            now=clock.monotonic,
            wall=self._wall,
            url_of=url_of,
        )
        self.store = store
        self._store, self._region, self._broker, self._clock = store, region, broker, clock
        self._listeners: list[Callable[[str], None]] = []
        self._beside = beside
        self._age = age
        self._aged: Writer | None = None
        self._looked_at = clock.monotonic()
        self._looking: asyncio.Task[None] | None = None
        self._another = False
        self._lease = 0
        self._told: Writer | None = None
        self._kafka: Callable[[], KafkaBrokerInfo | None] = lambda: None
        self._kafka_told: KafkaBrokerInfo | None = None
        self._wake = asyncio.Event()
        self._tasks = TaskSet("the write lease has ended")
        self._stop_watches: list[Callable[[], None]] = []

    def gate(self, namespace: str) -> Gate | None:
        return self.core.gate(namespace)

    def subscription_gate(self, name: str) -> SubscriptionGate | None:
        return self.core.subscription_gate(name)

    @property
    def lease(self) -> int:
        """That of now, under which this broker may put what is to go with it; 0: it has none."""
        return self._lease

    @property
    def registered_as(self) -> str:
        """The last part of this broker's key among the writers of its region; "": it has none now."""
        return f"{self._broker}.{self._lease}" if self._lease and self.core.registered else ""

    def on_change(self, callback: Callable[[str], None]) -> None:
        """Calls back with each name, of a namespace or a subscription, whose leadership has changed since."""
        self._listeners.append(callback)

    def _changed(self, name: str) -> None:
        for callback in self._listeners:
            callback(name)

    def tell_of_kafka(self, kafka: Callable[[], KafkaBrokerInfo | None]) -> None:
        """Other regions are told from now on what `kafka` says of this broker's Kafka listeners, as long as its lease
        lasts; None: it has none.
        """
        self._kafka = kafka

    def tell(self) -> None:
        """Something that others may wait for was done: they hear of it soon."""
        self._wake.set()

    async def start(self) -> None:
        """Returns once every leadership is known, as the copy of the configuration has it."""
        for prefix in (LEADERSHIP, SUBSCRIPTIONS):
            self._stop_watches.append(self._store.watch(prefix, self._heard))
            await self._store.synced(prefix)
        self._tasks.spawn(self._run())

    async def stop(self) -> None:
        """Nothing is confirmed any more; then the lease is given up, so that nobody has to wait for its end."""
        for stop in self._stop_watches:
            stop()
        lease, self._lease = self._lease, 0
        self.core.on_lost()
        await self._tasks.close()
        if lease:
            try:
                async with asyncio.timeout(1.0):
                    await self._store.revoke(lease)
            except (MetadataError, TimeoutError):
                pass  # then it ends by itself

    # -- what is heard -------------------------------------------------------------------------------------------------

    def _heard(self, key: str, value: bytes | None, version: int) -> None:
        name = name_of(key)
        self._apply(name, None if value is None else _read(name, value), version)

    def _apply(self, namespace: str, record: Leadership | None, version: int) -> None:
        if self.core.on_record(namespace, record, version):
            log.info(
                "leadership.changed",
                extra={"namespace": namespace, "active": record and record.active, "state": record and record.state},
            )
            gate = self.core.gate(namespace)
            if gate is not None:
                gate.on_drained = self._wake.set
            self._changed(namespace)
            self._wake.set()

    # -- the lease -----------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        while True:
            if self._lease or self.core.wanted:
                try:
                    await self._keep()
                except LeaseLost:
                    log.warning("write_lease.lost", extra={"broker": self._broker})
                    self.core.on_lost()
                    self._lease, self._told, self._kafka_told = 0, None, None
                    self._subscriptions_changed()
                    continue
                except HeliographError as error:  # the deadline runs on; the next try is a renewal away
                    log.info("write_lease.not_renewed", extra={"broker": self._broker, "error": str(error)})
            try:
                async with asyncio.timeout(self.settings.renew_s):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()

    async def _keep(self) -> None:
        if not self._lease:
            await self._look_back(anew=True)  # first of all: it takes longer than a lease may wait
            sent = self._clock.monotonic(), self._wall()
            self._lease = await self._store.grant(self.settings.ttl_ms)
            self.core.on_renewed(*sent)
        else:
            await self._renew()
        if self._another:
            self.core.on_lost()
            # its number may be another broker's lease by now, which goes on
            for key_of in (writer, kafka_broker):
                await self._store.delete(key_of(self._region, self._broker, self._lease))
            self._another = False
            raise LeaseLost("the configuration is another one")
        if not self.core.registered:
            await self._register(Writer())
            self._subscriptions_changed()
        told = self._now()
        if self.core.crowded:
            await self._register(told)
            told = self._now()
        if told != self._told:
            await self._store.put(writer(self._region, self._broker, self._lease), told.encode(), lease=self._lease)
            self._told = told
        if (kafka := self._kafka()) is not None and kafka != self._kafka_told:
            key = kafka_broker(self._region, self._broker, self._lease)
            await self._store.put(key, kafka.encode(), lease=self._lease)
            self._kafka_told = kafka
        due = told != self._aged or self._clock.monotonic() - self._looked_at >= LOOK_S
        if due and (self._looking is None or self._looking.done()):
            self._looking = self._tasks.spawn(self._look_behind(told))

    async def _look_behind(self, told: Writer) -> None:
        """Beside the renewals. told: what is obeyed, as it was told last."""
        try:
            self._another = await self._look_back(anew=told != self._aged) or self._another
            self._aged = told
        except HeliographError as error:  # the next renewal is followed by another look
            log.info("config.age_not_known", extra={"broker": self._broker, "error": str(error)})
        if self._another:
            self._wake.set()

    async def _look_back(self, *, anew: bool) -> bool:
        """Whether the configuration went back, or was restored: then it is read anew, under another lease, and nothing
        of what was heard before counts.
        """
        self._looked_at = self._clock.monotonic()
        if self._age is None or not await self._age.look(anew=anew):
            return False
        self.core.forget_versions()
        return True

    async def _renew(self) -> None:
        sent = self._clock.monotonic(), self._wall()
        await self._store.renew(self._lease)
        self.core.on_renewed(*sent)

    def _wall(self) -> float:
        return self._clock.wall_ms() / 1000

    def _now(self) -> Writer:
        beside = self._beside()
        return self.core.obeyed(None if beside is None else tuple(sorted(beside)))

    async def _register(self, told: Writer) -> None:
        """From here on nobody flips a namespace without this broker; what was flipped before is read behind it, to the
        end; the lease is renewed meanwhile, however long that takes. told: what it obeys so far.
        """
        renewed_at = self._clock.monotonic()
        since = await self._store.put(writer(self._region, self._broker, self._lease), told.encode(), lease=self._lease)
        known: dict[str, None] = {}
        for prefix in (LEADERSHIP, SUBSCRIPTIONS):
            async for rows in pages_under(self._store, prefix):
                for count, (key, value, version) in enumerate(rows, 1):
                    name = name_of(key)
                    known[name] = None
                    if self.core.heard(name) < version:
                        self._apply(name, _read(name, value), version)
                    if not count % _ROWS:
                        await asyncio.sleep(0)
                if self._clock.monotonic() - renewed_at >= self.settings.renew_s:
                    renewed_at = self._clock.monotonic()
                    await self._renew()
        self.core.on_registered(since, known)
        self._told = None

    def _subscriptions_changed(self) -> None:
        for gate in self.core.subscription_gates():
            self._changed(gate.namespace)


def _read(name: str, value: bytes) -> Leadership:
    """What cannot be read is nobody's to confirm."""
    try:
        return Leadership.decode(value)
    except CorruptData as error:
        log.error("leadership.unreadable", extra={"namespace": name, "error": str(error)})
        return Leadership(active="", epoch=0)
