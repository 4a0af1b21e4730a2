"""What a connection does with frames before anybody has signed in, and how much it keeps of what cannot begin yet."""

from __future__ import annotations

import asyncio
import struct
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.runtime import throttle
from heliograph.wire.kafka import message_codec
from heliograph.wire.kafka.message_codec import BY_NAME, encode_varint
from heliograph.wire.kafka.record_batches import build_batch
from region_node.faces.kafka.connection import kafka_connection
from region_node.faces.kafka.session.heavy_reads import HeavyReads
from region_node.security.authentication.principal import Principal
from tests.region_node.faces.kafka.harness import Client, Face, request, with_face
from tests.region_node.faces.kafka.topic_requests import create
from tests.region_node.faces.pulsar.harness import FakeTransport, settle

VERSIONS = request("api_versions", 0, {})


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def unknown(face: Face) -> Client:
    """A client that has not authenticated."""
    client = Client(face.listener)
    client.protocol.session.login.principal = None
    return client


def many_texts(count: int) -> bytes:
    """DescribeGroups with so many empty names."""
    return struct.pack(">hhih", 15, 5, 1, -1) + b"\0" + encode_varint(count + 1) + b"\x01" * count + b"\0\0"


@pytest.mark.parametrize("name", sorted({*BY_NAME} - {"api_versions", "sasl_handshake", "sasl_authenticate"}))
def test_only_what_signs_in_is_decoded_before_that(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kafka_connection, "decode_request", None)  # whoever calls it fails

    async def run(face: Face) -> None:
        client = unknown(face)
        client.raw(framed(struct.pack(">hhih", BY_NAME[name].key, BY_NAME[name].highest, 1, -1) + bytes(50)))
        await settle(5)
        assert client.protocol.closed and not client.answers()

    with_face(run)


def test_what_signs_in_is_answered() -> None:
    async def run(face: Face) -> None:
        client = unknown(face)
        client.raw(VERSIONS)
        await settle(5)
        assert len(client.answers()) == 1 and not client.protocol.closed
        client.raw(request("sasl_handshake", 1, {"mechanism": "NONE"}))
        await settle(5)
        assert len(client.answers()) == 1

    with_face(run)


def test_a_large_frame_is_refused_by_its_size_alone_before_a_client_has_signed_in() -> None:
    async def run(face: Face) -> None:
        client = unknown(face)
        client.raw((64 << 10).to_bytes(4, "big"))
        assert not client.protocol.closed
        other = unknown(face)
        other.raw(((64 << 10) + 1).to_bytes(4, "big"))
        assert other.protocol.closed

    with_face(run)


def test_room_for_a_frame_is_made_as_it_comes_before_a_client_has_signed_in() -> None:
    async def run(face: Face) -> None:
        client, size = unknown(face), 30_000
        sign_in = framed(struct.pack(">hhih", 17, 1, 1, -1) + struct.pack(">h", size - 12) + b"x" * (size - 12))
        client.raw(sign_in[:5])
        assert len(client.protocol._frame or b"") == 4096
        for at in range(5, len(sign_in), 7000):
            came = len(client.protocol._frame or b"")
            assert came <= 2 * max(at, 4096)
            client.raw(sign_in[at : at + 7000])
        await settle(5)
        assert len(client.answers()) == 1, "it is whole, and no mechanism of ours"

    with_face(run)


def test_what_came_before_a_sign_in_is_not_stored_when_its_client_has_gone() -> None:
    async def run(face: Face) -> None:
        client = unknown(face)
        client.protocol._alone = True  # as while a sign-in is under way
        client.raw(framed(bytes(40)))
        client.protocol.connection_lost(None)
        client.protocol._alone = False
        client.protocol._finish_waiting()
        assert not client.protocol._waiting and not face.broker.logs()

    with_face(run)


async def begun(face: Face) -> Client:
    """A client whose Fetch waits for a minute."""
    client = Client(face.listener)
    rows: list[dict[str, Any]] = [
        {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    ]
    await client.ask("create_topics", 2, {"topics": rows, "timeout": 1000, "validate_only": False})
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
    wanted = [{"topic": "t", "partitions": [part]}]
    fields = {"replica_id": -1, "max_wait": 60_000, "min_bytes": 1 << 30, "max_bytes": 1, "isolation_level": 0}
    client.raw(request("fetch", 4, {**fields, "topics": wanted}))
    await settle(20)
    assert not client.answers() and not client.protocol.closed
    return client


def test_what_waits_behind_a_request_is_bounded_by_its_bytes() -> None:
    async def run(face: Face) -> None:
        client = await begun(face)
        size = 600_000
        for count in range(1, 4):
            client.raw(framed(struct.pack(">hhih", 18, 0, 1, -1) + bytes(size - 10)))
            assert client.transport.reading == (count * size <= 1 << 20), count
        # once it is their turn, reading goes on
        for slot in list(client.protocol._slots):
            client.protocol._alone = False
            client.protocol.answered(slot, [])
        await settle(20)
        assert client.transport.reading and client.protocol._waiting_bytes == 0

    with_face(run, waiting_bytes_max=1 << 20, message_bytes_max=1 << 20)


def test_an_array_has_no_more_elements_than_its_bytes_can_hold() -> None:
    async def run(face: Face) -> None:
        head = struct.pack(">hhihiiiibi", 1, 4, 1, -1, -1, 0, 0, 0, 0, 1) + b"\0\x01t"
        for body, closes in (
            (many_texts(100), False),
            (many_texts(message_codec.ELEMENTS_MAX + 1), True),
            (head + struct.pack(">i", 40) + bytes(400), True),  # partitions of a Fetch: 16 bytes each
        ):
            client = Client(face.listener)
            client.raw(framed(body))
            await settle(20)
            assert client.protocol.closed is closes

    with_face(run)


def test_a_long_answer_gives_others_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = []

    async def pause() -> None:
        pauses.append(None)

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "orders", "paid", partitions=1)
        await create(client, "many", partitions=300)
        few, many = ({"topics": [{"topic_id": bytes(16), "name": name}]} for name in ("orders", "many"))
        monkeypatch.setattr(throttle, "pause", pause)
        await client.ask("metadata", 13, few)
        assert not pauses
        (row,) = (await client.ask("metadata", 13, many))["topics"]
        assert len(row["partitions"]) == 300 and len(pauses) == 3 * 300 // message_codec.STEP_ELEMENTS + 1

    with_face(run)


