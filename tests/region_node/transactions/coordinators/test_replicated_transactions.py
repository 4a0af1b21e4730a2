"""A commit of another region over several topics is shown in all of them or in none: real buffers and real askers of
two brokers, on virtual time.

Links bring each topic's log on its own, with pauses; brokers lose questions and answers, topics move and are read again
from snapshots.
"""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.metadata_store import VALUE_BYTES_MAX
from heliograph.model.configuration.configuration_records import NamespacePolicies, TopicPolicies
from heliograph.model.errors import MetadataUnavailable, NotFound
from heliograph.model.ledger_metadata import pack, unpack
from heliograph.wire.run import FLAG_HIDDEN, Run, TxnId
from region_node.transactions.coordinators.replicated_transactions import AGAIN_S, Arrivals
from replicator.log.transaction_buffer import (
    COMMIT,
    HELD_MAX,
    Key,
    TransactionBuffer,
    below,
    destination,
    marker_run,
    only_to,
    read_participants,
)
from tests.replicator.log.transaction_runs import run

TOPICS = tuple(f"persistent://t/n/{name}" for name in "abc")
WAIT_S = 30.0


class Part:
    """One topic in the target region, wherever it is loaded. `coming`: what its link still has to bring."""

    def __init__(self, text: str, incarnation: int) -> None:
        self.text, self.origin = text, (2, 1, incarnation)
        self.coming: list[Run] = []
        self.log: list[Run] = []
        self.snapshot: tuple[int, bytes] = (0, b"")
        self.exists = False
        self.load()

    def load(self) -> None:
        """As its next owner reads it: the snapshot, and what lies behind it."""
        self.buffer, self.closed = TransactionBuffer(), False
        at, blob = self.snapshot
        if blob:
            self.buffer.load(unpack("state", blob))
        for number, piece in enumerate(self.log[at:]):
            self.confirm(at + number, piece)

    def confirm(self, at: int, piece: Run) -> None:
        if piece.transaction is not None:
            self.buffer.confirm(1, at, piece)

    def arrive(self) -> None:
        self.exists = True
        piece = self.coming.pop(0)
        self.log.append(piece)
        self.confirm(len(self.log) - 1, piece)

    def shown(self) -> list[bytes]:
        end = self.buffer.unseen_from()
        pieces = [(1, at, piece) for at, piece in enumerate(self.log)]
        seen = self.buffer.committed_view(pieces if end is None else below(pieces, end))
        return [bytes(piece.parts[0]) for _, _, piece in seen if not (piece.flags and piece.flags[0] & FLAG_HIDDEN)]

    # -- what `Arrivals` uses of a topic

    transactional = True
    terminated = False
    wakes = 0

    @property
    def transactions(self) -> Any:
        return SimpleNamespace(buffer=self.buffer)

    def shown_more(self) -> None:
        self.wakes += 1


class Region:
    def __init__(
        self,
        sim: Simulation,
        rng: random.Random,
        parts: list[Part],
        regions: tuple[str, ...] = ("us", "eu"),
        wait_s: float = WAIT_S,
    ) -> None:
        self.parts, self.rng, self.trouble = {part.text: part for part in parts}, rng, 0.3
        self.owner = {part.text: rng.randrange(2) for part in parts}
        self.records = [SimpleNamespace(broker="b0"), SimpleNamespace(broker="b1")]
        self.policies: dict[str, TopicPolicies] = {}
        self.deleted: dict[str, str] = {}
        view: Any = SimpleNamespace(
            namespace=lambda _: NamespacePolicies(regions=regions), topic_policies=self.policies.get
        )
        self.brokers = []
        for index in range(2):
            made = Arrivals(
                topics=self._topics(),
                ownership=self._ownership(index),
                view=view,
                region="eu",
                clock=sim.clock(),
                wait_s=wait_s,
                others=cast(Any, SimpleNamespace(arrived=self._elsewhere)),
            )
            self.brokers.append(made)
        for part in parts:
            self.watch(part)

    async def close(self) -> None:
        for broker in self.brokers:
            await broker.close()

    def _topics(self) -> Any:
        async def get(text: str, *, create: bool) -> Part:
            if not self.parts[text].exists:
                raise NotFound(text)
            return self.parts[text]

        return SimpleNamespace(
            get=get, tombstones=self.deleted, tombstone_of=lambda name: self.deleted.get(str(name), "")
        )

    def _ownership(self, index: int) -> Any:
        async def owner(text: str) -> Any:
            return self.records[self.owner[text]]

        return SimpleNamespace(owner=owner, record=self.records[index])

    async def _elsewhere(self, owner: Any, topic: str, by: str, wanted: Any) -> list[bool]:
        await asyncio.sleep(self.rng.random() * 0.05)
        if self.rng.random() < self.trouble:
            raise MetadataUnavailable("the question is lost")
        answer = await self.brokers[self.records.index(owner)].asked(topic, by, wanted)
        if self.rng.random() < self.trouble:
            raise MetadataUnavailable("the answer is lost")
        return answer

    def watch(self, part: Part) -> None:
        """What `TopicTransactions.watch_held` does when a topic is loaded."""
        broker: Any = self.brokers[self.owner[part.text]]
        part.buffer.on_held = lambda: broker.on_held(part)
        if part.buffer.held:
            broker.on_held(part)

    def move(self, part: Part) -> None:
        self.owner[part.text] = 1 - self.owner[part.text]
        part.load()
        self.watch(part)


