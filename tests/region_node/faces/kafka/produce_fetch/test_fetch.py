"""A fetch that waits is answered when there is more to read, also where nothing was appended."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.configuration.acl_records import AclRecord
from heliograph.model.errors import NotAllowed
from heliograph.runtime.compute_thread import Offload
from heliograph.wire.kafka.entry_conversion import as_batch
from heliograph.wire.kafka.message_codec import decode_fields
from heliograph.wire.kafka.record_batches import build_batch, peek_batch
from heliograph.wire.run import Run
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.log import large_conversions, partition_log
from region_node.faces.kafka.log.large_conversions import LARGE_COUNT
from region_node.faces.kafka.log.partition_log import KafkaLog
from region_node.faces.kafka.produce_fetch import fetch
from region_node.faces.kafka.session.fetch_sessions import PARTITIONS_A_SESSION
from region_node.security.authentication.principal import Principal
from region_node.security.settings import SecuritySettings
from replicator.log.transaction_buffer import COMMIT, Key, TransactionBuffer, marker_run
from tests.region_node.faces.kafka.harness import Client, Face, request, with_face
from tests.region_node.faces.kafka.pulsar_batches import batch
from tests.region_node.faces.pulsar.harness import settle
from tests.replicator.log.transaction_runs import run as run_of

ORIGIN = (2, 1, 70)
KEY: Key = (ORIGIN, 0, 1)


def fetch_committed(
    topic: str, max_wait_ms: int, *, offset: int = 0, partitions: tuple[int, ...] = (0,), min_bytes: int = 1
) -> bytes:
    part = {"current_leader_epoch": -1, "fetch_offset": offset, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
    fields = {
        "replica_id": -1,
        "max_wait": max_wait_ms,
        "min_bytes": min_bytes,
        "max_bytes": 4 << 20,
        "isolation_level": 1,
        "session_id": 0,
        "session_epoch": -1,
        "topics": [{"topic": topic, "partitions": [{"partition": index, **part} for index in partitions]}],
        "forgotten_topics_data": [],
        "rack_id": "",
    }
    return request("fetch", 11, fields)


def test_a_held_transaction_that_is_shown_answers_who_waits_for_it() -> None:
    async def main(face: Face) -> None:
        client = Client(face.listener)
        rows: list[dict[str, Any]] = [
            {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        ]
        await client.ask("create_topics", 2, {"topics": rows, "timeout": 1000, "validate_only": False})
        part = {"index": 0, "records": build_batch([(1, None, b"of several topics", ())])}
        fields = {
            "transactional_id": None,
            "acks": 0,
            "timeout": 1000,
            "topic_data": [{"name": "t", "partition_data": [part]}],
        }
        client.raw(request("produce", 7, fields))
        await settle(100)
        log = await face.broker.log("t", 0)
        topic: Any = log.topic
        ledger, first, _ = topic.ledger.runs[0]
        buffer = TransactionBuffer()  # as if another region had committed it, in another topic too
        buffer.confirm(ledger, first, run_of((0, 1), b"x", origin=ORIGIN))
        ended = marker_run((0, 1), COMMIT, 0, ["persistent://public/default/other"])
        buffer.confirm(
            ledger,
            first + 1,
            Run(ended.parts, ended.lengths, counts=ended.counts, flags=ended.flags, transaction=(0, 1), origin=ORIGIN),
        )
        topic.log.state = SimpleNamespace(transactions=buffer)
        assert topic.transactions.buffer is buffer and list(buffer.held) == [KEY]

        waiting = Client(face.listener)
        waiting.raw(fetch_committed("t", 60_000))
        await settle(200)
        assert not waiting.answers()
        buffer.release(KEY)
        topic.shown_more()
        await settle(200)
        (answer,) = waiting.answers()
        assert b"of several topics" in answer
        assert not topic._shown, "whoever was answered waits no more"

    with_face(main)


def test_a_fetch_that_waits_is_not_answered_with_what_an_acl_refuses_meanwhile() -> None:
    async def main(face: Face) -> None:
        def client(role: str) -> Client:
            made = Client(face.listener)
            made.protocol.session.login.principal = Principal(role=role)
            return made

        rows = [{"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}]
        await client("root").ask("create_topics", 2, {"topics": rows, "timeout": 1000, "validate_only": False})
        topic = "persistent://public/default/t"
        reads = AclRecord("topic", "literal", topic, "bob", "*", "read", True)
        await face.admin.acls.change("public", lambda _: (reads,))
        await settle()
        waiting = client("bob")
        waiting.raw(fetch_committed("t", 60_000))
        await settle(200)
        assert not waiting.answers()
        await face.admin.acls.change("public", lambda _: (reads, reads._replace(role="*", allow=False)))
        await settle()
        part = {"index": 0, "records": build_batch([(1, None, b"not for bob", ())])}
        data = [{"name": "t", "partition_data": [part]}]
        client("root").raw(
            request("produce", 7, {"transactional_id": None, "acks": 0, "timeout": 1000, "topic_data": data})
        )
        await settle(200)
        (answer,) = waiting.answers()
        row = decode_fields("fetch", 11, answer[4:], answer=True)["responses"][0]["partitions"][0]
        assert row["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED and b"not for bob" not in answer

    with_face(main, security=SecuritySettings(authorization=True, anonymous_role="nobody", super_users=("root",)))


async def created(client: Client, partitions: int = 1) -> None:
    rows: list[dict[str, Any]] = [
        {"name": "t", "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
    ]
    await client.ask("create_topics", 2, {"topics": rows, "timeout": 1000, "validate_only": False})


async def of_pulsar(face: Face, *parts: bytes, partition: int = 0) -> KafkaLog:
    """The log, behind entries of a Pulsar client, each of which counts as one message there."""
    log = await face.broker.log("t", partition)
    for part in parts:
        log.topic.publish(Run([part], [len(part)], counts=[1]), lambda _: None, lambda _: None)
        await settle(20)
    return log


async def answered(client: Client) -> dict[str, Any]:
    """What comes, once a thread is done."""
    for _ in range(10_000):
        if answers := client.answers():
            body = answers[0][4:]
            answer = decode_fields("fetch", 11, body, answer=True)
            for row in rows_of(answer):
                start, size = row["records"] or (0, 0)
                row["records"] = body[start : start + size]
            return answer
        await asyncio.sleep(0.001)
    raise AssertionError("no answer")


def rows_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = answer["responses"][0]["partitions"]
    return rows


WIDE = batch(1, 1100 << 10, packed=True)
"""More than what a fetch takes of a partition, of some bytes."""
BROKEN = batch(LARGE_COUNT + 1, 1)[:-1]


@pytest.fixture
def on_loop(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """What was converted on the event loop."""
    found = []

    def convert(part: bytes, count: int) -> bytes:
        found.append(part)
        return as_batch(part, count)

    monkeypatch.setattr(partition_log, "as_batch", convert)
    return found


def test_no_large_entry_is_converted_on_the_event_loop_whether_it_fits_or_is_corrupt(on_loop: list[bytes]) -> None:
    async def main(face: Face) -> None:
        client = Client(face.listener)
        await created(client)
        log = await of_pulsar(face, WIDE, WIDE, BROKEN, WIDE, BROKEN)
        got: list[tuple[int, int]] = []
        offset = 0
        while offset < log.high_watermark:
            client.raw(fetch_committed("t", 0, offset=offset))
            (row,) = rows_of(await answered(client))
            base, head = int.from_bytes(row["records"][:8], "big"), peek_batch(memoryview(row["records"]))
            got.append((base, len(row["records"])))
            offset = base + head.offsets
        assert [base for base, _ in got] == [0, 1, 3, 4] and log.topic.unreadable_out == 2
        assert all(size > 1 << 20 for _, size in got[:3]) and not on_loop

    with_face(main)


def test_where_too_many_entries_wait_to_be_converted_a_fetch_comes_again(on_loop: list[bytes]) -> None:
    async def main(face: Face) -> None:
        client, face.broker.converting = Client(face.listener), Offload(waiting_max=0)
        await created(client)
        await of_pulsar(face, batch(1, 9), WIDE)
        client.raw(fetch_committed("t", 0))
        (row,) = rows_of(await answered(client))
        assert peek_batch(memoryview(row["records"])).offsets == 1 and len(on_loop) == 1, "what is small goes out"
        client.raw(fetch_committed("t", 0, offset=1))
        answer = await answered(client)
        assert not rows_of(answer)[0]["records"] and answer["throttle_time"] == 1000 and len(on_loop) == 1

    with_face(main)


def test_a_fetch_that_has_converted_for_long_is_answered_with_what_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main(face: Face) -> None:
        def convert(part: bytes, count: int) -> bytes:
            face.clock.now += 7
            return as_batch(part, count)

        monkeypatch.setattr(large_conversions, "as_batch", convert)
        client = Client(face.listener)
        await created(client, 3)
        for partition in range(3):
            await of_pulsar(face, WIDE, partition=partition)
        for partitions in ((0, 1, 2), (1, 2, 0)):
            client.raw(fetch_committed("t", 60_000, partitions=partitions, min_bytes=8 << 20))
            rows = rows_of(await answered(client))
            assert [bool(row["records"]) for row in rows] == [True, False, False]
            assert [row["error_code"] for row in rows] == [0, 0, 0]

    with_face(main)


def test_tenants_take_turns_and_nothing_is_converted_for_a_client_that_has_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, asked = [], []

    async def main(face: Face) -> None:
        def convert(part: bytes, count: int) -> bytes:
            made.append(part)
            return as_batch(part, count)

        run = face.broker.converting.run

        async def noted(work: Callable[[], bytes], **how: Any) -> bytes:
            asked.append(how["who"])
            return await run(work, **how)

        monkeypatch.setattr(large_conversions, "as_batch", convert)
        monkeypatch.setattr(face.broker.converting, "run", noted)
        gone, stays, go_on = Client(face.listener), Client(face.listener), threading.Event()
        await created(gone)
        await of_pulsar(face, WIDE)
        busy = asyncio.ensure_future(run(lambda: go_on.wait(60)))
        await settle()
        for client in (gone, stays):
            client.raw(fetch_committed("t", 0))
        await settle()
        gone.protocol.connection_lost(None)
        go_on.set()
        assert await busy and rows_of(await answered(stays))[0]["records"]
        assert len(made) == 1 and asked == ["public", "public"]

    with_face(main)


def test_what_may_not_be_read_any_more_is_not_sent_behind_a_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def convert(part: bytes, count: int) -> bytes:
        begun.set()
        assert go_on.wait(60)
        return as_batch(part, count)

    async def main(face: Face) -> None:
        def client(role: str) -> Client:
            made = Client(face.listener)
            made.protocol.session.login.principal = Principal(role=role)
            return made

        await created(client("root"), 2)
        topic = "persistent://public/default/t"
        reads = AclRecord("topic", "literal", topic, "bob", "*", "read", True)
        await face.admin.acls.change("public", lambda _: (reads,))
        await of_pulsar(face, batch(1, 9))
        await of_pulsar(face, WIDE, partition=1)
        monkeypatch.setattr(large_conversions, "as_batch", convert)
        reader = client("bob")
        reader.raw(fetch_committed("t", 0, partitions=(0, 1)))
        assert await asyncio.to_thread(begun.wait, 20)
        await face.admin.acls.change("public", lambda _: (reads, reads._replace(role="*", allow=False)))
        await settle()
        go_on.set()
        for row in rows_of(await answered(reader)):
            assert row["error_code"] == Code.TOPIC_AUTHORIZATION_FAILED
            assert not row["records"] and row["high_watermark"] == -1

    with_face(main, security=SecuritySettings(authorization=True, anonymous_role="nobody", super_users=("root",)))


def test_an_entry_that_takes_long_to_convert_is_converted_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are answered meanwhile."""
    begun, go_on = threading.Event(), threading.Event()

    def convert(part: bytes, count: int) -> bytes:
        begun.set()
        assert go_on.wait(60), "whoever holds the event loop never gets here"
        return as_batch(part, count)

    async def main(face: Face) -> None:
        client = Client(face.listener)
        rows: list[dict[str, Any]] = [
            {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        ]
        await client.ask("create_topics", 2, {"topics": rows, "timeout": 1000, "validate_only": False})
        log = await face.broker.log("t", 0)
        part = batch(LARGE_COUNT + 1, 1)
        log.topic.publish(Run([part], [len(part)], counts=[LARGE_COUNT + 1]), lambda _: None, lambda _: None)
        await settle(100)
        monkeypatch.setattr(large_conversions, "as_batch", convert)
        client.raw(fetch_committed("t", 0))
        assert await asyncio.to_thread(begun.wait, 20), "it was not converted in a thread"
        assert not client.answers()
        go_on.set()
        answers: list[bytes] = []
        for _ in range(10_000):
            await asyncio.sleep(0.001)
            if answers := client.answers():
                break
        assert as_batch(part, LARGE_COUNT + 1)[16:] in answers[0]
        assert log.counts.converted_out == LARGE_COUNT + 1

    with_face(main)


def in_session(number: int, epoch: int, *wanted: int, forgotten: tuple[int, ...] = ()) -> dict[str, Any]:
    part = {"current_leader_epoch": -1, "fetch_offset": 0, "log_start_offset": -1, "partition_max_bytes": 1 << 20}
    asked = [{"topic": "t", "partitions": [{"partition": index, **part} for index in wanted]}] if wanted else []
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 4 << 20,
        "isolation_level": 0,
        "session_id": number,
        "session_epoch": epoch,
        "topics": asked,
        "forgotten_topics_data": [{"topic": "t", "partitions": list(forgotten)}] if forgotten else [],
        "rack_id": "",
    }


