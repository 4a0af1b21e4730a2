"""Entries that a bookie gives over HTTP: to who has a permit for them and to nobody else, as they are stored, and never
more than the reader takes.
"""

from __future__ import annotations

import asyncio
import random
import socket
import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from heliograph.client import bookie_reader
from heliograph.client.bookie_reader import BookieRange, BookiesUnread, read_bookies
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import NotAllowed
from heliograph.model.striping import Striping
from heliograph.runtime.system_disk import SystemDisk
from heliograph.wire.block import encode_block
from heliograph.wire.bookie_frames import Kind, encode
from heliograph.wire.run import Run, Seal
from region_node.bookie.entry_ranges import RangeAnswer, RangeReads
from region_node.bookie.http_face import BookieHttp, HttpConnection
from region_node.security.certificate_authority import ensure_certificates
from region_node.security.read_permits import PERMIT_MS, PermitRefused, ReadKeys
from region_node.security.settings import TlsSettings
from region_node.security.tls import Certificates
from region_node.topics.serving.entry_locations import BookiePlaces
from storage.bookie.serving.bookie import Bookie, BookieSettings, DirectoryPlace
from tests.region_node.bookie.http_client import ask
from tests.storage.bookie.history import SMALL, NotingPeer, add, content, send

HOUR_MS = 3_600_000


class Clock:
    """wall: hours."""

    def __init__(self) -> None:
        self.wall = 1000

    def wall_ms(self) -> int:
        return self.wall * HOUR_MS

    def monotonic(self) -> float:
        return 0.0


class Served:
    """One bookie with an HTTP port."""

    def __init__(
        self,
        folder: Path,
        name: str,
        meta: EmbeddedStore,
        clock: Clock,
        settings: BookieSettings = SMALL,
        answers_max: int = 16,
    ) -> None:
        disks = [SystemDisk(folder / name / each) for each in ("journal", "ledgers")]
        self.bookie = Bookie(
            [DirectoryPlace(disks[0])],
            [DirectoryPlace(disks[1])],
            settings,
            bookie_id=name,
            instance="test",
            rng=random.Random(1),
            clock=clock,
        )
        self.bookie.start()
        self.keys, self.peer = ReadKeys(meta, clock), NotingPeer()
        self.ranges = RangeReads(self.bookie, self.keys, answers_max)
        self.pages = BookieHttp(self.bookie, lambda: None, ranges=self.ranges)
        self.connections: list[HttpConnection] = []
        self.port = 0
        self.tls: ssl.SSLContext | None = None

    async def listen(self) -> Served:
        def made() -> HttpConnection:
            self.connections.append(HttpConnection(self.pages.answer, None, self.ranges))
            return self.connections[-1]

        self.server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0, ssl=self.tls)
        self.port = self.server.sockets[0].getsockname()[1]
        return self

    async def durable(self, ledger: int, through: int) -> None:
        while self.peer.acks.get(ledger, -1) < through:  # noqa: ASYNC110
            await asyncio.sleep(0.002)

    def close(self) -> None:
        self.server.close()
        self.bookie.close()


def with_bookies(
    folder: Path, main: Callable[[list[Served], Clock], Awaitable[None]], count: int = 1, **fields: Any
) -> None:
    async def run() -> None:
        meta, clock = EmbeddedStore(KvMachine()), Clock()
        some = [await Served(folder, f"b{n}", meta, clock, **fields).listen() for n in range(count)]
        try:
            await main(some, clock)
        finally:
            for one in some:
                one.close()

    asyncio.run(run())


async def heard() -> None:
    """What was put in the metadata, by who watches it."""
    for _ in range(5):
        await asyncio.sleep(0)


def where(
    some: list[Served], permit: str, last: int, *, ledger: int = 1, stride: int = 0, quorum: int = 0
) -> BookieRange:
    return BookieRange(
        ledger,
        last,
        permit,
        "us",
        "",
        stride,
        quorum or len(some),
        ((0, tuple(f"127.0.0.1:{one.port}" for one in some)),),
    )


