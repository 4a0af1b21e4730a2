"""Messages published over HTTP: Pulsar's REST producer.

Is: a body of messages to one run, published at the topic's owner; messages of a partitioned topic at the owners of its
partitions, by key, or in turn.
Isn't: a way for much: each request waits until all of it is durable, and a request has at most MESSAGES_MAX messages
and 1 MiB.
Invariants: the answer has one result a message, in their order; what has a message id is durable on the ack quorum; a
request is refused as a whole only where nothing of it is known to have been published.
Schemas: none given: payloads are text as it is. Else the schema is checked and stored as for any producer, and payloads
are given as JSON clients write such values: numbers, true and false, texts; AVRO as the JSON of a record.
"""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired, TypedDict
from urllib.parse import quote

import crc32c
from aiohttp import web
from msgspec import Meta

from heliograph.model.errors import HeliographError, MalformedRequest, NotAllowed, TopicClosed, TopicError
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.run import COUNT_MAX, Run
from region_node.faces.admin.calls.admin_context import Admin, OwnedElsewhere, number, parsed_json
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.schemas.compatibility import IncompatibleSchema
from region_node.schemas.json_payloads import ENCODERS, Encode, PayloadSteps, as_text, avro_encoder
from region_node.schemas.schema_definition import NONE, TYPES, InvalidSchema, Schema
from region_node.subscriptions.sticky_keys import key_hash
from region_node.topics.admission import check_producer
from region_node.topics.round_trip import published
from region_node.topics.topic import Topic

MESSAGES_MAX = COUNT_MAX
_STEPS_A_ROW = 32
"""So many steps take as long as a plain message (`RowPace`)."""
_NAME = "rest"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishLimits:
    """What one request may take. They are no operator's settings: who needs more publishes with a client."""

    rate_wait_s: float = 5.0
    """So long what is published waits for the rates of its topic."""
    message_steps_max: int = 100_000
    """So often a value of one message is held against a part of its AVRO schemas, some 0.2 s: by 15,000 nullable
    values.
    """
    request_steps_max: int = 1_000_000
    """As message_steps_max, of all messages of a request, some 2 s with pauses."""


_LIMITS = PublishLimits()


class ProducerMessages(TypedDict):
    messages: Annotated[list[dict[str, Any]], Meta(min_length=1, max_length=MESSAGES_MAX)]
    producerName: NotRequired[Any]
    keySchema: NotRequired[Any]
    valueSchema: NotRequired[Any]


async def produce(admin: Admin, request: web.Request, given: ProducerMessages, limits: PublishLimits = _LIMITS) -> Any:
    name, steps = admin.topic(request), PayloadSteps(limits.message_steps_max, limits.request_steps_max)
    count = admin.view.partitions(str(name))
    if "partition" in request.match_info:
        index = number(request.match_info["partition"], "partition")
        if not 0 <= index < count:
            raise NotAllowed(f"{name} has {count} partition(s): there is no partition {index}")
        return await _publish(admin, name.with_partition(index), given, steps, limits.rate_wait_s)
    if not count:
        return await _publish(admin, name, given, steps, limits.rate_wait_s)
    results: list[Any] = [None] * len(given["messages"])
    version: int | None = None
    for index, places in _spread(given["messages"], count).items():
        part, some = name.with_partition(index), given.copy()
        some["messages"] = [given["messages"][place] for place in places]
        try:
            answer = await _at_owner(admin, name, part, some, steps, limits.rate_wait_s)
        except (HeliographError, web.HTTPException) as error:
            if version is None:
                raise
            answer = _refused(len(places), error, version)
        version = answer["schemaVersion"]
        for place, result in zip(places, answer["messagePublishResults"], strict=True):
            results[place] = result
    return {"messagePublishResults": results, "schemaVersion": version}


