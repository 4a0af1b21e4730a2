"""KafkaBroker: what all connections of one broker's Kafka listener share.

Is: the parts of this face, the logs of partitions that are loaded here, counts, and the byte budget of batches in
flight. Isn't: a request's meaning.
Invariants: a log is shared by all who use its topic, and dropped with it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Protocol

from global_config.keys import PARTITIONED
from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.configuration.configuration_records import TopicPolicies
from heliograph.model.errors import HeliographError, NotFound
from heliograph.model.topic_names import TopicName
from heliograph.runtime.byte_budget import ByteBudget
from heliograph.runtime.clock import Clocks, Rng
from heliograph.runtime.compute_thread import Offload
from region_node.faces.kafka.cluster.kafka_cluster import Cluster
from region_node.faces.kafka.cluster.kafka_configs import Configs
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.groups.group_coordinator import GroupCoordinator
from region_node.faces.kafka.groups.group_regions import GroupLeadership
from region_node.faces.kafka.groups.group_rights import GroupRights
from region_node.faces.kafka.groups.offset_commits import Commits
from region_node.faces.kafka.groups.replicated_group_offsets import PREFIX, GroupPositions, group_of
from region_node.faces.kafka.log.partition_log import KafkaCounts, KafkaLog
from region_node.faces.kafka.quotas.client_quotas import ClientQuotas
from region_node.faces.kafka.security.scram import ScramUsers
from region_node.faces.kafka.session.client_epochs import ClientEpochs
from region_node.faces.kafka.session.fetch_sessions import FetchSessions
from region_node.faces.kafka.session.heavy_reads import HeavyReads
from region_node.faces.kafka.shared_rows import RowStores
from region_node.faces.kafka.transactions.kafka_transactions import KafkaTransactions
from region_node.faces.kafka.transactions.producer_ids import ProducerIds
from region_node.runtime.logged_tasks import logged_tasks
from region_node.runtime.prometheus_text import Sample
from region_node.security.audit_log import AuditLog
from region_node.security.authentication.principal import Principal
from region_node.security.authorization import deleted_topic_grants
from region_node.security.authorization.authorization_service import Action
from region_node.security.authorization.security_service import Security
from region_node.transactions.coordinators.transaction_service import Transactions
from region_node.usage.tenant_usage import Usage

if TYPE_CHECKING:
    from region_node.dr.leadership.subscription_leadership import SubscriptionLeadership


NAMES_MAX = 100_000
"""Topics' names that are kept parsed, whoever asked for them."""
NAME_KEPT_MAX = 320
"""Characters of such a name, all of them ASCII: a topic of Kafka's has 249, and here a tenant and a namespace before
them. Of those somebody may invent thousands of characters: such names are parsed each time.
"""


class BudgetedSession(Protocol):
    """`region_node.faces.kafka.session.kafka_session.KafkaSession`, as the budget holds it."""

    def over_budget(self, over: bool) -> None: ...


def _over_budget(session: BudgetedSession, over: bool) -> None:
    session.over_budget(over)


@dataclass(frozen=True, slots=True)
class Accounts:
    """Who clients are, what they may and what is written down of it. stores: where users and their quotas are."""

    security: Security
    audit: AuditLog
    usage: Usage
    stores: RowStores


