"""SentOn: by which way a client is led to where its producer, or consumer, goes on: another region, or another cluster.

Is: who is told by TOPIC_MIGRATED, and whose next look-up of the topic is answered with the other region. Isn't: whether
a client goes on elsewhere (`region_node.topics.serving.publish_gates`), or a refusal (the handlers').
Invariants: TOPIC_MIGRATED goes to clients alone that are known to bear it; a look-up does not say whether it is for a
producer or for a consumer, and consumers stay: so one that was told leads one look-up away, on its connection, soon.
Source: docs/protocols/leadership.md, "Clients".
"""

from __future__ import annotations

from dataclasses import replace

from heliograph.model.errors import RegionPassive
from heliograph.model.topic_names import TopicName
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.session.pulsar_broker import ClientPort, PulsarBroker, TopicAddress

TOPIC_MIGRATED_SINCE = 20
"""The version of the protocol."""
BEARS_TOPIC_MIGRATED = "Pulsar-Java-"
"""How such a client calls itself. The C++ family says version 20, too, and ends its process in a debug line that names
the command, wherever the program has a logger of its own; of others nobody knows."""
GO = ("Pulsar-Go-", "Pulsar Go ")
"""How pulsar-client-go calls itself, since 0.14 and before."""
SENT_ON_S = 15.0
"""So long its next look-up of the topic is led away: clients come within a second, or are late by their own backoff,
and then are told once more."""
TLS = "pulsar+ssl:"


class SentOn:
    """How one connection's client is led on."""

    __slots__ = ("_broker", "_port", "_until")

    def __init__(self, port: ClientPort, broker: PulsarBroker) -> None:
        self._port, self._broker = port, broker
        self._until: dict[str, float] | None = None
        """Topic -> when its next look-up is led away no more; the oldest first."""

    @property
    def _bears_it(self) -> bool:
        port = self._port
        return port.protocol_version >= TOPIC_MIGRATED_SINCE and port.client_version.startswith(BEARS_TOPIC_MIGRATED)

    def gives_up(self, producer: pb.CommandProducer) -> bool:
        """Whether the client gives this producer up where it is refused, and bears that it is made and closed at once:
        Go's (pulsar-client-go from 0.13), a new one that is named here, and that nobody takes for the only one.
        """
        port = self._port
        return (
            port.protocol_version >= TOPIC_MIGRATED_SINCE
            and port.client_version.startswith(GO)
            and not producer.producer_name
            and producer.producer_access_mode == pb.Shared
        )

    @staticmethod
    def leads(why: RegionPassive) -> bool:
        """Whether it is known where to go on."""
        return any(_urls(why))

    def tell(
        self, kind: pb.CommandTopicMigrated.ResourceType.ValueType, resource: int, topic: str, why: RegionPassive
    ) -> None:
        """Leads a producer or a consumer of a topic on, where it is known to where: precedes its refusal, or its
        CLOSE_PRODUCER or CLOSE_CONSUMER.
        """
        if not self.leads(why):
            return
        if not self._bears_it:
            self._note(topic)
            return
        plain, tls = _urls(why)
        migrated = pb.CommandTopicMigrated(resource_id=resource, resource_type=kind)
        if plain:
            migrated.brokerServiceUrl = plain
        if tls:
            migrated.brokerServiceUrlTls = tls
        self._port.send(pb.BaseCommand(type=pb.BaseCommand.TOPIC_MIGRATED, topicMigrated=migrated))

    def look_up(self, topic: TopicName, found: TopicAddress, *, authoritative: bool) -> TopicAddress:
        """What a look-up is answered of a topic that is served at `found` in this region. A client that may have been
        told, at the owner and by the connection that leads there, is sent there to ask once more. authoritative: so it
        came.
        """
        port = self._port
        if port.link or self._bears_it:
            return found
        why = self._broker.topics.gates.elsewhere(topic.namespace)
        plain, tls = ("", "") if why is None else _urls(why)
        if not (tls if port.tls or not found.url else plain):  # it could not go there
            return found
        if self._take(str(topic)):
            return TopicAddress(self._one_of(plain), self._one_of(tls), redirect=True)
        return found if found.redirect or authoritative else replace(found, redirect=True, authoritative=True)

    def _note(self, topic: str) -> None:
        until, now = self._until, self._broker.clock.monotonic()
        if until is None:
            until = self._until = {}
        until.pop(topic, None)
        until[topic] = now + SENT_ON_S
        oldest = next(iter(until))
        if until[oldest] <= now or len(until) > self._broker.settings.limits.clients_max:
            del until[oldest]

    def _take(self, topic: str) -> bool:
        """Whether this look-up is one to be led away: no other is."""
        until = self._until
        if until is None:
            return False
        end = until.pop(topic, 0.0)
        if not until:
            self._until = None
        return end > self._broker.clock.monotonic()

    def _one_of(self, url: str) -> str:
        """One broker's address of a service URL, which may name several."""
        scheme, _, hosts = url.partition("://")
        return f"{scheme}://{self._broker.rng.choice(hosts.split(','))}" if url else ""


def _urls(why: RegionPassive) -> tuple[str, str]:
    """(Without TLS, with it); "": none."""
    return ("", why.url) if why.url.startswith(TLS) else (why.url, why.url_tls)