async def _at_owner(
    admin: Admin, name: TopicName, part: TopicName, given: ProducerMessages, steps: PayloadSteps, rate_wait_s: float
) -> Any:
    try:
        return await _publish(admin, part, given, steps, rate_wait_s)
    except OwnedElsewhere as where:
        path = f"/topics/{name.domain}/{name.namespace}/{quote(name.local, safe='')}/partitions/{part.partition}"
        return await admin.call(where.record, "POST", path, given)


def _spread(messages: Sequence[Mapping[str, Any]], count: int) -> dict[int, list[int]]:
    """Partition -> places of its messages in the request."""
    out: dict[int, list[int]] = {}
    for place, message in enumerate(messages):
        key = message.get("key")
        out.setdefault(key_hash(str(key).encode()) % count if key else place % count, []).append(place)
    return out


async def _publish(
    admin: Admin, name: TopicName, given: ProducerMessages, steps: PayloadSteps, rate_wait_s: float
) -> Any:
    """All of it in one run. Raises OwnedElsewhere, MalformedRequest, NotAllowed, and what a producer would be refused
    with."""
    text = await admin.here(name)
    topic = await admin.topics.get_for_client(text)
    producer = str(given.get("producerName") or _NAME)
    check_producer(topic, producer, encrypted=False)
    topic.producers.check_shared()
    pace = RowPace()
    encode_key, _ = _encoder(given.get("keySchema"), "keySchema", steps)
    encode, schema = _encoder(given.get("valueSchema"), "valueSchema", steps)
    try:
        version = None if schema is None else await admin.topics.new_schema(name, schema)
    except (IncompatibleSchema, InvalidSchema) as error:
        raise web.HTTPConflict(reason=str(error)) from error
    now_ms = admin.clock.wall_ms()
    entries = []
    for place, message in enumerate(given["messages"]):
        entries.append(_entry(message, producer, place, now_ms, encode_key, encode, version))
        await pace.rows(1 + steps.next_message() // _STEPS_A_ROW)
    sequences = tuple((s, s) for s in (_whole(m, "sequenceId", place) for place, m in enumerate(given["messages"])))
    named = "producerName" in given  # without a name of its own nothing it sends again is known
    run = Run(
        entries,
        [len(e) for e in entries],
        producers=((producer, len(entries), sequences[0][0], sequences),) if named else (),
    )
    results: list[dict[str, Any]] = []
    try:
        await _let_in(topic, rate_wait_s)
        topic.producers.check_shared()  # one may have taken it meanwhile
        for count, ledger, first in await published(topic, run):
            ids = [f"{ledger}:{first + i if ledger >= 0 else -1}:{name.partition}" for i in range(count)]
            results += [
                {"messageId": one, "errorCode": 0, "errorMsg": "", "schemaVersion": version or 0} for one in ids
            ]
    except TopicClosed:
        raise
    except HeliographError as error:
        return _refused(len(entries), error, version or 0)
    topic.last_publish_ms, topic.inactive_since = now_ms, 0.0
    usage = admin.usage.of(name.tenant)
    usage.messages_in += run.messages
    usage.bytes_in += run.size_bytes
    return {"messagePublishResults": results, "schemaVersion": version or 0}


def _refused(count: int, error: Exception, version: int) -> dict[str, Any]:
    """The answer where none of so many messages was published."""
    one = {"messageId": "", "errorCode": 2, "errorMsg": str(error), "schemaVersion": version}
    return {"messagePublishResults": [one] * count, "schemaVersion": version}


class RateExceeded(TopicError):
    """The rate of the topic, or of its resource group, lets nothing in for now."""

    retryable = True


class _Waiting:
    """A publisher at a topic's gate (`PausableReader`)."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    def hold_reading(self, hold: bool, reason: object = None) -> None:
        if not hold:
            self.let_go.set()


async def _let_in(topic: Topic, within_s: float) -> None:
    """Returns once the rates let something in. Raises RateExceeded where that takes longer than `within_s`."""
    wait_s, waiting = 0.0, _Waiting()
    try:
        async with asyncio.timeout(within_s):
            while (gate := topic.publish_gate) is not None and (wait_s := gate.hold(waiting)) > 0:
                await waiting.let_go.wait()
                waiting.let_go.clear()
    except TimeoutError:
        raise RateExceeded(
            f"{topic.text} takes no more for now, its publish rate or that of its resource group is used up: try again "
            f"in {wait_s:.1f} s"
        ) from None
    finally:
        if gate is not None:
            gate.leave(waiting)


def _entry(
    message: Mapping[str, Any],
    producer: str,
    place: int,
    now_ms: int,
    encode_key: Encode,
    encode: Encode,
    version: int | None,
) -> bytes:
    made = pb.MessageMetadata(
        producer_name=producer, sequence_id=_whole(message, "sequenceId", place), publish_time=now_ms
    )
    properties = message.get("properties") or {}
    if not isinstance(properties, dict):
        raise MalformedRequest("properties is an object of texts")
    for key, value in properties.items():
        made.properties.add(key=key, value=str(value))
    if message.get("key") is not None:
        made.partition_key = encode_key(message["key"]).decode("utf-8", "replace")
    if event := _whole(message, "eventTime", 0):
        made.event_time = event
    if (at := _whole(message, "deliverAt", 0)) or (later := _whole(message, "deliverAfterMs", 0)):
        made.deliver_at_time = at or now_ms + later
    if message.get("disableReplication"):
        made.replicate_to.append("__local__")
    else:
        clusters = message.get("replicationClusters") or []
        if not isinstance(clusters, list):
            raise MalformedRequest("replicationClusters is a list of clusters")
        made.replicate_to.extend(map(str, clusters))
    if version is not None:
        made.schema_version = struct.pack(">Q", version)
    value = message.get("payload")
    payload = b"" if value is None else encode(value)
    made.null_value = value is None
    made.uncompressed_size = len(payload)
    head = made.SerializeToString()
    checked = struct.pack(">I", len(head)) + head + payload
    return b"\x0e\x01" + struct.pack(">I", crc32c.crc32c(checked)) + checked


def _whole(message: Mapping[str, Any], name: str, default: int) -> int:
    value = message.get(name)
    if value is None:
        return default
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise MalformedRequest(f"{name} is a whole number, not {value!r}")
    return value


# -- schemas ----------------------------------------------------------------------------------------------------------


def _encoder(given: Any, name: str, steps: PayloadSteps) -> tuple[Encode, Schema | None]:
    """How a payload of that schema is written, and the schema. given: Pulsar's SchemaInfo, as JSON or as a text of
    JSON.
    """
    if not given:
        return as_text, None
    try:
        info = parsed_json(given) if isinstance(given, str) else given
        kind = str(info["type"]).upper()
        definition = info.get("schema") or ""
        definition = _definition(definition) if isinstance(definition, str) else json.dumps(definition)
        data, properties = (
            definition.encode(),
            {str(key): str(value) for key, value in (info.get("properties") or {}).items()},
        )
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise MalformedRequest(f"{name}: expected SchemaInfo with name, type, schema, properties: {error}") from error
    if kind == "BYTES":
        return as_text, None
    if kind not in TYPES or kind not in ENCODERS:
        raise NotAllowed(
            f"{name}: payloads of schema {kind} are not taken over HTTP; {', '.join(sorted(ENCODERS))} are, and BYTES"
        )
    encode = avro_encoder(definition, steps) if kind == "AVRO" else ENCODERS[kind]
    return encode, None if TYPES[kind] == NONE else Schema(TYPES[kind], str(info.get("name") or ""), data, properties)


def _definition(given: str) -> str:
    """As Pulsar's SchemaInfo has it, the definition is base64; as it is written by hand, the text itself, which for no
    schema is base64.
    """
    try:
        return base64.b64decode(given, validate=True).decode()
    except ValueError:
        return given


_ONE = "/topics/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
ROUTES: tuple[Route, ...] = (
    Route("POST", f"{_ONE}/partitions/{{partition}}", CallAccess.PRODUCE, produce),
    Route("POST", _ONE, CallAccess.PRODUCE, produce),
)
