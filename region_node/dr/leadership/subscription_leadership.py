"""SubscriptionLeadership: subscriptions that are active in one region at a time, as this broker has them.

Is: which of its subscriptions have a leadership, or shall have one (policy `oneRegionSubscriptions`); what a change
means for their consumers, and for Kafka groups, whose position in a topic is a subscription of it; taking over from a
region that is lost. Isn't: the rule (`region_node.dr.leadership.write_gates.SubscriptionGate`), how a leadership may
change (`region_node.dr.leadership.leadership_changes`), or a command.
Invariants: a subscription with a leadership replicates what is acknowledged; where the leadership is elsewhere its
consumers stay connected and get nothing; when it is taken away here its consumers are closed, so that what they hold
goes out again where it is now; only a region in which consumers wait takes over, and only once no broker of the active
region has had a lease for `lost_after_s`, or that region has left the namespace, or has deleted the subscription; and
never before every broker has heard that there is a leadership. Once every region has deleted it the leadership ends.
Source: docs/protocols/leadership.md, "Subscriptions in one region".
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.configuration.leadership import FENCED, OPEN, namespace_of, subscription_name
from heliograph.model.errors import HeliographError, NotAllowed, NotFound
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock
from heliograph.runtime.every import every
from heliograph.runtime.task_set import TaskSet
from local_meta.keys import cursor, managed_ledger
from region_node.dr.leadership.leadership_changes import Switching, closing, unheard_text
from region_node.dr.leadership.lease_holders import LeaseHolders
from region_node.dr.leadership.write_gates import SubscriptionGate
from region_node.dr.leadership.write_leases import WriteLeases
from region_node.replication.replicated_subscriptions import replicate
from region_node.runtime.cursor_ports import LeadershipPort
from region_node.runtime.prometheus_text import Sample
from region_node.subscriptions.subscription import Subscription
from region_node.topics.serving.loaded_topics import TopicsHere
from region_node.topics.topic import Topic

log = logging.getLogger("region_node.dr")

_ASKED_S = 15.0
"""A group that was turned away here waits as long as it has asked again within this time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriptionLeadershipSettings:
    """`lost_after_s`: without any lease for so long the active region is lost, and a region where consumers wait takes
    over.
    """

    look_s: float = 1.0
    lost_after_s: float = 5.0

    def __post_init__(self) -> None:
        assert self.look_s > 0 and self.lost_after_s >= 0


class Unmade:
    """It shall be active in one region, and nobody has said yet in which."""

    open = False

    def waiting(self) -> str:
        return "the global configuration has not said yet in which region it is active"

    def deleted(self) -> None:
        """There is nothing that ends."""


_UNMADE = Unmade()


def _parts(name: str) -> tuple[str, str]:
    """A leadership's name -> the topic, and the subscription."""
    topic, _, subscription = name.rpartition("/")
    return topic, subscription