def marker(part: Part, txn: TxnId, low: int, others: list[str]) -> Run:
    made = marker_run(txn, COMMIT, low, others)
    return Run(
        made.parts,
        made.lengths,
        counts=made.counts,
        flags=made.flags,
        transaction=txn,
        origin=part.origin,
        spans=((9, 0, 1),),
    )


def simulated(seed: int, main: Any) -> None:
    with Simulation(seed) as sim:
        sim.run(main(sim), limit_s=400)


@pytest.mark.parametrize("seed", range(30))
def test_each_commit_is_shown_in_all_its_topics_or_in_none(seed: int) -> None:
    async def main(sim: Simulation) -> None:
        rng = random.Random(seed)
        parts = [Part(text, 70 + index) for index, text in enumerate(TOPICS)]
        over: dict[int, list[Part]] = {}
        for number in range(1, 12):
            over[number] = rng.sample(parts, rng.randrange(1, 4))
            for part in over[number]:
                part.coming.append(run((0, number), b"%d" % number, origin=part.origin))
                if rng.random() < 0.4:
                    part.coming.append(run(None, b"plain", origin=part.origin))
            for part in over[number]:
                part.coming.append(
                    marker(
                        part,
                        (0, number),
                        rng.choice((0, number)),
                        [other.text for other in over[number] if other is not part],
                    )
                )
        region = Region(sim, rng, parts)

        def stored(part: Part, number: int) -> bool:
            return any(piece.transaction == (0, number) and piece.flags for piece in part.log)

        def check() -> None:
            for part in parts:
                for number in {int(body) for body in part.shown() if body != b"plain"}:
                    missing = [other.text for other in over[number] if not stored(other, number)]
                    assert not missing, f"{part.text} shows transaction {number}, and it is not in {missing}"

        while any(part.coming for part in parts):
            part = rng.choice([part for part in parts if part.coming])
            match rng.randrange(6):
                case 0:
                    region.move(rng.choice(parts))
                case 1:
                    rested = rng.choice(parts)
                    rested.snapshot = (len(rested.log), pack(rested.buffer.dump()))
                case _:
                    part.arrive()
            check()
            await asyncio.sleep(rng.choice((0.0, 0.0, 0.1, 0.5)))
            check()
        region.trouble = 0.0
        await asyncio.sleep(3)
        for part in parts:
            assert sorted(int(b) for b in part.shown() if b != b"plain") == [
                number for number in sorted(over) if part in over[number]
            ]
            assert not part.buffer.held and part.buffer.unseen_from() is None
        assert not any(broker.shown_alone for broker in region.brokers)
        for part in parts:  # what was shown is shown again by whoever reads the log anew, once it has asked
            before = part.shown()
            region.move(part)
            await asyncio.sleep(1)
            assert part.shown() == before and not part.buffer.held
        await region.close()

    simulated(seed, main)


