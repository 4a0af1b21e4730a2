"""Regions: what the load and the checkers need of an instance, whoever has started it.

Is: a port, and it over the admin URLs of an instance that runs already. Isn't: what breaks one (`faults`). `make chaos`
gives the port by the instance that it starts.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from heliograph.cli.messaging.produce_consume import Service, official
from heliograph.cli.rest import Rest
from heliograph.model.errors import ConfigError, HeliographError

PATIENCE_S = 120.0
"""For what takes a second on a machine with nothing else to do."""
_POLL_S = 0.05
_READ_MS = 60_000


class NotInTime(HeliographError):
    """What had to come about by itself did not, within the patience."""


class Regions(Protocol):
    """An instance, by its regions' names."""

    def rest(self, region: str) -> Rest:
        """The admin interface of a broker of the region."""
        ...

    def client(self, region: str) -> Any:
        """An official client of Pulsar's (`pulsar.Client`), which whoever made the regions closes."""
        ...

    def read_on(self, region: str, topic: str, after: Any | None) -> Iterator[Any]:
        """Yields the messages behind `after` (a `pulsar.MessageId`; None: all), up to the end of the topic."""
        ...


class AdminRegions:
    """An instance, by the admin URL of a broker of each region. token: of a super user, where brokers want one.

    Raises ConfigError where one is not there, or two are of one region.
    """

    def __init__(self, admins: Sequence[str], token: str = "") -> None:
        self._rests: dict[str, Rest] = {}
        self._clients: dict[str, Any] = {}
        self._services: dict[str, Service] = {}
        for url in admins:
            rest = Rest(url, token)
            status = rest.get("/heliograph/v1/status")
            region = str(status["region"])
            if region in self._rests:
                raise ConfigError(
                    f"--admin: {url} is of region {region}, as one before it: give one URL of each region"
                )
            self._rests[region] = rest
            self._services[region] = Service(
                url=service_url([row["listeners"] for row in status["brokers"]]), token=token
            )

    @property
    def names(self) -> list[str]:
        return list(self._rests)

    def rest(self, region: str) -> Rest:
        return self._rests[region]

    def client(self, region: str) -> Any:
        """One for each region, closed by `close`."""
        if region not in self._clients:
            self._clients[region] = self._services[region].client()
        return self._clients[region]

    def read_on(self, region: str, topic: str, after: Any | None) -> Iterator[Any]:
        first = official().MessageId.earliest if after is None else after
        reader = self.client(region).create_reader(topic, first)
        while reader.has_message_available():
            yield reader.read_next(timeout_millis=_READ_MS)
        reader.close()

    def close(self) -> None:
        for client in self._clients.values():
            with contextlib.suppress(official().PulsarException):  # a broker that is down says no good-bye
                client.close()


def service_url(listeners: Sequence[Mapping[str, str]]) -> str:
    """All brokers of a region, as a client is told of them: those without TLS where there are any."""
    for kind, scheme in (("", "pulsar://"), ("tls", "pulsar+ssl://")):
        if urls := [row[kind] for row in listeners if row.get(kind)]:
            return scheme + ",".join(dict.fromkeys(url.partition("://")[2] for url in urls))
    raise ConfigError("no broker of the region says where clients of Pulsar connect: is one up?")


def eventually(good: Callable[[], Any], what: str, patience_s: float = PATIENCE_S) -> Any:
    """The first true answer of `good`. It asks again and again, because the other side is another process; what is not
    there yet, or is refused, is asked for again. Raises NotInTime.
    """
    deadline, pause = time.monotonic() + patience_s, threading.Event()
    while True:
        missing: Exception | None = None
        try:
            if answer := good():
                return answer
        except (LookupError, ConfigError) as error:
            missing = error
        if time.monotonic() > deadline:
            raise NotInTime(f"not within {patience_s:.0f} s: {what}") from missing
        pause.wait(_POLL_S)


def takes(regions: Regions, region: str, namespace: str) -> bool:
    """Whether that region takes messages of an active-passive namespace, as it says itself."""
    rows = regions.rest(region).get("/heliograph/v1/dr")["namespaces"]
    return any(row["namespace"] == namespace and row["writable_here"] for row in rows)