class SubscriptionLeadership:
    """Keeps the leaderships of the subscriptions that one broker has loaded, from `start` until `stop`."""

    def __init__(
        self,
        leases: WriteLeases,
        store: MetadataStore,
        topics: TopicsHere,
        *,
        meta: MetadataStore,
        region: str,
        clock: Clock,
        settings: SubscriptionLeadershipSettings | None = None,
    ) -> None:
        self.settings = settings or SubscriptionLeadershipSettings()
        self.switching = Switching(store, clock.wall_ms)
        self.taken_over = 0
        self._leases, self._store, self._topics, self._region, self._clock = leases, store, topics, region, clock
        self._meta = meta
        self._holders = LeaseHolders(store, self._came)
        self._lost_since: dict[str, float] = {}
        """Region without any -> since when, in the clock's monotonic seconds."""
        self._had: dict[str, None] = {}
        """Whose leadership was here when it last changed."""
        self._unmade: dict[str, None] = {}
        self._asked: dict[str, float] = {}
        """Of groups that were turned away here -> when they asked last, in the clock's monotonic seconds."""
        self._counts: list[Callable[[str], int]] = []
        self._tasks = TaskSet("turns of subscriptions has ended")

    async def start(self) -> None:
        await self._holders.start()
        for gate in self._leases.core.subscription_gates():  # heard before there was anything to do about it
            self.changed(gate.namespace)
        self._tasks.spawn(every(self.settings.look_s, self._look))

    async def stop(self) -> None:
        self._holders.stop()
        await self._tasks.close()

    # -- what subscriptions ask ----------------------------------------------------------------------------------------

    def of(self, topic: TopicName, subscription: str, wanted: bool) -> LeadershipPort | None:
        """wanted: by policy. None: it may be active in every region."""
        name = subscription_name(str(topic.partitioned), subscription)
        gate = self._leases.subscription_gate(name)
        if gate is not None or not wanted:
            return gate
        self._unmade[name] = None
        return _UNMADE

    def waits(self, topics: Iterable[TopicName], subscription: str) -> str:
        """Why nobody may work on this subscription of these topics (no partitions) here now; "": they may. Who asks is
        taken for a consumer that waits.
        """
        told = ""
        for topic in topics:
            gate = self.of(topic, subscription, self._topics.policies.of(topic).on("oneRegionSubscriptions"))
            if gate is None:
                continue
            name = subscription_name(str(topic.partitioned), subscription)
            if why := gate.waiting():
                self._asked[name] = self._clock.monotonic()
                told = told or f"{topic}: {why}"
            else:
                self._asked.pop(name, None)
        return told

    def count(self, held: Callable[[str], int]) -> None:
        """From now on what `held` says of a subscription is outstanding here beside what its consumers have."""
        self._counts.append(held)

    def changed(self, name: str) -> None:
        """The leadership of that name is another's, is being moved, or there is none any more."""
        topic, _, subscription = name.rpartition("/")
        gate = self._leases.subscription_gate(name)
        if gate is not None:
            gate.outstanding = lambda: (
                sum(found.held for _, found in self._here(topic, subscription)) + self._counted(subscription)
            )
        had, has = name in self._had, gate is None or gate.leads
        if gate is not None and has:
            self._had[name] = None
        else:
            self._had.pop(name, None)
        for loaded, found in self._here(topic, subscription):
            if gate is not None:
                replicate(loaded, found)
            if not has and had:
                found.disconnect()
            loaded.obey_leadership(found)

    def _counted(self, subscription: str) -> int:
        return sum(held(subscription) for held in self._counts)

    def _here(self, topic: str, subscription: str) -> Iterator[tuple[Topic, Subscription]]:
        try:
            wanted = TopicName.parse(topic)
        except NotAllowed:
            return  # somebody else's key
        topics = self._topics
        for name in (wanted, *(wanted.with_partition(index) for index in range(topics.view.partitions(topic)))):
            loaded = topics.loaded.get(str(name))
            if loaded is not None and (found := loaded.subscriptions.get(subscription)) is not None and found.durable:
                yield loaded, found

    # -- who is there --------------------------------------------------------------------------------------------------

    def _came(self, region: str) -> None:
        self._lost_since.pop(region, None)

    def _lost(self, region: str) -> bool:
        if self._holders.there(region):
            return False
        now = self._clock.monotonic()
        return now - self._lost_since.setdefault(region, now) >= self.settings.lost_after_s

    async def _look(self) -> None:
        if any(
            gate.record is not None and gate.record.state != OPEN and gate.active
            for gate in self._leases.core.subscription_gates()
        ):
            self._leases.tell()  # what was handed out may have been acknowledged meanwhile
        for known in self._leases.core.subscription_gates():
            topic, _, subscription = known.namespace.rpartition("/")
            for loaded, found in self._here(topic, subscription):
                if not found.replicated:
                    replicate(loaded, found)
                found.tell_leadership()  # the lease may have ended, or have come
        await self._end()
        for name, gate in self._waiting().items():
            try:
                await self._take(name, gate)
            except HeliographError as error:  # the next round looks again
                log.info("turn.waits", extra={"subscription": name, "error": str(error)})

    async def _end(self) -> None:
        """Says whether this region has a subscription that some region has deleted. The metadata is asked, not
        what is loaded here: its topics may be another broker's.
        """
        marked = {gate.namespace: gate for gate in self._leases.core.subscription_gates() if self._asked_for(gate)}
        for name in {**self._leases.core.deleted, **marked}:
            gate = self._leases.subscription_gate(name)
            try:
                if gate is not None and gate.record is not None:
                    regions, gone = self.regions_of(name), not await self._has(name)
                    if gone != (self._region in gate.record.gone):
                        await self.switching.mark_gone(name, self._region, regions, gone=gone)
                self._leases.core.deleted.pop(name, None)
            except NotFound:
                self._leases.core.deleted.pop(name, None)  # somebody has ended it, or its namespace
            except HeliographError as error:  # the next round looks again
                log.info("turn.waits", extra={"subscription": name, "error": str(error)})

    def _asked_for(self, gate: SubscriptionGate) -> bool:
        """Whether others have deleted it and this region has not said whether it has it; or it has it again."""
        gone = () if gate.record is None else gate.record.gone
        return bool(gone) and (self._region not in gone or any(self._here(*_parts(gate.namespace))))

    async def _has(self, name: str) -> bool:
        """Whether the subscription is stored in this region, of any partition. Raises MetadataUnavailable."""
        topic, subscription = _parts(name)
        wanted = TopicName.parse(topic)
        partitions = range(self._topics.view.partitions(topic))
        for one in (wanted, *(wanted.with_partition(index) for index in partitions)):
            if await self._meta.get(cursor(str(one), subscription)) is not None:
                return True
        return False

    def _waiting(self) -> dict[str, SubscriptionGate | None]:
        """Subscriptions that have consumers here which get nothing because of a leadership. None: it was never made."""
        found: dict[str, SubscriptionGate | None] = {}
        asked_before = self._clock.monotonic() - _ASKED_S
        for gone in [name for name, asked in self._asked.items() if asked < asked_before]:
            del self._asked[gone]
            if not any(self._here(*_parts(gone))):
                self._unmade.pop(gone, None)
        for name in [
            *self._unmade,
            *(gate.namespace for gate in self._leases.core.subscription_gates() if not gate.open),
        ]:
            gate = self._leases.subscription_gate(name)
            if gate is not None:
                self._unmade.pop(name, None)
            topic, _, subscription = name.rpartition("/")
            if name in self._asked or any(there.consumers for _, there in self._here(topic, subscription)):
                found[name] = gate
        return found

    async def _exists(self, topic: str) -> bool:
        """Whether this region has the topic, partitioned or not. Raises MetadataUnavailable."""
        return (
            topic in self._topics.loaded
            or self._topics.view.partitions(topic) > 0
            or await self._meta.get(managed_ledger(topic)) is not None
        )

    async def _take(self, name: str, gate: SubscriptionGate | None) -> None:
        if gate is None:
            if await self._exists(_parts(name)[0]):
                await self.switching.begin(name, self._region, {})
            else:  # a member may name what it likes; it asks again
                self._unmade.pop(name, None)
            return
        record = gate.record
        if record is None or (gate.active and record.state == OPEN):
            return
        regions = self.regions_of(name)
        if record.active in regions and record.active not in record.gone and not self._lost(record.active):
            return
        if left := await self.switching.settle(name, regions):
            log.info("turn.waits", extra={"subscription": name, "for": unheard_text(left)})
            return
        to = record.to or self._region
        if record.state != FENCED:
            await self.switching.change(
                name, lambda old: closing(old, to, FENCED, self._clock.wall_ms()) if old == record else old
            )
        new, waits = await self.switching.flip(name, to, regions=regions)
        if new is not None:
            self.taken_over += 1
            log.warning(
                "subscription.taken_over",
                extra={"subscription": name, "from": record.active, "to": new.active, "epoch": new.epoch},
            )
        else:
            log.info("turn.waits", extra={"subscription": name, "for": waits})

    def regions_of(self, name: str) -> Sequence[str]:
        """Whose brokers have to hear of the leadership. Raises NotFound: its namespace does not exist."""
        namespace = namespace_of(name)
        policies = self._topics.view.namespace(namespace)
        if policies is None:
            raise NotFound(f"namespace {namespace} does not exist")
        return policies.regions

    # -- what people ask -----------------------------------------------------------------------------------------------

    def known(self, name: str) -> bool:
        """Whether this broker has heard of it."""
        return self._leases.subscription_gate(name) is not None

    def status(self, namespace: str) -> list[dict[str, Any]]:
        """Returns a row for each subscription with a leadership in the namespace, by name, as this broker knows it.
        consumers: those connected here, members of Kafka groups that work here among them.
        """
        out = []
        for gate in self._leases.core.subscription_gates():
            topic, _, subscription = gate.namespace.rpartition("/")
            if TopicName.parse(topic).namespace == namespace:
                consumers = sum(len(found.consumers) for _, found in self._here(topic, subscription)) + self._counted(
                    subscription
                )
                out.append({"topic": topic, "subscription": subscription, **gate.status(), "consumers": consumers})
        return out

    def samples(self) -> Iterator[Sample]:
        for gate in self._leases.core.subscription_gates():
            topic, _, subscription = gate.namespace.rpartition("/")
            labels = {"cluster": self._region, "topic": topic, "subscription": subscription}
            yield "heliograph_subscription_active", "gauge", labels, float(gate.active)
            yield "heliograph_subscription_epoch", "gauge", labels, gate.record.epoch if gate.record is not None else 0
        yield "heliograph_subscriptions_taken_over_total", "counter", {"cluster": self._region}, self.taken_over
