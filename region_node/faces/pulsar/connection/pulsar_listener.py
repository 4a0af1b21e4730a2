"""PulsarListener: accepts Pulsar connections, and looks at each from time to time.

Is: listening sockets, and the keep-alive tick. Isn't: topics, a protocol decision (`pulsar_connection`), or what
connections share (`region_node.faces.pulsar.session.pulsar_broker`).
Invariants: no timer per connection.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as tls

from heliograph.model.errors import ConfigError
from heliograph.runtime.listeners.tls_listener import Listening, listen
from heliograph.runtime.standstill import stood_still_s
from region_node.faces.flow_control import drained, look_at_each
from region_node.faces.open_connections import OpenConnections
from region_node.faces.pulsar.connection.pulsar_connection import PulsarConnection
from region_node.faces.pulsar.session.pulsar_broker import PulsarBroker

log = logging.getLogger("region_node.pulsar")


class PulsarListener:
    """Make it on the event loop."""

    def __init__(self, broker: PulsarBroker) -> None:
        self.broker, self.settings = broker, broker.settings
        self.loop = asyncio.get_running_loop()
        self.opened: OpenConnections[PulsarConnection] = OpenConnections(
            self.settings.connections_per_address, self.loop.call_soon
        )
        self._servers: list[Listening] = []
        self._tick_s = min(self.settings.keep_alive_s, self.settings.handshake_timeout_s) / 2
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        """When the next tick should come."""

    async def start(
        self, host: str, port: int, *, ssl: tls.SSLContext | None = None, link: bool = False, reuse_port: bool = False
    ) -> int:
        """Listens, and returns the port. May be called several times. Raises ConfigError where the port is taken."""
        balanced = self.settings.proxy_protocol and ssl is None and not link
        try:
            server = await listen(
                lambda: PulsarConnection(self.opened, self.broker, link=link, balanced=balanced),
                host,
                port,
                ssl=ssl,
                timeout_s=self.settings.handshake_timeout_s,
                reuse_port=reuse_port,
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror or error}") from error
        self._servers.append(server)
        if self._timer is None:
            self._next_tick(self.broker.clock.monotonic())
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def stop_listening(self, port: int) -> None:
        """Nobody connects there any more; who is connected stays."""
        for server in [s for s in self._servers if any(sock.getsockname()[1] == port for sock in s.sockets)]:
            server.close()
            self._servers.remove(server)

    def counts(self) -> tuple[int, int, int, int, int, int]:
        """Connections: open now; made, refused, and gone since the start; not read from just now, and those of them
        that the budget holds.
        """
        held = sum(connection.reading_held for connection in self.opened.all)
        opened = self.opened
        return len(opened.all), opened.created, opened.refused, opened.ended, held, self.broker.budget.held

    def _tick(self) -> None:
        now = self.broker.clock.monotonic()
        stood_s = stood_still_s(self._due, now)

        def look(connection: PulsarConnection) -> bool:
            if stood_s:
                connection.spare(stood_s)
            connection.tick(now)
            return connection.closed

        look_at_each(iter(list(self.opened.all)), self.opened.all, look, self.loop.call_soon)
        self._next_tick(now)

    def _next_tick(self, now: float) -> None:
        self._due = now + self._tick_s
        self._timer = self.loop.call_later(self._tick_s, self._tick)

    def end_revoked(self) -> int:
        """Closes the connections whose credentials were revoked, and returns how many these were."""
        return sum(connection.session.identity.end_revoked() for connection in list(self.opened.all))

    def disconnect_all(self) -> None:
        """Closes every connection; the listener goes on."""
        for connection in list(self.opened.all):
            connection.close()

    async def close(self) -> None:
        """Takes nothing more, answers what is in flight (so that clients do not send it again), then closes every
        connection.
        """
        for server in self._servers:
            server.close()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.opened.all):
            connection.hold_reading(True)
        if not await drained(self.broker.budget, self.settings.drain_timeout_s):
            log.warning("listener.not_drained", extra={"bytes": self.broker.budget.used})
        self.disconnect_all()
        self.broker.converting.close()
        await self.broker.tasks.close()
