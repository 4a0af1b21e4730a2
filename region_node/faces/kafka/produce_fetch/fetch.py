"""Fetch: record batches of partitions from an offset on, and waiting for them.

Is: reading what is there, the bounds of bytes, the long poll. Isn't: storage, what a batch is (`partition_log`), or an
incremental session (`fetch_sessions`).
Invariants: at least one batch goes out where there is one, however large; a waiting request holds one future and one
timer, and its partitions' wakers.
Source: Kafka KIP-74, KIP-227; docs/protocols/kafka.md, "Fetch".
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from heliograph.model.errors import HeliographError
from heliograph.runtime.throttle import RowPace
from heliograph.wire.kafka.message_codec import Fields, Request
from heliograph.wire.run import Buffer
from region_node.faces.kafka.error_codes import Code, Refused, code_of
from region_node.faces.kafka.log.large_conversions import CONVERTING_S, made_ahead
from region_node.faces.kafka.log.partition_log import KafkaLog
from region_node.faces.kafka.session.fetch_sessions import FetchSession, Key, Wanted
from region_node.faces.kafka.session.kafka_session import KafkaSession
from region_node.security.authorization.authorization_service import Action

_BYTES_MAX = 50 << 20
_WAIT_MS_MAX = 60_000
_LOOK_AGAIN_S = 0.01
_FULL_AGAIN_S = 1.0
_BY_ID = 13


def _wanted(fields: Fields, how: str) -> Wanted:
    return {(topic[how], part["partition"]): part for topic in fields["topics"] for part in topic["partitions"]}


async def fetch(session: KafkaSession, request: Request) -> Fields:
    fields, sessions = request.fields, session.broker.sessions
    known: FetchSession | None = None
    by_id = request.version >= _BY_ID
    how = "topic_id" if by_id else "topic"
    wanted = _wanted(fields, how)
    assert session.login.principal is not None
    owner = session.login.principal.roles
    if request.version >= 7:
        number, epoch = fields["session_id"], fields["session_epoch"]
        if epoch > 0:
            try:
                known = sessions.go_on(number, owner, epoch, by_id)
                forgotten = fields["forgotten_topics_data"]
                sessions.change(
                    known, wanted, ((topic[how], index) for topic in forgotten for index in topic["partitions"])
                )
            except Refused as error:
                return {"error_code": error.code, "session_id": 0, "responses": []}
            wanted = known.wanted
        else:
            sessions.end(number, owner)
            if epoch == 0 and wanted:
                known = sessions.begin(owner, by_id, wanted)
    fetching = _Fetching(session, request, dict(wanted))
    rows = await fetching.run()
    throttle_ms = fetching.throttle_ms
    if (quotas := session.broker.quotas).active:
        throttle_ms = max(throttle_ms, quotas.fetched(session, request.client, fetching.size_bytes))
    goes_on = fields["session_epoch"] > 0 if known is not None else False
    topics: dict[str | bytes, list[Fields]] = {}
    for key, row in rows.items():
        if known is not None and key in known.wanted:
            now = (row["error_code"], row["high_watermark"], row["log_start_offset"])
            same = known.sent.get(key) == now
            known.sent[key] = now
            if goes_on and same and not row["records"] and not row["error_code"]:
                continue
            if row["records"]:  # next time it is looked at last, so that no partition starves
                known.wanted[key] = known.wanted.pop(key)
        topics.setdefault(key[0], []).append(row)
    return {
        "throttle_time": throttle_ms,
        "session_id": known.number if known is not None else 0,
        "responses": [{how: topic, "partitions": parts} for topic, parts in topics.items()],
    }


class _Fetching:
    """One request, until it is answered."""

    def __init__(self, session: KafkaSession, request: Request, wanted: Wanted) -> None:
        self._session, self._wanted = session, wanted
        fields = request.fields
        self._magic = 0 if request.version < 2 else 1 if request.version < 4 else 2
        self._committed = fields.get("isolation_level", 0) == 1
        self._wait_s = min(max(fields["max_wait"], 0), _WAIT_MS_MAX) / 1000
        self._min_bytes = max(0, fields["min_bytes"])
        self._max_bytes = min(fields.get("max_bytes", _BYTES_MAX), _BYTES_MAX)
        if (quotas := session.broker.quotas).active and (room := quotas.room(session, request.client)) is not None:
            self._max_bytes = min(self._max_bytes, room)
        self._logs: dict[Key, KafkaLog] = {}
        self._rules = 0
        """How often the rights had changed when these logs were asked for: what is open ends with the right to it."""
        self._throttled: dict[Key, float] = {}
        """Partitions whose dispatch rate is used up, or whose entries find no place among those that wait to be
        converted -> seconds until they are looked at again.
        """
        self._late_at = math.inf
        """When no other entry is converted for this request; set when the first one is."""
        self._size = 0
        self._urgent = False

    @property
    def size_bytes(self) -> int:
        """Counts the bytes of record batches that go out."""
        return self._size

    @property
    def throttle_ms(self) -> int:
        """Where nothing could be sent yet: when to ask again."""
        return 0 if self._size or not self._throttled else math.ceil(1000 * min(self._throttled.values()))

    async def run(self) -> dict[Key, Fields]:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._wait_s
        rows = await self._read()
        while not self._urgent and self._size < self._min_bytes and self._logs and not self._session.closed:
            left = deadline - loop.time()
            if left <= 0:
                break
            await self._changed(min((left, *self._throttled.values())))
            rows = await self._read()
        return rows

    async def _changed(self, wait_s: float) -> None:
        """Until one of the logs has grown, or shows more of what it has, or the time is over."""
        loop = asyncio.get_running_loop()
        woken: asyncio.Future[None] = loop.create_future()

        def wake() -> None:
            if not woken.done():
                woken.set_result(None)

        logs = [log for key, log in self._logs.items() if key not in self._throttled]
        stops: list[Callable[[], None]] = [log.ledger.wake_on_append(wake) for log in logs]
        if self._committed:
            stops += [log.topic.wake_on_shown(wake) for log in logs]
        timer = loop.call_later(wait_s, wake)
        try:
            await woken
        finally:
            timer.cancel()
            for stop in stops:
                stop()

    async def _read(self) -> dict[Key, Fields]:
        rows: dict[Key, Fields] = {}
        self._size, left = 0, self._max_bytes
        self._throttled.clear()
        rights = self._session.broker.security.rights
        if self._rules != rights.changes:
            self._rules = rights.changes
            self._logs.clear()
        pace = RowPace()
        for key, part in self._wanted.items():
            await pace.row()
            row = rows[key] = {
                "partition_index": key[1],
                "error_code": 0,
                "high_watermark": -1,
                "log_start_offset": -1,
                "records": [],
            }
            try:
                records = await self._partition(key, part, row, left)
            except HeliographError as error:
                row["error_code"] = code_of(error)
                self._urgent = True
                continue
            size = sum(map(len, records))
            row["records"] = records
            self._size += size
            left -= size
        if self._rules != rights.changes:  # while storage, or a conversion, was waited for
            await self._look_again(rows)
        return rows

    async def _look_again(self, rows: dict[Key, Fields]) -> None:
        """Takes from the answer what may not be read any more."""
        pace = RowPace()
        for key, row in rows.items():
            await pace.row()
            try:
                self._check(key)
            except HeliographError as error:
                self._size -= sum(map(len, row["records"]))
                row.update(error_code=code_of(error), high_watermark=-1, log_start_offset=-1, records=[])
                self._urgent = True

    def _check(self, key: Key) -> str:
        """The topic, where it may be read. Raises Refused, Unauthorized."""
        broker, principal = self._session.broker, self._session.login.principal
        assert principal is not None
        kafka = key[0] if isinstance(key[0], str) else broker.of_id(key[0])
        broker.check(principal, Action.CONSUME, kafka)
        return kafka

    def _late(self) -> bool:
        """Whether entries were converted so long that the answer goes out as it is."""
        now = self._session.broker.clock.monotonic()
        if self._late_at == math.inf:
            self._late_at = now + CONVERTING_S
        if now < self._late_at:
            return False
        self._urgent = True
        return True

    def _somebody_waits(self) -> bool:
        return not self._session.closed

    async def _partition(self, key: Key, part: Fields, row: Fields, left: int) -> list[Buffer]:
        broker = self._session.broker
        log = self._logs.get(key)
        if log is None or log.topic.closed or log.leader_epoch != broker.leading.epoch(log.topic.name.namespace):
            self._logs.pop(key, None)
            kafka = self._check(key)
            log = await broker.led_log(kafka, key[1], part.get("current_leader_epoch", -1))
            self._logs[key] = log
        end, offset = log.high_watermark, part["fetch_offset"]
        row["high_watermark"], row["last_stable_offset"] = end, await log.stable_offset()
        row["log_start_offset"] = log.start_offset
        log.topic.inactive_since = 0.0
        if not log.start_offset <= offset <= end:
            raise Refused(Code.OFFSET_OUT_OF_RANGE, f"offset {offset} is not in {log.start_offset} to {end}")
        if offset == (row["last_stable_offset"] if self._committed else end) or (left <= 0 and self._size):
            return []
        room = min(left, part["partition_max_bytes"])
        throttle = log.topic.reading_throttle
        if throttle is not None:
            throttle.refill()
            if throttle.messages() <= 0:
                self._throttled[key] = max(throttle.wait_s, _LOOK_AGAIN_S)
                return []
            room = min(room, throttle.bytes_left())
        pieces = log.cached(offset, room, committed=self._committed)
        if pieces is None:
            pieces = await log.fetch(offset, room, committed=self._committed)
        if not pieces:
            return await log.passed_over(offset, self._magic)
        tenant = log.topic.name.tenant
        ahead = await made_ahead(
            pieces, offset, room, broker.converting, self._late, who=tenant, wanted=self._somebody_waits
        )
        before = broker.counts.messages_out
        records = log.batches(pieces, offset, room, self._magic, ahead)
        if ahead.full and not records:
            self._throttled[key] = _FULL_AGAIN_S
        usage, messages, size = (
            broker.usage.of(tenant),
            broker.counts.messages_out - before,
            sum(map(len, records)),
        )
        usage.messages_out += messages
        usage.bytes_out += size
        if throttle is not None:
            throttle.spend(messages, size)
        return records
