"""Disk weather: disks that are full for a while, fail, lose a sector, or rot, and what must become of that by itself.

Is: kinds of faults beside those of `disk_faults`, by the same rule: of a region one disk at a time is damaged. Isn't: a
disk that is lost as a whole.

    full, no descriptors     what is full says so, serves on, and takes writes again by itself once there is room
    forgotten writes         a sync fails; its process is killed and started over pages that the kernel calls clean,
                             which are not on the disk; then the power goes. Nothing that was acknowledged is missing
    a bit, a sector          of one copy, in the middle of a run: found, never served, and brought from another copy
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import Violation
from geo_tests.sim.disk import UNLIMITED_BYTES, Platter
from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.wire.block import verify_block
from local_meta import keys
from storage.bookie.entry_log.entry_log import EntryLog, name_of
from storage.bookie.entry_log.log_index import IndexPage

if TYPE_CHECKING:
    from geo_tests.sim.faults import Faults
    from geo_tests.sim.region import Node
    from geo_tests.sim.world import World

Undo = Callable[[], None]
Kind = Callable[[], tuple[str, Undo] | None]

AGAIN_S = 5.0
"""So long after there is room, or files may be opened, a process that runs takes writes again."""
SAYS_SO_S = 2.5
"""So long after there is no room a bookie says that it is full: it looks each second."""
UNLIMITED_FILES = 1 << 30
MENDED_S = 75.0
"""A spoilt block that cannot be brought is tried again after a minute."""
_LOOK_S = 0.5
_FOOTERS = 0.15
"""The part of bits that rot in the index of an entry log."""


class DiskWeather:
    """That of one world."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world, self._faults, self._disks = world, faults, faults.disks
        self.rng: random.Random = world.sim.rng("disk weather")

    def kinds(self) -> list[tuple[int, Kind]]:
        """With their weights, as `Faults.kinds`."""
        return [
            (5, self._full_disk),
            (4, self._full_metadata_disk),
            (4, self._too_many_open_files),
            (5, self._forgotten_writes),
            (5, self._rot),
            (4, self._lost_sector),
        ]

    # -- no room ------------------------------------------------------------------------------------------------------

    def _full_disk(self) -> tuple[str, Undo] | None:
        return None if (node := self._disks.whole_bookie()) is None else self._fill(node)

    def _full_metadata_disk(self) -> tuple[str, Undo] | None:
        return None if (node := self._metadata()) is None else self._fill(node)

    def _fill(self, node: Node) -> tuple[str, Undo]:
        platters = list(node.machine.platters().values())
        for platter in platters:
            left = self.rng.choice((0, self.rng.randrange(8 << 10), self.rng.randrange(200 << 10)))
            platter.capacity_bytes = platter.used_bytes() + left
        text = self._disks.begins(node, "full")
        node.lasts = "its disk is full"
        if node in node.region.bookies:
            self._look_at_full(node, 0.0)

        def undo() -> None:
            node.lasts = ""
            for platter in platters:
                platter.capacity_bytes = UNLIMITED_BYTES
            self._expect(node, _takes_writes, AGAIN_S)

        return text, undo

    def _look_at_full(self, node: Node, for_s: float) -> None:
        """A bookie without room says so, as long as that lasts. for_s: how long it has been so already."""
        if not node.lasts:
            return
        if for_s > SAYS_SO_S and not node.roles[0].bookie.read_only:  # type: ignore[attr-defined]
            self._fail(f"{node.name} is full, and does not say so")
        bookie: Any = node.roles[0].bookie if _awake(node) else None  # type: ignore[attr-defined]
        least = 0 if bookie is None else bookie.settings.free_bytes_min
        full = bookie is not None and not (bookie.limbo or bookie.failure)
        full = full and any(one.place.disk.free_bytes() < least for one in bookie.all_dirs())
        self._disks.later(_LOOK_S, _LOOK_S, self._look_at_full, node, for_s + _LOOK_S if full else 0.0)

    def _too_many_open_files(self) -> tuple[str, Undo] | None:
        """Its process may open nothing more, or one or two files."""
        node = self._disks.whole_bookie() if self.rng.random() < 0.6 else self._metadata()
        if node is None:
            return None
        platters = list(node.machine.platters().values())
        for platter in platters:
            platter.open_files_max = platter.open_files + self.rng.choice((0, 0, 0, 1, 2))
        text = self._disks.begins(node, "without descriptors")
        node.lasts = "it may open no more files"

        def undo() -> None:
            node.lasts = ""
            for platter in platters:
                platter.open_files_max = UNLIMITED_FILES
            self._expect(node, _takes_writes, AGAIN_S)

        return text, undo

    # -- failures -----------------------------------------------------------------------------------------------------

    def _forgotten_writes(self) -> tuple[str, Undo] | None:
        """Syncs fail, and one directory is slow; the process is killed, and begins again; no sync fails now, but soon
        the power goes.
        """
        node = self._disks.whole_bookie() if self.rng.random() < 0.6 else self._metadata()
        if node is None:
            return None
        platters = [node.machine.platters()[path] for path in sorted(node.machine.platters())]
        ill = platters if self.rng.random() < 0.4 else [self.rng.choice(platters)]
        slow = platters[-1]  # of a bookie: its entry logs
        usual, slow.job_s = slow.job_s, (0.5, 2.0)
        for platter in ill:
            platter.fail_syncs = True

        def undo() -> None:
            node.kill()
            for platter in ill:
                platter.fail_syncs = False
            node.revive()
            self._disks.later(0.1, 2.0, cut)

        def cut() -> None:
            self.world.trace(f"the power goes at {node.name}")
            node.power_cut()
            slow.job_s = usual
            node.revive()
            self._expect(node, _takes_writes, AGAIN_S)

        return self._disks.begins(node, "forgets writes"), undo

    # -- one copy is spoilt -------------------------------------------------------------------------------------------

    def _rot(self) -> tuple[str, Undo] | None:
        """One bit of an entry log."""
        if (found := self._block()) is None:
            return None
        node, platter, name, begin, end = found
        if self.rng.random() < _FOOTERS:
            end = len(platter.content(name))
            begin = end - 200
            self._disks.later(0.2, 4.0, self._mend, node, 0.0, (platter, name))
        else:
            self._disks.later(0.2, 4.0, self._mend, node, 0.0, None)
        offset = self.rng.randrange(begin, end)
        platter.flip_bit(name, offset, self.rng.randrange(8))
        return self._disks.begins(node, f"rots in {name} at {offset}"), lambda: None

    def _lost_sector(self) -> tuple[str, Undo] | None:
        """Nobody can read a part of one block any more."""
        if (found := self._block()) is None:
            return None
        node, platter, name, begin, end = found
        offset = self.rng.randrange(begin, end)
        platter.unreadable[name] = range(offset, min(end, offset + 512))
        self._disks.later(0.2, 4.0, self._mend, node, 0.0, None)
        return self._disks.begins(node, f"has a sector in {name} at {offset} that cannot be read"), lambda: None

    def _block(self) -> tuple[Node, Platter, str, int, int] | None:
        """(bookie, platter, log, begin, end) of a block that is wanted; None: there is none just now."""
        if (node := self._disks.whole_bookie()) is None:
            return None
        blocks = list(_blocks(node))
        return (node, *self.rng.choice(blocks)) if blocks else None

    def _mend(self, node: Node, waited_s: float, index: tuple[Platter, str] | None) -> None:
        """A scrub comes by; a reader did before that, perhaps. index: of which log it is spoilt."""
        if _awake(node):
            bookie: Any = node.roles[0].bookie  # type: ignore[attr-defined]
            if bookie.limbo and not bookie.in_doubt:  # it was started over an index that is spoilt
                self.world.trace(f"the disks of {node.name} are exchanged: {bookie.limbo}")
                node.kill()
                self._disks.empty(node)
                node.revive()
                self._disks.operate(node)
                return
            left = _spoilt_blocks(node)
            if index is not None and index[1] in index[0].names():
                left.append(f"{index[1]}, its index")
            if not left and not bookie.limbo:
                self._disks.well(node, "nothing of it is spoilt any more")
                return
            if waited_s > MENDED_S:
                self._fail(f"{node.name}: spoilt, and not mended within {MENDED_S:.0f} s: {left} {bookie.limbo}")
                return
            for one in bookie.dirs:
                if not one.scrubber.running:
                    one.scrubber.run()
            waited_s += _LOOK_S
        self._disks.later(_LOOK_S, _LOOK_S, self._mend, node, waited_s, index)

    # -- what they share ----------------------------------------------------------------------------------------------

    def _metadata(self) -> Node | None:
        node = self._disks.region().metadata
        return node if node.is_ready() and self._disks.is_well(node.region.name) else None

    def _expect(self, node: Node, lacking: Callable[[Node], str], limit_s: float, for_s: float = 0.0) -> None:
        """Until `lacking` says "", which it must within so long a time in which the process runs."""
        if _awake(node):
            if not (text := lacking(node)):
                self._disks.well(node, "well again")
                return
            if for_s > limit_s:
                self._fail(f"{node.name}: not by itself within {limit_s:.0f} s: {text}")
                return
            for_s += _LOOK_S
        else:
            for_s = 0.0
        self._disks.later(_LOOK_S, _LOOK_S, self._expect, node, lacking, limit_s, for_s)

    def _fail(self, text: str) -> None:
        self.world.sim.loop.fail(text, Violation(text))