class KafkaBroker:
    """Made once, by the composition, with all of its parts."""

    def __init__(
        self,
        *,
        cluster: Cluster,
        meta: MetadataStore,
        accounts: Accounts,
        clocks: Clocks,
        rng: Rng,
        converting: Offload,
        transactions: Transactions | None = None,
        leadership: SubscriptionLeadership | None = None,
    ) -> None:
        """converting: where large entries of Pulsar's clients become batches; the other face has it too: two threads
        would take two thirds of the loop's time. transactions: the region's coordinators that run here; None:
        transactions are off. leadership: groups work where it is, as subscriptions do; None: everywhere.
        """
        region = cluster.region
        self.cluster, self.meta, self.rng, self.converting = cluster, meta, rng, converting
        self.topics, self.config, self.settings, self.ids, self.leading = (
            cluster.topics,
            cluster.config,
            cluster.settings,
            cluster.ids,
            cluster.leading,
        )
        self.security, self.audit, self.usage = accounts.security, accounts.audit, accounts.usage
        self.clock, self.expiry = clocks.now, clocks.expiry
        self.region, self.instance = region.name, f"heliograph-{region.name}"
        self.counts = KafkaCounts()
        self.budget: ByteBudget[BudgetedSession] = ByteBudget(self.settings.inflight_bytes_max, _over_budget)
        """Bounds the bytes of produce requests whose batches are not durable yet."""
        self.heavy = HeavyReads()
        self.tasks = logged_tasks()
        self.commits = Commits(meta, self.tasks.spawn)
        self.sessions = FetchSessions(self.settings.fetch_sessions_max, rng)
        self.configs = Configs(self.topics, self.config, self.settings)
        self.positions = GroupPositions(self)
        self.scram = ScramUsers(accounts.stores, rng, self.security.rights.is_super_name)
        self.producer_ids = ProducerIds(meta, lambda: region.info().number, self.clock)
        self.quotas = ClientQuotas(accounts.stores, self.clock)
        self._moving = [self.tasks.spawn(rows.move()) for rows in (self.scram.rows, self.quotas.table.shared)]
        self.group_leadership = GroupLeadership(self.name, leadership)
        self.group_rights = GroupRights(self.security.rights, self.settings.namespace, self.name)
        self.coordinator = GroupCoordinator(self)
        if leadership is not None:
            leadership.count(self._members)
        self.transactions = KafkaTransactions(self, transactions) if transactions is not None else None
        """Coordinates transactional ids; None: transactions are off."""
        self._logs: dict[str, KafkaLog] = {}
        self._read_now: dict[KafkaLog, None] = {}
        self._at_once: dict[tuple[str, int], KafkaLog] = {}
        """What `loaded` has found; those that are closed meanwhile go at the next look."""
        self._stop = self.topics.view.on_change(self._partitions_changed)
        self.leading.on_change(self._leadership_changed)
        self._names: dict[str, TopicName] = {}

    def _members(self, subscription: str) -> int:
        """How many members the group has whose position a subscription is, that this broker coordinates: each holds
        what it has not committed.
        """
        return self.coordinator.members_of(group_of(subscription)) if subscription.startswith(PREFIX) else 0

    def opened_transactions(self) -> KafkaTransactions:
        """Returns the coordinator of transactional ids. Raises Refused where transactions are off."""
        if self.transactions is None:
            raise Refused(Code.INVALID_REQUEST, "transactions are off: set broker.transactionCoordinatorEnabled")
        return self.transactions

    def name(self, kafka: str) -> TopicName:
        """Returns the topic that Kafka's clients call `kafka`. Raises Refused (INVALID_TOPIC_EXCEPTION)."""
        found = self._names.get(kafka)
        if found is None:
            found = self.cluster.name(kafka)
            if len(kafka) <= NAME_KEPT_MAX and kafka.isascii():
                if len(self._names) >= NAMES_MAX:
                    self._names.clear()
                self._names[kafka] = found
        return found

    def kept_as(self, kafka: str) -> str:
        """The one name by which offsets of a topic are kept, however a client writes it; what is no topic's name stays
        as it is.
        """
        try:
            return self.cluster.kafka_name(self.name(kafka))
        except Refused:
            return kafka

    def of_id(self, topic: bytes) -> str:
        """The name of a topic that a client knows by its id. Raises Refused."""
        name = self.ids.named(topic)
        if name is None:
            raise Refused(Code.UNKNOWN_TOPIC_ID, "no topic has this id: it was deleted, or is not known here yet")
        return self.cluster.kafka_name(name)

    def loaded(self, kafka: str, partition: int) -> KafkaLog | None:
        """The partition's log where it can be used at once. Raises Refused."""
        log = self._at_once.get((kafka, partition))
        if log is not None and not log.topic.closed:
            return log
        name = self.name(kafka)
        if not self.cluster.may_have(name, partition):
            return None
        log = self._logs.get(str(self.cluster.part(name, partition)))
        if log is None or log.topic.closed:
            return None
        self._at_once[kafka, partition] = log
        return log

    def _partitions_changed(self, key: str) -> None:
        if key.startswith(PARTITIONED):  # a name may stand for another topic now
            self._at_once.clear()

    def _leadership_changed(self, name: str) -> None:
        """What was opened under another leader epoch is opened anew: other regions' producers have come here since."""
        epoch = self.leading.epoch(name)
        for text, log in list(self._logs.items()):
            if log.topic.name.namespace == name and log.leader_epoch != epoch:
                del self._logs[text]
        for key, log in list(self._at_once.items()):
            if log.topic.name.namespace == name and log.leader_epoch != epoch:
                del self._at_once[key]

    def close(self) -> None:
        for task in self._moving:
            task.cancel()
        self.scram.rows.close()
        self.converting.close()
        self._stop()

    async def log(self, kafka: str, partition: int) -> KafkaLog:
        """The partition's log, loaded where this broker owns it. Raises Refused, NotFound, NotOwner, and what storage
        raises.
        """
        found = self.loaded(kafka, partition)
        if found is not None:
            return found
        name = self.name(kafka)
        count = await self.cluster.partitions(name)
        if not 0 <= partition < count:
            raise NotFound(f"{kafka} has {count} partition(s)" if count else f"{kafka} does not exist")
        part = self.cluster.part(name, partition)
        topic = await self.topics.get(str(part), create=part.partition >= 0)
        text = str(part)
        log = self._logs.get(text)
        if log is None or log.topic is not topic:
            epoch = self.leading.epoch(part.namespace)
            made = KafkaLog(topic, self.counts, self.meta, self.tasks, self.configs, self.expiry, self._read_now, epoch)
            await made.open()
            if epoch != self.leading.epoch(part.namespace):
                raise Refused(Code.NOT_LEADER_OR_FOLLOWER, f"{text} was opened while its leadership moved: try again")
            log = self._logs.get(text)
            if log is None or log.topic is not topic:  # two may have asked at once
                log = self._logs[text] = made
        return log

    async def led_log(self, kafka: str, partition: int, epoch: int) -> KafkaLog:
        """The same for a client that reads, and knows the leader epoch `epoch` (-1: it says none); it is that one, and
        the log's, when this returns. Raises Refused also where another region leads.
        """
        namespace = self.name(kafka).namespace
        self.leading.check(namespace, epoch)
        log = await self.log(kafka, partition)
        self.leading.check(namespace, epoch)  # it may have moved while the log was opened
        return log

    def check_committed(
        self, epochs: ClientEpochs, key: tuple[str, int], part: Mapping[str, Any], *, joined: bool
    ) -> None:
        """Whether the offset in a commit can be one of this region's. epochs: of the client. key: topic and partition.
        Raises Refused.
        """
        log = self.loaded(*key)
        epochs.check_committed(
            self.leading,
            self.name(key[0]).namespace,
            part,
            now=self.clock.monotonic(),
            joined=joined,
            end=-1 if log is None else log.high_watermark,
        )

    def logs(self) -> list[KafkaLog]:
        """Returns the logs that are loaded; drops those whose topics are closed."""
        for text in [text for text, log in self._logs.items() if log.topic.closed]:
            del self._logs[text]
        for key in [key for key, log in self._at_once.items() if log.topic.closed]:
            del self._at_once[key]
        return list(self._logs.values())

    def check(self, principal: Principal, action: Action, kafka: str) -> None:
        """Raises Unauthorized where the principal may not do that, Refused where `kafka` is no topic's name."""
        self.security.rights.check(principal, action, self.name(kafka))

    async def delete_topic(self, name: TopicName) -> None:
        """All of it, wherever its partitions are owned. Raises what the metadata raises."""
        count = self.cluster.partitioned(name)
        await deleted_topic_grants.forget(self.config, self.topics.view, name)
        await self.config.change_topic_policies(str(name), lambda _: TopicPolicies())
        if count:
            await self.topics.schemas.delete(name)
            # behind what would hold for the next topic of that name: a deletion that fails is given again
            await self.config.delete_partitioned(str(name))
        await self.ids.forget(name)
        for part in [name.with_partition(index) for index in range(count)] or [name]:
            with contextlib.suppress(NotFound):
                await self.cluster.delete_part(part)
        await self.topics.policies.forget(str(name))

    def samples(self, connections: int) -> Iterable[Sample]:
        """Yields the face's metrics; those of a topic or a group only where there is something to count. connections:
        how many are open now.
        """
        labels = {"cluster": self.region}
        for name, value in asdict(self.counts).items():
            yield f"heliograph_kafka_{name}_total", "counter", labels, float(value)
        written = {
            "group_repeats": self.positions.repeats,
            "offset_commits": self.commits.commits,
            "offset_writes": self.commits.writes,
        }
        for name, value in written.items():
            yield f"heliograph_kafka_{name}_total", "counter", labels, float(value)
        for (topic_name, subscription), count in self.positions.behind.items():
            of_group = {**labels, "topic": topic_name, "group": group_of(subscription)}
            yield "heliograph_kafka_group_behind_repeats", "gauge", of_group, float(count)
        for topic in self.topics.loaded.values():
            of_topic = {**labels, "topic": topic.text}
            if topic.converted_in:
                yield "heliograph_kafka_topic_converted_in_total", "counter", of_topic, float(topic.converted_in)
            if topic.converted_out:
                yield "heliograph_kafka_topic_converted_out_total", "counter", of_topic, float(topic.converted_out)
            if topic.unreadable_out:
                yield "heliograph_kafka_topic_unreadable_out_total", "counter", of_topic, float(topic.unreadable_out)
        held = {"fetch_sessions": len(self.sessions), "groups": len(self.coordinator)}
        gauges = {"connections": connections, "partitions_loaded": len(self.logs()), **held}
        for name, count in gauges.items():
            yield f"heliograph_kafka_{name}", "gauge", labels, float(count)

    async def tell_cache(self) -> None:
        """Tells the cache, for each log that is read now or was at the last look, from where. Called at each tick."""
        for log in list(self._read_now):
            if log.topic.closed:
                del self._read_now[log]
                continue
            try:
                await log.tell_cache()
            except HeliographError:
                continue

    async def keep(self) -> None:
        """Retention, of all that are loaded."""
        now = self.expiry.wall_ms()
        for log in self.logs():
            retention_ms = self.configs.number(log.name, "retention.ms")
            await log.keep(
                now - retention_ms if retention_ms >= 0 else 0, self.configs.number(log.name, "retention.bytes")
            )
