"""LeadingRegions: which region leads a namespace, under which leader epoch, and which brokers the others have.

Is: leadership of namespaces in Kafka's terms, and what brokers tell each other's regions of themselves in the global
configuration. Isn't: who may publish (`region_node.dr.leadership.write_gates`), or who owns what in this region
(`kafka_cluster`).
Invariants: in an active-passive namespace the active region alone leads; a namespace's leader epoch never falls, and
rises whenever another region leads, and whenever every region does again: an offset is one of the leader epoch that it
was given under. A namespace that was never active-passive has leader epoch 0.
Of other regions nothing is shown but brokers that read names of topics as this one does, and beside leaders only those
of regions that the listener's namespace is in: clients sign in wherever they are led.
What is kept of a namespace goes with it, in memory and in the region's metadata.
Bounds: BROKERS_A_REGION of another region are shown, `remote_brokers` says how many are kept; TOLD_BYTES are told of
one broker; LED_KEPT leader epochs of a namespace.
Source: docs/protocols/kafka.md, "Active-passive namespaces".

    /kafka/led/{namespace}  ->  the newest leader epochs under which this region led, as JSON
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, unquote

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.bundles import BundleTable
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.configuration.kafka_brokers import KAFKA_BROKERS, KafkaBrokerInfo, region_of
from heliograph.model.configuration.leadership import EPOCHS_IN_MS, EPOCHS_IN_MS_STEP, Leadership, is_subscription
from heliograph.model.errors import CorruptData, HeliographError
from heliograph.model.topic_names import topic_hash
from heliograph.runtime.task_set import TaskSet
from region_node.faces.kafka.cluster.kafka_nodes import KafkaNode, node_of, number_in_instance
from region_node.faces.kafka.cluster.remote_brokers import RemoteBroker, RemoteBrokers
from region_node.faces.kafka.error_codes import Code, Refused

log = logging.getLogger("region_node.kafka")

BROKERS_A_REGION = 16
"""So many of another region's brokers are shown beside those that lead what was asked for."""
TOLD_BYTES = 128 << 10
"""So much is told of what a broker owns; of topics that are left out clients are led to any broker of the region."""
SETTLES_S = 5.0
"""So long behind a move nobody joins a group: positions of groups follow to another region within some seconds."""
LED = "/kafka/led/"
LED_KEPT = 64
"""Leader epochs of a namespace; an offset from an earlier one is not known any more for one of this region's."""
_FIRST_MS = 1_577_836_800_000
"""The beginning of 2020: no configuration was restored before."""


class NamespaceGate(Protocol):
    """`region_node.dr.leadership.write_gates.Gate`, as clients of Kafka's are led by it."""

    @property
    def record(self) -> Leadership | None: ...

    @property
    def active(self) -> bool: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LeadershipPorts:
    """Where leadership is known from. `gate`: of a namespace that is active-passive, else None. `names`: of those
    namespaces. `ended`: the last epoch of a namespace's leadership that has ended, else 0. `on_change`: calls back with
    each name whose leadership has changed. `namespace`: the listener's own. `regions`: of a namespace, as its policies
    have them; none: there is no such namespace. `config`, `meta`: the configuration, and the region's metadata.
    `now`: the clock's monotonic seconds.
    """

    gate: Callable[[str], NamespaceGate | None]
    names: Callable[[], Iterable[str]]
    ended: Callable[[str], int]
    on_change: Callable[[Callable[[str], None]], None]
    namespace: str
    regions: Callable[[str], Collection[str]]
    config: MetadataStore
    meta: MetadataStore
    now: Callable[[], float]


def leader_epoch(epoch: int, *, led: bool) -> int:
    """An epoch of a leadership as Kafka's clients are given it, in an int32. led: it lasts; else it has ended, which is
    one more. Epochs above EPOCHS_IN_MS are the clock's milliseconds at a restore, and rise by EPOCHS_IN_MS_STEP.
    """
    if not epoch:
        return 0
    if epoch >= EPOCHS_IN_MS:
        epoch = EPOCHS_IN_MS + max(0, epoch - _FIRST_MS) // EPOCHS_IN_MS_STEP
    return 2 * epoch + (not led)