def test_who_has_gone_has_nothing_looked_up_any_more_and_what_it_sent_before_is_stored() -> None:
    """Each reset would leave a look at a hundred thousand groups behind, and a client without grants makes as many as
    it likes.
    """

    async def run(face: Face) -> None:
        client = Client(face.listener)
        await create(client, "orders")
        await settle(20)
        before = len(face.broker.tasks)
        client.raw(request("describe_groups", 4, {"groups": [f"g{number}" for number in range(5_000)]}))
        for _ in range(3):
            await settle(5)
        assert len(face.broker.tasks) > before and not client.answers()
        batch = build_batch([(0, None, b"value", ())])
        stored = {"name": "orders", "partition_data": [{"index": 0, "records": batch}]}
        client.raw(request("produce", 7, {"acks": 0, "timeout": 1000, "topic_data": [stored]}))
        client.protocol.connection_lost(None)
        await settle(30)
        assert len(face.broker.tasks) == before
        assert [log.high_watermark for log in face.broker.logs()] == [1]

    with_face(run)


def test_what_changes_something_goes_on_without_its_client() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        row = {"name": "orders", "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
        client.raw(request("create_topics", 2, {"topics": [row], "timeout": 1000, "validate_only": False}))
        await settle(1)
        client.protocol.connection_lost(None)
        await settle(50)
        assert face.view.partitions("persistent://public/default/orders") == 2

    with_face(run)


def silent(face: Face, role: str) -> Client:
    """A client that takes nothing of what it is sent."""
    client = Client(face.listener)
    client.protocol.session.login.principal = Principal(role=role)
    written = client.transport.write

    def write(data: Any) -> None:
        written(data)
        client.protocol.pause_writing()

    client.transport.write = write  # type: ignore[method-assign]
    return client


def test_a_role_that_takes_no_answers_is_made_no_more_of_them_and_others_are() -> None:
    async def run(face: Face) -> None:
        asked = request("describe_groups", 4, {"groups": ["g"]})
        (first := Client(face.listener)).raw(asked)
        await settle(50)
        face.broker.heavy = HeavyReads(at_once=1, untaken_bytes_max=2 * (4 + len(first.answers()[0])))
        clients = [silent(face, "ann") for _ in range(4)]
        for each in clients:
            each.raw(asked)
        await settle(300)
        assert [len(each.answers()) for each in clients] == [1, 1, 1, 0], "two are below the bound, one goes above it"
        other = silent(face, "bob")
        other.raw(asked)
        await settle(100)
        assert len(other.answers()) == 1
        clients[0].protocol.resume_writing()
        await settle(100)
        assert not clients[3].answers(), "the place is who's that went above the bound"
        clients[2].protocol.connection_lost(None)
        await settle(100)
        assert len(clients[3].answers()) == 1
        for each in (clients[1], clients[3], other):
            each.protocol.resume_writing()
        assert not face.broker.heavy.roles

    with_face(run)


def test_heavy_requests_of_one_connection_that_come_together_are_answered_and_their_places_end() -> None:
    async def run(face: Face) -> None:
        face.broker.heavy = HeavyReads(at_once=1)
        client = Client(face.listener)
        for kind, version, fields in (("list_groups", 4, {}), ("metadata", 1, {"topics": None})):
            client.raw(request(kind, version, fields) * 3)
        await settle(300)
        assert len(client.answers()) == 6 and not face.broker.heavy.roles
        gone = [Client(face.listener) for _ in range(3)]
        for each in gone:
            each.raw(request("describe_groups", 4, {"groups": [f"g{number}" for number in range(2_000)]}))
        await settle(5)
        assert face.broker.heavy.roles
        for each in gone:
            each.protocol.connection_lost(None)
        await settle(5)
        assert not face.broker.heavy.roles

    with_face(run)


def test_a_client_that_takes_nothing_is_cut_off_ten_seconds_after_its_connection_closes() -> None:
    class Full(FakeTransport):
        """Nothing goes out of it, so that it does not end by itself."""

        def close(self) -> None: ...

        def abort(self) -> None:
            self.closing = True

    async def run() -> None:
        face = Face()
        await face.start()
        client = Client(face.listener)
        full = Full(client.protocol)  # type: ignore[arg-type]
        client.protocol.connection_made(full)
        client.protocol.close("idle")
        await asyncio.sleep(9)
        assert not full.closing
        await asyncio.sleep(2)
        assert full.closing
        await face.close()

    run_alone(run())
