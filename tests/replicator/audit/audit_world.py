"""Regions whose copies are damaged for a test: over the in-memory ledger, on the simulated loop, with the real auditors
and links between them.

Is: the storage that an auditor reads, and the ways to spoil it. Isn't: a checker; `truth` gives what each region must
hold.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from geo_tests.sim.damage import flipped
from heliograph.model.coordinates import Coordinate
from heliograph.model.errors import CorruptData
from heliograph.model.positions import Position
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.run import FLAG_HIDDEN, Run
from replicator.log.replicated_entries import is_passing
from replicator.log.replicated_log import ReplicatedLog
from tests.replicator.fake_ledger import Store
from tests.replicator.link_instance import Instance, TestRegion


class Copies:
    """`AuditStorage` of one region's store. `gone`: positions that no copy can be read of."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.gone: dict[Position, None] = {}
        self.holed: dict[Position, None] = {}
        """Those that were ever so."""
        self.written: dict[Position, Run] = {}

    async def extents(self, log: ReplicatedLog) -> list[tuple[int, int, int]]:
        found: dict[int, tuple[int, int]] = {}
        for (ledger, first), count, _ in self.store.blocks:
            found[ledger] = (found.get(ledger, (first, 0))[0], first + count)
        return [(ledger, first, end) for ledger, (first, end) in sorted(found.items())]

    async def read(
        self, log: ReplicatedLog, ledger: int, first: int, last: int, max_bytes: int
    ) -> Sequence[tuple[int, Run]]:
        await asyncio.sleep(0)
        if (ledger, first) in self.gone:
            raise CorruptData("spoilt")
        for (number, start), count, block in self.store.blocks:
            if number == ledger and start <= first < start + count:
                stop = min([last + 1, start + count, *(p[1] for p in self.gone if p[0] == ledger and p[1] > first)])
                return [(first, decode_block(block)[2].cut(first - start, stop - start))]
        raise CorruptData("no copy has it")

    async def refill(self, log: ReplicatedLog, ledger: int, runs: Sequence[tuple[int, Run]]) -> int:
        for first, run in runs:
            for i in range(run.count):
                assert (ledger, first + i) in self.gone, "only what cannot be read is refilled"
                del self.gone[ledger, first + i]
        return await self.replace(log, ledger, runs)

    async def replace(self, log: ReplicatedLog, ledger: int, runs: Sequence[tuple[int, Run]]) -> int:
        await asyncio.sleep(0)
        for first, run in runs:
            for i in range(run.count):
                self.put((ledger, first + i), run.cut(i, i + 1))
        return sum(run.count for _, run in runs)

    # -- spoiling ------------------------------------------------------------------------------------------------------

    def entry(self, position: Position) -> Run:
        for (ledger, first), count, block in self.store.blocks:
            if ledger == position[0] and first <= position[1] < first + count:
                return decode_block(block)[2].cut(position[1] - first, position[1] - first + 1)
        raise AssertionError(f"nothing lies at {position}")

    def put(self, position: Position, entry: Run) -> None:
        """In the place of what lies there."""
        blocks = []
        for (ledger, first), count, block in self.store.blocks:
            if ledger != position[0] or not first <= position[1] < first + count:
                blocks.append(((ledger, first), count, block))
                continue
            run, at = decode_block(block)[2], position[1] - first
            pieces = [(first, run.cut(0, at))] if at else []
            pieces += [(position[1], entry)]
            pieces += [(position[1] + 1, run.cut(at + 1, count))] if at + 1 < count else []
            blocks += [((ledger, start), piece.count, joined(piece, ledger, start)) for start, piece in pieces]
        self.store.blocks = blocks

    def flip(self, position: Position, rng: random.Random, *, consistent: bool) -> None:
        """One bit of the payload. consistent: the entry's checksum and the run's header agree with it all the same."""
        self.put(position, flipped(self.entry(position), rng, consistent=consistent))

    def cut_off(self, ledger: int) -> None:
        """The last entry of a ledger is gone, and the ledger does not say so."""
        index = max(i for i, ((number, _), _, _) in enumerate(self.store.blocks) if number == ledger)
        (_, first), count, block = self.store.blocks[index]
        del self.store.blocks[index]
        if count > 1:
            piece = decode_block(block)[2].cut(0, count - 1)
            self.store.blocks.insert(index, ((ledger, first), count - 1, joined(piece, ledger, first)))


def joined(run: Run, ledger: int, first: int) -> bytes:
    return b"".join(bytes(piece) for piece in encode_block(run, ledger, first))


def held(region: TestRegion) -> dict[Position, tuple[Coordinate, bytes]]:
    """Position -> (coordinate, bytes) of every entry of a region that is no SKIP, and no record of a tree. What is only
    passed on is marked.
    """
    state, out = region.log.state, {}
    for ledger, first, run in region.store.runs():
        passes = is_passing(run)
        for i in range(run.count):
            if run.flags is not None and run.flags[i] & FLAG_HIDDEN and not passes:
                continue
            at = (ledger, first + i)
            coordinate = (state.origin_at(at), at) if run.origin is None else (run.origin, run.coordinate(i))
            out[at] = (coordinate, (b"passing " if passes else b"") + bytes(run.parts[i]))
    return out


class Damaged:
    """An instance whose auditors read `copies`."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.copies = {name: Copies(region.store) for name, region in instance.regions.items()}
        for region in instance.regions.values():
            self.auditor(region).storage = self.copies[region.name]
        self.truth: dict[str, dict[Position, tuple[Coordinate, bytes]]] = {}

    def auditor(self, region: TestRegion) -> Any:
        return region.brokers[region.owner].links.auditor

    def remember(self) -> None:
        """Everything is as it must be."""
        self.truth = {name: held(region) for name, region in self.instance.regions.items()}

    async def audit(self, region: TestRegion) -> Any:
        """One pass, to its end."""
        broker, auditor = region.brokers[region.owner], self.auditor(region)
        passes = auditor.passes
        broker.machine.run(auditor.want, region.log.topic)
        while auditor.passes == passes or auditor.running(region.log.topic):  # noqa: ASYNC110 - virtual time
            await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        return auditor.reports[region.log.topic]
