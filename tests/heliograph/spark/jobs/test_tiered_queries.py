"""Topics move between queries with where they stand: every message lands once, whoever dies wherever. The source is the
real one, Spark is a model.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from heliograph.client.block_reader import TopicSnapshot
from heliograph.model.coordinates import Origin
from heliograph.model.errors import ConfigError, CorruptData, MetadataUnavailable
from heliograph.model.positions import Position
from heliograph.spark.jobs import tier_generations as generations_module
from heliograph.spark.jobs.tier_generations import Folder, GenerationGroup
from heliograph.spark.jobs.tiered_queries import Tiered
from heliograph.spark.jobs.tiers import TierLimits
from heliograph.spark.scan import topic_groups as groups_module
from tests.heliograph.spark.stores.support import dying

pytest.importorskip("pyspark")
OWN: Origin = (1, 1, 41)
PREFIX = "persistent://public/default/"


class Copy:
    """A region's topics: one ledger each, message n is entry n. What a source asks of `BlockReader`."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.standing: dict[str, Position] = {}

    def topics(self, namespace: str) -> list[str]:
        return sorted(self.counts)

    def snapshots(self, topics: list[str]) -> dict[str, TopicSnapshot]:
        return {topic: self._snapshot(topic, self.counts[topic]) for topic in topics if topic in self.counts}

    @staticmethod
    def _snapshot(topic: str, count: int) -> TopicSnapshot:
        return TopicSnapshot(
            topic, ((1, count, 10 * count),) if count else (), (1, count - 1), OWN, {1: "us"}, (), False, count
        )

    def vector(self, topic: str, at: Position | None = None) -> dict[Origin, Position]:
        return {OWN: at or (1, self.counts[topic] - 1)}

    def vectors(self, positions: Mapping[str, Position]) -> dict[str, dict[Origin, Position]]:
        return {topic: self.vector(topic, at) for topic, at in positions.items()}

    def held(self, subscription: str, topics: Any) -> dict[str, Position]:
        return {topic: at for topic, at in self.standing.items() if topic in topics}

    def hold(self, subscription: str, positions: Mapping[str, Position]) -> None:
        self.standing |= {topic: max(at, self.standing.get(topic, at)) for topic, at in positions.items()}


class Query:
    """What Spark promises: a batch's offsets are written, its rows handed to the sink, then it is said to be done; all
    of it goes on from the files.
    """

    def __init__(self, world: World, checkpoint: Path, told: Path | None, ending: Path | None) -> None:
        from pyspark.sql.types import BinaryType, StructField, StructType

        from heliograph.spark.source import HeliographStreamReader

        options = {
            "admin_url": "http://none",
            "namespace": "public/default",
            "subscription": "s",
            "discovery_interval_s": "0",
            "columns": "raw",
        }
        options |= ({"group_file": str(told)} if told else {}) | ({"ending_file": str(ending)} if ending else {})
        self._world, self._folder, self._once = world, checkpoint, ending is not None
        self._source = HeliographStreamReader(StructType([StructField("value", BinaryType())]), options)
        self._source._connected = world.copy  # type: ignore[assignment]
        if self._once:
            self._source.prepareForTriggerAvailableNow()
        for name in ("offsets", "commits"):
            (checkpoint / name).mkdir(parents=True, exist_ok=True)
        identity = checkpoint / "metadata"
        if not identity.exists():
            identity.write_text(f"query-{world.rng.getrandbits(64):x}")
        self._id = identity.read_text()
        self._batch = max((int(path.name) for path in (checkpoint / "offsets").iterdir()), default=-1)
        self._step = (
            "sink" if self._batch >= 0 and not (checkpoint / "commits" / str(self._batch)).exists() else "offsets"
        )
        self.isActive, self.status = True, {"message": "Waiting for data to arrive"}

    def exception(self) -> None:
        return None

    def stop(self) -> None:
        self.isActive = False

    def _offset(self, batch: int) -> dict[str, Any]:
        return dict(json.loads((self._folder / "offsets" / str(batch)).read_text()))

    def step(self) -> None:
        from pyspark.sql.streaming.datasource import ReadMaxBytes

        if self._step == "offsets":
            start = self._offset(self._batch) if self._batch >= 0 else self._source.initialOffset()
            stop = self._source.latestOffset(start, ReadMaxBytes(self._world.rng.randrange(10, 400)))
            if stop == start:
                self.isActive = not self._once
                return
            self._batch += 1
            if self._batch == 0:
                (self._folder / "first").write_text(json.dumps(start))
            (self._folder / "offsets" / str(self._batch)).write_text(json.dumps(stop))
            self._step = "sink"
        elif self._step == "sink":
            start = self._offset(self._batch - 1) if self._batch else json.loads((self._folder / "first").read_text())
            tasks: list[Any] = self._source.partitions(start, self._offset(self._batch))
            rows = [(r.topic, n) for task in tasks for r in task.ranges for n in range(r.first, r.last + 1)]
            self._world.landed[self._id, self._batch] = rows
            self._step = "commit"
        else:
            (self._folder / "commits" / str(self._batch)).touch()
            self._step = "offsets"


