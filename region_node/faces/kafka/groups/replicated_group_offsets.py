"""GroupPositions: offsets of groups as replicated subscriptions, so that a group that moves to another region goes on
at the right message.

Is: the way between a row of committed offsets and a cursor `kafka.GROUP` of the partition, both ways, in namespaces of
several regions. Isn't: how cursors of two regions are kept in step (`replicator.subscriptions.subscription_sync`), or
an offset's meaning in another region: it has none there.
Invariants: a cursor passes only what the group has committed in some region; a row is moved by a cursor only where
another region has moved that. With one origin the message is the exact one; with several it is the first that is not
covered, and what was covered behind it comes again. A position that other regions have goes in one of them only by who
says so.
In namespaces of one region nothing of this happens.
Source: docs/protocols/kafka.md, "Groups in several regions".
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

from heliograph.model.errors import CorruptData, HeliographError, SubscriptionNotFound
from heliograph.model.positions import Position
from heliograph.wire.pulsar.batch_messages import MESSAGES_MAX
from region_node.faces.kafka.groups.committed_offsets import OFFSETS, Committed, Key, Row, decode
from region_node.replication.replicated_subscriptions import replicate

if TYPE_CHECKING:
    from heliograph.kv.metadata_store import MetadataStore
    from heliograph.model.topic_names import TopicName
    from heliograph.runtime.clock import Clock
    from heliograph.runtime.task_set import TaskSet
    from region_node.faces.kafka.cluster.kafka_cluster import Cluster
    from region_node.faces.kafka.cluster.leading_regions import LeadingRegions
    from region_node.faces.kafka.log.partition_log import KafkaLog
    from region_node.topics.serving.topic_service import TopicService
    from region_node.topics.topic import Topic

log = logging.getLogger("region_node.kafka")

PREFIX = "kafka."
_NAMED_MAX = 20
"""Topics that a log line names."""


def subscription_of(group: str) -> str:
    return PREFIX + quote(group, safe=" !@#$&()*+,;=")


def group_of(subscription: str) -> str:
    return unquote(subscription.removeprefix(PREFIX))


def _groups(topic: Topic) -> list[str]:
    """Names of its subscriptions that are groups' positions."""
    return [name for name in topic.subscriptions if name.startswith(PREFIX)]


class OwningBroker(Protocol):
    """`region_node.faces.kafka.session.kafka_broker.KafkaBroker`, as it owns partitions."""

    @property
    def meta(self) -> MetadataStore: ...

    @property
    def topics(self) -> TopicService: ...

    @property
    def cluster(self) -> Cluster: ...

    @property
    def leading(self) -> LeadingRegions: ...

    @property
    def tasks(self) -> TaskSet: ...

    @property
    def clock(self) -> Clock: ...

    def name(self, kafka: str) -> TopicName: ...

    async def log(self, kafka: str, partition: int) -> KafkaLog: ...


