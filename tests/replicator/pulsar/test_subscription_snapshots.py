"""Replicated subscriptions by Pulsar's markers: in a model of two topics and two ordered ways between them, no update
passes what was not acknowledged.
"""

from __future__ import annotations

import random

from replicator.pulsar.subscription_snapshots import Snapshots, SnapshotSettings

Item = tuple[str, int]
"""(where it was published, its number)."""


class Side:
    """A topic: what is in it in its order, what went to the other side, how far its one consumer is."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.topic: list[Item] = []
        self.sent = self.acked = self.published = 0
        self.core = Snapshots(SnapshotSettings(every_s=0.0, timeout_s=5.0, kept=3))


class World:
    """us speaks through `Snapshots`; cloud does what Pulsar does: markers are entries of its topic, answered when its
    replicator reads them.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.us, self.cloud = Side("us"), Side("cloud")
        self.to_cloud: list[tuple[str, object]] = []
        self.to_us: list[tuple[str, object]] = []
        self.now = 0.0
        self.updates = [0, 0]
        self.snapshots: list[tuple[int, tuple[int, int]]] = []
        """(where its marker lies in cloud's topic, position in us's)."""

    def end(self) -> tuple[int, int]:
        return (0, len(self.us.topic) - 1)

    def step(self) -> None:
        rng, us, cloud = self.rng, self.us, self.cloud
        self.now += 0.1
        choice = rng.randrange(9)
        if choice == 0:
            us.topic.append(("us", us.published))
            us.published += 1
        elif choice == 1:
            item = ("cloud", cloud.published)
            cloud.published += 1
            cloud.topic.append(item)
            self.to_us.append(("data", item))
        elif choice == 2 and us.sent < len(us.topic):
            item = us.topic[us.sent]
            us.sent += 1
            if item[0] == "us":
                self.to_cloud.append(("data", item))
            for snapshot, here in us.core.answers((0, us.sent - 1)):
                self.to_cloud.append(("response", (snapshot, here)))
        elif choice == 3 and self.to_cloud:
            self.at_cloud(*self.to_cloud.pop(0))
        elif choice == 4 and self.to_us:
            self.at_us(*self.to_us.pop(0))
        elif choice == 5:
            us.acked = min(len(us.topic), us.acked + rng.randint(0, 4))
        elif choice == 6:
            cloud.acked = min(len(cloud.topic), cloud.acked + rng.randint(0, 4))
            passed = [here for there, here in self.snapshots if there < cloud.acked]
            if passed:
                self.snapshots = self.snapshots[len(passed) :]
                self.to_us.append(("update", passed[-1]))
        elif choice == 7:
            if snapshot := us.core.ask(self.now, self.end(), "s"):
                self.to_cloud.append(("request", snapshot))
            for _, there in us.core.updates({"sub": (0, us.acked - 1)}):
                self.to_cloud.append(("update", there))
        elif not any(kind == "request" for kind, _ in self.to_us):
            cloud.topic.append(("marker", 0))
            self.to_us.append(("request", f"c{len(cloud.topic)}"))

    def at_cloud(self, kind: str, value: object) -> None:
        cloud = self.cloud
        if kind == "data":
            cloud.topic.append(value)  # type: ignore[arg-type]
        elif kind == "request":
            there = (0, len(cloud.topic) - 1)
            cloud.topic.append(("marker", 0))
            self.to_us.append(("response", (value, there)))
        elif kind == "response":
            cloud.topic.append(("snapshot", len(cloud.topic)))
            self.snapshots.append((len(cloud.topic) - 1, value[1]))  # type: ignore[index]
        elif kind == "update":
            self.check(cloud.topic[: value[1] + 1], self.us, 0)  # type: ignore[index]
            cloud.acked = max(cloud.acked, value[1] + 1)  # type: ignore[index]

    def at_us(self, kind: str, value: object) -> None:
        us = self.us
        if kind == "data":
            us.topic.append(value)  # type: ignore[arg-type]
        elif kind == "request":
            us.core.asked(str(value), self.end())
        elif kind == "response":
            us.core.answered(value[0], self.end(), value[1])  # type: ignore[index]
        elif kind == "update":
            self.check(us.topic[: value[1] + 1], self.cloud, 1)  # type: ignore[index]
            us.acked = max(us.acked, value[1] + 1)  # type: ignore[index]

    def check(self, told: list[Item], by: Side, which: int) -> None:
        """Everything that an update covers was acknowledged by whoever told it."""
        known = set(by.topic[: by.acked])
        missing = [item for item in told if item[0] in ("us", "cloud") and item not in known]
        assert not missing, missing
        self.updates[which] += 1


def test_no_update_passes_what_was_not_acknowledged() -> None:
    updates = [0, 0]
    for seed in range(300):
        world = World(seed)
        for _ in range(600):
            world.step()
        updates = [have + more for have, more in zip(updates, world.updates, strict=True)]
    assert min(updates) > 300, "both ways were tried"


def test_one_question_at_a_time_and_none_without_news() -> None:
    core = Snapshots(SnapshotSettings(every_s=1.0, timeout_s=10.0))
    first = core.ask(100.0, (1, 5), "us")
    assert first and core.ask(105.0, (1, 6), "us") == ""
    core.answered(first, (1, 7), (9, 9))
    assert list(core.found) == [((1, 7), (9, 9))]
    assert core.ask(105.0, (1, 7), "us") == "" and core.ask(106.0, (1, 8), "us") not in ("", first)


def test_an_answer_that_never_comes_is_given_up_and_a_late_one_is_nothing() -> None:
    core = Snapshots(SnapshotSettings(every_s=1.0, timeout_s=10.0))
    first = core.ask(0.0 + 100, (1, 5), "us")
    second = core.ask(120.0, (1, 6), "us")
    assert second and second != first
    core.answered(first, (1, 6), (9, 9))
    assert not core.found


def test_after_a_lost_connection_nothing_is_answered_that_was_asked_before() -> None:
    core = Snapshots()
    core.asked("x", (1, 5))
    assert core.answers((1, 4)) == []
    core.disconnected()
    assert core.answers((1, 9)) == []


def test_an_update_is_told_once_and_for_the_newest_snapshot_passed() -> None:
    core = Snapshots(SnapshotSettings(every_s=0.0))
    for at in (5, 8):
        core.answered(core.ask(float(at), (1, at), "us"), (1, at), (2, at * 10))
    assert core.updates({"s": (1, 4)}) == []
    assert core.updates({"s": (1, 9)}) == [("s", (2, 80))]
    assert core.updates({"s": (1, 9)}) == []
    assert core.updates({}) == [] and core.updates({"s": (1, 6)}) == [("s", (2, 50))]
