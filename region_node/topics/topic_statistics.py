"""What a topic, its producers, and its links look like to Pulsar's admin clients.

Is: reading counters and meters into the fields of TopicStats, and adding up those of partitions. Isn't: the counting,
or subscriptions (`region_node.subscriptions.subscription`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from region_node.runtime.rate_meter import iso_time
from region_node.topics.incoming_rates import NOTHING
from region_node.topics.nonpersistent_log import MemoryLog
from region_node.topics.producers import Producer

if TYPE_CHECKING:
    from region_node.topics.topic import Topic


NOT_COMPACTED = dict.fromkeys(
    (
        "lastCompactionRemovedEventCount",
        "lastCompactionSucceedTimestamp",
        "lastCompactionFailedTimestamp",
        "lastCompactionDurationTimeInMills",
    ),
    0,
)


def topic_stats(topic: Topic, links: list[Any]) -> dict[str, Any]:
    """Pulsar's TopicStats. `links`: what the link manager says of this topic."""
    end = topic.ledger.last_confirmed
    subscriptions = {
        name: s.stats(s.cursor.backlog_entries, topic.ledger.bytes_between(s.cursor.mark_delete, end))
        for name, s in topic.subscriptions.items()
    }
    rate_in, throughput_in = topic.meter.rates
    rates = topic.incoming_rates
    return {
        "msgRateIn": rate_in,
        "msgThroughputIn": throughput_in,
        "msgRateOut": sum(s["msgRateOut"] for s in subscriptions.values()),
        "msgThroughputOut": sum(s["msgThroughputOut"] for s in subscriptions.values()),
        "msgInCounter": topic.messages_in,
        "bytesInCounter": topic.bytes_in,
        "msgOutCounter": sum(s["msgOutCounter"] for s in subscriptions.values()),
        "bytesOutCounter": sum(s["bytesOutCounter"] for s in subscriptions.values()),
        "averageMsgSize": throughput_in / rate_in if rate_in else 0.0,
        "storageSize": topic.ledger.size_bytes,
        "backlogSize": max([0, *(s["backlogSize"] for s in subscriptions.values())]),
        "publishers": [producer_stats(p) for p in topic.producers.producers.values()],
        "waitingPublishers": len(topic.producers.waiting),
        "subscriptions": subscriptions,
        "replication": {
            **{link.target: link_stats(link, NOTHING if rates is None else rates.of(link.target)) for link in links},
            **(
                {region: unsent_stats(messages, rate_in) for region, messages in topic.log.unsent.items()}
                if isinstance(topic.log, MemoryLog)
                else {}
            ),
        },
        "backlogQuotaLimitSize": (topic.policies.quota("destination_storage") or (-1,))[0],
        "backlogQuotaLimitTime": (topic.policies.quota("message_age") or (-1,))[0],
        "publishRateLimitedTimes": topic.rate_limited,
        "deduplicationStatus": "Enabled" if topic.log.deduplication else "Disabled",
        "topicCreationTimeStamp": topic.created_ms,
        "lastPublishTimestamp": max(topic.last_publish_ms, topic.ledger.published_ms),
        "compaction": topic.compacted.stats() if topic.compacted is not None else NOT_COMPACTED,
    }


def producer_stats(producer: Producer) -> dict[str, Any]:
    """Returns Pulsar's PublisherStats; rates are a second, between the broker's last two ticks."""
    rate, throughput, chunks = producer.meter.rates
    return {
        "accessMode": producer.mode.label,
        "producerId": producer.id,
        "producerName": producer.name,
        "msgRateIn": rate,
        "msgThroughputIn": throughput,
        "averageMsgSize": throughput / rate if rate else 0.0,
        "chunkedMessageRate": chunks,
        "supportsPartialProducer": False,
        "address": producer.address,
        "connectedSince": iso_time(producer.connected_ms),
        "clientVersion": producer.client_version,
        "metadata": producer.metadata,
    }


def unsent_stats(messages: int, rate: float) -> dict[str, Any]:
    """Returns Pulsar's NonPersistentReplicatorStats of a link that does not exist: a region gets nothing of a
    non-persistent topic. rate: messages a second.
    """
    rates = dict.fromkeys(("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut", "msgRateExpired"), 0.0)
    return {
        **rates,
        "msgDropRate": rate,
        "connected": False,
        "replicationBacklog": 0,
        "msgDropCount": messages,
        "state": "none",
        "cause": "non-persistent",
    }


def link_stats(link: Any, coming: Sequence[float]) -> dict[str, Any]:
    """Pulsar's ReplicatorStats, and what we know besides: state, cause, bytes, and for how long the target has been
    silent. coming: messages and bytes a second from there.
    """
    return {
        "connected": link.connected,
        "msgRateIn": coming[0],
        "msgThroughputIn": coming[1],
        "msgRateOut": link.rate_out,
        "msgThroughputOut": link.throughput_out,
        "msgRateExpired": 0.0,
        "replicationBacklog": link.backlog_entries,
        "replicationBacklogBytes": link.backlog_bytes,
        "replicationDelayInSeconds": link.age_s,
        "state": link.state,
        "cause": link.cause,
        "silent_s": link.silent_s,
    }


_SUMMED = (
    "msgRateIn",
    "msgRateOut",
    "msgThroughputIn",
    "msgThroughputOut",
    "storageSize",
    "backlogSize",
    "msgInCounter",
    "msgOutCounter",
    "bytesInCounter",
    "bytesOutCounter",
)
_SUMMED_MORE = (
    "msgBacklog",
    "msgBacklogNoDelayed",
    "msgDelayed",
    "unackedMessages",
    "msgRateRedeliver",
    "msgRateExpired",
    "totalMsgExpired",
    "messageAckRate",
    "replicationBacklog",
)


def summed(parts: list[dict[str, Any]]) -> dict[str, Any]:
    """Numbers that add up are added up; subscriptions and links of one name are put together likewise; publishers are
    listed.
    """
    total: dict[str, Any] = {key: sum(part.get(key, 0) for part in parts) for key in _SUMMED}
    created = [part["topicCreationTimeStamp"] for part in parts if part.get("topicCreationTimeStamp")]
    total["topicCreationTimeStamp"] = min(created, default=0)
    total["lastPublishTimestamp"] = max((part.get("lastPublishTimestamp", 0) for part in parts), default=0)
    total["averageMsgSize"] = total["msgThroughputIn"] / total["msgRateIn"] if total["msgRateIn"] else 0.0
    total["deduplicationStatus"] = next(
        (part["deduplicationStatus"] for part in parts if "deduplicationStatus" in part), "Disabled"
    )
    total["publishers"] = [publisher for part in parts for publisher in part.get("publishers", ())]
    for group in ("subscriptions", "replication"):
        names = sorted({name for part in parts for name in part.get(group, {})})
        total[group] = {
            name: _summed_rows([part[group][name] for part in parts if name in part.get(group, {})]) for name in names
        }
    return total


def _summed_rows(rows: list[dict[str, Any]]) -> dict[str, Any]:
    merged = dict(rows[0])
    for key in (*_SUMMED, *_SUMMED_MORE):
        if key in merged:
            merged[key] = sum(row.get(key, 0) for row in rows)
    if "consumers" in merged:
        merged["consumers"] = [consumer for row in rows for consumer in row.get("consumers", ())]
    return merged