def test_what_never_comes_is_waited_for_that_long_and_said() -> None:
    async def main(sim: Simulation) -> None:
        a, b, c = (Part(text, 70 + index) for index, text in enumerate(TOPICS))
        a.coming = [
            run((0, 1), b"1", origin=a.origin),
            marker(a, (0, 1), 0, [b.text, c.text]),
            run(None, b"plain", origin=a.origin),
        ]
        b.coming = [run((0, 1), b"1", origin=b.origin), marker(b, (0, 1), 0, [a.text, c.text])]
        region = Region(sim, random.Random(1), [a, b, c])
        while a.coming:
            a.arrive()
        while b.coming:
            b.arrive()
        await asyncio.sleep(WAIT_S - 1)
        assert not a.shown() and not b.shown() and sum(broker.held for broker in region.brokers) == 2
        assert [list(held.waits) for held in a.buffer.held.values()] == [[c.text]], "whom it waits for can be seen"
        await asyncio.sleep(2)
        assert (
            a.shown() == [b"1", b"plain"]
            and b.shown() == [b"1"]
            and sum(broker.shown_alone for broker in region.brokers) == 2
        )
        assert a.wakes and b.wakes, "readers hear of it"
        await region.close()

    simulated(1, main)


def test_who_loads_a_topic_waits_for_what_is_left_of_the_time() -> None:
    async def main(sim: Simulation) -> None:
        a, b, _ = (Part(text, 70 + index) for index, text in enumerate(TOPICS))
        ended = marker(a, (0, 1), 0, [b.text])
        ended.time_ms = sim.clock().wall_ms()
        a.coming = [run((0, 1), b"1", origin=a.origin), ended]
        region = Region(sim, random.Random(1), [a, b])
        a.arrive()
        a.arrive()
        a.snapshot = (2, pack(a.buffer.dump()))
        await asyncio.sleep(WAIT_S - 10)
        assert not a.shown()
        region.move(a)
        await asyncio.sleep(9)
        assert not a.shown()
        await asyncio.sleep(2)
        assert a.shown() == [b"1"], "it waited for 30 s in all"
        await asyncio.sleep(600)
        region.move(a)
        await asyncio.sleep(AGAIN_S - 1)
        assert not a.shown(), "the owner of the other may be loading it"
        await asyncio.sleep(2)
        assert a.shown() == [b"1"]
        await region.close()

    with Simulation(1) as sim:
        sim.run(main(sim), limit_s=1000)


def test_where_nothing_is_waited_for_each_part_is_shown_at_once() -> None:
    async def main(sim: Simulation) -> None:
        a, b, _ = (Part(text, 70 + index) for index, text in enumerate(TOPICS))
        a.coming = [run((0, 1), b"1", origin=a.origin), marker(a, (0, 1), 0, [b.text])]
        region = Region(sim, random.Random(1), [a, b], wait_s=0.0)
        a.arrive()
        a.arrive()
        assert a.shown() == [b"1"] and not any(broker.shown_alone or broker.held for broker in region.brokers)

    simulated(1, main)


def test_a_snapshot_takes_so_much_of_what_is_held() -> None:
    buffer, part, names = (
        TransactionBuffer(),
        Part(TOPICS[0], 70),
        [f"{TOPICS[1]}-with-a-long-name-partition-{n}" for n in range(30)],
    )
    for number in range(HELD_MAX):
        buffer.confirm(1, 2 * number, run((0, number), b"1", origin=part.origin))
        buffer.confirm(1, 2 * number + 1, marker(part, (0, number), number, names))
    assert len(buffer.held) == HELD_MAX and len(pack(buffer.dump())) < VALUE_BYTES_MAX // 2
    again = TransactionBuffer()
    again.load(buffer.dump())
    assert (
        list(again.held) == list(buffer.held)[: len(again.held)]
        and len(again.held) > 90
        and again.unseen_from() == (1, 0)
    )


def test_what_is_released_makes_room_for_the_next() -> None:
    part = Part(TOPICS[0], 70)
    for number in (1, 2):
        part.coming += [run((0, number), b"%d" % number, origin=part.origin), marker(part, (0, number), 0, [TOPICS[1]])]
    while part.coming:
        part.arrive()
    part.buffer.release((part.origin, 0, 1))
    assert part.shown() == [b"1"] and part.buffer.unseen_from() == (1, 2)
    part.buffer.release((part.origin, 0, 2))
    assert part.shown() == [b"1", b"2"] and part.buffer.unseen_from() is None


