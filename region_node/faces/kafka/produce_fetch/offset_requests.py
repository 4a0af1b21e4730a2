"""Offsets of partitions: ListOffsets, OffsetForLeaderEpoch, DeleteRecords.

Is: one handler a request. Isn't: how an offset is found (`partition_log`).
Source: docs/protocols/kafka.md, "Offsets".
"""

from __future__ import annotations

from heliograph.model.errors import HeliographError
from heliograph.runtime.throttle import RowPace
from heliograph.wire.kafka.message_codec import Fields, Request
from region_node.faces.kafka.error_codes import Code, Refused, code_of
from region_node.faces.kafka.log import time_search
from region_node.faces.kafka.log.partition_log import KafkaLog
from region_node.faces.kafka.log.time_index import NONE
from region_node.faces.kafka.session.kafka_session import KafkaSession

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5


async def _log(session: KafkaSession, request: Request, kafka: str, part: Fields, index: int) -> KafkaLog:
    """part: what the request says of the partition, maybe its leader epoch."""
    session.gate.topic(request, kafka)
    return await session.broker.led_log(kafka, index, part.get("current_leader_epoch", -1))


async def list_offsets(session: KafkaSession, request: Request) -> Fields:
    topics: list[Fields] = []
    pace = RowPace()
    for topic in request.fields["topics"]:
        parts: list[Fields] = []
        for part in topic["partitions"]:
            await pace.row()
            row: Fields = {"partition_index": part["partition_index"], "error_code": 0, "old_offsets": []}
            parts.append(row)
            try:
                log = await _log(session, request, topic["name"], part, part["partition_index"])
                offset, time = await _offset(log, part["timestamp"], request.fields.get("isolation_level", 0) == 1)
                row["offset"], row["timestamp"] = offset, time
                row["leader_epoch"] = log.leader_epoch if offset >= 0 else -1
                if request.version == 0:
                    row["old_offsets"] = _before_0_10(log, part["timestamp"], offset, part["max_num_offsets"])
            except HeliographError as error:
                row["error_code"] = code_of(error)
        topics.append({"name": topic["name"], "partitions": parts})
    return {"topics": topics}


async def _offset(log: KafkaLog, timestamp: int, committed: bool) -> tuple[int, int]:
    if timestamp == LATEST:
        return await log.stable_offset() if committed else log.high_watermark, -1
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return log.start_offset, -1
    if timestamp == MAX_TIMESTAMP:
        return await time_search.newest(log)
    if timestamp == LATEST_TIERED:
        return -1, -1
    if timestamp < 0:
        raise Refused(Code.UNSUPPORTED_VERSION, f"a time of {timestamp} has no meaning here")
    offset, time = await time_search.at_time(log, timestamp)
    if (
        committed and offset >= await log.stable_offset()
    ):  # a reader of what is committed could not begin there, and asks again
        return NONE
    return (max(offset, log.start_offset), time) if offset >= 0 else (offset, time)


def _before_0_10(log: KafkaLog, timestamp: int, offset: int, count_max: int) -> list[int]:
    """Such clients ask for offsets of segments before a time, the highest first."""
    if timestamp == EARLIEST:
        return [log.start_offset]
    if timestamp == LATEST:
        return list(dict.fromkeys((log.high_watermark, log.start_offset)))[: max(0, count_max)]
    return [offset if offset >= 0 else log.high_watermark]


async def offset_for_leader_epoch(session: KafkaSession, request: Request) -> Fields:
    topics: list[Fields] = []
    pace = RowPace()
    for topic in request.fields["topics"]:
        parts: list[Fields] = []
        for part in topic["partitions"]:
            await pace.row()
            row: Fields = {"partition": part["partition"], "error_code": 0, "leader_epoch": -1, "end_offset": -1}
            parts.append(row)
            try:
                log = await _log(session, request, topic["topic"], part, part["partition"])
                _answer_epoch(session, log, part["leader_epoch"], row)
            except HeliographError as error:
                row["error_code"] = code_of(error)
        topics.append({"topic": topic["topic"], "partitions": parts})
    return {"topics": topics}


def _answer_epoch(session: KafkaSession, log: KafkaLog, epoch: int, row: Fields) -> None:
    """Where the offsets of a leader epoch end here; of another region's, nowhere: a client sets itself anew then.
    Raises Refused: it is to ask again.
    """
    leading, name, own = session.broker.leading, log.topic.name, log.leader_epoch
    if not own:
        if epoch >= 0:
            row["leader_epoch"], row["end_offset"] = 0, log.high_watermark
    elif epoch == own or (0 <= epoch < own and session.epochs.own(leading, name.namespace, epoch)):
        row["leader_epoch"], row["end_offset"] = epoch, log.high_watermark
    elif 0 <= epoch < own:
        now = session.broker.clock.monotonic()
        if session.epochs.waits((str(name.partitioned), max(0, name.partition)), epoch, now):
            raise Refused(Code.LEADER_NOT_AVAILABLE, f"offsets of leader epoch {epoch} are another region's: join anew")


async def delete_records(session: KafkaSession, request: Request) -> Fields:
    topics: list[Fields] = []
    pace = RowPace()
    for topic in request.fields["topics"]:
        parts: list[Fields] = []
        for part in topic["partitions"]:
            await pace.row()
            row: Fields = {"partition_index": part["partition_index"], "error_code": 0, "low_watermark": -1}
            parts.append(row)
            try:
                log = await _log(session, request, topic["name"], part, part["partition_index"])
                if log.only_compacts:
                    raise Refused(Code.POLICY_VIOLATION, "records of a topic that is only compacted go with their keys")
                offset = log.high_watermark if part["offset"] == -1 else part["offset"]
                if not 0 <= offset <= log.high_watermark:
                    raise Refused(Code.OFFSET_OUT_OF_RANGE)
                row["low_watermark"] = await log.delete_before(offset)
            except HeliographError as error:
                row["error_code"] = code_of(error)
        topics.append({"name": topic["name"], "partitions": parts})
    return {"topics": topics}