async def read(place: BookieRange, first: int, last: int, turn: int = 0) -> list[bytes]:
    return await asyncio.to_thread(
        lambda: [bytes(part) for _, run in read_bookies(place, first, last, turn) for part in run.parts]
    )


def test_a_permit_is_for_its_entries_its_hour_and_its_region() -> None:
    async def main() -> None:
        meta, clock = EmbeddedStore(KvMachine()), Clock()
        broker, other, bookie = ReadKeys(meta, clock), ReadKeys(meta, clock), ReadKeys(meta, clock)
        stranger = ReadKeys(EmbeddedStore(KvMachine()), clock)
        given = dict(part.split("=") for part in (await broker.permit(7, 10, 20)).split("&"))
        await heard()
        assert bookie.check(given)[:3] == (7, 10, 20)
        forged = [
            ("ledger", "8"),
            ("first", "9"),
            ("last", "21"),
            ("until", str(int(given["until"]) + 1)),
            ("key", "2"),
            ("mac", "0" * 64),
            ("mac", ""),
        ]
        for name, value in forged:
            with pytest.raises(PermitRefused, match="of no broker of this region"):
                bookie.check({**given, name: value})
        for name in ("ledger", "first", "last", "until", "key"):
            for value in ("", "-1", "x", "1" * 30):
                with pytest.raises(NotAllowed, match=f"{name} is no number"):
                    bookie.check({**given, name: value})
        await stranger.permit(1, 0, 0)
        with pytest.raises(PermitRefused) as refused:
            stranger.check(given)
        assert refused.value.reason == "forged"

        kept = (await meta.get("/security/reads"))[0]  # type: ignore[index]
        await other.permit(7, 10, 20)
        assert (await meta.get("/security/reads"))[0] == kept, "brokers share a key"  # type: ignore[index]
        clock.wall += PERMIT_MS // HOUR_MS + 1
        with pytest.raises(PermitRefused, match="expired") as refused:
            bookie.check(given)
        assert refused.value.reason == "expired"

        clock.wall += 22
        before = dict(part.split("=") for part in (await other.permit(7, 10, 20)).split("&"))
        clock.wall += 1
        assert before["key"] == "1" and bookie.check(before)
        after = dict(part.split("=") for part in (await broker.permit(7, 10, 20)).split("&"))
        await heard()
        assert after["key"] == "2" and bookie.check(after) and bookie.check(before), (
            "the key of a permit that still holds is believed"
        )
        clock.wall += 25
        await other.permit(7, 10, 20)
        await heard()
        with pytest.raises(PermitRefused, match="not known here any more"):
            bookie.check(before)

    asyncio.run(main())


def test_nothing_is_given_without_a_permit_that_covers_it(tmp_path: Path) -> None:
    async def main(some: list[Served], clock: Clock) -> None:
        (one,) = some
        send(one.bookie, one.peer, add(1, 0, 10), add(2, 0, 10))
        await one.durable(2, 9)
        permit = await one.keys.permit(1, 2, 5)
        assert await read(where(some, permit, 5), 2, 5) == [content(1, n) for n in range(2, 6)]
        for query, status in (
            (f"{permit}&at=1", 403),
            (f"{permit}&at=2&through=6", 403),
            (f"{permit.replace('ledger=1', 'ledger=2')}&at=2", 403),
            (f"{permit.replace('last=5', 'last=9')}&at=2", 403),
            ("ledger=1&first=0&last=9&until=9&key=1&mac=0&at=0", 403),
            ("", 400),
            (permit, 400),
            (f"{permit}&at=2&stride=8&width=3&sets=3", 400),
            (f"{permit}&at=2&stride=0&width=3&sets=1", 400),
            (f"{await one.keys.permit(9, 0, 5)}&at=0", 404),
            (f"{await one.keys.permit(1, 10, 12)}&at=10", 404),
        ):
            assert (await ask(one.port, f"GET /entries?{query} HTTP/1.1"))[0] == status, query
        clock.wall += 2
        assert (await ask(one.port, f"GET /entries?{permit}&at=2 HTTP/1.1"))[0] == 403
        assert one.ranges.refused == {"forged": 5, "malformed": 4, "expired": 1} and one.ranges.open == 0
        text = (await ask(one.port, "GET /metrics HTTP/1.1"))[1]
        assert (
            'bookie_direct_reads_refused_total{reason="expired"} 1\n' in text
            and "bookie_direct_reads_total 1\n" in text
        )

    with_bookies(tmp_path, main)