def test_topics_that_do_not_come_to_this_region_are_left_out() -> None:
    async def main(sim: Simulation) -> None:
        a, b, _ = (Part(text, 70 + index) for index, text in enumerate(TOPICS))
        a.coming = [run((0, 1), b"1", origin=a.origin), marker(a, (0, 1), 0, [b.text])]
        region = Region(sim, random.Random(1), [a, b], regions=("us", "ap"))
        while a.coming:
            a.arrive()
        await asyncio.sleep(0.1)
        assert a.shown() == [b"1"] and not a.buffer.held
        await region.close()

    simulated(1, main)


@pytest.mark.parametrize(
    "why", ("a policy keeps it away", "deleted", "terminated", "terminated before any transaction")
)
def test_a_topic_that_takes_nothing_more_is_not_waited_for(why: str) -> None:
    async def main(sim: Simulation) -> None:
        a, b, _ = (Part(text, 70 + index) for index, text in enumerate(TOPICS))
        a.coming = [run((0, 1), b"1", origin=a.origin), marker(a, (0, 1), 0, [b.text])]
        region = Region(sim, random.Random(1), [a, b])
        region.trouble, b.exists = 0.0, True
        if why == "deleted":
            region.deleted[b.text] = "somebody deleted it"
        elif why == "a policy keeps it away":
            region.policies[b.text] = TopicPolicies(policies={"replication": ["us", "ap"]})
        else:
            b.terminated, b.transactional = True, why == "terminated"
        while a.coming:
            a.arrive()
        await asyncio.sleep(0.2)
        assert a.shown() == [b"1"] and not a.buffer.held
        await region.close()

    simulated(1, main)


@pytest.mark.parametrize(("regions", "shown"), [(["ap"], [b"1"]), (["ap", "eu"], [])])
def test_a_topic_that_its_region_sends_elsewhere_is_not_waited_for(regions: list[str], shown: list[bytes]) -> None:
    async def main(sim: Simulation) -> None:
        a, b, _ = (Part(text, 70 + index) for index, text in enumerate(TOPICS))
        a.coming = [run((0, 1), b"1", origin=a.origin), marker(a, (0, 1), 0, [only_to(b.text, regions)])]
        region = Region(sim, random.Random(1), [a, b])
        while a.coming:
            a.arrive()
        await asyncio.sleep(WAIT_S - 1)
        assert a.shown() == shown and [list(held.waits) for held in a.buffer.held.values()] == [[b.text]] * (not shown)
        await region.close()

    simulated(1, main)


def test_what_a_marker_names() -> None:
    for name in ("persistent://t/n/a", "persistent://t/n/a|b", "persistent://t/n/us,ap|b"):
        assert destination(name) == (name, None) and destination(only_to(name, ["us", "ap-1"])) == (
            name,
            ("us", "ap-1"),
        )


@pytest.mark.parametrize("snapshot", [False, True])
def test_a_topic_that_had_no_part_is_not_waited_for_once_that_is_said(snapshot: bool) -> None:
    """The end comes once more, and does not name it; whoever reads the log anew knows it too."""

    async def main(sim: Simulation) -> None:
        a, b, c = (Part(text, 70 + index) for index, text in enumerate(TOPICS))
        ends = [
            marker(a, (0, 1), 0, [b.text, c.text]),
            marker(a, (0, 1), 0, [only_to(c.text, ["us", "eu"])]),
            marker(a, (0, 1), 0, []),
        ]
        a.coming = [run((0, 1), b"1", origin=a.origin), *ends]
        region = Region(sim, random.Random(1), [a, b, c])
        for waits in ([b.text, c.text], [c.text]):
            a.arrive()
            if len(a.coming) > 2:
                a.arrive()
            await asyncio.sleep(1)
            assert [list(held.waits) for held in a.buffer.held.values()] == [waits] and not a.shown()
        if snapshot:
            a.snapshot = (len(a.log), pack(a.buffer.dump()))
        region.move(a)
        await asyncio.sleep(1)
        assert [list(held.waits) for held in a.buffer.held.values()] == [[c.text]] and not a.shown()
        a.arrive()
        await asyncio.sleep(1)
        assert a.shown() == [b"1"] and not a.buffer.held and not any(broker.shown_alone for broker in region.brokers)
        region.move(a)
        await asyncio.sleep(1)
        assert a.shown() == [b"1"]
        await region.close()

    simulated(1, main)


