"""DrillClients: the clients of the drills that this broker has them for.

Is: starting them, when the switch began, what they have seen since, ending them. Isn't: what one of them does
(`drill_client`), or which broker has them (`region_node.faces.admin.dr.drills`).
Invariants: those of a shadow are started once; they end when they are told to, with their broker, or after `_LIFE_S`,
whatever becomes of the drill; times count from the newest switch, by this broker's monotonic clock.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as tls
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from heliograph.client.pulsar_connection import Address
from heliograph.model.errors import NotAllowed
from heliograph.runtime.clock import Clock
from heliograph.runtime.task_set import TaskSet
from region_node.dr.rehearsal.drill_client import ClientAccess, DrillClient

log = logging.getLogger("region_node.dr")

_LIFE_S = 900.0
_SHADOWS_MAX = 32
"""Drills that a broker has clients for at the same time."""


@dataclass(slots=True)
class _Group:
    clients: list[DrillClient]
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    switched_at: float | None = None


class DrillClients:
    """The clients that one broker has, by shadow."""

    def __init__(self, clock: Clock, token: Callable[[], str], ssl: Callable[[], tls.SSLContext]) -> None:
        """token, ssl: as in `ClientAccess`."""
        self._clock, self._token, self._ssl = clock, token, ssl
        self._groups: dict[str, _Group] = {}
        self._tasks = TaskSet("a drill's client has ended")

    def begin(
        self,
        shadow: str,
        topics: Sequence[str],
        urls: Sequence[str],
        here: Callable[[Address], bool],
        check: Callable[[Address, str], None],
    ) -> None:
        """A client for each of these topics, unless the shadow has some. urls, here, check: as in `ClientAccess`.
        Raises NotAllowed: there are too many.
        """
        access = ClientAccess(urls=urls, here=here, check=check, token=self._token, ssl=self._ssl)
        if shadow in self._groups:
            return
        if len(self._groups) >= _SHADOWS_MAX:
            raise NotAllowed(f"this broker has clients for {_SHADOWS_MAX} drills: wait until some have ended")
        group = self._groups[shadow] = _Group([DrillClient(topic, access, self._clock) for topic in topics])
        group.tasks = [self._tasks.spawn(self._run(shadow, client)) for client in group.clients]

    def switch(self, shadow: str) -> None:
        """The switch begins now: what was confirmed here before, by a switch that was not recorded, does not count."""
        if (group := self._groups.get(shadow)) is not None:
            group.switched_at = self._clock.monotonic()

    def status(self, shadow: str) -> dict[str, Any]:
        """count: 0 where there are none here; ready; acked_s, read_s: of those that have done it, since the switch;
        said: why others have not.
        """
        group = self._groups.get(shadow)
        if group is None:
            return {"count": 0, "ready": 0, "acked_s": [], "read_s": [], "said": ""}
        since, clients = group.switched_at, group.clients
        acked = [client.acked_at for client in clients if client.acked_at is not None]
        read = [client.read_at for client in clients if client.read_at is not None]
        waiting = [client.said for client in clients if client.read_at is None or client.acked_at is None]
        return {
            "count": len(clients),
            "ready": sum(client.ready for client in clients),
            "acked_s": [] if since is None else [at - since for at in acked],
            "read_s": [] if since is None else [at - since for at in read],
            "said": next((said for said in waiting if said), ""),
        }

    def end(self, shadow: str) -> None:
        """Also where there are none. They close their connections in the loop's next turn."""
        group = self._groups.pop(shadow, None)
        for task in () if group is None else group.tasks:
            task.cancel()

    async def stop(self) -> None:
        self._groups.clear()
        await self._tasks.close()

    async def _run(self, shadow: str, client: DrillClient) -> None:
        try:
            async with asyncio.timeout(_LIFE_S):
                await client.run()
        except TimeoutError:
            self._groups.pop(shadow, None)
            log.warning("drill.clients_left", extra={"namespace": shadow})
