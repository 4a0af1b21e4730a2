"""The link's world with trees: four regions whose entries go on by chains, stars, rings, and meshes that change under
load.

Is: `link_world` with every origin's tree changed at any moment, heartbeats, regions that take over where a parent
brings nothing, and the invariants of passing on: origin and coordinate are kept, what is not meant for a region on the
way is hidden there, a cursor passes nothing that a region behind it lacks. Isn't: policies or sockets.
"""

from __future__ import annotations

from typing import Any

from heliograph.model.configuration.replication_routes import tree
from heliograph.model.positions import Position
from heliograph.wire.block import decode_block
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.link_commands import LinkHeartbeat, SkipRecord, StreamBeat
from heliograph.wire.pulsar.pulsar_pb2 import MessageMetadata
from heliograph.wire.run import FLAG_HIDDEN, FLAG_PASSING, FLAG_TREE, Run
from replicator.log.routing_trees import is_skip
from replicator.log.tree_planting import plant
from tests.replicator.link_world import Coordinate, Region, SimLink, World


class TreeWorld(World):
    names = ("us", "eu", "ap", "sa")
    deletes = False  # where there are trees, truncation leaves links alone

    def __init__(self, seed: int) -> None:
        self.gone: dict[Coordinate, None] = {}
        """Trimmed by force, anywhere."""
        self.ways: dict[str, list[tuple[Position, Any, Position]]] = {}
        """Region -> (where it lies there, origin, coordinate) of what came from elsewhere."""
        self.changes = 0
        super().__init__(seed)
        if seed % 3 == 0:
            self.change_tree(self.rng.choice(self.regions))

    def run(self, steps: int = 450, heal_steps: int = 12_000) -> None:
        super().run(steps, heal_steps)

    # -- what happens --------------------------------------------------------------------------------------------------

    def change_tree(self, region: Region) -> None:
        order = list(self.names)
        self.rng.shuffle(order)
        kind = self.rng.choice(("mesh", "star", "chain", "chain", "ring"))
        parents = tree({"kind": kind, "center": order[0], "regions": order}, region.name, self.names)
        for link in self.links.values():
            if link.source is region:
                region.owner.learn(link.target.name, link.target.owner.vector.copy(), 1)
        self.changes += plant(region.owner, region.name, parents, self.names, lambda: None)

    def step(self, faults: bool = True) -> None:
        rng = self.rng
        if faults and rng.random() < 0.006:
            self.change_tree(rng.choice(self.regions))
        if rng.random() < 0.05:
            link = self.links[rng.choice(sorted(self.links))]
            self.beat(link)
            if not faults or rng.random() < 0.1:
                went_back = link.core.take_over(link.core.pending())
                assert not went_back
        super().step(faults)

    def beat(self, link: SimLink) -> None:
        """The target tells what it holds; without a connection somebody else tells what it held a while ago."""
        if (connection := link.connection) is not None:
            vector = connection.stream.log.vector
            connection.send(
                connection.back,
                wire.heartbeat_frame(LinkHeartbeat(1, 0, 0, (StreamBeat(1, None, {link.target.name: vector}),))),
            )
        else:
            link.core.learned(link.target.owner.vector.copy())

    # -- what must hold ------------------------------------------------------------------------------------------------

    def trim(self, region: Region, faults: bool) -> None:
        before, forced = list(region.store.blocks), region.forced
        super().trim(region, faults)
        if region.forced == forced and not self.harsh:
            return
        for (ledger, first), _, block in before[: len(before) - len(region.store.blocks)]:
            _, _, run = decode_block(block)
            for i in range(run.count):
                if run.origin is None:
                    self.gone[region.owner.state.origin_at((ledger, first + i)), (ledger, first + i)] = None
                else:
                    self.gone[run.origin, run.coordinate(i)] = None

    def look(self, region: Region, ledger: int, first: int, run: Run) -> None:
        if run.origin is not None and not is_skip(run):
            self.ways.setdefault(region.name, []).extend(
                ((ledger, first + i), run.origin, run.coordinate(i)) for i in range(run.count)
            )
        flags = run.flags[0] if run.flags is not None else 0
        if not flags & (FLAG_TREE | FLAG_PASSING):
            if run.origin is not None and not flags & FLAG_HIDDEN:
                for part in run.parts:
                    to = _metadata(part).replicate_to
                    assert not to or region.name in to, "shown where it is not meant for"
            super().look(region, ledger, first, run)
            return
        for i in range(run.count):
            origin = region.owner.state.origin_at((ledger, first + i)) if run.origin is None else run.origin
            where = (ledger, first + i) if run.origin is None else run.coordinate(i)
            body = -1
            if flags & FLAG_PASSING:
                to = _metadata(run.parts[i]).replicate_to
                assert to and region.name not in to, "hidden, and meant for here"
                body = int.from_bytes(bytes(run.parts[i])[-8:], "big")
            assert (origin, where) not in region.bodies, "stored twice"
            assert where > region.last.get(origin, (-1, -1)), "order"
            region.bodies[origin, where], region.last[origin] = body, where
            if run.origin is None:
                region.published[origin, where] = (body, ())

    def check_loss(self, region: Region, record: SkipRecord) -> None:
        assert self.harsh, "a loss where nothing was lost"
        source = self.regions[record.origin[0] - 1]
        for where, (_, to) in source.published.items():
            if (
                where[0] == record.origin
                and record.after < where[1] <= record.through
                and (not to or region.name in to)
            ):
                assert where in self.gone, "a SKIP names what is not lost"
        region.losses.append(record)

    def check_mark(self, source: Region, target: Region, after: Position, mark: Position) -> None:
        super().check_mark(source, target, after, mark)
        book = source.owner.state.trees
        for at, origin, where in self.ways.get(source.name, ()):
            if after < at <= mark and origin[0] != target.number:
                way = book.governing(origin, where)
                body, to = self.regions[origin[0] - 1].published.get((origin, where), (0, (source.name,)))
                if way is not None and way.parent(target.name) == source.name and (not to or target.name in to):
                    held = target.bodies.get((origin, where))
                    assert held == body or self.covered(target, (origin, where)), (
                        "the cursor passed what a region behind it lacks"
                    )


def _metadata(part: Any) -> MessageMetadata:
    return MessageMetadata.FromString(bytes(part)[10 : 10 + int.from_bytes(bytes(part)[6:10], "big")])
