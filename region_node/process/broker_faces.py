"""BrokerFaces: the listeners of a broker, and what it tells others of them.

Is: the part of the composition that opens Pulsar's, Kafka's, and the admin listeners over a broker's objects, and the
record by which clients and other brokers find them. Isn't: the objects themselves (`broker_parts`), or a protocol.
Invariants: nothing is listened to before everything behind it is there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, cast

from heliograph import __version__
from heliograph.model.configuration.replication_routes import delivers
from heliograph.model.errors import LinkError, NotFound, Unauthorized
from heliograph.model.topic_names import TopicName
from region_node.process.role_runtime import closing, replicator_tls
from region_node.security.tls import server_context

if TYPE_CHECKING:
    from region_node.faces.kafka.cluster.leading_regions import LeadingRegions
    from region_node.faces.kafka.shared_rows import RowStores
    from region_node.faces.pulsar.session.pulsar_broker import TopicAddress
    from region_node.placement.ownership.broker_records import BrokerRecord
    from region_node.placement.ownership.ownership_service import Ownership
    from region_node.process.broker_parts import BrokerParts
    from region_node.security.authentication.code_sign_in import CodeSignIn
    from region_node.topics.serving.topic_service import TopicService
    from replicator.log.replicated_log import ReplicatedLog
    from replicator.receiving.link_receiver import LinkReceiver
    from replicator.receiving.link_session import LinkSession


def _sign_in(broker: BrokerParts) -> CodeSignIn | None:
    """At which issuer people sign in to the console; None: at none."""
    from region_node.security.authentication.code_sign_in import CodeSignIn
    from region_node.security.authentication.jwks_issuers import fetch, post_form

    settings, clock = broker.settings.security, broker.runtime.clock
    if "token" not in settings.authentication:
        return None
    found = next((source for source in settings.tokens if source.console_client_id), None)
    return CodeSignIn(found, broker.security.authentication, fetch, post_form, clock) if found is not None else None


class PulsarLookup:
    """Ownership, as the Pulsar listener asks it."""

    def __init__(self, ownership: Ownership, topics: TopicService) -> None:
        self._ownership, self._topics = ownership, topics

    async def lookup(self, topic: str, listener: str, authoritative: bool) -> TopicAddress:
        from region_node.faces.pulsar.session.pulsar_broker import TopicAddress

        found = await self._ownership.lookup(topic, listener, authoritative)
        return TopicAddress(found.url, found.url_tls, found.redirect, authoritative=found.redirect)

    async def partitions(self, topic: str, create: bool) -> int:
        count = await self._ownership.partitions(topic, create)
        if deleted := self._topics.tombstone_of(TopicName.parse(topic)):
            raise NotFound(deleted)
        if count or create:
            return count or await self._topics.creation.make_partitions(topic)
        name = TopicName.parse(topic)
        if name.persistent and not (
            0 <= name.partition < self._topics.view.partitions(str(name.partitioned))
            or await self._topics.exists(str(name))
        ):
            raise NotFound(f"topic {name} does not exist")
        return 0

    @property
    def admin_urls(self) -> tuple[str, str]:
        return self._ownership.record.admin_url, self._ownership.record.admin_url_tls


class BrokerFaces:
    """Opens the listeners of one broker, over the parts of it that are made by then."""

    def __init__(self, broker: BrokerParts) -> None:
        self._broker = broker

    async def listen(self) -> dict[str, int]:
        broker = self._broker
        from region_node.faces.pulsar.connection.pulsar_listener import PulsarListener
        from region_node.faces.pulsar.connection.revoked_rights import Revoking
        from region_node.faces.pulsar.session.pulsar_broker import PulsarBroker
        from region_node.process.broker_limits import of_pulsar
        from replicator.health.link_causes import Cause
        from replicator.receiving.link_receiver import LinkReceiver, ReceiverSettings, inflight_budget

        own, bind = broker.settings.broker, broker.settings.bind

        async def open_log(topic: str, source_region: str) -> ReplicatedLog:
            policies = broker.view.namespace(TopicName.parse(topic).namespace)
            if policies is not None and source_region not in policies.regions:
                raise Unauthorized(f"{topic}: its namespace is not replicated with region {source_region}")
            if (count := broker.view.partitions(topic)) > 0:
                text = (
                    f"{topic} has {count} partitions in {broker.settings.region}, and is a plain topic in "
                    f"{source_region}"
                )
                raise LinkError(Cause.PARTITIONS_CONFLICT, text)
            loaded = await broker.topics.get(topic, create=True)
            routes = loaded.policies.values.get("replicationRoutes")
            if not delivers(routes, source_region, broker.settings.region):
                text = (
                    f"{topic}: in {broker.settings.region} no route leads from {source_region} to it (its "
                    f"replicationRoutes: {json.dumps(routes)})"
                )
                raise LinkError(Cause.ROUTE_CONFLICT, text)
            return cast("ReplicatedLog", loaded.log)

        budget = inflight_budget()

        def receive(session: LinkSession) -> LinkReceiver:
            return LinkReceiver(
                session,
                open_log,
                broker.runtime.clock,
                region=broker.settings.region,
                region_number=broker.region_number,
                relays=broker.links.relays,
                settings=broker.runtime.of(ReceiverSettings),
                budget=budget,
                incoming=broker.links.incoming,
                auditor=broker.links.auditor,
                schemas=broker.links.schemas,
            )

        pulsar = PulsarBroker(
            topics=broker.topics,
            lookup=PulsarLookup(broker.ownership, broker.topics),
            link_receivers=receive,
            security=broker.security,
            usage=broker.usage,
            transactions=broker.transactions,
            clusters=broker.clusters,
            settings=of_pulsar(broker.settings),
            clock=broker.runtime.clock,
            rng=broker.runtime.rng,
        )
        broker.listener = PulsarListener(pulsar)
        broker.stops.append(broker.listener.close)
        broker.stops.append(closing(Revoking(broker.listener, broker.view).close))
        broker.security.authentication.revocations.on_change(broker.listener.end_revoked, "pulsar")
        ports: dict[str, int] = {}
        if own.port >= 0:
            ports["pulsar"] = await broker.listener.start(bind, own.port)
        if own.shared_port:
            ports["shared"] = await broker.listener.start(bind, own.shared_port, reuse_port=True)
        if own.tls_port >= 0:
            ports["pulsar_tls"] = await broker.listener.start(bind, own.tls_port, ssl=broker.certificates.for_clients())
        if own.shared_tls_port:
            ports["shared_tls"] = await broker.listener.start(
                bind, own.shared_tls_port, ssl=broker.certificates.for_clients(), reuse_port=True
            )
        if own.link_port or (broker.settings.tls is not None and broker.settings.tls.replicator_cert):
            tls = replicator_tls(broker.settings.tls, lambda *files: broker.certificates.keep(server_context, *files))
            ports["link"] = await broker.listener.start(bind, own.link_port, ssl=tls, link=True)
        ports.update(await self._listen_kafka())
        return ports

    async def _listen_kafka(self) -> dict[str, int]:
        broker = self._broker
        from region_node.process.broker_limits import of_kafka

        own, bind = of_kafka(broker.settings), broker.settings.bind
        if max(own.port, own.tls_port) < 0:
            return {}
        from global_config.admin import ConfigAdmin
        from heliograph.runtime.clock import Clocks
        from region_node.faces.kafka.administration.topic_cleanup import Cleaning
        from region_node.faces.kafka.cluster.kafka_cluster import Cluster
        from region_node.faces.kafka.connection.kafka_listener import KafkaListener
        from region_node.faces.kafka.session.kafka_broker import Accounts, KafkaBroker
        from region_node.topics.serving.topic_ids import TopicIds

        config = ConfigAdmin(broker.config, rng=broker.runtime.rng, clock=broker.runtime.clock)
        ids = TopicIds(broker.meta, broker.runtime.rng, broker.view.incarnation)
        broker.stops.append(closing(ids.close))
        kafka = KafkaBroker(
            cluster=Cluster(
                ownership=broker.ownership,
                region=broker.epoch,
                topics=broker.topics,
                config=config,
                settings=own,
                ids=ids,
                leading=await self._leading_regions(own.namespace),
                calls=broker.calls,
            ),
            meta=broker.meta,
            accounts=Accounts(broker.security, broker.audit, broker.usage, self._shared_rows()),
            clocks=Clocks(broker.runtime.clock, broker.expiry),
            rng=broker.runtime.rng,
            converting=broker.listener.broker.converting,
            transactions=broker.transactions,
            leadership=broker.subscription_leadership,
        )
        await kafka.positions.start()
        broker.stops.append(closing(kafka.positions.close))
        broker.stops.append(closing(kafka.quotas.close))
        broker.stops.append(closing(kafka.close))
        broker.stops.append(closing(kafka.coordinator.close))
        broker.stops.append(closing(Cleaning(kafka).close))
        broker.kafka = listener = KafkaListener(kafka)
        broker.stops.append(listener.close)
        broker.security.authentication.revocations.on_change(listener.end_revoked, "kafka")
        ports: dict[str, int] = {}
        if own.port >= 0:
            ports["kafka"] = await listener.start(bind, own.port)
        if own.tls_port >= 0:
            ports["kafka_tls"] = await listener.start(bind, own.tls_port, ssl=broker.certificates.for_clients())
        return ports

    def _shared_rows(self) -> RowStores:
        """Where SCRAM users and quotas are."""
        broker = self._broker
        from heliograph.model.feature_levels import KAFKA_USERS_SHARED
        from region_node.faces.kafka.shared_rows import RowStores

        return RowStores(
            broker.config,
            broker.meta,
            lambda: broker.level.present >= KAFKA_USERS_SHARED,
            lambda: all(each.feature_level >= KAFKA_USERS_SHARED for each in broker.view.regions()),
        )

    async def _leading_regions(self, namespace: str) -> LeadingRegions:
        """From here on it knows other regions' brokers, and they this one. namespace: the listener's own."""
        broker = self._broker
        from region_node.faces.kafka.cluster.kafka_nodes import own_number
        from region_node.faces.kafka.cluster.leading_regions import LeadershipPorts, LeadingRegions, announcement
        from region_node.transactions.coordinators.coordinator_topics import NAMESPACE as COORDINATORS

        leading = LeadingRegions(
            broker.settings.region,
            await own_number(broker.meta, broker.settings.node_id),
            broker.view.region,
            LeadershipPorts(
                gate=broker.leases.gate,
                names=lambda: [gate.namespace for gate in broker.leases.core.gates()],
                ended=broker.leaderships.ended,
                on_change=broker.leases.on_change,
                namespace=namespace,
                regions=lambda name: () if (found := broker.view.namespace(name)) is None else found.regions,
                config=broker.config,
                meta=broker.meta,
                now=broker.runtime.clock.monotonic,
            ),
        )
        broker.stops.append(leading.close)
        await leading.start()
        broker.leases.tell_of_kafka(
            lambda: announcement(
                broker.ownership.record.listeners,
                broker.ownership.owned(),
                broker.ownership.bundles,
                lambda name: name == COORDINATORS or leading.active_passive(name),
                namespace,
            )
        )
        return leading

    async def open_admin(self, ports: dict[str, int]) -> None:
        broker = self._broker
        broker.stops.append(broker.drain)
        own, bind = broker.settings.broker, broker.settings.bind
        from region_node.process.broker_safety import automatic_of

        if own.admin_port < 0:  # it says what it hears of other regions all the same
            automatic = automatic_of(broker, None)
            broker.stops.insert(-1, automatic.stop)
            await automatic.start()
            return
        from global_config.admin import ConfigAdmin
        from region_node.dr.operations.drill_schedule import DrillSchedule
        from region_node.dr.operations.grouped_store import grouped
        from region_node.dr.operations.operation import StepAges
        from region_node.dr.operations.report_signing import Signer
        from region_node.dr.rehearsal.drill_clients import DrillClients
        from region_node.faces.admin.calls.admin_context import Admin
        from region_node.faces.admin.dr.disaster_recovery import conductor_for
        from region_node.faces.admin.dr.drill_schedules import OwnCredentials
        from region_node.faces.admin.server.admin_server import AdminServer
        from region_node.process.broker_limits import of_admin
        from region_node.security.allowed_urls import UrlList
        from region_node.security.read_permits import ReadKeys
        from region_node.topics.serving.entry_locations import BookiePlaces

        keys, to_bookies = ReadKeys(broker.meta, broker.runtime.clock), broker.certificates.dialer("broker", "bookie")
        broker.stops.insert(-1, closing(keys.close))
        own_name = OwnCredentials(own.drill_token_file)
        clients = DrillClients(
            broker.runtime.clock,
            lambda: own_name.headers.get("Authorization", "").removeprefix("Bearer "),
            outward := broker.certificates.outward(),
        )
        broker.stops.insert(-1, clients.stop)
        automatic = automatic_of(broker, lambda store: conductor_for(admin, own_name, store=store))
        broker.stops.insert(-1, automatic.stop)
        admin = Admin(
            region=broker.settings.region,
            ownership=broker.ownership,
            topics=broker.topics,
            links=broker.links,
            view=broker.view,
            config=ConfigAdmin(broker.config, broker.deferred, broker.runtime.rng, broker.runtime.clock),
            clock=broker.runtime.clock,
            step_ages=StepAges(broker.runtime.clock.monotonic),
            audit=broker.audit,
            version=__version__,
            config_status=broker.config.status,
            members={"metadata": broker.meta.members, "config": broker.config.members},
            recovery=broker.recovery,
            security=broker.security,
            sign_in=_sign_in(broker),
            authenticate_metrics=broker.settings.security.authenticate_metrics,
            calls=broker.calls,
            to_bookies=to_bookies,
            places=BookiePlaces(keys, broker.pool, to_bookies),
            outward=outward,
            audiences=broker.settings.security.region_audiences,
            usage=broker.usage,
            stored=broker.stored,
            usage_store=broker.meta,
            urls=UrlList(broker.settings.security.allowed_urls),
            hosts=UrlList(broker.settings.security.allowed_hosts),
            entry_cache=broker.entry_cache,
            appends=broker.appends,
            losses=broker.topics.losses,
            lookups=broker.listener.broker.lookups,
            metrics_series=own.topic_series(),
            metrics_consumers=own.metrics_consumers,
            connection_counts=lambda: broker.listener.counts(),
            stores=broker.store_counts,
            tier=broker.tier,
            sealing=broker.sealing,
            reach_level=broker.level.reach,
            face_samples=broker.kafka.samples if broker.kafka is not None else None,
            balancer=broker.balancer,
            isolation=broker.isolation,
            leases=broker.leases,
            grouped=grouped(broker.config),
            region_patience_s=own.region_patience_s,
            subscription_leadership=broker.subscription_leadership,
            deferred=broker.deferred,
            promises=broker.promises,
            automatic=automatic,
            end=broker.told_to_end.tell,
            tombstones=broker.tombstones,
            signer=Signer(broker.settings.region, broker.meta, broker.config, broker.runtime.rng),
            canary=broker.canary,
            drill=own.drill,
            drill_clients=clients,
            transactions=broker.transactions,
        )
        broker.drills = DrillSchedule(
            broker.config,
            lambda: conductor_for(admin, own_name),
            clock=broker.runtime.clock,
            region=broker.settings.region,
        )
        broker.stops.insert(-1, broker.drills.stop)
        await automatic.start()
        server = AdminServer(admin, of_admin(own))
        broker.stops.insert(-1, server.stop)
        ports["admin"] = await server.start(bind, own.admin_port)
        if own.shared_admin_port:
            ports["shared_admin"] = await server.start(bind, own.shared_admin_port, shared=True)
        if own.admin_tls_port >= 0:
            ports["admin_tls"] = await server.start(bind, own.admin_tls_port, tls=broker.certificates.for_clients())
        if (inside := broker.certificates.listener("broker", "broker")) is not None:
            ports["admin_inside"] = await server.start(bind, own.inside_port, tls=inside)

    def record(self, ports: dict[str, int]) -> BrokerRecord:
        broker = self._broker
        from region_node.placement.ownership.broker_records import HTTPS, INSIDE, LINK_LISTENER, BrokerRecord

        host = broker.settings.broker.advertised_host or broker.settings.bind
        inside = broker.settings.broker.inside_host or host
        listeners = {"": f"pulsar://{host}:{ports['pulsar']}" if "pulsar" in ports else ""}
        if "pulsar_tls" in ports:
            listeners["tls"] = f"pulsar+ssl://{host}:{ports['pulsar_tls']}"
        if "link" in ports:
            listeners[LINK_LISTENER] = (
                f"{'pulsar' if broker.settings.tls is None else 'pulsar+ssl'}://{host}:{ports['link']}"
            )
        listeners.update(broker.settings.broker.listeners)
        if broker.kafka is not None:
            from region_node.faces.kafka.cluster.kafka_nodes import LISTENER, TLS_LISTENER, node_url

            for port, name in (("kafka", LISTENER), ("kafka_tls", TLS_LISTENER)):
                if port in ports:
                    at = broker.settings.broker.kafka.advertised_host or host
                    listeners[name] = node_url(broker.kafka.broker.leading.local_number, at, ports[port])
        if "admin_tls" in ports:
            listeners[HTTPS] = f"https://{host}:{ports['admin_tls']}"
        if "admin_inside" in ports:
            listeners[INSIDE] = f"https://{inside}:{ports['admin_inside']}"
        elif "admin" in ports:
            listeners[INSIDE] = f"http://{inside}:{ports['admin']}"
        admin_url = f"http://{host}:{ports['admin']}" if "admin" in ports else ""
        return BrokerRecord(
            broker.settings.node_id, listeners, admin_url, broker.runtime.pid, level=broker.runtime.feature_level
        )
