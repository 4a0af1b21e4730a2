"""SentOn: by which way a client is led to where its producer, or consumer, goes on: another region, or another cluster.

Is: who is told by TOPIC_MIGRATED, and whose next look-up of the topic is answered with the other region. Isn't: whether
a client goes on elsewhere (`region_node.topics.serving.publish_gates`), or a refusal (the handlers').
Invariants: TOPIC_MIGRATED is sent of a migration alone, as whoever hears it looks the topic up there for good, also
when that region is lost, and goes to clients alone that are known to bear it; a look-up does not say whether it is for
a producer or for a consumer, and consumers stay: so one that was told leads one look-up away, soon, on its connection,
unless a consumer of the topic that was closed from here has one to come there; on any that the same client may have
(address, role, version) only where it is told once more, and so looks up on another one.
Source: docs/protocols/leadership.md, "Clients".
"""

from __future__ import annotations

import re
from dataclasses import replace

from heliograph.model.errors import HeliographError, RegionPassive, TopicError
from heliograph.model.topic_names import TopicName
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.session.client_identity import Identity
from region_node.faces.pulsar.session.look_ups_to_come import LookUpsToCome
from region_node.faces.pulsar.session.pulsar_broker import ClientPort, PulsarBroker, TopicAddress

TOPIC_MIGRATED_SINCE = 20
"""The version of the protocol."""
BEARS_TOPIC_MIGRATED = "Pulsar-Java-"
"""How such a client calls itself. The C++ family says version 20, too, and ends its process in a debug line that names
the command, wherever the program has a logger of its own; of others nobody knows."""
_GO = ("Pulsar-Go-", "Pulsar Go ")
"""How pulsar-client-go calls itself, today and before."""
_OLD_CPP = re.compile(r"(Pulsar-CPP-v)?([0-2]|3\.[0-2])\.")
"""The C++ family before 3.3; some of it, and Java's clients before 3.0, say their version alone. It never tries again
to make a producer, and takes ServiceNotReady for success then: the program is given a null pointer."""
TLS = "pulsar+ssl:"


class SentOn:
    """How one connection's client is led on."""

    __slots__ = ("_again", "_broker", "_identity", "_port", "_tls_ended", "_told")

    def __init__(self, port: ClientPort, broker: PulsarBroker, identity: Identity) -> None:
        self._port, self._broker, self._identity = port, broker, identity
        self._told: LookUpsToCome[str] | None = None
        """Of which topics."""
        self._again: LookUpsToCome[str] | None = None
        """Of which topics a consumer was told to subscribe again."""
        self._tls_ended = False
        """Whether its last look-up was answered with an address with TLS alone."""

    def _by_migration(self, why: RegionPassive) -> bool:
        """Whether the client is told by TOPIC_MIGRATED, and not by a look-up."""
        bears_it = self._port.client_version.startswith(BEARS_TOPIC_MIGRATED)
        return why.migrated and bears_it and self._port.protocol_version >= TOPIC_MIGRATED_SINCE

    def gives_up(self, producer: pb.CommandProducer) -> bool:
        """Whether the client gives this producer up where it is refused, and bears that it is made and closed at once:
        Go's, a new one that is named here, and that nobody takes for the only one. (Before 0.13 it would not hear that
        it is closed. The C++ family before 3.3 would count its sequences anew, and lose what it sent meanwhile.)
        """
        port = self._port
        return (
            port.protocol_version >= TOPIC_MIGRATED_SINCE
            and port.client_version.startswith(_GO)
            and not producer.producer_name
            and producer.producer_access_mode == pb.Shared
        )

    def refusal(self, producer: pb.CommandProducer, why: RegionPassive) -> HeliographError:
        """What a client is told of a producer that may not publish here."""
        return TopicError(str(why)) if not producer.epoch and _OLD_CPP.match(self._port.client_version) else why

    def leads(self, why: RegionPassive) -> bool:
        """Whether it is known where to go on, by an address of the client's kind (with TLS, without)."""
        return bool(_urls(why)[self._by_tls])

    @property
    def _by_tls(self) -> bool:
        """Whether the client speaks TLS, as far as is known here: a load balancer may take it off."""
        return self._port.tls or self._tls_ended

    def tell(
        self, kind: pb.CommandTopicMigrated.ResourceType.ValueType, resource: int, topic: str, why: RegionPassive
    ) -> None:
        """Leads a producer or a consumer of a topic on, where it is known to where: precedes its refusal, or its
        CLOSE_PRODUCER or CLOSE_CONSUMER.
        """
        plain, tls = _urls(why)
        if kind == pb.CommandTopicMigrated.Consumer:
            self.consumer_came(topic)  # it does not stay
        if not self._by_migration(why):
            if plain or tls:  # its look-up will say which of them it can use
                self._note(topic)
            return
        if not self.leads(why) and not (self._broker.settings.proxy_protocol and tls):
            return  # it would go to the address of the other kind, or end its connection where there is no address
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
        self._tls_ended = not found.url
        why = None if self._port.link else self._broker.topics.gates.elsewhere(topic.namespace)
        if why is None or self._by_migration(why) or not self.leads(why):  # it could not go there
            return found
        plain, tls = _urls(why)
        if self._take(text := str(topic)) and not self._stays(text):
            return TopicAddress(self._one_of(plain), self._one_of(tls), redirect=True)
        return found if found.redirect or authoritative else replace(found, redirect=True, authoritative=True)

    def consumer_closed(self, topic: TopicName, text: str) -> None:
        """A consumer is told to come again, and stays here: no look-up of its topic is taken for a producer's until it
        has. The producer is refused once more.
        """
        why = None if self._port.link else self._broker.topics.gates.elsewhere(topic.namespace)
        if why is None or self._by_migration(why):
            return
        self._take(text)
        if self._again is None:
            self._again = LookUpsToCome(self._broker.settings.limits.clients_max)
        self._again.note(text, self._broker.clock.monotonic())

    def consumer_came(self, text: str) -> None:
        if self._again is not None:
            self._again.take(text, 0.0)
            if not self._again:
                self._again = None

    def _stays(self, text: str) -> bool:
        return self._again is not None and self._again.awaits(text, self._broker.clock.monotonic())

    def _note(self, topic: str) -> None:
        now = self._broker.clock.monotonic()
        if self._told is None:
            self._told = LookUpsToCome(self._broker.settings.limits.clients_max)
        if self._told.note(topic, now):  # the client has looked it up on another connection meanwhile
            self._broker.told.note(self._whose(topic), now)

    def _take(self, topic: str) -> bool:
        """Whether this look-up is one to be led away."""
        now, told = self._broker.clock.monotonic(), self._told
        own = told is not None and told.take(topic, now)
        if not told:
            self._told = None
        return self._broker.told.take(self._whose(topic), now) or own

    def _whose(self, topic: str) -> tuple[str, str, str, str]:
        """Which client it is, as far as two of its connections have that in common."""
        port = self._port
        return topic, port.address.rpartition(":")[0], self._identity.role, port.client_version

    def _one_of(self, url: str) -> str:
        """One broker's address of a service URL, which may name several."""
        scheme, _, hosts = url.partition("://")
        return f"{scheme}://{self._broker.rng.choice(hosts.split(','))}" if url else ""


def _urls(why: RegionPassive) -> tuple[str, str]:
    """(Without TLS, with it); "": none."""
    return ("", why.url) if why.url.startswith(TLS) else (why.url, why.url_tls)