def test_ranges_are_read_while_other_ledgers_are_written(tmp_path: Path) -> None:
    """From memory, from entry logs, and from both, cut differently, by several readers at once; every add is
    acknowledged meanwhile.
    """

    async def main(some: list[Served], clock: Clock) -> None:
        rng, count = random.Random(3), 300
        for one in some:
            at = 0
            while at < count:
                size = min(rng.randrange(1, 12), count - at)
                send(one.bookie, one.peer, add(1, at, size))
                at += size
            await one.durable(1, count - 1)
        assert all(log for one in some for log in (one.bookie.dirs[0].table.logs,)), "some of it lies in entry logs"
        permit = await some[0].keys.permit(1, 0, count - 1)
        readers = [asyncio.create_task(read(where(some, permit, count - 1), n, count - 1 - n, n)) for n in range(12)]
        written = 0
        while not all(reader.done() for reader in readers) or written < 200:
            for one in some:
                send(one.bookie, one.peer, add(2, written, 4))
            written += 4
            await asyncio.sleep(0)
            for one in some:
                await one.durable(2, written - 1)
        for n, reader in enumerate(readers):
            assert reader.result() == [content(1, e) for e in range(n, count - n)]
        assert all(one.ranges.answers and not one.ranges.open for one in some)

    with_bookies(tmp_path, main, 2)


def test_stripes_are_read_from_the_bookies_that_hold_them_and_a_hole_is_left_to_another(tmp_path: Path) -> None:
    async def main(some: list[Served], clock: Clock) -> None:
        stride, count = 8, 240
        striping = Striping(3, 2, stride)
        for start in range(0, count, stride):
            for place in striping.places(start):
                if (place, start) not in ((1, 120), (1, 128)):
                    send(some[place].bookie, some[place].peer, add(1, start, 5), add(1, start + 5, 3))
        for one in some:
            await one.durable(1, count - 2 * stride)
        permit = await some[0].keys.permit(1, 0, count - 1)
        for turn in range(2):
            found = await read(where(some, permit, count - 1, stride=stride, quorum=2), 3, count - 1, turn)
            assert found == [content(1, n) for n in range(3, count)]
        with pytest.raises(BookiesUnread):  # it is not taken for a ledger of whole copies
            await read(where(some, permit, count - 1), 0, count - 1)

    with_bookies(tmp_path, main, 3)


def test_sealed_entries_do_not_go_out(tmp_path: Path) -> None:
    async def main(some: list[Served], clock: Clock) -> None:
        (one,) = some
        secret = b"".join(encode_block(Run(None, (3,), body=memoryview(b"s" * 19), seal=Seal(1, 2, 4, 0)), 1, 4))
        send(
            one.bookie,
            one.peer,
            add(1, 0, 4),
            encode(Kind.ADD, body_bytes=len(secret), number=1, ledger=1, entry=4, value=-1) + secret,
        )
        await one.durable(1, 4)
        permit = await one.keys.permit(1, 0, 4)
        status, _ = await ask(one.port, f"GET /entries?{permit}&at=4 HTTP/1.1")
        assert status == 404
        reader, writer = await asyncio.open_connection("127.0.0.1", one.port)
        writer.write(f"GET /entries?{permit}&at=0 HTTP/1.1\r\n\r\n".encode())
        answer = await reader.read()
        writer.close()
        assert content(1, 3) in answer and b"sss" not in answer and not answer.endswith(b"\0" * 8)

    with_bookies(tmp_path, main)


