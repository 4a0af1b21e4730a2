"""What a bookie's tests share: entries that can be recognised, a peer that notes what it hears, and a long random
history with its model.

The model knows what was asked and what was answered. `check` compares a bookie, as a reader sees it, with that:
everything acknowledged is there, nothing is there that was never sent, fences and deletions hold.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from heliograph.runtime.clock import SystemClock
from heliograph.runtime.disk import Buffer, Disk
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.bookie_frames import HEAD, BookieCode, Kind, encode, split_blocks
from heliograph.wire.run import Run
from storage.bookie.serving.bookie import Bookie, BookieSettings, DirectoryPlace

SMALL = BookieSettings(
    segment_bytes=32 << 10,
    frame_bytes_max=16 << 10,
    write_cache_bytes=16 << 10,
    journal_pending_bytes=64 << 10,
    read_bytes_max=8 << 10,
    used_segments_max=3,
    free_bytes_min=0,
)


def content(ledger: int, entry: int) -> bytes:
    """The bytes of one entry: 16 to 400, different for each."""
    size = 16 + (ledger * 31 + entry * 17) % 384
    return (f"{ledger}:{entry} ".encode() * 40)[:size]


def block(ledger: int, first: int, count: int) -> bytes:
    parts = [content(ledger, first + index) for index in range(count)]
    return b"".join(encode_block(Run(parts, [len(part) for part in parts], time_ms=5), ledger, first))


def add(ledger: int, first: int, count: int, *, lac: int = -1, writer: int = 1, recovery: int = 0) -> bytes:
    """An ADD frame of that writer; recovery: the request of an ADD_RECOVERY."""
    body = block(ledger, first, count)
    kind = Kind.ADD_RECOVERY if recovery else Kind.ADD
    return (
        encode(
            kind,
            body_bytes=len(body),
            number=count,
            ledger=ledger,
            entry=first,
            value=lac,
            request=recovery or writer,
        )
        + body
    )


def read(ledger: int, first: int, last: int, request: int, max_bytes: int = 1 << 20) -> bytes:
    return encode(
        Kind.READ, body_bytes=4, ledger=ledger, entry=first, value=last, request=request
    ) + max_bytes.to_bytes(4, "big")


class NotingPeer:
    """A connection's end that remembers."""

    def __init__(self) -> None:
        self.refused: dict[int, int] = {}
        self.acks: dict[int, int] = {}
        self.losses: dict[int, BookieCode] = {}
        self.answers: dict[int, tuple[BookieCode, int, int, bytes]] = {}
        self.resumed = 0
        self.on_acked: Callable[[int, int, int], None] = lambda _ledger, _writer, _through: None
        self.on_lost: Callable[[int], None] = lambda _ledger: None
        self.on_answer: Callable[[int], None] = lambda _request: None

    def acked(self, ledger: int, writer: int, through: int) -> None:
        self.acks[ledger] = through
        self.on_acked(ledger, writer, through)

    def flush(self) -> None: ...

    def lost(self, ledger: int, writer: int, code: BookieCode, text: str) -> None:
        self.losses[ledger] = code
        self.on_lost(ledger)

    def answer(self, request: int, code: BookieCode, entry: int, value: int, body: Sequence[Buffer]) -> None:
        self.answers[request] = code, entry, value, b"".join(body)
        self.on_answer(request)

    def resume(self) -> None:
        self.resumed += 1


def send(bookie: Bookie, peer: NotingPeer, *frames: bytes, commit: bool = True) -> None:
    """As one read of a socket would bring them."""
    ends: list[int] = []
    for frame in frames:
        ends.append((ends[-1] if ends else 0) + len(frame))
    bookie.on_frames(memoryview(b"".join(frames)), ends, peer)
    if commit:
        bookie.commit()


def make_bookie(journal: Disk, ledgers: Disk, rng: random.Random, settings: BookieSettings = SMALL) -> Bookie:
    return make_wide([journal], [ledgers], rng, settings)


def make_wide(
    journals: Sequence[Disk], ledgers: Sequence[Disk], rng: random.Random, settings: BookieSettings = SMALL
) -> Bookie:
    """Several directories."""
    places = [[DirectoryPlace(disk) for disk in disks] for disks in (journals, ledgers)]
    bookie = Bookie(*places, settings, bookie_id="b0", instance="test", rng=rng, clock=SystemClock())
    bookie.start()
    return bookie


def entries_of(body: bytes, ledger: int) -> dict[int, bytes]:
    """What the blocks of an answer hold. Fails where a block is bad or of another ledger."""
    found: dict[int, bytes] = {}
    for one in split_blocks(memoryview(body)):
        held, first, run = decode_block(one)
        assert held == ledger
        for index, part in enumerate(run.parts):
            found[first + index] = bytes(part)
    return found