class GroupPositions:
    """Carries committed offsets to cursors and back, on the partitions that one broker owns."""

    def __init__(self, broker: OwningBroker) -> None:
        self._broker = broker
        self._waiting: dict[tuple[str, str, int], Row | None] = {}
        self._known: dict[tuple[str, str], tuple[int, int]] = {}
        """(topic's full name, subscription) -> (the offset that both sides have, the cursor's count of changes
        then).
        """
        self._busy = False
        self._one_by_one = asyncio.Lock()
        """Of rows and cursors one is made of the other, or both are deleted."""
        self._rows: dict[str, dict[tuple[str, str], None]] = {}
        """Topic, as keys have it -> (group, chunk) of every row of committed offsets that it has in the region."""
        self._followed: dict[Topic, None] = {}
        """Loaded topics with groups' cursors, in namespaces of several regions."""
        self.repeats = 0
        """Messages that groups have read again here although they were committed in another region: where several
        regions publish.
        """
        self.behind: dict[tuple[str, str], int] = {}
        """(topic's full name, subscription) -> how many such messages there are, if the group went on here now. Where
        there are none, nothing.
        """
        self._stop: Callable[[], None] = lambda: None

    async def start(self) -> None:
        self._stop = self._broker.meta.watch(OFFSETS, self._on_row)
        self._visited(list(self._broker.topics.loaded.values()))
        self._broker.topics.visitors.append(self._visited)
        self._broker.topics.on_unsubscribed.append(self._unsubscribed)

    def close(self) -> None:
        self._stop()
        if self._visited in self._broker.topics.visitors:
            self._broker.topics.visitors.remove(self._visited)
            self._broker.topics.on_unsubscribed.remove(self._unsubscribed)

    def _several_regions(self, namespace: str) -> bool:
        policies = self._broker.topics.view.namespace(namespace)
        return policies is not None and len(policies.regions) > 1

    def _visited(self, topics: Sequence[Topic]) -> None:
        """Something has happened on these: they were loaded, or have a subscription more."""
        several: dict[str, bool] = {}
        for topic in topics:
            namespace = topic.name.namespace
            if namespace not in several:
                several[namespace] = self._several_regions(namespace)
            if several[namespace] and not topic.volatile and not topic.closed and _groups(topic):
                self._followed[topic] = None

    def had_elsewhere(self, group: str, topics: Iterable[str]) -> set[str]:
        """Those of the topics, as clients name them, in which other regions have the group's position too: who deletes
        it in one region gets it back from another. What to do instead is logged: the answers have no room for it.
        Raises Refused: no topic can be called so.
        """
        found = {kafka for kafka in topics if self._several_regions(self._broker.name(kafka).namespace)}
        if found:
            name = subscription_of(group)
            log.warning(
                "kafka.group_not_deleted",
                extra={
                    "group": group,
                    "topics": sorted(found)[:_NAMED_MAX],
                    "error": "other regions have its positions too, and would bring them back: delete the subscription "
                    f"{name} of each topic in each region (heliograph subscriptions delete TOPIC '{name}' "
                    "--only-here), and then the group",
                },
            )
        return found

    async def _unsubscribed(self, topic: Topic, name: str) -> None:
        """Somebody has deleted a subscription: where that was a group's position, its row goes too, which would make it
        again. Raises what the metadata raises.
        """
        if not name.startswith(PREFIX) or topic.volatile:
            return
        async with self._one_by_one:
            committed, keys = await self._stored(topic, name)
            await committed.delete(keys)
            await self._drop(topic, name)  # the row has made it again meanwhile

    async def groups_of(self, kafka: str) -> list[str]:
        """Groups that have committed offsets of a topic, whoever coordinates them."""
        await self._broker.meta.synced(OFFSETS)
        return sorted({unquote(group) for group, _ in self._rows.get(quote(kafka, safe=""), ())})

    # -- from rows to cursors ------------------------------------------------------------------------------------------

    def _on_row(self, key: str, blob: bytes | None, version: int) -> None:
        of_group, of_topic, chunk = key.removeprefix(OFFSETS).split("/")
        group, kafka = unquote(of_group), unquote(of_topic)
        if blob is not None:
            self._rows.setdefault(of_topic, {})[of_group, chunk] = None
        elif of_topic in self._rows:
            self._rows[of_topic].pop((of_group, chunk), None)
            if not self._rows[of_topic]:
                del self._rows[of_topic]
        try:
            if not self._several_regions(self._broker.name(kafka).namespace):
                return
            if blob is not None:
                for partition, row in decode(blob).items():
                    self._waiting[group, kafka, partition] = row
            else:
                first = int(key.rpartition("/")[2]) * 256
                for topic in self._broker.topics.loaded.values():
                    index = max(0, topic.name.partition)
                    if first <= index < first + 256 and topic.name.partitioned == self._broker.name(kafka):
                        self._waiting[group, kafka, index] = None
        except (HeliographError, CorruptData) as error:
            log.warning("kafka.offsets_not_read", extra={"key": key, "error": str(error)})
        if self._waiting and not self._busy:
            self._busy = True
            self._broker.tasks.spawn(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                (group, kafka, index), row = next(iter(self._waiting.items()))
                del self._waiting[group, kafka, index]
                try:
                    part = self._broker.cluster.part(self._broker.name(kafka), index)
                    if self._broker.cluster.owns(part):
                        async with self._one_by_one:
                            await self._apply(await self._broker.log(kafka, index), subscription_of(group), row)
                except HeliographError as error:  # the next commit makes up for it
                    log.info(
                        "kafka.position_not_moved",
                        extra={"group": group, "topic": kafka, "partition": index, "error": str(error)},
                    )
        finally:
            self._busy = False

    async def _apply(self, of: KafkaLog, name: str, row: Row | None) -> None:
        topic, key = of.topic, (of.topic.text, name)
        found = topic.subscriptions.get(name)
        if row is None:
            await self._drop(topic, name)
            return
        if row.offset > of.high_watermark and self._broker.leading.active_passive(topic.name.namespace):
            log.warning(
                "kafka.offset_beyond_end", extra={"topic": topic.text, "subscription": name, "offset": row.offset}
            )
            return  # another region has given it
        at = await self._place(of, row.offset)
        if found is None:
            if not await self._stands(of, name, row):
                return  # it was deleted, with the cursor
            found = await topic.subscription(name, initial=(at[0], at[1] - 1))
            replicate(topic, found)
        cursor: Any = found.cursor
        current = await self.offset_of(of, cursor)
        before = self._known.get(key, (current, 0))[0]
        if row.offset < current:
            if row.offset >= before or not await self._stands(of, name, row):
                return  # another region has moved the cursor since: `look` writes the row
            await topic.seek(found, (at[0], at[1] - 1))  # the group was set back by somebody here
        if row.offset > current:  # committed here, by a group that went on here
            self.repeats += self.behind.pop(key, 0)
        if row.offset != current:
            await self._forward(of, cursor, at, row.offset)
        self._known[key] = (row.offset, cursor.changes)

    async def _drop(self, topic: Topic, name: str) -> None:
        self._known.pop((topic.text, name), None)
        self.behind.pop((topic.text, name), None)
        if name in topic.subscriptions:
            try:
                await topic.delete_subscription(name, force=True)
            except SubscriptionNotFound:
                pass

    async def _stands(self, of: KafkaLog, name: str, row: Row) -> bool:
        """Whether the row is stored still: those of other partitions come along with each one that is written."""
        committed, keys = await self._stored(of.topic, name)
        return row in (committed.rows.get(key) for key in keys)

    async def _stored(self, topic: Topic, name: str) -> tuple[Committed, list[Key]]:
        """What is stored of a group's offset in it, and under which keys that may be: earlier versions kept it by what
        clients wrote.
        """
        committed, index = Committed(self._broker.meta, group_of(name)), max(0, topic.name.partition)
        keys = [(kafka, index) for kafka in self._broker.cluster.spellings(topic.name.partitioned)]
        await committed.read(keys)
        return committed, keys

    async def _place(self, of: KafkaLog, offset: int) -> Position:
        """The entry that holds an offset, or the one that comes next."""
        if offset >= of.high_watermark:
            ledger, entry = of.ledger.last_confirmed
            return ledger, entry + 1
        return await of.position_of(max(offset, of.start_offset))

    async def _forward(self, of: KafkaLog, cursor: Any, at: Position, offset: int) -> None:
        """Everything before `offset` counts as acknowledged: whole entries, and the first records of a batch."""
        cursor.ack_cumulative((at[0], at[1] - 1))
        pieces = await of.ledger.read(at, 1, 1) if offset < of.high_watermark else []
        if pieces and pieces[0][:2] == at:
            run = pieces[0][2]
            done, count = offset - run.first_index, run.messages
            if 0 < done < count <= MESSAGES_MAX:
                cursor.ack_batch(at, (1 << count) - (1 << done))

    @staticmethod
    async def offset_of(of: KafkaLog, cursor: Any) -> int:
        """The first offset that a cursor has not acknowledged."""
        position = of.ledger.next_position(cursor.mark_delete)
        offset = await of.offset_at(position)
        left = cursor.partly_acked.get(position, 0)
        return offset + ((left & -left).bit_length() - 1 if left else 0)

    @staticmethod
    async def _covered_behind(of: KafkaLog, cursor: Any, offset: int) -> int:
        """How many messages behind `offset` are acknowledged: an offset cannot say so, and they come again."""
        count = 0
        for ledger, first, last in cursor.acked_ranges:
            begin, end = (
                await of.offset_at((ledger, first)),
                await of.offset_at(of.ledger.next_position((ledger, last))),
            )
            count += max(0, end - max(begin, offset))
        return count

    # -- from cursors to rows ------------------------------------------------------------------------------------------

    async def look(self) -> None:
        """Cursors that other regions have moved: what the group has committed there counts here."""
        self._forget([topic for topic in self._followed if topic.closed or not _groups(topic)])
        for topic in list(self._followed):
            for name in _groups(topic) if self._several_regions(topic.name.namespace) else ():
                try:
                    async with self._one_by_one:
                        await self._follow(topic, name)
                except HeliographError as error:  # the next look tries again
                    log.info(
                        "kafka.position_not_read",
                        extra={"topic": topic.text, "subscription": name, "error": str(error)},
                    )

    def _forget(self, gone: list[Topic]) -> None:
        """They are other brokers' by now, or no group has a position in them any more."""
        for topic in gone:
            del self._followed[topic]
        names = {topic.text for topic in gone if self._broker.topics.loaded.get(topic.text) in (topic, None)}
        if names:  # else the same topic was loaded again meanwhile
            self.behind = {key: count for key, count in self.behind.items() if key[0] not in names}
            self._known = {key: known for key, known in self._known.items() if key[0] not in names}

    async def _follow(self, topic: Topic, name: str) -> None:
        found = topic.subscriptions.get(name)
        if found is None or topic.closed:  # it went while another one was looked at
            return
        cursor: Any = found.cursor
        key = (topic.text, name)
        known = self._known.get(key)
        if known is not None and known[1] == cursor.changes:
            return
        kafka, index = self._broker.cluster.kafka_name(topic.name.partitioned), max(0, topic.name.partition)
        group, changes = group_of(name), cursor.changes
        offset = await self.offset_of(await self._broker.log(kafka, index), cursor)
        if known is None or known[0] != offset:
            committed = Committed(self._broker.meta, group)
            await committed.read([(kafka, index)])
            row = committed.rows.get((kafka, index))
            if row is None or (row.offset != offset and known is not None) or row.offset < offset:
                await committed.put({(kafka, index): Row(offset, -1, "", self._broker.clock.wall_ms())})
                behind = await self._covered_behind(await self._broker.log(kafka, index), cursor, offset)
                self.behind[key] = behind
                if not behind:
                    del self.behind[key]
                log.info(
                    "kafka.position_followed",
                    extra={"group": group, "topic": topic.text, "offset": offset, "repeats": behind},
                )
        self._known[key] = (offset, changes)