class LeadingRegions:
    """As one broker knows them. `local_number`: the broker's in its region."""

    def __init__(
        self,
        region: str,
        number: int,
        info: Callable[[str], RegionInfo | None],
        ports: LeadershipPorts | None = None,
    ) -> None:
        """info: of a region, by name. ports: None where no namespace is active-passive."""
        self._region, self.local_number, self._info, self._ports = region, number, info, ports
        self._told = RemoteBrokers()
        self._led: dict[str, set[int]] = {}
        """Namespace -> the leader epochs under which this region led."""
        self._led_at: dict[str, tuple[int, int]] = {}
        """Namespace -> (the newest of these epochs that is stored, since which version of the metadata)."""
        self._since: dict[str, tuple[int, float]] = {}
        """Namespace -> (its leader epoch, when it was heard of)."""
        self._began: dict[str, tuple[int, float]] = {}
        """Namespace -> (the leader epoch in which it became active-passive last, when that was heard of)."""
        self._listeners: list[Callable[[str], None]] = []
        self._stops: list[Callable[[], None]] = []
        self._tasks = TaskSet("telling which leader epochs this region had has ended")

    async def start(self) -> None:
        """Returns once the brokers of all regions are known, as the copy of the configuration has them, and which
        leader epochs this region had.
        """
        if (ports := self._ports) is None:
            return
        self._stops.append(ports.config.watch(KAFKA_BROKERS, self._heard))
        self._stops.append(ports.meta.watch(LED, self._heard_led))
        await ports.config.synced(KAFKA_BROKERS)
        await ports.meta.synced(LED)
        for namespace in ports.names():
            self._since[namespace] = self.epoch(namespace), float("-inf")
            self._note_beginning(namespace, float("-inf"))
            self._lead(namespace)
        ports.on_change(self._changed)

    async def close(self) -> None:
        for stop in self._stops:
            stop()
        await self._tasks.close()

    def _heard(self, key: str, value: bytes | None, _version: int) -> None:
        region = region_of(key)
        self._told.remove(key)
        if value is None or region == self._region:
            return
        assert self._ports is not None
        try:
            info = KafkaBrokerInfo.decode(value)
            if info.namespace != self._ports.namespace:
                log.info("kafka.broker_of_another_namespace", extra={"key": key, "namespace": info.namespace})
            else:
                self._told.put(key, info, len(value))
        except CorruptData as error:
            log.warning("kafka.broker_not_read", extra={"key": key, "error": str(error)})

    # -- numbers -------------------------------------------------------------------------------------------------------

    @property
    def number(self) -> int:
        """This broker's, which no other one of the instance has."""
        return self._in_instance(self.local_number)

    def _in_instance(self, number: int) -> int:
        found = self._info(self._region)
        return number_in_instance(1 if found is None else found.number, number)

    def node(self, listeners: Mapping[str, str], tls: bool) -> KafkaNode | None:
        """The node that a broker of this region with these listeners is. None: it has no such listener."""
        found = node_of(listeners, tls)
        return found and KafkaNode(self._in_instance(found.number), found.host, found.port)

    def _node(self, told: RemoteBroker, tls: bool) -> KafkaNode | None:
        """None: it has no such listener, or nobody knows its region, and so its number, any more."""
        found, region = told.nodes[tls], self._info(told.region)
        if found is None or region is None:
            return None
        return KafkaNode(number_in_instance(region.number, found.number), found.host, found.port)

    # -- who leads -----------------------------------------------------------------------------------------------------

    def _gate(self, namespace: str) -> NamespaceGate | None:
        return None if self._ports is None else self._ports.gate(namespace)

    def active_passive(self, namespace: str) -> bool:
        return self._gate(namespace) is not None

    def elsewhere(self, namespace: str) -> str:
        """The other region that leads the namespace; "": this one does, or every one."""
        gate = self._gate(namespace)
        return "" if gate is None or gate.record is None or gate.active else gate.record.active

    def epoch(self, namespace: str) -> int:
        """The leader epoch of all partitions in the namespace."""
        if self._ports is None:
            return 0
        gate = self._ports.gate(namespace)
        if gate is None or gate.record is None:
            return leader_epoch(self._ports.ended(namespace), led=False)
        return leader_epoch(gate.record.epoch, led=True)

    def check(self, namespace: str, epoch: int = -1) -> None:
        """Whether clients that know the leader epoch `epoch` (-1: they say none) read here. Raises Refused: they ask
        for metadata again.
        """
        if region := self.elsewhere(namespace):
            raise Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{namespace} is active in region {region}")
        own = self.epoch(namespace)
        if own and 0 <= epoch != own:
            code = Code.FENCED_LEADER_EPOCH if epoch < own else Code.UNKNOWN_LEADER_EPOCH
            raise Refused(code, f"the leader epoch of {namespace} is {own}, not {epoch}")

    def is_from_before(self, namespace: str, version: int) -> bool:
        """Whether what was stored in the region's metadata with that version is from before this region led, now that
        it does.
        """
        if not self.active_passive(namespace):
            return False
        epoch, since = self._led_at.get(namespace, (0, 0))
        return epoch < self.epoch(namespace) or version < since

    def check_settled(self, namespace: str) -> None:
        """Raises Refused while what groups have committed in the region that led before may still be on its way: their
        members come again.
        """
        if self._ports is None or not self.active_passive(namespace):
            return
        if self._ports.now() - self.since(namespace) < SETTLES_S:
            raise Refused(Code.COORDINATOR_LOAD_IN_PROGRESS, f"{namespace} has just been moved here")

    def on_change(self, changed: Callable[[str], None]) -> None:
        """Calls back with each namespace whose leader epoch has changed."""
        self._listeners.append(changed)

    # -- earlier epochs ------------------------------------------------------------------------------------------------

    def led(self, namespace: str, epoch: int) -> bool:
        """Whether this region led under that leader epoch, and no other one did."""
        return epoch in self._led.get(namespace, ())

    def every_region(self, namespace: str, epoch: int) -> bool:
        """Whether every region led under that leader epoch: one of before the newest leadership that this broker saw
        begin.
        """
        return (epoch % 2 == 1 or epoch == 0) and epoch < self._began.get(namespace, (0, 0.0))[0]

    def began(self, namespace: str) -> float:
        """When this broker heard that one region leads, in the clock's monotonic seconds; -inf: it has not heard how
        that began.
        """
        return self._began.get(namespace, (0, float("-inf")))[1]

    def since(self, namespace: str) -> float:
        """When this broker heard of the present leader epoch, in the clock's monotonic seconds; -inf: it began with
        it.
        """
        return self._since.get(namespace, (0, float("-inf")))[1]

    def _changed(self, name: str) -> None:
        assert self._ports is not None
        if is_subscription(name):
            return
        epoch = self.epoch(name)
        if self._since.get(name, (0, 0.0))[0] != epoch:
            self._since[name] = epoch, self._ports.now()
            self._note_beginning(name, self._ports.now())
            self._lead(name)
            if self._is_gone(name):
                self._since.pop(name)
            for changed in self._listeners:
                changed(name)

    def _is_gone(self, namespace: str) -> bool:
        return self._ports is not None and not self._ports.regions(namespace) and self._gate(namespace) is None

    async def forget(self, namespace: str) -> None:
        """The namespace was deleted: nothing of it is kept, and no offset is good that was given in it. One that is
        there again keeps what it has. Raises what the metadata raises.
        """
        if self._ports is None or self._ports.regions(namespace):
            return
        for kept in (self._led, self._led_at, self._since, self._began):
            kept.pop(namespace, None)
        await self._ports.meta.delete(_led_key(namespace))

    def _note_beginning(self, namespace: str, heard_at: float) -> None:
        gate = self._gate(namespace)
        if gate is not None and gate.record is not None:
            began = leader_epoch(gate.record.began, led=True)
            if self._began.get(namespace, (-1, 0.0))[0] != began:
                self._began[namespace] = began, heard_at

    def _lead(self, namespace: str) -> None:
        """Keeps that this region leads, where it does."""
        gate, epoch = self._gate(namespace), self.epoch(namespace)
        if gate is None or not gate.active or self.led(namespace, epoch):
            return
        self._add_led(namespace, {epoch})
        self._tasks.spawn(self._keep(namespace))

    def _add_led(self, namespace: str, epochs: set[int]) -> None:
        self._led[namespace] = set(sorted(self._led.get(namespace, set()) | epochs)[-LED_KEPT:])

    async def _keep(self, namespace: str) -> None:
        assert self._ports is not None
        kept = sorted(self._led.get(namespace, ()))
        if not kept:  # it was deleted at once
            return
        try:
            await self._ports.meta.put(_led_key(namespace), json.dumps(kept).encode())
        except HeliographError as error:  # clients with offsets of then set themselves anew, once this broker is gone
            log.warning("kafka.led_not_kept", extra={"namespace": namespace, "error": str(error)})

    def _heard_led(self, key: str, value: bytes | None, version: int) -> None:
        namespace = unquote(key.removeprefix(LED))
        if value is None:
            self._led.pop(namespace, None)
            self._led_at.pop(namespace, None)
            if self._ports is not None and self._ports.regions(namespace):
                self._lead(namespace)  # deleted late: it is another one by now, which this region may lead
            return
        try:
            epochs = {int(epoch) for epoch in json.loads(value)}
        except (ValueError, TypeError) as error:
            log.warning("kafka.led_not_read", extra={"key": key, "error": str(error)})
            return
        self._add_led(namespace, epochs)
        newest = max(epochs, default=0)
        if newest > self._led_at.get(namespace, (0, 0))[0]:
            self._led_at[namespace] = newest, version

    # -- brokers of other regions --------------------------------------------------------------------------------------

    def leader(self, region: str, topic: str, namespace: str, tls: bool) -> KafkaNode | None:
        """The broker of another region that owns a topic (its full name), or one that will say who does; None: none of
        its brokers is there.
        """
        found = self._told.listening(region, tls)
        if not found:
            return None
        number = topic_hash(topic)
        return self._node(self._told.owner(region, namespace, number, tls) or found[number % len(found)], tls)

    def others(self, tls: bool) -> list[KafkaNode]:
        """Living brokers of the other regions of the listener's namespace, by number."""
        nodes: list[KafkaNode] = []
        for region in () if self._ports is None else self._ports.regions(self._ports.namespace):
            of_region = self._told.listening(region, tls)[:BROKERS_A_REGION]
            nodes += [node for told in of_region if (node := self._node(told, tls)) is not None]
        return sorted(nodes, key=lambda node: node.number)


def _led_key(namespace: str) -> str:
    return LED + quote(namespace, safe="")


def announcement(
    listeners: Mapping[str, str],
    owned: Iterable[tuple[str, int]],
    table: Callable[[str], BundleTable | None],
    wanted: Callable[[str], bool],
    namespace: str,
) -> KafkaBrokerInfo | None:
    """What a broker tells the other regions of itself; None: it has no listener of Kafka's. owned: (namespace, bundle).
    wanted: whether others have to know of a namespace who owns it here. namespace: the listeners' own.
    """
    own = {name: url for name, url in listeners.items() if name.startswith("kafka")}
    if not own:
        return None
    owns: dict[str, list[list[int]]] = {}
    left = TOLD_BYTES
    for name, bundle in sorted(owned):
        ranges = table(name) if wanted(name) else None
        if ranges is None or bundle not in ranges.ids:
            continue
        row = list(ranges.range(bundle))
        left -= len(json.dumps(row)) + (0 if name in owns else len(name))
        if left < 0:
            break
        owns.setdefault(name, []).append(row)
    return KafkaBrokerInfo(listeners=own, namespace=namespace, owns=owns)
