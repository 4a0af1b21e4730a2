"""KafkaListener: accepts Kafka connections, and looks at each from time to time.

Is: listening sockets, and the tick. Isn't: requests (`kafka_connection`), or what connections share
(`open_connections`).
Invariants: no timer per connection; batches in flight of the whole broker stay within the budget plus one request per
connection.
"""

from __future__ import annotations

import asyncio
import logging
import ssl as tls_module
from collections.abc import Iterable

from heliograph.model.errors import ConfigError, HeliographError
from heliograph.runtime.listeners.tls_listener import Listening, listen
from heliograph.runtime.standstill import stood_still_s
from region_node.faces.flow_control import look_at_each
from region_node.faces.kafka.connection.kafka_connection import STAGING_BYTES, KafkaConnection
from region_node.faces.kafka.session.kafka_broker import KafkaBroker
from region_node.faces.kafka.transactions.kafka_transactions import KafkaTransactions
from region_node.faces.open_connections import OpenConnections
from region_node.runtime.prometheus_text import Sample

log = logging.getLogger("region_node.kafka")

_TICK_S = 2.0


class KafkaListener:
    def __init__(self, broker: KafkaBroker) -> None:
        self.broker = broker
        self.loop = asyncio.get_running_loop()
        self.opened: OpenConnections[KafkaConnection] = OpenConnections(
            broker.settings.connections_per_address, self.loop.call_soon
        )
        self.staging = bytearray(STAGING_BYTES)
        self._servers: list[Listening] = []
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0
        """When the next tick should come."""
        self._recovering = self._looking = False
        self._kept_at = broker.clock.monotonic()

    async def start(self, host: str, port: int, *, ssl: tls_module.SSLContext | None = None) -> int:
        """Listens, and returns the port. Raises ConfigError where it is taken."""
        try:
            server = await listen(
                lambda: KafkaConnection(self.opened, self.broker, self.staging, tls=ssl is not None),
                host,
                port,
                ssl=ssl,
                timeout_s=self.broker.settings.handshake_timeout_s,
            )
        except OSError as error:
            raise ConfigError(f"cannot listen on {host}:{port} for Kafka: {error.strerror or error}") from error
        self._servers.append(server)
        if self._timer is None:
            self._next_tick(self.broker.clock.monotonic())
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    def samples(self) -> Iterable[Sample]:
        """Yields the metrics of the face, of its connections too."""
        return self.broker.samples(len(self.opened.all))

    def end_revoked(self) -> int:
        """Closes the connections whose credentials were revoked, and returns how many these were."""
        return sum(connection.session.end_revoked() for connection in list(self.opened.all))

    def _tick(self) -> None:
        now, settings = self.broker.clock.monotonic(), self.broker.settings
        stood_s = stood_still_s(self._due, now)

        def look(connection: KafkaConnection) -> bool:
            if stood_s:
                connection.spare(stood_s)
            if connection.session.login.principal is None and now - connection.since > settings.handshake_timeout_s:
                connection.close("no authentication in time")
            elif connection.session.login.expired:
                connection.close("the credentials of this connection have run out")
            elif now - connection.heard_at > settings.idle_s:
                connection.close("idle")
            return connection.closed

        look_at_each(iter(list(self.opened.all)), self.opened.all, look, self.loop.call_soon)
        if now - self._kept_at >= settings.retention_check_s:
            self._kept_at = now
            self.broker.tasks.spawn(self.broker.keep())
        self.broker.coordinator.tick()
        self.broker.quotas.tick()
        if not self._looking:
            self._looking = True
            self.broker.tasks.spawn(self._look())
        if self.broker.transactions is not None and not self._recovering:
            self._recovering = True
            self.broker.tasks.spawn(self._recover(self.broker.transactions))
        self._next_tick(now)

    def _next_tick(self, now: float) -> None:
        self._due = now + _TICK_S
        self._timer = self.loop.call_later(_TICK_S, self._tick)

    async def _look(self) -> None:
        try:
            await self.broker.tell_cache()
            await self.broker.positions.look()
        finally:
            self._looking = False

    async def _recover(self, transactions: KafkaTransactions) -> None:
        try:
            await transactions.recover()
        except HeliographError as error:  # the next tick tries again
            log.warning("kafka.recovery_failed", extra={"error": str(error)})
        finally:
            self._recovering = False

    async def close(self) -> None:
        """Takes nothing more, and closes every connection: clients go to other brokers."""
        for server in self._servers:
            server.close()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.opened.all):
            connection.close()
        await self.broker.tasks.close()