def test_inside_tls_a_reader_needs_no_certificate_and_trusts_bookies_of_the_region_alone(tmp_path: Path) -> None:
    ensure_certificates(tmp_path / "ours", ["us", "eu"])
    ensure_certificates(tmp_path / "foreign", ["us"])

    def settings(folder: str, region: str) -> TlsSettings:
        made: dict[str, Any] = {"ca": str(tmp_path / folder / "ca.pem"), "internal": True}
        for role in ("bookie", "broker"):
            made |= {
                f"{role}_{part}": str(tmp_path / folder / f"{role}.{region}.{end}")
                for part, end in (("cert", "pem"), ("key", "key"))
            }
        return TlsSettings(**made)

    def authority(folder: str) -> str:
        pool: Any = None
        dialer = Certificates(settings(folder, "us"), "us").dialer("broker", "bookie")
        return BookiePlaces(ReadKeys(EmbeddedStore(KvMachine()), Clock()), pool, dialer).authority()

    async def run() -> None:
        meta, clock = EmbeddedStore(KvMachine()), Clock()
        for folder, region, trusted, good in (
            ("ours", "us", "ours", True),
            ("ours", "us", "foreign", False),
            ("ours", "eu", "ours", False),
        ):
            bookie_reader._away.clear()
            one = Served(tmp_path, f"{folder}-{region}-{trusted}", meta, clock)
            one.tls = Certificates(settings(folder, region), region).pages("bookie")
            await one.listen()
            send(one.bookie, one.peer, add(1, 0, 10))
            await one.durable(1, 9)
            place = where([one], await one.keys.permit(1, 0, 9), 9)._replace(authority=authority(trusted))
            if good:
                assert await read(place, 0, 9) == [content(1, n) for n in range(10)]
            else:
                with pytest.raises(
                    BookiesUnread, match="certificate verify failed" if folder != trusted else "no bookie of us"
                ):
                    await read(place, 0, 9)
                assert not one.ranges.answers
            one.close()
        bookie_reader._away.clear()

    asyncio.run(run())


def test_what_a_reader_does_not_take_is_not_read_and_the_next_one_is_sent_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(some: list[Served], clock: Clock) -> None:
        (one,) = some
        paused = asyncio.Event()
        genuine = RangeAnswer.pause
        monkeypatch.setattr(RangeAnswer, "pause", lambda answer: (paused.set(), genuine(answer))[1])
        part, count = b"x" * (64 << 10), 400
        body = [b"".join(encode_block(Run([part] * 8, [len(part)] * 8), 1, first)) for first in range(0, count, 8)]
        for at, block in enumerate(body):
            send(
                one.bookie,
                one.peer,
                encode(Kind.ADD, body_bytes=len(block), number=8, ledger=1, entry=8 * at, value=-1) + block,
            )
            await one.durable(1, 8 * at + 7)
        permit = await one.keys.permit(1, 0, count - 1)
        with socket.socket() as slow:
            slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)
            slow.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(slow, ("127.0.0.1", one.port))
            await loop.sock_sendall(slow, f"GET /entries?{permit}&at=0 HTTP/1.1\r\n\r\n".encode())
            await paused.wait()
            for _ in range(20):
                await asyncio.sleep(0)
            assert one.ranges.sent_bytes < sum(map(len, body)) // 2
            assert (await ask(one.port, f"GET /entries?{permit}&at=0 HTTP/1.1"))[0] == 503 and one.ranges.refused == {
                "busy": 1
            }
            received = 0
            while part_of := await loop.sock_recv(slow, 1 << 20):
                received += len(part_of)
            assert received > sum(map(len, body))
        while one.ranges.open:  # noqa: ASYNC110
            await asyncio.sleep(0.002)
        assert len(await read(where(some, permit, count - 1), 0, count - 1)) == count

    with_bookies(tmp_path, main, settings=BookieSettings(free_bytes_min=0), answers_max=1)