class Model:
    """What one client asked of a bookie, over all lives of both, and what it was told."""

    def __init__(self, rng: random.Random, ledgers: int = 4) -> None:
        self.rng = rng
        self.sent: dict[int, int] = {}  # ledger -> entries sent, from 0
        self.acked: dict[int, set[int]] = {}
        self.fence_asked: set[int] = set()
        self.fenced: set[int] = set()
        self.delete_asked: set[int] = set()
        self.deleted: set[int] = set()
        self.lac: dict[int, int] = {}
        self.losses = 0
        self._ids = ledgers
        self._open = list(range(1, ledgers + 1))
        self._request = 0
        self._waiting: dict[int, Callable[[BookieCode], None]] = {}
        self.peer = NotingPeer()

    def connect(self) -> NotingPeer:
        """A new connection: whatever was under way is unknown for ever."""
        self._waiting = {}
        self._pending: dict[tuple[int, int], list[int]] = {}
        self._writer: dict[int, int] = {}
        self.peer = NotingPeer()
        self.peer.on_acked = self._on_ack
        self.peer.on_lost = self._on_lost
        self.peer.on_answer = self._on_answer
        return self.peer

    def _on_ack(self, ledger: int, writer: int, through: int) -> None:
        """It says that everything up to there is durable of what that writer sent."""
        assert writer == self._writer.get(ledger, 1), f"writer {writer} of ledger {ledger} was lost and hears {through}"
        pending = self._pending.get((ledger, writer), [])
        done = [entry for entry in pending if entry <= through]
        self.acked.setdefault(ledger, set()).update(done)
        self._pending[ledger, writer] = [entry for entry in pending if entry > through]

    def _on_lost(self, ledger: int) -> None:
        """As a broker that has no spare: another writer sends again what is not acknowledged, and goes on."""
        self.losses += 1
        writer = self._writer.get(ledger, 1)
        self._writer[ledger] = writer + 1
        self.sent[ledger] = min([*self._pending.get((ledger, writer), ()), self.sent.get(ledger, 0)])

    def _on_answer(self, request: int) -> None:
        waiting = self._waiting.pop(request, None)
        if waiting is not None:
            waiting(self.peer.answers[request][0])

    def request(self, then: Callable[[BookieCode], None] | None = None) -> int:
        self._request += 1
        if then is not None:
            self._waiting[self._request] = then
        return self._request

    def frame(self) -> bytes:
        """The next thing that a client might send."""
        rng = self.rng
        ledger = rng.choice(self._open)
        chance = rng.random()
        if chance < 0.03:
            self.fence_asked.add(ledger)
            request = self.request(lambda code: self._told(code, self.fenced, ledger))
            return encode(Kind.FENCE, ledger=ledger, request=request)
        if chance < 0.05 and self.sent.get(ledger, 0) > 20:
            self._open.remove(ledger)
            self._ids += 1
            self._open.append(self._ids)
            self.delete_asked.add(ledger)
            request = self.request(lambda code: self._told(code, self.deleted, ledger))
            return encode(Kind.DELETE, ledger=ledger, request=request)
        sent = self.sent.get(ledger, 0)
        count = rng.choice((1, 1, 2, 5, 9))
        again = rng.random() < 0.2
        first = rng.randrange(sent) if again and sent else sent
        self.sent[ledger] = max(sent, first + count)
        if ledger in self.fence_asked or again:  # another cut, or another writer
            entries = range(first, first + count)
            request = self.request(lambda code: self._stored(code, ledger, entries))
            return add(ledger, first, count, recovery=request)
        writer = self._writer.get(ledger, 1)
        self._pending.setdefault((ledger, writer), []).extend(range(first, first + count))
        return add(ledger, first, count, lac=first - 1, writer=writer)

    def _told(self, code: BookieCode, facts: set[int], ledger: int) -> None:
        if code == BookieCode.OK:
            facts.add(ledger)

    def _stored(self, code: BookieCode, ledger: int, entries: range) -> None:
        if code == BookieCode.OK:
            self.acked.setdefault(ledger, set()).update(entries)

    async def check(self, bookie: Bookie) -> None:
        """Asks for every entry that was ever sent, each by itself, and compares. What was in a dropped directory is
        there, or unknown, or deleted.
        """
        peer = NotingPeer()
        assert not bookie.limbo and not bookie.failure, bookie.limbo or bookie.failure
        reads: dict[tuple[int, int], int] = {}
        for ledger in sorted(self.sent):
            for entry in range(self.sent[ledger]):
                reads[ledger, entry] = len(reads)
                send(bookie, peer, read(ledger, entry, entry, reads[ledger, entry]), commit=False)
        for ledger in sorted(self.fenced - self.delete_asked):
            send(bookie, peer, add(ledger, 10_000, 1))
            assert peer.losses.get(ledger) == (
                BookieCode.DISK_FAILED if bookie.home(ledger).gone else BookieCode.FENCED
            ), f"ledger {ledger} was fenced"
        for _ in range(200):
            if len(peer.answers) == len(reads):
                break
            await asyncio.sleep(0.05)
        for (ledger, entry), number in reads.items():
            code, _, _, body = peer.answers[number]
            if ledger in self.deleted:
                assert code == BookieCode.NO_SUCH_LEDGER or (code == BookieCode.UNKNOWN and bookie.home(ledger).gone), (
                    f"ledger {ledger} was deleted"
                )
            elif code == BookieCode.OK:
                found = entries_of(body, ledger)
                assert entry in found
                for one, data in found.items():
                    assert data == content(ledger, one), f"{ledger}:{one} is not what was sent"
            elif bookie.home(ledger).gone:
                assert code == BookieCode.UNKNOWN or ledger in self.delete_asked, (
                    f"{ledger}:{entry} is said to be absent"
                )
            else:
                assert code in (BookieCode.NO_SUCH_ENTRY, BookieCode.NO_SUCH_LEDGER)
                assert ledger in self.delete_asked or entry not in self.acked.get(ledger, ()), (
                    f"{ledger}:{entry} was acknowledged and is gone"
                )


def heads(frames: bytes) -> list[int]:
    """The ends of whole frames."""
    ends = [0]
    while ends[-1] < len(frames):
        ends.append(ends[-1] + HEAD.unpack_from(frames, ends[-1])[0])
    return ends[1:]