def _awake(node: Node) -> bool:
    return node.is_ready() and node.machine.life is not None and node.machine.life.held is None


def _takes_writes(node: Node) -> str:
    """Why a process does not, as it says itself; "" where it does."""
    first: Any = node.roles[0]
    if node in node.region.bookies:
        bookie = first.bookie
        if bookie.in_doubt and not node.region.metadata.is_ready():
            return ""  # that is asked for once the metadata is there
        return str(bookie.limbo or bookie.failure or bookie.read_only)
    for role in node.roles:
        raft: Any = role.node.raft  # type: ignore[attr-defined]
        if raft.failed is not None or raft._storage.full or raft._snapshotter.full:
            return f"{role}: {raft.failed!r}, log full: {raft._storage.full}, table full: {raft._snapshotter.full}"
    return ""


def _blocks(node: Node) -> Iterator[tuple[Platter, str, int, int]]:
    """Those of a bookie's entry logs that are wanted, by the indexes that the platter holds, and by the metadata: what
    a topic gave up while the bookie was away lies there until the collection of garbage comes by, and what was stored
    anew on another bookie in its place as long as the ledger.
    """
    keeper = node.region.metadata
    machine: Any = keeper.roles[0].node.machine if keeper.is_ready() else None  # type: ignore[attr-defined]
    for one in node.roles[0].bookie.dirs:  # type: ignore[attr-defined]
        platter: Platter = one.place.disk.platter
        log: EntryLog
        for log in one.table.logs.values():
            name = name_of(log.number)
            for page in _index_of(log, platter.content(name)):
                for group, ledger in enumerate(page.ledgers):
                    stored = None if machine is None else machine.get(keys.ledger(ledger))
                    if machine is not None and stored is None:
                        continue
                    metadata = None if stored is None else LedgerMetadata.decode(stored[0])
                    for offset, size, first, count in page.runs(group):
                        ends = () if metadata is None else (first, first + count - 1)
                        placed = metadata is None or any(node.name in metadata.ensemble_at(entry) for entry in ends)
                        if placed and one.logs.wants(log.number, ledger, first):
                            yield platter, name, offset, offset + size


def _index_of(log: EntryLog, content: bytes) -> Iterator[IndexPage]:
    def read(offset: int, size: int) -> bytes:
        return content[offset : offset + size]

    for at in range(log.pages):
        with suppress(CorruptData):  # an older block of it is bad, too, and nobody knows what lies behind that one
            try:
                page = log.read_page(read, at)
            except CorruptData:
                page = log.rebuild_page(read, at)
            yield page


def _spoilt_blocks(node: Node) -> list[str]:
    """The truth beside what a scrub says: wanted blocks that are bad on the platter."""
    spoilt = []
    for platter, name, begin, end in _blocks(node):
        lost = platter.unreadable.get(name, range(0))
        try:
            verify_block(memoryview(platter.content(name))[begin:end])
        except CorruptData:
            spoilt.append(f"{name} {begin}")
        else:
            if lost.start < end and begin < lost.stop:
                spoilt.append(f"{name} {begin} (unreadable)")
    return spoilt