class World:
    def __init__(self, rng: random.Random, root: Path) -> None:
        self.rng, self.root, self.copy, self.now, self.moves = rng, root, Copy(), 0.0, 0
        self.landed: dict[tuple[str, int], list[tuple[str, int]]] = {}
        self.tiered: Tiered | None = None
        self._folder = Folder(root)
        self.names = [f"{PREFIX}t{n}" for n in range(5)] + [f"{PREFIX}p-partition-{n}" for n in range(2)]
        self.loads: dict[str, float] = {}
        self.labels: set[str] = set()
        self.retired: set[str] = set()

    def publish(self) -> None:
        topic = self.rng.choice(self.names)
        self.copy.counts[topic] = self.copy.counts.get(topic, 0) + self.rng.randrange(1, 9)

    def plain(self) -> None:
        """The job ran without tiers, and was killed."""
        query = Query(self, self.root, None, None)
        for _ in range(self.rng.randrange(12)):
            self.publish()
            query.step()

    def look(self) -> None:
        self.now += 1.0
        if self.tiered is None:
            self._folder = Folder(self.root)
            self.tiered = Tiered(
                self._folder,
                self._begun,
                self._measured,
                TierLimits(light_bytes_s=10, heavy_bytes_s=100, middle_bytes_s=60, queries_max=4),
                12.0,
                now=lambda: self.now,
                say=self._said,
                retired=self.retired.add,
            )
        self.tiered.look()

    def _begun(self, member: GenerationGroup, checkpoint: Path, told: Path | None, ending: Path | None) -> Query:
        if member.since:
            self.labels.add(member.label)
        return Query(self, checkpoint, told, ending)

    def _said(self, event: str, **fields: Any) -> None:
        self.moves += event == "tiers.hold" and fields["generation"] > 1

    def _measured(self) -> dict[str, float]:
        topics = sorted({topic.partition("-partition-")[0] for topic in self.copy.counts})
        return {topic: self.loads.get(topic) or self.rng.choice((1.0, 30.0, 50.0, 500.0)) for topic in topics}

    def step(self) -> None:
        running = [] if self.tiered is None else [stream for stream in self.tiered.streams if stream.isActive]
        if running:
            self.rng.choice(running).step()

    def die(self) -> None:
        """Everything is gone but the files."""
        self._folder.unlock()
        self.tiered = None

    @contextmanager
    def mortal(self) -> Iterator[None]:
        """In there it may die at, or behind, any change of a file."""
        owner, name = self.rng.choice(
            ((generations_module, "replace_file"), (groups_module, "replace_file"), (Path, "replace"), (Path, "unlink"))
        )
        reached = False
        with dying(owner, name, self.rng.randrange(1, 4), after=self.rng.random() < 0.5):
            yield
            reached = True
        if not reached:
            self.die()

    def settle(self) -> None:
        self.loads = {topic.partition("-partition-")[0]: self.rng.choice((1.0, 30.0, 500.0)) for topic in self.names}
        for _ in range(3000):
            self.look()
            for _ in range(4):
                self.step()
            if (
                Counter(row for rows in self.landed.values() for row in rows).total() >= sum(self.copy.counts.values())
                and not self.tiered.busy
            ):  # type: ignore[union-attr]
                break


@pytest.mark.parametrize("seed", range(60))
def test_every_message_lands_once_whoever_dies_wherever(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng, tmp_path / "state")
    if rng.random() < 0.3:
        world.plain()
    for _ in range(rng.randrange(60, 300)):
        match rng.randrange(12):
            case 0 | 1:
                world.publish()
            case 2 if rng.random() < 0.2:
                world.die()
            case 3:
                with world.mortal():
                    world.look()
            case 4 | 5:
                world.look()
            case _:
                world.step()
    world.settle()
    found = Counter(row for rows in world.landed.values() for row in rows)
    assert found == Counter((topic, n) for topic, count in world.copy.counts.items() for n in range(count))
    assert all(at <= (1, world.copy.counts[topic]) for topic, at in world.copy.standing.items())
    assert world.labels - {path.name for path in world.root.iterdir()} <= world.retired, (
        "who never runs again is told of, whoever dies"
    )
    world.die()


