"""Ownership: keeps a broker's lease alive, carries out what the core decides, and answers lookups.

Is: the shell around OwnershipCore: watches, compare-and-sets, timers, and waiting lookups. Isn't: a decision about a bundle.
Invariants: a bundle's topics are closed before its key is deleted; every wait is bounded.
Source: docs/protocols/ownership.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from global_config.view import ConfigView
from heliograph.model.errors import HeliographError, LeaseLost, NotAllowed, NotFound, NotOwner, VersionConflict
from heliograph.model.names import TopicName, bundle_of
from heliograph.model.policies import NamespacePolicies
from heliograph.raft.store import MetadataStore
from heliograph.runtime.clock import Clock, Rng
from local_meta import keys
from region_node.ownership.core import Acquire, Action, Bundle, Close, Forget, Here, Load, Moving, OwnershipCore, OwnershipSettings, Permit, Place, There
from region_node.ownership.records import BrokerRecord, OwnerRecord

log = logging.getLogger(__name__)

_NAMESPACES = "/namespaces/"
_RETRY_S = 0.1
_FORGET_TRIES = 10


class BundleHost(Protocol):
    """What serves the topics of owned bundles."""

    async def unload_bundle(self, namespace: str, bundle: int, next_owner: tuple[str, str] | None = None) -> None:
        """next_owner: its URLs without and with TLS, where it is known: clients may go there without asking."""

    async def load_replicated(self, namespace: str, bundle: int) -> None: ...


class LookupAnswer(NamedTuple):
    """Where to go: `url` without TLS, `url_tls` with it; one of them may be empty. `redirect`: ask there again, authoritatively."""

    url: str
    url_tls: str
    redirect: bool


def answer_of(record: BrokerRecord, listener: str, redirect: bool) -> LookupAnswer:
    """The address of `record` under that listener name. Raises NotOwner with the text that clients look for."""
    url = record.url(listener)
    if url is None:
        raise NotOwner(f"the broker do not have {listener} listener")
    if not listener:
        return LookupAnswer(url, record.listeners.get("tls", ""), redirect)
    return LookupAnswer("", url, redirect) if url.startswith("pulsar+ssl://") else LookupAnswer(url, "", redirect)


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
        place: Place | None = None,
        permit: Permit | None = None,
    ) -> None:
        """place: where a bundle that nobody has shall go; by chance where it is not given. permit: who may serve it; everybody where it is not given."""
        self.region, self.settings = region, settings
        self.record = BrokerRecord(broker)
        """What this broker says of itself; complete once it has started."""
        self._meta, self._view, self._host, self._clock, self._rng = meta, view, host, clock, rng
        self._core = OwnershipCore(broker, rng, settings, place, permit)
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._changed: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._stops: list[Callable[[], None]] = []
        self._stopping = False
        self._registered: asyncio.Future[None] | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    async def start(self, record: BrokerRecord) -> None:
        """Returns once this broker has a lease and is registered as `record`: its listeners must be there by now."""
        self.record = record
        self._registered = asyncio.get_running_loop().create_future()
        self._stops = [
            self._meta.watch(keys.BROKERS, self._on_broker_key),
            self._meta.watch(keys.OWNERS, self._on_owner_key),
        ]
        await self._meta.synced(keys.BROKERS)
        await self._meta.synced(keys.OWNERS)
        self._view.on_change(self._on_config_key)
        for tenant in self._view.tenants():
            for namespace in self._view.namespaces(tenant):
                self._on_namespace(namespace)
        self._spawn(self._keep_lease())
        await self._registered

    async def drain(self, timeout_s: float) -> None:
        """Gives all bundles up, topics closed first, so that other brokers follow at once. Takes at most `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                self._stopping = True
                await self._try(self._meta.delete(keys.broker(self.record.broker)))
                self._carry_out(self._core.drain())
                while self._core.held:
                    await self._change()
                if self._core.lease:
                    await self._try(self._meta.revoke(self._core.lease))
        except TimeoutError:
            log.warning("ownership.drain_timeout", extra={"broker": self.record.broker, "bundles_left": len(self._core.held)})

    async def stop(self) -> None:
        """Ends at once; owner keys go with the lease."""
        self._stopping = True
        for stop in self._stops:
            stop()
        if self._timer is not None:
            self._timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # -- answers ------------------------------------------------------------------------------------------------------

    @property
    def lease(self) -> int:
        """What this broker's keys hang on at this moment; 0: nothing."""
        return self._core.lease

    def owns(self, topic: str) -> bool:
        """Whether this broker owns the topic's bundle, as far as it knows."""
        name = TopicName.parse(topic)
        policies = self._view.namespace(name.namespace)
        return policies is not None and self._core.owns((name.namespace, bundle_of(topic, policies.bundles)))

    def bundles(self, namespace: str) -> int:
        """How many a namespace has; 0: it is not served in this region."""
        policies = self._view.namespace(namespace)
        return policies.bundles if policies is not None and self._serves(policies) else 0

    def owned(self) -> list[Bundle]:
        """The bundles that this broker owns, in order."""
        return [bundle for bundle in sorted(self._core.held) if self._core.owns(bundle)]

    def brokers(self) -> list[BrokerRecord]:
        """The live brokers of this region, in order of their ids."""
        return [record for _, record in sorted(self._core.brokers.items())]

    def misplaced(self) -> list[tuple[Bundle, str]]:
        """The bundles of the region whose owner may not serve them (any more), with that owner."""
        return self._core.misplaced()

    def permitted(self, bundle: Bundle) -> Sequence[str]:
        """The live brokers that may serve it, in order."""
        return self._core.permitted(bundle)

    async def lookup(self, topic: str, listener: str, authoritative: bool) -> LookupAnswer:
        """Raises NotFound (no such namespace), NotAllowed (not served in this region), NotOwner (try again; or an unknown listener)."""
        record, redirect = await self.find(topic, authoritative)
        return answer_of(record, listener, redirect)

    async def find(self, topic: str, authoritative: bool) -> tuple[BrokerRecord, bool]:
        """(a broker, whether it is only the one to ask, authoritatively, and not the owner yet). Raises as `lookup` does."""
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
        """Gives an owned bundle up and waits until its topics are closed and its key is gone. No owner: nothing to do."""
        self._carry_out(self._core.release((namespace, bundle)))
        async with asyncio.timeout(self.settings.unload_timeout_s + self.settings.lookup_timeout_s):
            while (namespace, bundle) in self._core.held and not self._core.owns((namespace, bundle)):
                await self._change()

    async def transfer(self, namespace: str, bundle: int, to: str) -> bool:
        """Has the owner, whoever it is, hand a bundle to the live broker `to`, and waits until that is so. Returns whether it is.

        Raises NotFound (no such broker), NotAllowed (that one may not serve it), NotOwner (nobody owns it, or another move of it came first),
        MetadataUnavailable.
        """
        if to not in self._core.brokers:
            raise NotFound(f"there is no broker {to} in region {self.region}; there are {', '.join(sorted(self._core.brokers))}")
        where, key = (namespace, bundle), keys.owner(namespace, bundle)
        if (owner := self.present_owner(namespace, bundle)) is not None and owner.broker == to:
            return True
        if to not in (permitted := self._core.permitted(where)):
            why = "by the region's isolation policies and anti-affinity groups"
            raise NotAllowed(f"broker {to} may not serve bundle {namespace}/{bundle}, {why}: {', '.join(permitted)} may")
        order = self._core.transfer(where, to)
        if order is None:
            raise NotOwner(f"bundle {namespace}/{bundle} has no owner that could hand it over now: look its topics up, then try again")
        value, version = order
        try:
            await self._meta.put(key, value.encode(), expected=version, lease=value.lease)
        except (VersionConflict, LeaseLost):
            raise NotOwner(f"bundle {namespace}/{bundle} was moved by somebody else at this moment: try again") from None
        try:
            async with asyncio.timeout(self.settings.unload_timeout_s + self.settings.lookup_timeout_s):
                while (owner := self.present_owner(namespace, bundle)) is None or owner.broker == value.broker:
                    await self._change()
        except TimeoutError:
            return False
        return owner.broker == to

    async def arrival(self, topic: str) -> None:
        """Returns when a bundle that is on its way to this broker has come, or gone elsewhere; at once where none is."""
        name = TopicName.parse(topic)
        policies = self._view.namespace(name.namespace)
        if policies is None:
            return
        where = name.namespace, bundle_of(str(name), policies.bundles)
        try:
            async with asyncio.timeout(self.settings.lookup_timeout_s):
                while self._core.coming(where):
                    await self._change()
        except TimeoutError:
            return

    # -- lookup -------------------------------------------------------------------------------------------------------

    def _policies(self, namespace: str) -> NamespacePolicies:
        policies = self._view.namespace(namespace)
        if policies is None:
            raise NotFound(f"namespace {namespace} does not exist")
        if not self._serves(policies):
            raise NotAllowed(f"namespace {namespace} is not served in region {self.region}, but in {', '.join(policies.regions)}")
        return policies

    def _serves(self, policies: NamespacePolicies) -> bool:
        return not policies.regions or self.region in policies.regions

    def _bundle(self, topic: str) -> Bundle:
        name = TopicName.parse(topic)
        return name.namespace, bundle_of(str(name), self._policies(name.namespace).bundles)

    async def _find(self, bundle: Bundle, authoritative: bool) -> Here | There:
        reason = ""
        try:
            async with asyncio.timeout(self.settings.lookup_timeout_s):
                while True:
                    found, actions = self._core.find(bundle, authoritative)
                    self._carry_out(actions, wake=bool(actions))  # else two who look up the same bundle would wake each other for ever
                    if not isinstance(found, Moving):
                        return found
                    reason = found.reason
                    await self._change()
        except TimeoutError:
            raise NotOwner(f"bundle {bundle[0]}/{bundle[1]} {reason}: look it up again") from None

    async def _change(self) -> None:
        """Waits for the next event of any bundle."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    # -- events -------------------------------------------------------------------------------------------------------

    def _on_broker_key(self, key: str, value: bytes | None, version: int) -> None:
        broker = keys.id_of(key)
        self._core.on_broker(broker, None if value is None else BrokerRecord.decode(broker, value))
        self._carry_out([])

    def _on_owner_key(self, key: str, value: bytes | None, version: int) -> None:
        owner = None if value is None else OwnerRecord.decode(value)
        self._carry_out(self._core.on_owner(keys.owner_of(key), owner, version, self._clock.monotonic()))

    def _on_config_key(self, key: str) -> None:
        if key.startswith(_NAMESPACES):
            self._on_namespace(key.removeprefix(_NAMESPACES))

    def _on_namespace(self, namespace: str) -> None:
        policies = self._view.namespace(namespace)
        served = policies is not None and self._serves(policies)
        bundles = policies.bundles if policies is not None and served else 0
        standing = policies is not None and len(policies.regions) > 1
        self._carry_out(self._core.on_namespace(namespace, bundles, standing, self._clock.monotonic()))

    # -- actions ------------------------------------------------------------------------------------------------------

    def _carry_out(self, actions: list[Action], *, wake: bool = True) -> None:
        """wake: those who wait for an event ask again."""
        for action in actions:
            match action:
                case Acquire():
                    self._spawn(self._acquire(action))
                case Load(bundle):
                    log.info("ownership.acquired", extra={"broker": self.record.broker, "namespace": bundle[0], "bundle": bundle[1]})
                    self._spawn(self._try(self._host.load_replicated(*bundle)))
                case Close():
                    self._spawn(self._close(action))
                case Forget(bundle, version):
                    self._spawn(self._forget(keys.owner(*bundle), version))
        if wake and self._changed is not None:
            self._changed.set_result(None)
            self._changed = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._core.next_deadline()
        if deadline is not None and not self._stopping:
            delay_s = max(0.0, deadline - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self._carry_out(self._core.on_time(self._clock.monotonic()))

    async def _acquire(self, action: Acquire) -> None:
        """One compare-and-set; its outcome is always found out, also where no answer came."""
        bundle, key, version, owner = action.bundle, keys.owner(*action.bundle), -1, OwnerRecord(self.record.broker, action.lease)
        try:
            version = await self._meta.put(key, owner.encode(), expected=-1, lease=action.lease)
        except VersionConflict:
            pass
        except LeaseLost:
            self._core.on_refused(bundle, self._clock.monotonic())
            return
        except HeliographError as error:
            log.warning("ownership.acquire_failed", extra={"namespace": bundle[0], "bundle": bundle[1], "error": str(error)})
            await asyncio.sleep(self._rng.uniform(_RETRY_S, 2 * _RETRY_S))  # what waits for it asks again at once
        if version >= 0:
            self._carry_out(self._core.on_acquired(bundle, version, action.lease, self._clock.monotonic()))
            return
        try:
            present = await self._meta.get(key)
        except HeliographError:
            present = None
        if present is not None:
            self._carry_out(self._core.on_owner(bundle, OwnerRecord.decode(present[0]), present[1], self._clock.monotonic()))
        self._core.on_refused(bundle, self._clock.monotonic())
        self._carry_out([])

    async def _close(self, action: Close) -> None:
        where = {"broker": self.record.broker, "namespace": action.bundle[0], "bundle": action.bundle[1]}
        try:
            async with asyncio.timeout(self.settings.unload_timeout_s):
                await self._host.unload_bundle(*action.bundle, self._addresses(action.to))
        except TimeoutError:
            log.warning("ownership.unload_timeout", extra=where)
        except HeliographError as error:
            log.warning("ownership.unload_failed", extra={**where, "error": str(error)})
        handed = await self._assign(action) if action.to is not None else -1
        released = handed < 0 <= action.version and await self._try(self._meta.delete(keys.owner(*action.bundle), expected=action.version))
        log.info("ownership.closed", extra={**where, "released": released, "to": action.to.broker if action.to is not None and handed >= 0 else ""})
        self._carry_out(self._core.on_closed(action.bundle, released, self._clock.monotonic(), handed))

    def _addresses(self, owner: OwnerRecord | None) -> tuple[str, str] | None:
        record = self._core.brokers.get(owner.broker) if owner is not None else None
        return (record.listeners.get("", ""), record.listeners.get("tls", "")) if record is not None else None

    async def _assign(self, action: Close) -> int:
        """Writes the next owner, under its own lease: it owns the bundle from then on. Returns the version, or -1: it is gone, or was not reached."""
        assert action.to is not None
        try:
            return await self._meta.put(keys.owner(*action.bundle), action.to.encode(), expected=action.version, lease=action.to.lease)
        except HeliographError as error:
            log.warning("ownership.hand_over_failed", extra={"namespace": action.bundle[0], "bundle": action.bundle[1], "error": str(error)})
            return -1

    async def _forget(self, key: str, version: int) -> None:
        for _ in range(_FORGET_TRIES):
            if await self._try(self._meta.delete(key, expected=version), VersionConflict):
                return
            await asyncio.sleep(self._rng.uniform(_RETRY_S, 2 * _RETRY_S))

    # -- lease --------------------------------------------------------------------------------------------------------

    async def _keep_lease(self) -> None:
        while not self._stopping:
            try:
                lease = await self._meta.grant(self.settings.lease_ttl_ms)
                self.record = replace(self.record, lease=lease)
                await self._meta.put(keys.broker(self.record.broker), self.record.encode(), lease=lease)
            except HeliographError as error:
                log.warning("ownership.lease_refused", extra={"broker": self.record.broker, "error": str(error)})
                await asyncio.sleep(self._rng.uniform(0.1, 0.5))
                continue
            self._core.on_broker(self.record.broker, self.record)
            self._carry_out(self._core.on_lease(lease, self._clock.monotonic()))
            if self._registered is not None and not self._registered.done():
                self._registered.set_result(None)
            await self._renew_until_lost(lease)
            if not self._stopping:
                log.error("ownership.lease_lost", extra={"broker": self.record.broker, "bundles": len(self._core.held)})
                self._carry_out(self._core.on_lease_lost())

    async def _renew_until_lost(self, lease: int) -> None:
        """Returns when the lease is gone, or the metadata has not answered for so long that others have surely followed."""
        renewed = self._clock.monotonic()
        while not (self._stopping and not self._core.held):
            await asyncio.sleep(self.settings.lease_ttl_ms / 3000)
            asked = self._clock.monotonic()
            try:
                await self._meta.renew(lease)
                renewed = asked
            except LeaseLost:
                return
            except HeliographError as error:
                log.warning("ownership.renewal_failed", extra={"broker": self.record.broker, "error": str(error)})
                if self._clock.monotonic() - renewed > self.settings.lease_grace_s:
                    return

    # -- tasks --------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("ownership.bug", exc_info=error)

    async def _try(self, work: Coroutine[Any, Any, Any], *harmless: type[HeliographError]) -> bool:
        """What may fail: the lease or the next event makes up for it. Returns whether it did not, or by something harmless."""
        try:
            await work
        except harmless:
            return True
        except HeliographError as error:
            log.warning("ownership.retry_later", extra={"broker": self.record.broker, "error": str(error)})
            return False
        return True
