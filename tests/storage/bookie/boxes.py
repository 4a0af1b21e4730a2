"""One real bookie on simulated disks, and one connection to it: what the tests of bookies ask through."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from geo_tests.sim.disk import Platter
from geo_tests.sim.simulation import Simulation
from heliograph.wire.bookie_frames import BookieCode, Kind, encode
from storage.bookie.serving.bookie import Bookie, BookieSettings
from tests.storage.bookie.history import SMALL, NotingPeer, entries_of, make_bookie, make_wide, read, send


class Asker:
    """Requests and their answers. What begins a life sets `bookie` and `peer`."""

    bookie: Bookie
    peer: NotingPeer
    requests = 1000

    async def ask(self, kind: Kind, ledger: int, **fields: int) -> tuple[BookieCode, int, int, bytes]:
        self.requests += 1
        if kind == Kind.READ:
            send(
                self.bookie,
                self.peer,
                read(ledger, fields["first"], fields["last"], self.requests, fields.get("max_bytes", 1 << 20)),
            )
        else:
            send(self.bookie, self.peer, encode(kind, ledger=ledger, request=self.requests, **fields))
        for _ in range(300):
            if self.requests in self.peer.answers:
                break
            await asyncio.sleep(0.001)
        return self.peer.answers[self.requests]

    async def flushed(self) -> None:
        self.bookie.flush()
        while self.bookie.flushing:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


class Box(Asker):
    """One journal directory and one ledger directory."""

    def __init__(self, sim: Simulation, settings: BookieSettings = SMALL) -> None:
        self.settings = settings
        self.journal, self.ledgers = Platter(sim.loop, sim.rng("journal")), Platter(sim.loop, sim.rng("ledgers"))
        self.rng = sim.rng("bookie")
        self.start()

    def start(self, settings: BookieSettings | None = None) -> None:
        self.bookie = make_bookie(self.journal.disk(), self.ledgers.disk(), self.rng, settings or self.settings)
        self.peer = NotingPeer()

    def restart(self) -> None:
        self.journal.power_cut()
        self.ledgers.power_cut()
        self.start()

    async def entries(self, ledger: int, first: int, last: int) -> dict[int, bytes]:
        code, _, _, body = await self.ask(Kind.READ, ledger, first=first, last=last)
        assert code == BookieCode.OK
        return entries_of(body, ledger)


class Wide(Asker):
    """Several of each."""

    def __init__(self, sim: Simulation, journals: int, ledgers: int) -> None:
        self.journals = [Platter(sim.loop, sim.rng(f"journal {at}")) for at in range(journals)]
        self.ledgers = [Platter(sim.loop, sim.rng(f"ledgers {at}")) for at in range(ledgers)]
        self.rng = sim.rng("bookie")
        self.settings = SMALL
        self.start()

    def start(self) -> None:
        self.bookie = make_wide(
            [p.disk() for p in self.journals], [p.disk() for p in self.ledgers], self.rng, self.settings
        )
        self.peer = NotingPeer()

    def restart(self) -> None:
        for platter in (*self.journals, *self.ledgers):
            platter.power_cut()
        self.start()


def scenario(body: Callable[[Box], Awaitable[None]]) -> None:
    with Simulation(1) as sim:

        async def main() -> None:
            await body(Box(sim))

        sim.run(main())