def test_a_topic_whose_policy_names_this_region_or_none_is_waited_for() -> None:
    async def main(sim: Simulation) -> None:
        kinds: tuple[dict[str, Any], ...] = ({"replication": ["us", "eu"]}, {"replication": []}, {"retention": {}})
        for policies in kinds:
            a, b, _ = (Part(text, 70 + index) for index, text in enumerate(TOPICS))
            a.coming = [run((0, 1), b"1", origin=a.origin), marker(a, (0, 1), 0, [b.text])]
            region = Region(sim, random.Random(1), [a, b])
            region.policies[b.text] = TopicPolicies(policies=policies)
            while a.coming:
                a.arrive()
            await asyncio.sleep(WAIT_S - 1)
            assert not a.shown() and a.buffer.held
            await region.close()

    simulated(1, main)


def test_many_commits_ask_together() -> None:
    async def main(sim: Simulation) -> None:
        a, b, _ = (Part(text, 70 + index) for index, text in enumerate(TOPICS))
        region = Region(sim, random.Random(1), [a, b])
        region.owner, asked = {a.text: 0, b.text: 1}, [0]

        async def counted(_owner: Any, _topic: str, _by: str, wanted: Any) -> list[bool]:
            asked[0] += 1
            return [False] * len(wanted)

        cast(Any, region.brokers[0])._others = SimpleNamespace(arrived=counted)
        region.watch(a)
        for number in range(500):
            a.coming = [run((0, number), b"%d" % number, origin=a.origin), marker(a, (0, number), 0, [b.text])]
            a.arrive()
            a.arrive()
            await asyncio.sleep(0.002)
        assert 5 < asked[0] < 60, "not each a question of its own"
        await region.close()

    simulated(1, main)


def test_what_is_no_name_here_is_left_out() -> None:
    async def main(sim: Simulation) -> None:
        a, b, _ = (Part(text, 70 + index) for index, text in enumerate(TOPICS))
        a.coming = [run((0, 1), b"1", origin=a.origin), marker(a, (0, 1), 0, ["segment://t/n/x"])]
        region = Region(sim, random.Random(1), [a, b])
        while a.coming:
            a.arrive()
        await asyncio.sleep(0.1)
        assert a.shown() == [b"1"] and not a.buffer.held
        await region.close()

    simulated(1, main)


def test_at_home_and_where_nobody_else_takes_part_nothing_is_held() -> None:
    buffer = TransactionBuffer()
    buffer.confirm(1, 0, run((0, 1), b"x"))
    buffer.confirm(1, 1, marker_run((0, 1), COMMIT, 0, [TOPICS[1]]))
    assert not buffer.held, "in its own region the coordinator tells each topic"
    part = Part(TOPICS[0], 70)
    buffer.confirm(1, 2, run((0, 2), b"x", origin=part.origin))
    buffer.confirm(1, 3, marker(part, (0, 2), 0, []))
    assert not buffer.held and buffer.unseen_from() is None


def test_a_marker_names_topics_behind_what_earlier_versions_read() -> None:
    names = [f"persistent://t/n/{index}" for index in range(3)]
    made = marker_run((0, 1), COMMIT, 5, names)
    assert read_participants(made.parts[0]) == names and made.parts[0][:10] == marker_run((0, 1), COMMIT, 5).parts[0]
    assert (
        read_participants(marker_run((0, 1), COMMIT, 5).parts[0])
        == []
        == read_participants(marker_run((0, 1), 1, 5, names).parts[0])
    )
    assert read_participants(marker_run((0, 1), COMMIT, 5, names * 100).parts[0]) == [], "of too many none"


def test_a_snapshot_of_an_earlier_version_holds_nothing() -> None:
    part = Part(TOPICS[0], 70)
    part.coming = [run((0, 1), b"1", origin=part.origin), marker(part, (0, 1), 0, [TOPICS[1]])]
    while part.coming:
        part.arrive()
    key: Key = (part.origin, 0, 1)
    assert list(part.buffer.held) == [key]
    again, earlier = TransactionBuffer(), TransactionBuffer()
    again.load(part.buffer.dump())
    earlier.load(part.buffer.dump()[:6])
    assert (
        again.unseen_from() == (1, 0) and list(again.held[key].waits) == [TOPICS[1]] and earlier.unseen_from() is None
    )
    assert (
        again.has_ended_abroad(2, 1, 0, 1)
        and not again.has_ended_abroad(2, 1, 0, 2)
        and not again.has_ended_abroad(2, 2, 0, 1)
    )
