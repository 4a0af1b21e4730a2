"""Cleaning: what Kafka's clients left of a topic goes with it, whoever deletes it, and by which protocol.

Is: ids, settings, committed offsets, sequences, and times of topics that are no longer in the configuration, and of
single partitions, and topics without any, whose data is about to go; leader epochs of namespaces that are no longer
there. Isn't: the deletion of a topic.
Invariants: only what belongs to a topic, or a namespace, that is gone is removed, and asked again right before; one
that a restored configuration does not know was made after the backup, and is not gone: its groups go on where they were
once it is made again; every broker may do it, and doing it twice is no error. Of a partition it is gone before its data
is, so that no crash in between leaves offsets that speak of other records.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING
from urllib.parse import quote

from global_config.keys import NAMESPACES, PARTITIONED
from heliograph.kv.metadata_store import Delete, rows_under
from heliograph.model.configuration.configuration_records import TopicPolicies
from heliograph.model.errors import HeliographError
from heliograph.model.topic_names import TopicName
from region_node.faces.kafka.log.sequence_store import PREFIX, key_of
from region_node.faces.kafka.log.time_index import PREFIX as TIMES
from region_node.faces.kafka.log.time_index import times_key

if TYPE_CHECKING:
    from region_node.faces.kafka.session.kafka_broker import KafkaBroker

log = logging.getLogger("region_node.kafka")

_AT_ONCE = 4
"""Topics that are forgotten at the same time, of all that somebody has deleted: each is some calls of the metadata."""


class Cleaning:
    """Forgets what this face keeps of deleted topics, whoever deletes: offsets, ids, sequences, times, policies."""

    def __init__(self, broker: KafkaBroker) -> None:
        self._broker, self._slots = broker, asyncio.Semaphore(_AT_ONCE)
        self._stop: Callable[[], None] = broker.topics.view.on_change(self._changed)
        self._stop_deletions = broker.topics.before_deletion(self.part_deleted)

    def close(self) -> None:
        self._stop()
        self._stop_deletions()

    async def part_deleted(self, part: TopicName) -> None:
        """One partition, or a topic without any, is about to lose its data. Raises what the metadata raises: then it is
        not deleted now.
        """
        broker, topic = self._broker, part.partitioned
        if not part.persistent or (part.partition >= 0 and not broker.topics.view.partitions(str(topic))):
            return  # the whole topic goes: `_clean` does that at once for all of its partitions
        await broker.coordinator.forget_partition(topic, max(0, part.partition))
        await broker.meta.txn([Delete(key_of(str(part))), Delete(times_key(str(part)))])

    def _changed(self, key: str) -> None:
        view, tasks = self._broker.topics.view, self._broker.tasks
        if key.startswith(PARTITIONED) and not view.partitions(topic := key.removeprefix(PARTITIONED)):
            tasks.spawn(self._clean_slowly(TopicName.parse(topic), view.restored))
        elif key.startswith(NAMESPACES) and view.namespace(namespace := key.removeprefix(NAMESPACES)) is None:
            tasks.spawn(self._clean_namespace(namespace, view.restored))

    async def _clean_namespace(self, namespace: str, restored: bytes) -> None:
        """What is kept of a namespace goes, where somebody deleted it. restored: as in `_clean`."""
        if self._broker.topics.view.restored != restored:
            return
        try:
            await self._broker.leading.forget(namespace)
        except HeliographError as error:  # a row is left, which the next broker that starts here reads
            log.warning("kafka.not_cleaned", extra={"namespace": namespace, "error": str(error)})

    async def _clean_slowly(self, name: TopicName, restored: bytes) -> None:
        async with self._slots:
            await self._clean(name, restored)

    async def _clean(self, name: TopicName, restored: bytes) -> None:
        """restored: as the configuration said when the topic was lost sight of; by now all is heard that came with
        that.
        """
        broker = self._broker
        if broker.topics.view.restored != restored:
            log.warning("kafka.topic_not_in_backup", extra={"topic": str(name)})
            return
        try:
            await broker.ids.forget(name)
            if broker.topics.view.partitions(str(name)):  # made again meanwhile
                return
            await broker.coordinator.forget_topic(name)
            if not broker.topics.view.partitions(str(name)):
                await broker.config.change_topic_policies(str(name), lambda _: TopicPolicies())
            for kind in (PREFIX, TIMES):
                prefix = kind + quote(f"{name}-partition-", safe="")
                for key, _, _ in await rows_under(broker.meta, prefix):
                    await broker.meta.delete(key)
        except HeliographError as error:  # what is left is small, and without effect but for a topic of the same name
            log.warning("kafka.not_cleaned", extra={"topic": str(name), "error": str(error)})
