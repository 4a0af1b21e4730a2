"""Single messages over HTTP: by position, the n-th that a subscription waits for, the n-th of a topic; and what is
behind a position.

Is: an entry as Pulsar's admin clients want it: the payload uncompressed (a batch as one), what its metadata says in
headers. Isn't: consuming; nothing is acknowledged or counted.
"""

from __future__ import annotations

import asyncio
import json
import re
from typing import Any

from aiohttp import web

from heliograph.model.admin_paths import TOPIC
from heliograph.model.errors import MalformedRequest, NotAllowed, NotFound
from heliograph.model.positions import BEFORE_ALL, Position, position_text
from heliograph.model.topic_names import TopicName
from heliograph.wire.kafka.entry_conversion import as_pulsar
from heliograph.wire.payload_compression import decompress_pulsar
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.run import FLAG_KAFKA, Buffer
from region_node.faces.admin.calls.admin_context import Admin, number
from region_node.faces.admin.calls.call_bodies import MessageId
from region_node.faces.admin.calls.call_parameters import Ledger, Loaded
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import subscription_of
from region_node.faces.admin.calls.large_answers import MESSAGES
from region_node.runtime.rate_meter import iso_time
from region_node.topics.backlog_reading import analysed, nth_unacked
from region_node.topics.topic import Topic

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
"""What no header may have, and a producer's name or a key may: a blank stands for it."""


async def entry_at(request: web.Request, topic: Topic, position: Position) -> web.StreamResponse:
    """Answers with the entry at a position. Raises NotFound where nothing lies there, or what no client sees."""
    answers = request.app[MESSAGES]
    async with answers.place(request):
        runs = await topic.readable.read(position, 1, 1) if position <= topic.readable.last_confirmed else []
        if not runs or runs[0][:2] != position:
            raise NotFound(f"Message not found: {topic.text} holds nothing at {position_text(position)}")
        run = runs[0][2]
        if run.flags is not None and run.flags[0] & ~FLAG_KAFKA:
            raise NotFound(f"Message not found: {position_text(position)} is a marker")
        entry = run.parts[0]
        if run.flags is not None and run.flags[0] & FLAG_KAFKA:  # of any number of records, and any size, unpacked
            entry = await asyncio.to_thread(as_pulsar, entry)
        metadata, payload = entry_metadata(entry)
        data: Buffer = payload
        if metadata.compression != pb.NONE and not metadata.encryption_keys:
            data = await asyncio.to_thread(decompress_pulsar, metadata.compression, payload, metadata.uncompressed_size)
        return await answers.send(request, _headers(position, len(entry), metadata), (data,))


def _headers(position: Position, size: int, metadata: pb.MessageMetadata) -> dict[str, str]:
    headers = {
        "Content-Type": "application/octet-stream",
        "X-Pulsar-Message-ID": position_text(position),
        "X-Pulsar-producer-name": metadata.producer_name,
        "X-Pulsar-sequence-id": str(metadata.sequence_id),
        "X-Pulsar-publish-time": iso_time(metadata.publish_time),
        "X-Pulsar-batch-size": str(size),
    }
    if metadata.event_time:
        headers["X-Pulsar-event-time"] = iso_time(metadata.event_time)
    if metadata.deliver_at_time:
        headers["X-Pulsar-deliver-at-time"] = iso_time(metadata.deliver_at_time)
    if metadata.HasField("num_messages_in_batch"):
        headers["X-Pulsar-num-batch-message"] = str(metadata.num_messages_in_batch)
    if metadata.HasField("partition_key"):
        headers["X-Pulsar-partition-key"] = metadata.partition_key
        headers["X-Pulsar-partition-key-b64-encoded"] = str(metadata.partition_key_b64_encoded).lower()
    if metadata.HasField("replicated_from"):
        headers["X-Pulsar-replicated-from"] = metadata.replicated_from
    if metadata.encryption_keys:
        headers["X-Pulsar-is-encrypted"] = "true"
    properties = {pair.key: pair.value for pair in metadata.properties}
    if properties:
        headers["X-Pulsar-PROPERTY"] = json.dumps(properties)
    return {name: _CONTROL.sub(" ", value) for name, value in headers.items()}


# -- handlers ----------------------------------------------------------------------------------------------------------


async def by_id(admin: Admin, request: web.Request, topic: Loaded, ledger: str, entry: str) -> Any:
    return await entry_at(request, topic, (number(ledger, "the ledger"), number(entry, "the entry")))


async def examine(
    admin: Admin,
    request: web.Request,
    name: TopicName,
    *,
    initialPosition: str = "latest",
    messagePosition: int = 1,
) -> Any:
    """The n-th entry (from 1) from the first, or from the last one back."""
    topic, ledger = await admin.loaded(name), await admin.ledger(name)
    start, count = initialPosition, max(1, messagePosition)
    if start not in ("earliest", "latest"):
        raise MalformedRequest(f"initialPosition is earliest or latest, not {start!r}")
    if not ledger.entries:
        raise NotAllowed(f"Could not examine messages: {topic.text} holds none")
    if count > ledger.entries:
        raise NotFound(f"Message not found: {topic.text} holds {ledger.entries} message(s)")
    return await entry_at(
        request,
        topic,
        ledger.position_after(BEFORE_ALL, count if start == "earliest" else ledger.entries - count + 1),
    )


async def peek(admin: Admin, request: web.Request, topic: Loaded, subscription: str, count: str) -> Any:
    found = topic.subscriptions.get(subscription)
    return await entry_at(request, topic, await nth_unacked(topic, found, subscription, number(count, "the position")))


async def analyze(admin: Admin, topic: Loaded, subscription: str) -> dict[str, Any]:
    """Counts a subscription's backlog by reading it: at most ANALYSED_MAX entries."""
    return await analysed(topic, subscription_of(topic, subscription), subscription)


async def backlog_size(admin: Admin, ledger: Ledger, given: MessageId) -> Any:
    """Estimates how many bytes lie behind the position in the body."""
    return web.json_response(ledger.bytes_between(given.position, ledger.last_confirmed))


ROUTES: tuple[Route, ...] = (
    Route("GET", f"{TOPIC}/ledger/{{ledger}}/entry/{{entry}}", CallAccess.CONSUME, by_id),
    Route("GET", f"{TOPIC}/examinemessage", CallAccess.CONSUME, examine),
    Route("PUT", f"{TOPIC}/backlogSize", CallAccess.CONSUME, backlog_size),
    Route("GET", f"{TOPIC}/subscription/{{subscription}}/position/{{count}}", CallAccess.CONSUME, peek),
    Route("POST", f"{TOPIC}/subscription/{{subscription}}/analyzeBacklog", CallAccess.CONSUME, analyze),
)