def test_a_session_is_known_to_the_role_alone_that_began_it() -> None:
    async def main(face: Face) -> None:
        ann, bob, annas = (Client(face.listener) for _ in range(3))
        for client, role in ((ann, "ann"), (bob, "bob"), (annas, "ann")):
            client.protocol.session.login.principal = Principal(role=role)
        number = (await ann.ask("fetch", 11, in_session(0, 0, 0)))["session_id"]
        assert number and len(face.broker.sessions) == 1
        assert (await bob.ask("fetch", 11, in_session(number, 1)))["error_code"] == Code.FETCH_SESSION_ID_NOT_FOUND
        for epoch in (-1, 0):
            assert (await bob.ask("fetch", 11, in_session(number, epoch, 0)))["error_code"] == 0
        assert len(face.broker.sessions) == 2, "he has one of his own, and has not ended hers"
        assert (await annas.ask("fetch", 11, in_session(number, 1)))["error_code"] == 0, "from another connection"
        await ann.ask("fetch", 11, in_session(number, -1))
        assert len(face.broker.sessions) == 1

    with_face(main)


def test_a_session_has_a_bound_of_partitions_above_which_its_client_does_without() -> None:
    async def main(face: Face) -> None:
        client, most = Client(face.listener), PARTITIONS_A_SESSION
        answer = await client.ask("fetch", 11, in_session(0, 0, *range(most + 1)))
        assert (answer["error_code"], answer["session_id"], len(face.broker.sessions)) == (0, 0, 0)
        assert len(answer["responses"][0]["partitions"]) == most + 1

    with_face(main)


def test_partitions_that_are_refused_are_looked_at_with_pauses() -> None:
    """Nothing of theirs is waited for, and a request of 1 MB names 100,000."""

    def refuse(*_: Any) -> Any:
        raise NotAllowed("no right")

    fetching: Any = fetch._Fetching.__new__(fetch._Fetching)
    fetching._wanted = {("t", index): {} for index in range(1000)}
    fetching._max_bytes, fetching._throttled, fetching._logs, fetching._rules = 1, {}, {}, 0
    rights = SimpleNamespace(changes=0)
    fetching._session = SimpleNamespace(broker=SimpleNamespace(security=SimpleNamespace(rights=rights)))
    fetching._partition = fetching._check = refuse
    for work, wanted in (
        (fetching._read(), 3),
        (fetching._look_again({("t", i): {"records": []} for i in range(600)}), 2),
    ):
        pauses = 0
        with contextlib.suppress(StopIteration):
            while True:
                work.send(None)
                pauses += 1
        assert pauses == wanted
