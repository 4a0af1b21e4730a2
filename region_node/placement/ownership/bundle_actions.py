"""BundleActions: carries out what the core decides about bundles, and wakes those who wait for it.

Is: the tasks, the timer, and the next event of one broker's bundles: owner keys by compare-and-set, topics loaded and
closed. Isn't: a decision (`ownership_core`), or what others ask for (`ownership_service`).
Invariants: a bundle's topics are closed before its key is deleted; the outcome of a compare-and-set is always found
out; the core hears of each.
Source: docs/protocols/ownership.md.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import HeliographError, LeaseLost, VersionConflict
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.recent_latencies import Recent
from heliograph.runtime.task_set import TaskSet
from local_meta import keys
from region_node.placement.ownership.broker_records import OwnerRecord
from region_node.placement.ownership.ownership_core import Acquire, Action, Close, Forget, Load, OwnershipCore

log = logging.getLogger("region_node.ownership.actions")

_RETRY_S = 0.1
_FORGET_TRIES = 10


class BundleHost(Protocol):
    """What serves the topics of owned bundles."""

    async def unload_bundle(self, namespace: str, bundle: int, next_owner: tuple[str, str] | None = None) -> None:
        """next_owner: its URLs without and with TLS, where it is known: clients may go there without asking."""

    async def load_replicated(self, namespace: str, bundle: int) -> None: ...

    async def unload_strays(self, namespace: str) -> None:
        """Topics of a namespace whose bundles have changed, and which are another broker's by now."""


class BundleActions:
    """Does the work on one broker's bundles, a task for each action. `stop` ends what is under way."""

    def __init__(
        self,
        core: OwnershipCore,
        meta: MetadataStore,
        host: BundleHost,
        clock: Clock,
        rng: Rng,
        *,
        ending: Callable[[], bool],
    ) -> None:
        """ending: whether the broker is being stopped: then the core's deadlines count no more."""
        self._core, self._meta, self._host, self._clock, self._rng, self._ending = core, meta, host, clock, rng, ending
        self.assignments = Recent()
        """Milliseconds until a bundle was this broker's, of those that it took."""
        self._tasks = TaskSet(on_error=lambda error: log.error("ownership.bug", exc_info=error))
        self._changed: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        await self._tasks.close()

    async def change(self) -> None:
        """Waits for the next event of any bundle."""
        if self._changed is None:
            self._changed = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._changed)

    def carry_out(self, actions: list[Action], *, wake: bool = True) -> None:
        """wake: those who wait for an event ask again."""
        for action in actions:
            match action:
                case Acquire():
                    self.spawn(self._acquire(action))
                case Load(bundle):
                    log.info(
                        "ownership.acquired",
                        extra={"broker": self._core.broker, "namespace": bundle[0], "bundle": bundle[1]},
                    )
                    self.spawn(self.tried(self._host.load_replicated(*bundle)))
                case Close():
                    self.spawn(self._close(action))
                case Forget(bundle, version):
                    self.spawn(self.forget(keys.owner(*bundle), version))
        if wake and self._changed is not None:
            self._changed.set_result(None)
            self._changed = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        deadline = self._core.next_deadline()
        if deadline is not None and not self._ending():
            delay_s = max(0.0, deadline - self._clock.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        self.carry_out(self._core.on_time(self._clock.monotonic()))

    async def _acquire(self, action: Acquire) -> None:
        """One compare-and-set; its outcome is always found out, also where no answer came."""
        bundle, key, version, owner = (
            action.bundle,
            keys.owner(*action.bundle),
            -1,
            OwnerRecord(self._core.broker, action.lease),
        )
        began = self._clock.monotonic()
        try:
            version = await self._meta.put(key, owner.encode(), expected=-1, lease=action.lease)
            self.assignments.add((self._clock.monotonic() - began) * 1000)
        except VersionConflict:
            pass
        except LeaseLost:
            self._core.on_refused(bundle, self._clock.monotonic())
            return
        except HeliographError as error:
            log.warning(
                "ownership.acquire_failed", extra={"namespace": bundle[0], "bundle": bundle[1], "error": str(error)}
            )
            await asyncio.sleep(self._rng.uniform(_RETRY_S, 2 * _RETRY_S))  # what waits for it asks again at once
        if version >= 0:
            self.carry_out(self._core.on_acquired(bundle, version, action.lease, self._clock.monotonic()))
            return
        try:
            present = await self._meta.get(key)
        except HeliographError:
            present = None
        if present is not None:
            self.carry_out(
                self._core.on_owner(bundle, OwnerRecord.decode(present[0]), present[1], self._clock.monotonic())
            )
        self._core.on_refused(bundle, self._clock.monotonic())
        self.carry_out([])

    async def _close(self, action: Close) -> None:
        where = {"broker": self._core.broker, "namespace": action.bundle[0], "bundle": action.bundle[1]}
        try:
            async with asyncio.timeout(self._core.settings.unload_timeout_s):
                await self._host.unload_bundle(*action.bundle, self._addresses(action.to))
        except TimeoutError:
            log.warning("ownership.unload_timeout", extra=where)
        except HeliographError as error:
            log.warning("ownership.unload_failed", extra={**where, "error": str(error)})
        handed = await self._assign(action) if action.to is not None else -1
        released = handed < 0 <= action.version and await self.tried(
            self._meta.delete(keys.owner(*action.bundle), expected=action.version)
        )
        log.info(
            "ownership.closed",
            extra={
                **where,
                "released": released,
                "to": action.to.broker if action.to is not None and handed >= 0 else "",
            },
        )
        self.carry_out(self._core.on_closed(action.bundle, released, self._clock.monotonic(), handed))

    def _addresses(self, owner: OwnerRecord | None) -> tuple[str, str] | None:
        record = self._core.brokers.get(owner.broker) if owner is not None else None
        return (record.listeners.get("", ""), record.listeners.get("tls", "")) if record is not None else None

    async def _assign(self, action: Close) -> int:
        """Writes the next owner, under its own lease: it owns the bundle from then on. Returns the version, or -1: it
        is gone, or was not reached.
        """
        assert action.to is not None
        try:
            return await self._meta.put(
                keys.owner(*action.bundle), action.to.encode(), expected=action.version, lease=action.to.lease
            )
        except HeliographError as error:
            log.warning(
                "ownership.hand_over_failed",
                extra={"namespace": action.bundle[0], "bundle": action.bundle[1], "error": str(error)},
            )
            return -1

    async def forget(self, key: str, version: int) -> None:
        for _ in range(_FORGET_TRIES):
            if await self.tried(self._meta.delete(key, expected=version), VersionConflict):
                return
            await asyncio.sleep(self._rng.uniform(_RETRY_S, 2 * _RETRY_S))

    def spawn(self, work: Coroutine[Any, Any, Any]) -> None:
        self._tasks.spawn(work)

    async def tried(self, work: Coroutine[Any, Any, Any], *harmless: type[HeliographError]) -> bool:
        """What may fail: the lease or the next event makes up for it. Returns whether it did not, or by something
        harmless.
        """
        try:
            await work
        except harmless:
            return True
        except HeliographError as error:
            log.warning("ownership.retry_later", extra={"broker": self._core.broker, "error": str(error)})
            return False
        return True
