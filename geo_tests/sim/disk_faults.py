"""Disk faults: disks that come back empty, or as they were some time ago, and what an operator does about them.

Is: kinds of faults that `faults` draws beside its own, and the operator's part in them, by the rules of
docs/operating/repair.md. Isn't: a judgement of what a bookie may say meanwhile; that is the checkers'.
Invariants, which an operator keeps: of a region one disk at a time is lost, the next one only once nothing counts on
one copy any more. What is put back to an earlier copy has been started since the copy was made: a copy of the
present start is not told from the present (docs/decisions/0201, "We gave up").
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from geo_tests.sim.checkers import Violation
from heliograph.model.errors import HeliographError
from heliograph.model.ledger_metadata import LedgerMetadata, LedgerState
from local_meta import keys
from storage.ledger.repair.replica_holdings import look

if TYPE_CHECKING:
    from geo_tests.sim.faults import Faults
    from geo_tests.sim.region import Node, Region
    from geo_tests.sim.world import World

Undo = Callable[[], None]
Image = dict[str, dict[str, bytes]]
"""Path of a directory -> its files."""
MADE_GOOD_S = 90.0
"""Once everything runs, so long may it take until every copy that was lost is made again; what could not be brought
is tried again after a minute.
"""
_LOOK_S = 0.5


class DiskFaults:
    """Those of one world."""

    def __init__(self, world: World, faults: Faults) -> None:
        self.world, self._faults = world, faults
        self.rng: random.Random = world.sim.rng("disk faults")
        self.kinds: list[tuple[int, Callable[[], tuple[str, Undo] | None]]] = [
            (3, self._wipe_bookie),
            (2, self._unmount_bookie),
            (2, self._roll_bookie_back),
        ]
        self._ill: dict[str, str] = {}
        """Region -> what lasts there: no further disk of it is lost before that is made good."""
        self._waiting = 0

    async def made_good(self) -> None:
        """Returns once every disk that was lost has again all that it should have. Raises Violation."""
        deadline = self.world.sim.now() + MADE_GOOD_S
        while self._ill or self._waiting:
            if self.world.sim.now() > deadline:
                raise Violation(f"{MADE_GOOD_S:.0f} s after everything was well: {self._ill or 'power goes again'}")
            await asyncio.sleep(0.1)

    # -- bookies --------------------------------------------------------------------------------------------------

    def _wipe_bookie(self) -> tuple[str, Undo] | None:
        """Its disks are gone for good, and empty ones in their place; it is started, and some time later an operator
        grants a new life.
        """
        if (node := self.whole_bookie()) is None:
            return None
        self._down(node)
        put_back(node, {})
        self.later(0.1, 2.0, node.revive)
        self._power_goes_again(node)
        return self.begins(node, "wiped"), lambda: self.operate(node)

    def _unmount_bookie(self) -> tuple[str, Undo] | None:
        """Its disks do not mount, it is started over the empty folders beneath, and gets its own back."""
        if (node := self.whole_bookie()) is None:
            return None
        self._down(node)
        own = image_of(node)
        put_back(node, {})
        self.later(0.1, 1.0, node.revive)
        self._power_goes_again(node)

        def undo() -> None:
            doubted = node.is_ready() and node.roles[0].bookie.in_doubt  # type: ignore[attr-defined]
            self._down(node)
            if doubted and any(image_of(node).values()):
                self._fail(f"{node.name} wrote to folders that it doubts: {_names(node)}")
            put_back(node, own)
            node.revive()
            self.operate(node)

        return self.begins(node, "not mounted"), undo

    def _roll_bookie_back(self) -> tuple[str, Undo] | None:
        """A copy of its volumes is put back that was made before its last start."""
        if (node := self.whole_bookie()) is None:
            return None
        self._down(node)
        old = image_of(node)
        node.revive()

        def undo() -> None:
            self._down(node)
            own = image_of(node)
            put_back(node, old)
            node.revive()
            self._power_goes_again(node)
            if self.rng.random() < 0.5:
                self.later(0.5, 4.0, self.operate, node)
            else:
                self.later(0.5, 4.0, self._put_newer_back, node, own)

        return self.begins(node, "rolled back"), undo

    # -- the operator ---------------------------------------------------------------------------------------------

    def operate(self, node: Node) -> None:
        """What may be lost by now is said to be, and waited for."""
        self.later(0.3, 3.0, self._look, node)

    def _put_newer_back(self, node: Node, own: Image) -> None:
        self._down(node)
        put_back(node, own)
        node.revive()
        self.operate(node)

    def _look(self, node: Node) -> None:
        asked = next((n for n in self._shuffled(node.region.brokers) if n.is_ready()), None)
        if asked is None:
            self.later(_LOOK_S, _LOOK_S, self._look, node)
            return
        task = asyncio.ensure_future(asked.machine.ask(self._new_life, asked, node, limit_s=5.0))
        task.add_done_callback(lambda done: self._looked(node, done))

    async def _new_life(self, asked: Node, node: Node) -> str:
        """`heliograph bookies new-life`, where it is in limbo. Returns what the broker says of it."""
        lives: Any = asked.roles[0].recovery.new_lives  # type: ignore[attr-defined]
        found = await lives.look(node.name)
        if found.state == "limbo":
            found = await lives.grant(node.name)
            self.world.trace(f"a new life of {node.name} is granted: {found}")
        if found.state == "whole" and (lacks := await self._lacks(asked, node)):
            return f"whole, and lacks {lacks}"
        return str(found.state)

    async def _lacks(self, asked: Node, node: Node) -> list[int]:
        """The truth beside what was told: closed ledgers, of the region's table, of which the bookie, as it says
        itself, has not all.
        """
        context: Any = asked.roles[0].recovery._context  # type: ignore[attr-defined]
        if not node.region.metadata.is_ready():
            return [-1]  # it is asked again
        lacks: list[int] = []
        for _, blob, _ in node.region.metadata.roles[0].node.machine.under(keys.LEDGERS):  # type: ignore[attr-defined]
            metadata = LedgerMetadata.decode(blob)
            if metadata.state is LedgerState.CLOSED and any(node.name in e for _, e in metadata.fragments):
                found = await look(context, metadata)
                if found.unknown or any(node.name in repair.lost for repair in found.lacking):
                    lacks.append(metadata.ledger)
        return lacks

    def _looked(self, node: Node, done: asyncio.Task[str]) -> None:
        error = done.exception()
        if error is not None and not isinstance(error, (HeliographError, TimeoutError)):
            self.world.sim.report(done)
            return
        state = repr(error) if error is not None else done.result()
        if state == "whole" and node.is_ready() and not node.roles[0].bookie.limbo:  # type: ignore[attr-defined]
            self.well(node, "has all of its copies")
            return
        self._ill[node.region.name] = f"{node.name}: {state}"
        self.later(_LOOK_S, _LOOK_S, self._look, node)

    # -- what they share ------------------------------------------------------------------------------------------

    def whole_bookie(self) -> Node | None:
        """One of a region that can lose a disk now. Without a spare bookie an open ledger lacks the lost copy until it
        is rolled over, which an idle topic's is not: that is told (`bookies new-life`), and not promised otherwise.
        """
        region = self.region()
        if region.name in self._ill or len(region.bookies) < 3 or not all(node.is_ready() for node in region.bookies):
            return None
        return self.rng.choice(region.bookies)

    def region(self) -> Region:
        return self.world.regions[self.rng.choice(sorted(self.world.regions))]

    def _shuffled(self, nodes: list[Node]) -> list[Node]:
        return self.rng.sample(nodes, len(nodes))

    def begins(self, node: Node, what: str) -> str:
        self._ill[node.region.name] = f"{node.name} {what}"
        self._faults.disturbed(node.region.name, 40.0)
        return f"{node.name} {what}"

    def is_well(self, region: str) -> bool:
        """Whether no disk of that region is damaged, or less than it should be."""
        return region not in self._ill

    def well(self, node: Node, why: str) -> None:
        """Another disk of its region may be damaged from now on."""
        self.world.trace(f"{node.name}: {why}")
        del self._ill[node.region.name]

    def empty(self, node: Node) -> None:
        """Other disks in the place of its own. It must be down."""
        put_back(node, {})

    def _down(self, node: Node) -> None:
        if self.rng.random() < 0.5:
            node.kill()
        else:
            node.power_cut()

    def _power_goes_again(self, node: Node) -> None:
        """In half of the cases: of this machine, of another one beside it, or of the whole region."""
        if self.rng.random() < 0.5:
            return
        nodes = self.rng.choice(([node], [self.rng.choice(node.region.nodes)], node.region.nodes))
        self.later(0.05, 2.5, self._cut, nodes)

    def _cut(self, nodes: list[Node]) -> None:
        self.world.trace(f"the power goes at {', '.join(node.name for node in nodes)}")
        for node in nodes:
            if node.machine.running:
                node.power_cut()
            self.later(0.1, 2.0, node.revive)

    def later(self, low_s: float, high_s: float, call: Callable[..., None], *args: Any) -> None:
        """Within that time; nothing counts as made good before."""
        self._waiting += 1

        def due() -> None:
            self._waiting -= 1
            call(*args)

        self.world.sim.loop.call_later(self.rng.uniform(low_s, high_s), due)

    def _fail(self, text: str) -> None:
        self.world.sim.loop.fail(text, Violation(text))


def image_of(node: Node) -> Image:
    """What is on its disks, and synced."""
    return {path: platter.image() for path, platter in node.machine.platters().items()}


def put_back(node: Node, image: Image) -> None:
    for path, platter in node.machine.platters().items():
        platter.put_back(image.get(path, {}))


def _names(node: Node) -> dict[str, list[str]]:
    return {path: platter.names() for path, platter in node.machine.platters().items()}
