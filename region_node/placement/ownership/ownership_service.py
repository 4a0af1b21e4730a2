"""Ownership: one broker's bundles for everybody else: lookups, unloads, transfers, and splits.

Is: the shell around OwnershipCore: what it is told (watches, commands) and what it is asked. Isn't: a decision about a
bundle (`ownership_core`), carrying one out (`bundle_actions`), or the lease that all of a broker's keys hang on
(`broker_lease`).
Invariants: every wait is bounded; who waits for a bundle asks the core again after each event.
Source: docs/protocols/ownership.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from global_config.view import ConfigView
from heliograph.kv.metadata_store import Check, MetadataStore, Op, Put
from heliograph.model.bundles import BundleTable
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import LeaseLost, NotAllowed, NotFound, NotOwner, VersionConflict
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import Clock, Rng
from local_meta import keys
from region_node.placement.ownership.broker_lease import BrokerLease
from region_node.placement.ownership.broker_records import BrokerRecord, LiveBrokers, OwnerRecord
from region_node.placement.ownership.bundle_actions import BundleActions, BundleHost
from region_node.placement.ownership.bundle_ranges import BundleBook
from region_node.placement.ownership.lookup_answers import LookupAnswer, answer_of
from region_node.placement.ownership.ownership_core import (
    Bundle,
    BundleRules,
    Here,
    Moving,
    OwnershipCore,
    OwnershipSettings,
    There,
)

log = logging.getLogger("region_node.ownership.service")

_NAMESPACES = "/namespaces/"


class Ownership:
    """One broker's bundles, and the way to everybody else's."""

    def __init__(
        self,
        *,
        region: str,
        broker: str,
        meta: MetadataStore,
        view: ConfigView,
        host: BundleHost,
        clock: Clock,
        rng: Rng,
        settings: OwnershipSettings,
        rules: BundleRules | None = None,
        book: BundleBook | None = None,
        live: LiveBrokers | None = None,
    ) -> None:
        """rules: None: bundles that nobody has go to anybody. book, live: the hash ranges of bundles, and the live
        brokers, where others need them before this is made; both are kept from here.
        """
        live = live or LiveBrokers()
        self.region, self.settings = region, settings
        self._book = book if book is not None else BundleBook(meta, view)
        self.record = BrokerRecord(broker)
        """What this broker says of itself; complete once it has started."""
        self._meta, self._view, self._host, self._clock, self._rng = meta, view, host, clock, rng
        self._live = live
        self._core = OwnershipCore(broker, rng, settings, rules, live)
        self._actions = BundleActions(self._core, meta, host, clock, rng, ending=lambda: self._stopping)
        self.assignments = self._actions.assignments
        """Milliseconds until a bundle was this broker's, of those that it took."""
        self._stops: list[Callable[[], None]] = []
        self._splitting: dict[str, None] = {}
        self._stopping = False
        self._registered: asyncio.Future[None] | None = None
        self._broker_lease = BrokerLease(
            meta,
            settings,
            clock,
            rng,
            ending=lambda: self._stopping,
            holds=lambda: bool(self._core.held),
            granted=self._on_granted,
            lost=self._on_lost,
        )

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, record: BrokerRecord) -> None:
        """Returns once this broker has a lease and is registered as `record`: its listeners must be there by now."""
        self.record = record
        self._registered = asyncio.get_running_loop().create_future()
        await self._book.start(self._on_bundles)
        self._stops = [
            self._book.stop,
            self._meta.watch(keys.BROKERS, self._on_broker_key),
            self._meta.watch(keys.OWNERS, self._on_owner_key),
        ]
        await self._meta.synced(keys.BROKERS)
        await self._meta.synced(keys.OWNERS)
        self._view.on_change(self._on_config_key)
        for tenant in self._view.tenants():
            for namespace in self._view.namespaces(tenant):
                self._on_namespace(namespace)
        self._actions.spawn(self._broker_lease.keep(record))
        await self._registered

    async def drain(self, timeout_s: float) -> None:
        """Gives all bundles up, topics closed first, so that other brokers follow at once. Takes at most
        `timeout_s`.
        """
        try:
            async with asyncio.timeout(timeout_s):
                self._stopping = True
                await self._actions.tried(self._meta.delete(keys.broker(self.record.broker)))
                self._actions.carry_out(self._core.drain())
                while self._core.held:
                    await self._actions.change()
                if self._core.lease:
                    await self._actions.tried(self._meta.revoke(self._core.lease))
        except TimeoutError:
            log.warning(
                "ownership.drain_timeout", extra={"broker": self.record.broker, "bundles_left": len(self._core.held)}
            )

    async def stop(self) -> None:
        """Ends at once; owner keys go with the lease."""
        self._stopping = True
        for stop in self._stops:
            stop()
        await self._actions.stop()

    # -- answers ------------------------------------------------------------------------------------------------------

    @property
    def lease(self) -> int:
        """What this broker's keys hang on at this moment; 0: nothing."""
        return self._core.lease

    def owns(self, topic: str) -> bool:
        """Whether this broker owns the topic's bundle, as far as it knows."""
        name = TopicName.parse(topic)
        table = self._book.of(name.namespace)
        return table is not None and self._core.owns((name.namespace, table.of(topic)))

    def bundles(self, namespace: str) -> BundleTable | None:
        """The hash ranges of its bundles in this region; None: it is not served here."""
        policies = self._view.namespace(namespace)
        return self._book.of(namespace) if policies is not None and self._serves(policies) else None

    def owned(self) -> list[Bundle]:
        """The bundles that this broker owns, in order."""
        return [bundle for bundle in sorted(self._core.held) if self._core.owns(bundle)]

    def brokers(self) -> list[BrokerRecord]:
        """The live brokers of this region, in order of their ids."""
        return self._live.all()

    def misplaced(self) -> list[tuple[Bundle, str]]:
        """The bundles of the region whose owner may not serve them (any more), with that owner."""
        return self._core.misplaced()

    def permitted(self, bundle: Bundle) -> Sequence[str]:
        """The live brokers that may serve it, in order."""
        return self._core.permitted(bundle)

    async def lookup(self, topic: str, listener: str, authoritative: bool) -> LookupAnswer:
        """Raises NotFound (no such namespace), NotAllowed (not served in this region), NotOwner (try again; or an
        unknown listener).
        """
        record, redirect = await self.find(topic, authoritative)
        return answer_of(record, listener, redirect)

    async def find(self, topic: str, authoritative: bool) -> tuple[BrokerRecord, bool]:
        """(a broker, whether it is only the one to ask, authoritatively, and not the owner yet). Raises as `lookup`
        does.
        """
        found = await self._find(self._bundle(topic), authoritative)
        return (self.record, False) if isinstance(found, Here) else (found.broker, found.redirect)

    async def owner(self, topic: str) -> BrokerRecord:
        """The owner of a topic's bundle; this broker takes it where nobody has it."""
        return await self.bundle_owner(*self._bundle(topic))

    async def bundle_owner(self, namespace: str, bundle: int) -> BrokerRecord:
        found = await self._find((namespace, bundle), True)
        return self.record if isinstance(found, Here) else found.broker

    def present_owner(self, namespace: str, bundle: int) -> BrokerRecord | None:
        """The owner that is known now, without making one."""
        if self._core.owns((namespace, bundle)):
            return self.record
        return self._core.owner((namespace, bundle))

    async def partitions(self, topic: str, create: bool) -> int:
        """How many partitions a topic has; 0: it is plain, or not there yet. Raises NotFound (no such namespace)."""
        name = TopicName.parse(topic)
        self._policies(name.namespace)
        return 0 if name.partition >= 0 else self._view.partitions(str(name))

    async def unload_bundle(self, namespace: str, bundle: int) -> None:
        """Gives an owned bundle up and waits until its topics are closed and its key is gone. No owner: nothing to do.
        Raises NotOwner (still at it).
        """
        self._actions.carry_out(self._core.release((namespace, bundle)))
        try:
            async with asyncio.timeout(self.settings.unload_timeout_s + self.settings.lookup_timeout_s):
                while (namespace, bundle) in self._core.held and not self._core.owns((namespace, bundle)):
                    await self._actions.change()
        except TimeoutError:
            raise NotOwner(f"bundle {namespace}/{bundle} is still being unloaded: look at it again") from None

    async def transfer(self, namespace: str, bundle: int, to: str) -> bool:
        """Has the owner, whoever it is, hand a bundle to the live broker `to`, and waits until that is so. Returns
        whether it is.

        Raises NotFound (no such broker), NotAllowed (that one may not serve it), NotOwner (nobody owns it, or another
        move of it came first), MetadataUnavailable.
        """
        if to not in self._core.brokers:
            raise NotFound(
                f"there is no broker {to} in region {self.region}; there are {', '.join(sorted(self._core.brokers))}"
            )
        where, key = (namespace, bundle), keys.owner(namespace, bundle)
        if (owner := self.present_owner(namespace, bundle)) is not None and owner.broker == to:
            return True
        if to not in (permitted := self._core.permitted(where)):
            why = "by the region's isolation policies and anti-affinity groups"
            raise NotAllowed(
                f"broker {to} may not serve bundle {namespace}/{bundle}, {why}: {', '.join(permitted)} may"
            )
        order = self._core.transfer(where, to)
        if order is None:
            raise NotOwner(
                f"bundle {namespace}/{bundle} has no owner that could hand it over now: look its topics up, then try "
                "again"
            )
        value, version = order
        try:
            await self._meta.put(key, value.encode(), expected=version, lease=value.lease)
        except (VersionConflict, LeaseLost):
            raise NotOwner(
                f"bundle {namespace}/{bundle} was moved by somebody else at this moment: try again"
            ) from None
        try:
            async with asyncio.timeout(self.settings.unload_timeout_s + self.settings.lookup_timeout_s):
                while (owner := self.present_owner(namespace, bundle)) is None or owner.broker == value.broker:
                    await self._actions.change()
        except TimeoutError:
            return False
        return owner.broker == to

    async def split(self, namespace: str, bundle: int, at: Sequence[int]) -> list[int]:
        """Cuts a bundle that this broker owns before each of the hashes `at`, and owns the new ones too. Returns their
        numbers.

        One transaction: the table at its version, the new owner keys where they are absent, and the old one at its
        version. So either all is as it was, or all is divided; topics stay loaded and clients connected. Raises
        NotOwner (not its owner, or it is in motion, or another split came first: try again), NotAllowed (a cut outside
        its range, too many bundles), MetadataUnavailable, OutcomeUnknown (the watches tell).
        """
        self._policies(namespace)
        table, order = self._book.of(namespace), self._core.divisible((namespace, bundle))
        if table is None or order is None:
            raise NotOwner(
                f"bundle {namespace}/{bundle} is not split here: this broker does not own it, or is giving it up; try "
                "again at its owner"
            )
        divided, (version, lease) = table.split(bundle, at), order
        new, owner = list(range(table.count, divided.count)), OwnerRecord(self.record.broker, lease).encode()
        ops: list[Op] = [
            Put(keys.bundles(namespace), divided.encode(), self._book.version(namespace)),
            Check(keys.owner(namespace, bundle), version),
        ]
        conflict = NotOwner(
            f"bundle {namespace}/{bundle} was moved, or another one of its namespace was split, at this moment: try "
            "again"
        )
        if namespace in self._splitting:
            raise conflict
        self._splitting[namespace] = None
        try:
            with self._book.held_back(namespace):
                written = await self._meta.txn(
                    [*ops, *(Put(keys.owner(namespace, index), owner, -1, lease) for index in new)]
                )
                self._book.put(namespace, divided, written)
                for index in new:
                    self._actions.carry_out(
                        self._core.on_acquired((namespace, index), written, lease, self._clock.monotonic())
                    )
        except (VersionConflict, LeaseLost):
            raise conflict from None
        finally:
            del self._splitting[namespace]
        log.info("ownership.split", extra={"namespace": namespace, "bundle": bundle, "new": new, "at": list(at)})
        return new

    async def arrival(self, topic: str) -> None:
        """Returns when a bundle that is on its way to this broker has come, or gone elsewhere; at once where none
        is.
        """
        name = TopicName.parse(topic)
        table = self._book.of(name.namespace)
        if table is None:
            return
        where = name.namespace, table.of(str(name))
        try:
            async with asyncio.timeout(self.settings.lookup_timeout_s):
                while self._core.coming(where):
                    await self._actions.change()
        except TimeoutError:
            return

    # -- lookup -------------------------------------------------------------------------------------------------------

    def _policies(self, namespace: str) -> NamespacePolicies:
        policies = self._view.namespace(namespace)
        if policies is None:
            raise NotFound(f"namespace {namespace} does not exist")
        if not self._serves(policies):
            raise NotAllowed(
                f"namespace {namespace} is not served in region {self.region}, but in {', '.join(policies.regions)}"
            )
        return policies

    def _serves(self, policies: NamespacePolicies) -> bool:
        return not policies.regions or self.region in policies.regions

    def _bundle(self, topic: str) -> Bundle:
        name = TopicName.parse(topic)
        self._policies(name.namespace)
        table = self._book.of(name.namespace)
        assert table is not None
        return name.namespace, table.of(str(name))

    async def _find(self, bundle: Bundle, authoritative: bool) -> Here | There:
        reason = ""
        try:
            async with asyncio.timeout(self.settings.lookup_timeout_s):
                while True:
                    found, actions = self._core.find(bundle, authoritative)
                    self._actions.carry_out(
                        actions, wake=bool(actions)
                    )  # else two who look up the same bundle would wake each other for ever
                    if not isinstance(found, Moving):
                        return found
                    reason = found.reason
                    await self._actions.change()
        except TimeoutError:
            raise NotOwner(f"bundle {bundle[0]}/{bundle[1]} {reason}: look it up again") from None

    # -- events -------------------------------------------------------------------------------------------------------

    def _on_broker_key(self, key: str, value: bytes | None, version: int) -> None:
        broker = keys.id_of(key)
        self._core.on_broker(broker, None if value is None else BrokerRecord.decode(broker, value))
        self._actions.carry_out([])

    def _on_owner_key(self, key: str, value: bytes | None, version: int) -> None:
        owner = None if value is None else OwnerRecord.decode(value)
        self._actions.carry_out(self._core.on_owner(keys.owner_of(key), owner, version, self._clock.monotonic()))

    def _on_config_key(self, key: str) -> None:
        if key.startswith(_NAMESPACES):
            self._on_namespace(key.removeprefix(_NAMESPACES))

    def _on_namespace(self, namespace: str) -> None:
        policies = self._view.namespace(namespace)
        served = policies is not None and self._serves(policies)
        table = self._book.of(namespace)
        bundles = table.count if table is not None and served else 0
        standing = policies is not None and len(policies.regions) > 1
        if policies is None and (version := self._book.version(namespace)) >= 0:
            self._actions.spawn(self._actions.forget(keys.bundles(namespace), version))
        self._actions.carry_out(self._core.on_namespace(namespace, bundles, standing, self._clock.monotonic()))

    def _on_bundles(self, namespace: str) -> None:
        if self._view.namespace(namespace) is not None:
            self._on_namespace(namespace)
            self._actions.spawn(self._actions.tried(self._host.unload_strays(namespace)))

    # -- lease --------------------------------------------------------------------------------------------------------

    def _on_granted(self, record: BrokerRecord) -> None:
        self.record = record
        self._core.on_broker(record.broker, record)
        self._actions.carry_out(self._core.on_lease(record.lease, self._clock.monotonic()))
        if self._registered is not None and not self._registered.done():
            self._registered.set_result(None)

    def _on_lost(self) -> None:
        log.error("ownership.lease_lost", extra={"broker": self.record.broker, "bundles": len(self._core.held)})
        self._actions.carry_out(self._core.on_lease_lost())