def test_topics_do_move_in_that_world(tmp_path: Path) -> None:
    moves = 0
    for seed in range(5):
        world = World(random.Random(seed), tmp_path / str(seed))
        for _ in range(150):
            world.publish()
            world.look()
            world.step()
        moves += world.moves
        world.die()
    assert moves >= 10


def test_what_stays_is_not_touched(tmp_path: Path) -> None:
    world = World(random.Random(1), tmp_path)
    world.loads = {f"{PREFIX}t0": 1.0, f"{PREFIX}t1": 500.0, f"{PREFIX}t2": 30.0, f"{PREFIX}t3": 1.0}
    world.copy.counts = dict.fromkeys(world.loads, 1)
    while world.tiered is None or world.tiered.busy:
        world.look()
    before = list(world.tiered.streams)
    world.loads[f"{PREFIX}t0"] = 30.0
    while world.moves == 0 or world.tiered.busy:
        world.look()
        for stream in world.tiered.streams:
            stream.step()
    after = list(world.tiered.streams)
    assert [stream.isActive for stream in before] == [True, False, False], (
        "the heavy topic's query ran on, the others ended"
    )
    assert before[0] in after and len(after) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *(
            "heavy-0.1",
            "heavy-0.1.json",
            "light.2",
            "light.2.json",
            "middle-0.2",
            "middle-0.2.json",
            "tiers.json",
            "tiers.lock",
        ),
    ]
    world.die()


def test_a_query_that_ends_without_a_word_is_asked_again(tmp_path: Path) -> None:
    """What an earlier attempt wrote is not where it stands now."""

    class Silent:
        isActive, status = False, {"message": "Stopped"}

        def exception(self) -> None:
            return None

    world = World(random.Random(1), tmp_path)
    world.loads = {f"{PREFIX}t0": 1.0}
    world.copy.counts = {f"{PREFIX}t0": 5}
    while world.tiered is None or world.tiered.busy:
        world.look()
    (tmp_path / "light.1.end").write_text('{"format": 2, "topics": {}}')
    world.loads[f"{PREFIX}t0"] = 500.0
    genuine = world.tiered._begin
    world.tiered._begin = lambda *given: genuine(*given) if given[3] is None else Silent()
    with pytest.raises(MetadataUnavailable, match="ended without saying where it stands"):
        for _ in range(100):
            world.look()
    world.die()


def test_a_region_that_does_not_say_its_loads_is_asked_again_after_a_minute_and_queries_go_on(tmp_path: Path) -> None:
    world = World(random.Random(1), tmp_path)
    world.loads = {f"{PREFIX}t0": 1.0}
    world.copy.counts = {f"{PREFIX}t0": 5}
    while world.tiered is None or world.tiered.busy:
        world.look()
    asked: list[float] = []

    def away() -> dict[str, float]:
        asked.append(world.now)
        raise MetadataUnavailable("away")

    world.tiered._loads, streams = away, world.tiered.streams
    for _ in range(200):
        world.look()
    assert len(asked) >= 3 and {later - one for one, later in pairwise(asked)} == {60.0}
    assert world.tiered.streams == streams and all(stream.isActive for stream in streams)
    world.die()


def test_one_driver_at_a_time_and_files_that_are_none(tmp_path: Path) -> None:
    held = Folder(tmp_path)
    held.lock()
    with pytest.raises(MetadataUnavailable, match="another driver runs the job"):
        Folder(tmp_path).lock()
    held.unlock()
    assert Folder(tmp_path).read() is None
    (tmp_path / "tiers.json").write_text('{"format": 9}')
    with pytest.raises(ConfigError, match="not of format 1"):
        Folder(tmp_path).read()
    for text in ("{", '{"format": 1}'):
        (tmp_path / "tiers.json").write_text(text)
        with pytest.raises(CorruptData, match=r"tiers\.json"):
            Folder(tmp_path).read()
    for text, kind in (("{", ConfigError), ('{"format": 2}', ConfigError), ('{"format": 1}', ConfigError)):
        (tmp_path / "told").write_text(text)
        with pytest.raises(kind, match="told"):
            groups_module.read_told(tmp_path / "told")
    with pytest.raises(CorruptData, match="says how far it came"):
        groups_module.read_places(tmp_path / "none")
    assert GenerationGroup("heavy-0", "heavy", 3, ("t",)).label == "heavy-0.3"
