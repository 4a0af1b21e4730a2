"""BookieClient and BookieServer, over the simulated network, and once over real sockets and a real disk."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import BookieUnavailable, HeliographError, LedgerFenced, NoSuchEntry, NoSuchLedger
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.system_disk import SystemDisk
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.bookie_frames import ACK, HEAD, Kind, encode
from heliograph.wire.run import BYTES_MAX, Run
from storage.bookie.serving import bookie_server
from storage.bookie.serving.bookie import Bookie, BookieSettings, DirectoryPlace
from storage.bookie.serving.bookie_server import BookieConnection, BookieServer
from storage.ledger.bookies.bookie_client import BookieClient
from tests.storage.bookie.history import SMALL, add, block, content
from tests.storage.bookie.serving.bookie_cluster import PORT, Cluster, Writer, scenario


def test_adds_are_acknowledged_in_order_and_read_back() -> None:
    async def body(cluster: Cluster) -> None:
        client = cluster.client()
        one, two = Writer(client, 1), Writer(client, 2)
        for count in (3, 1, 9, 2):
            one.add(count)
            two.add(1)
        assert client.backlog_bytes > 0
        await asyncio.sleep(0.5)
        assert one.acks[-1] == 14 and two.acks[-1] == 3 and one.acks == sorted(one.acks)
        assert client.backlog_bytes == 0 and not one.lost
        blocks = await client.read(1, 2, 12, 1 << 20)
        found: dict[int, bytes] = {}
        for held in blocks:
            _, first, run = decode_block(held)
            found.update({first + index: bytes(part) for index, part in enumerate(run.parts)})
        assert found == {entry: content(1, entry) for entry in range(13)}
        assert await client.ledgers() == [1, 2]
        assert await client.read_lac(1) == 12
        client.write_lac(1, 14)
        assert await client.read_lac(1) == 14
        with pytest.raises(NoSuchEntry):
            await client.read(1, 15, 15, 1000)
        with pytest.raises(NoSuchLedger):
            await client.read(3, 0, 0, 1000)
        await client.delete(2)
        with pytest.raises(NoSuchLedger):
            await client.read_lac(2)
        client.close()

    scenario(body)


def test_what_is_alone_waits_for_no_end_of_a_turn_and_what_is_not_goes_together() -> None:
    async def body(cluster: Cluster) -> None:
        client, other = cluster.client(), cluster.client()
        writer = Writer(client, 1)
        await asyncio.sleep(0.2)
        written: list[int] = []
        gathered: list[None] = []
        transport = client._connection.transport  # type: ignore[union-attr]
        write, commit_soon = transport.writelines, cluster.server.commit_soon

        def counted(buffers: Any) -> None:
            written.append(len(buffers))
            write(buffers)

        def gather() -> None:
            gathered.append(None)
            commit_soon()

        transport.writelines, cluster.server.commit_soon = counted, gather  # type: ignore[method-assign]
        writer.add(1)
        assert written == [2], "at once: a head and a block"
        writer.add(1)
        writer.add(1)
        assert written == [2]
        await asyncio.sleep(0.2)
        assert written == [2, 4] and writer.acks[-1] == 2 and client.backlog_bytes == 0
        gathered.clear()
        writer.add(1)
        await asyncio.sleep(0.2)
        assert writer.acks[-1] == 3 and not gathered, "a frame alone, of the only connection, is a record at once"
        assert await other.ledgers() == [1]
        gathered.clear()
        writer.add(1)
        await asyncio.sleep(0.2)
        assert writer.acks[-1] == 4 and gathered, "another connection may have sent in the same turn"

    scenario(body)


def test_a_fence_ends_the_writer_and_recovery_goes_on() -> None:
    async def body(cluster: Cluster) -> None:
        old, new = cluster.client(), cluster.client()
        writer = Writer(old, 1)
        writer.add(4)
        await asyncio.sleep(0.2)
        assert await new.fence(1) == (-1, 3)
        writer.add(1)
        writer.add(1)
        await asyncio.sleep(0.2)
        assert [type(error) for error in writer.lost] == [LedgerFenced] and writer.acks == [3]
        assert old.backlog_bytes == 0
        await new.add_recovery(1, 4, 1, [block(1, 4, 1)], 3)
        assert await new.fence(1) == (3, 4)

    scenario(body)


def test_a_lost_connection_is_told_once_and_made_again() -> None:
    async def body(cluster: Cluster) -> None:
        client = cluster.client()
        writer = Writer(client, 1)
        writer.add(2)
        await asyncio.sleep(0.2)
        reading = asyncio.get_running_loop().create_task(_outcome(client.read(1, 0, 0, 10)))
        await asyncio.sleep(0)
        cluster.machine.kill()
        writer.add(2)
        await asyncio.sleep(0.5)
        assert [type(error) for error in writer.lost] == [BookieUnavailable]
        assert isinstance(await reading, BookieUnavailable)
        assert client.backlog_bytes == 0
        assert isinstance(await _outcome(client.read_lac(1)), BookieUnavailable)
        later = Writer(client, 1)
        assert later.lost == [], "never from within the call"
        await asyncio.sleep(0.5)
        assert [type(error) for error in later.lost] == [BookieUnavailable]
        cluster.start()
        await asyncio.sleep(3)
        again = Writer(client, 1)
        again.sent = 2
        again.add(1)
        await asyncio.sleep(0.5)
        assert again.acks == [2] and len(writer.lost) == 1

    scenario(body)


def test_silence_is_a_loss_only_while_something_is_outstanding() -> None:
    async def body(cluster: Cluster) -> None:
        client = cluster.client(answer_timeout_s=1.0)
        writer = Writer(client, 1)
        writer.add(1)
        await asyncio.sleep(15)
        assert writer.acks == [0] and client.connected
        cluster.sim.network.cut("client", "bookie")
        await asyncio.sleep(15)
        assert not writer.lost
        writer.add(1)
        await asyncio.sleep(3)
        assert [type(error) for error in writer.lost] == [BookieUnavailable]

    scenario(body)


def test_a_bad_frame_closes_its_connection_only() -> None:
    async def body(cluster: Cluster) -> None:
        client = cluster.client()
        writer = Writer(client, 1)
        writer.add(1)
        await asyncio.sleep(0.2)
        loop = asyncio.get_running_loop()
        closed: asyncio.Future[None] = loop.create_future()

        class Raw(asyncio.Protocol):
            def connection_lost(self, exc: Exception | None) -> None:
                closed.set_result(None)

        transport: Any
        transport, _ = await loop.create_connection(Raw, "bookie", PORT)
        broken = bytearray(add(2, 0, 2))
        broken[HEAD.size + 70] ^= 8
        transport.write(add(1, 1, 1) + bytes(broken))
        await closed
        assert len(cluster.bad) == 1 and "checksum" in cluster.bad[0]
        assert await client.read(1, 1, 1, 100), "what came before the bad frame was taken"
        assert writer.lost == []

    scenario(body)


def test_one_frame_of_acks_a_sync_batch() -> None:
    async def body(cluster: Cluster) -> None:
        frames: list[int] = []
        loop = asyncio.get_running_loop()

        class Raw(asyncio.Protocol):
            def data_received(self, data: bytes) -> None:
                frames.append(len(data))

        transport: Any
        transport, _ = await loop.create_connection(Raw, "bookie", PORT)
        transport.write(b"".join(add(ledger, first, 1) for first in range(5) for ledger in (1, 2, 3)))
        await asyncio.sleep(0.5)
        assert sum(frames) == HEAD.size + 3 * ACK.size

    scenario(body)


def test_a_full_bookie_does_not_read_on() -> None:
    async def body(cluster: Cluster) -> None:
        cluster.machine.platter("ledgers").sync_s = (0.4, 0.4)
        client = cluster.client(answer_timeout_s=50.0)
        writer = Writer(client, 1)
        bound = 2 * SMALL.write_cache_bytes + (1 << 20)  # and what one read of a socket brings
        for _ in range(500):
            writer.add(40)
        assert client.backlog_bytes > 3 * bound
        for _ in range(100):
            await asyncio.sleep(0.2)
            assert cluster.bookie.cached_bytes < bound
        await asyncio.sleep(30)
        assert writer.acks[-1] == 19_999 and client.backlog_bytes == 0

    scenario(body)


async def _outcome(waiting: Awaitable[object]) -> object:
    try:
        return await waiting
    except HeliographError as error:
        return error


@pytest.mark.parametrize("size,count", [(100, 40), (300_000, 6), (BYTES_MAX + 5000, 3)])
def test_real_sockets_and_a_real_disk(tmp_path: Path, size: int, count: int) -> None:
    settings = BookieSettings(
        segment_bytes=4 << 20, frame_bytes_max=2 << 20, write_cache_bytes=1 << 20, free_bytes_min=0
    )
    rng = random.Random(6)
    payloads = [rng.randbytes(size) for _ in range(count)]
    told: list[int] = []

    def bookie() -> Bookie:
        disks = [SystemDisk(tmp_path / name) for name in ("journal", "ledgers", "journal", "ledgers")]
        made = Bookie(
            [DirectoryPlace(disks[0], disks[2])],
            [DirectoryPlace(disks[1], disks[3])],
            settings,
            bookie_id="b",
            instance="i",
            rng=rng,
            clock=SystemClock(),
        )
        made.start()
        return made

    async def write() -> None:
        server = BookieServer(held := bookie())
        client = BookieClient("b", "127.0.0.1", await server.start("127.0.0.1", 0), rng=rng)
        done = asyncio.get_running_loop().create_future()
        client.open_writer(
            1, lambda through: done.set_result(None) if through == count - 1 else None, done.set_exception
        )
        for index, payload in enumerate(payloads):
            client.add(1, index, 1, encode_block(Run([payload], [size]), 1, index), index - 1)
        await asyncio.wait_for(done, 90)
        client.close_writer(1)
        await check(client)
        client.close()
        await server.stop()
        held.close()

    async def check(client: BookieClient) -> None:
        at = 0
        while at < count:
            ends: list[int] = []
            for held in await client.read(1, at, count - 1, 1 << 20, ends.append):
                _, first, run = decode_block(held)
                assert first == at and run.parts[0] == payloads[at]
                at += 1
            told.extend(ends)
            assert ends in ([], [at])

    async def read_again() -> None:
        server = BookieServer(held := bookie())
        client = BookieClient("b", "127.0.0.1", await server.start("127.0.0.1", 0), rng=rng)
        await check(client)
        client.close()
        await server.stop()
        held.close()

    asyncio.run(write())
    asyncio.run(read_again())
    assert bool(told) == (size == 300_000), "an answer of several slices says where it ends before it has ended"


def test_small_settings_hold_every_frame_of_the_tests() -> None:
    assert len(add(99, 10**6, 40)) <= SMALL.frame_bytes_max


def test_what_one_read_of_a_connection_asks_for_is_answered_by_and_by(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slab holds 26,000 questions of 40 bytes, and each may be answered with 4 MiB."""

    class Transport:
        def __init__(self) -> None:
            self.written: list[bytes] = []
            self.reading, self.aborted = True, False

        def get_extra_info(self, name: str) -> None:
            return None

        def set_write_buffer_limits(self, high: int) -> None: ...

        def is_closing(self) -> bool:
            return False

        def pause_reading(self) -> None:
            self.reading = False

        def resume_reading(self) -> None:
            self.reading = True

        def abort(self) -> None:
            self.aborted = True

        def write(self, data: Any) -> None:
            self.written.append(bytes(data))

        def writelines(self, data: Any) -> None:
            self.written.append(b"".join(bytes(buffer) for buffer in data))

    told: list[BaseException] = []

    def failing(*_: Any) -> None:
        raise KeyError("nobody expected this")

    def numbers(written: list[bytes]) -> list[int]:
        data, found = b"".join(written), []
        while data:
            size, *_, request = HEAD.unpack_from(data)
            found.append(request)
            data = data[size:]
        return found

    async def body(cluster: Cluster) -> None:
        writer = Writer(cluster.client(), 1)
        writer.add(3)
        await asyncio.sleep(0.2)
        transport = Transport()
        connection = BookieConnection(cluster.server)
        connection.connection_made(transport)  # type: ignore[arg-type]
        asked = [
            encode(Kind.READ, body_bytes=4, ledger=1, entry=0, value=2, request=request) + (1 << 20).to_bytes(4, "big")
            if request % 20
            else encode(Kind.LEDGERS, body_bytes=0, request=request, entry=-1)
            for request in range(1, 61)
        ]
        frames = b"".join(asked)

        def bring(data: bytes) -> None:
            connection.get_buffer(-1)[: len(data)] = data
            connection.buffer_updated(len(data))

        bring(frames)
        seen = [len(numbers(connection._out and [b"".join(bytes(b) for b in connection._out)]))]  # type: ignore[arg-type]
        assert 0 < seen[0] < 10 and not transport.reading
        bring(encode(Kind.READ_LAC, body_bytes=0, ledger=1, request=61))
        for _ in range(60):
            await asyncio.sleep(0)
        assert numbers(transport.written) == list(range(1, 62)) and transport.reading
        assert len(transport.written) > 6 and max(map(len, transport.written)) < 2000
        transport.written.clear()
        connection.pause_writing()
        bring(frames)
        await asyncio.sleep(0.1)
        assert numbers(transport.written) == [1] and not transport.reading
        connection.resume_writing()
        await asyncio.sleep(0.1)
        assert numbers(transport.written) == list(range(1, 61)) and transport.reading
        bring(frames)
        assert not transport.aborted
        with monkeypatch.context() as patched:
            patched.setattr(connection, "_handle", failing)
            patched.setattr(bookie_server, "report_unexpected", lambda error, _: told.append(error))
            await asyncio.sleep(0.1)
        assert transport.aborted and not connection._rest and len(told) == 1, "nobody waits for ever"
        connection.connection_lost(None)

    scenario(body, replace(SMALL, unsent_bytes=1000))
