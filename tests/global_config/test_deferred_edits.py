"""Regions edit policies while they are cut off: afterwards each edit is in the configuration, or is a conflict; nothing
is overwritten unseen.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pytest

from geo_tests.sim.leadership import DriftingClock
from geo_tests.sim.loop import run_alone
from geo_tests.sim.merge_eyes import MergeEyes
from global_config import deferred_edits, keys, policy_edits
from global_config.admin import ConfigAdmin
from global_config.deferred_edits import CONFLICTS, EDITS, LAST, MERGED, DeferredEdits
from global_config.policy_edits import Conflict, Edit
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Op, WatchCallback, pages_under
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo, TopicPolicies
from heliograph.model.errors import HeliographError, MetadataUnavailable, NotAllowed, NotFound, OutcomeUnknown
from tests.broken_rules import BrokenRules

TOPIC, NS = "persistent://t/n/x", "t/n"
REGIONS = ("us", "eu", "ap")


class Cut(AssertionError):
    """An edit was lost, or overwrote what it did not know."""


class Reach:
    """One broker's way to the configuration, which is cut, or loses an answer."""

    def __init__(self, inner: EmbeddedStore, rng: random.Random) -> None:
        self._inner, self._rng = inner, rng
        self.cut, self.lossy = False, True
        self._held: list[tuple[WatchCallback, tuple[str, bytes | None, int]]] = []

    def heal(self) -> None:
        self.cut, held, self._held = False, self._held, []
        for callback, change in held:
            callback(*change)

    def _check(self) -> None:
        if self.cut:
            raise MetadataUnavailable("cut off")

    async def get(self, key: str) -> tuple[bytes, int] | None:
        self._check()
        await asyncio.sleep(0.01)
        return await self._inner.get(key)

    async def range(self, start: str, end: str, *, limit: int | None = None) -> list[tuple[str, bytes, int]]:
        self._check()
        return await self._inner.range(start, end, limit=limit)

    @property
    def range_limit(self) -> int:
        return self._inner.range_limit

    async def txn(self, ops: Sequence[Op]) -> int:
        self._check()
        await asyncio.sleep(self._rng.choice((0.0, 0.05)))
        if self.cut:
            raise MetadataUnavailable("cut off")
        version = await self._inner.txn(ops)
        if self.lossy and self._rng.random() < 0.2:
            raise OutcomeUnknown("the answer was lost")
        return version

    async def delete(self, key: str, *, expected: int | None = None) -> bool:
        self._check()
        return await self._inner.delete(key, expected=expected)

    def watch(self, prefix: str, callback: WatchCallback) -> Callable[[], None]:
        def heard(key: str, value: bytes | None, version: int) -> None:
            if self.cut:
                self._held.append((callback, (key, value, version)))
            else:
                callback(key, value, version)

        return self._inner.watch(prefix, heard)

    async def synced(self, prefix: str) -> None:
        await self._inner.synced(prefix)

    def stale_s(self) -> float:
        return 5.0 if self.cut else 0.0


class Region:
    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.machine = KvMachine(settings=MachineSettings(range_limit=3))
        self.meta = EmbeddedStore(self.machine)
        self.reaches: list[Reach] = []
        self.brokers: list[tuple[ConfigView, DeferredEdits, ConfigAdmin]] = []

    async def start(self) -> None:
        self.world.eyes.watch_region(self.name, self.machine)
        reach = Reach(self.world.config, self.world.rng)
        view = ConfigView(reach)  # type: ignore[arg-type]
        await view.ready()
        made = DeferredEdits(reach, self.meta, view, region=self.name, clock=DriftingClock(1.0))  # type: ignore[arg-type]
        await made.start()
        self.reaches.append(reach)
        self.brokers.append((view, made, ConfigAdmin(reach, made)))  # type: ignore[arg-type]

    async def crash(self) -> None:
        _, broker_edits, _ = self.brokers.pop(0)
        self.reaches.pop(0)
        await broker_edits.stop()
        await self.start()


class World:
    """Two brokers a region. Every value that is set is its own, so that one is told from another; or, where values
    recur, one of four: then the eyes alone say what became of each edit.
    """

    def __init__(self, seed: int, *, recur: bool = False) -> None:
        self.rng = random.Random(seed)
        self.recur = recur
        self.eyes = MergeEyes(NS, TOPIC, REGIONS, self._fail)
        self.counts: Counter[str] = Counter()
        self.made: dict[tuple[str, str, Any], list[Any]] = {}
        """(key, path, value) of each edit that was accepted -> what it found there."""
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.number = 0

    def run(self) -> None:
        run_alone(self._main(), limit_s=500)

    async def _main(self) -> None:
        machine = KvMachine(settings=MachineSettings(range_limit=3))
        self.config = EmbeddedStore(machine)
        self.eyes.watch_configuration(machine, machine)
        admin = ConfigAdmin(self.config)
        for region in REGIONS:
            await admin.create_region(region)
        await admin.create_tenant("t", TenantInfo(allowed_regions=REGIONS))
        await admin.create_namespace(NS, NamespacePolicies(regions=REGIONS))
        for prefix in (keys.NAMESPACES, keys.TOPIC_POLICIES):
            self.config.watch(prefix, lambda key, value, _: self._stored(key, value))
        regions = [Region(self, name) for name in REGIONS]
        for region in regions:
            await region.start()
            await region.start()
        for _ in range(40):
            await asyncio.sleep(self.rng.uniform(0.0, 1.5))
            region = self.rng.choice(regions)
            match self.rng.randrange(8):
                case 0:
                    for reach in region.reaches:
                        reach.cut = True
                case 1:
                    for reach in region.reaches:
                        reach.heal()
                case 2:
                    await region.crash()
                case _:
                    await self._edit(region)
        for region in regions:
            for reach in region.reaches:
                reach.heal()
        await asyncio.sleep(60)
        await self._judge(regions)
        for region in regions:
            for _, broker_edits, _ in region.brokers:
                await broker_edits.stop()

    async def _edit(self, region: Region) -> None:
        _, _, admin = region.brokers[self.rng.randrange(len(region.brokers))]
        self.number = self.rng.randrange(1, 5) if self.recur else self.number + 1
        number, found = self.number, list[Any]()
        kind = self.rng.randrange(4)

        def change_topic(old: TopicPolicies) -> TopicPolicies:
            if kind == 0:
                found[:] = policy_edits._at(old.policies, "messageTTL")
                return TopicPolicies(policies={**old.policies, "messageTTL": number}, properties=old.properties)
            found[:] = policy_edits._at(old.properties, f"p{kind}")
            return TopicPolicies(policies=old.policies, properties={**old.properties, f"p{kind}": str(number)})

        def change_namespace(old: NamespacePolicies) -> NamespacePolicies:
            found[:] = policy_edits._at(old.policies, "messageTTL")
            return deferred_edits.replace(old, policies={**old.policies, "messageTTL": number})

        try:
            if kind == 3:
                await admin.update_namespace(NS, change_namespace)
                made = keys.namespace(NS), "messageTTL", number
            else:
                await admin.change_topic_policies(TOPIC, change_topic)
                made = keys.topic_policies(TOPIC), *(("messageTTL", number) if kind == 0 else (f"p{kind}", str(number)))
            self.made[made] = found
            self.eyes.accept(made[:2], found, [made[2]])
            self.counts["edits"] += 1
        except OutcomeUnknown:
            self.counts["unknown"] += 1

    def _stored(self, key: str, value: bytes | None) -> None:
        if value is not None:
            known = json.loads(value)
            self.seen.append((key, {**known["policies"], **known.get("properties", {})}))

    async def _judge(self, regions: list[Region]) -> None:
        conflicts = [
            Conflict.decode(value) async for rows in pages_under(self.config, CONFLICTS) for _, value, _ in rows
        ]
        listed = {(conflict.key, conflict.path[-1], conflict.mine[0]) for conflict in conflicts}
        self.counts["conflicts"] += len(conflicts if self.recur else listed)
        self.eyes.judge()
        if not self.recur:
            self._judge_by_value(listed)
        for region in regions:
            assert not await region.meta.range(EDITS, EDITS + "~"), "nothing waits"
            for view, broker_edits, _ in region.brokers:
                first = regions[0].brokers[0][0]
                assert view.topic_policies(TOPIC) == first.topic_policies(TOPIC) and view.namespace(
                    NS
                ) == first.namespace(NS), "the same everywhere"
                assert len(broker_edits.conflicts) == len(conflicts), "and so are the conflicts"
            last, mark = await region.meta.get(LAST), await self.config.get(MERGED + region.name)
            assert (last and last[0]) == (mark and mark[0]), "each is merged, and one number says so"

    def _judge_by_value(self, listed: set[tuple[str, str, Any]]) -> None:
        before: dict[tuple[str, str], Any] = {}
        stored = set[tuple[str, str, Any]]()
        for key, fields in self.seen:
            for path, value in fields.items():
                if before.get((key, path)) == value:
                    continue
                known = [before[key, path]] if (key, path) in before else []
                found = self.made.get((key, path, value))
                if found is not None and found != known:
                    raise Cut(f"{value} of {path} overwrote {known}, and its maker had seen {found}")
                if (key, path, value) in stored:
                    raise Cut(f"{value} of {path} came a second time")
                stored.add((key, path, value))
                before[key, path] = value
        for edit in self.made:
            if (edit in stored) + (edit in listed) != 1:
                raise Cut(f"{edit}: in the configuration {edit in stored}, a conflict {edit in listed}")

    def _fail(self, text: str) -> None:
        raise Cut(text)


@pytest.mark.parametrize("recur", (False, True))
def test_every_edit_is_merged_or_a_conflict(recur: bool) -> None:
    """Also where values come again, so that what an edit found may stand there for another reason."""
    seen: Counter[str] = Counter()
    for seed in range(20):
        world = World(seed, recur=recur)
        world.run()
        seen += world.counts
    assert seen["edits"] > 250 and seen["conflicts"] > (3 if recur else 15), seen


def _mutants() -> Mapping[str, Callable[[BrokenRules], None]]:
    def mine_always_wins(patch: BrokenRules) -> None:
        patch.setattr(
            policy_edits,
            "_merge",
            lambda out, name, path, before, after, conflicts: policy_edits._set(out, name, after),
        )

    def conflicts_are_dropped(patch: BrokenRules) -> None:
        original = policy_edits.merged
        patch.setattr(deferred_edits, "merged", lambda fields, changes: (original(fields, changes)[0], []))

    def there_is_no_mark(patch: BrokenRules) -> None:
        original = Reach.txn

        async def txn(self: Reach, ops: Sequence[Op]) -> int:
            return await original(self, [op for op in ops if not op.key.startswith(MERGED)])

        patch.setattr(Reach, "txn", txn)

    def an_edit_goes_before_it_is_merged(patch: BrokenRules) -> None:
        original = DeferredEdits._merge

        async def merge(self: DeferredEdits, key: str, edit: Edit) -> None:
            await self._meta.delete(key)
            self._meta, kept = EmbeddedStore(KvMachine(settings=MachineSettings(range_limit=3))), self._meta
            try:
                await self._meta.put(key, edit.encode())
                await original(self, key, edit)
            finally:
                self._meta = kept

        patch.setattr(DeferredEdits, "_merge", merge)

    def maps_are_taken_whole(patch: BrokenRules) -> None:
        patch.setattr(
            deferred_edits,
            "merged",
            lambda fields, changes: ({**fields, **{path[0]: after[0] for path, _, after in changes if after}}, []),
        )

    return {name: mutant for name, mutant in locals().items() if callable(mutant)}


@pytest.mark.parametrize("mutant", sorted(_mutants()))
def test_each_rule_is_needed(mutant: str, broken: BrokenRules) -> None:
    _mutants()[mutant](broken)
    broken.look(lambda seed: World(seed).run(), range(60))


def test_a_conflict_is_ended_either_way_and_what_needs_a_majority_waits() -> None:
    async def main() -> None:
        world = World(1)
        world.config = EmbeddedStore(KvMachine(settings=MachineSettings(range_limit=3)))
        admin = ConfigAdmin(world.config)
        await admin.create_region("us")
        await admin.create_tenant("t", TenantInfo(allowed_regions=("us",)))
        await admin.create_namespace(NS, NamespacePolicies(regions=("us",)))
        region = Region(world, "us")
        await region.start()
        view, broker_edits, own = region.brokers[0]
        region.reaches[0].lossy = False
        await asyncio.sleep(1)
        region.reaches[0].cut = True
        with pytest.raises(MetadataUnavailable, match="only policies"):
            await own.update_namespace(NS, lambda old: deferred_edits.replace(old, allowed_regions=("us",)))
        with pytest.raises(NotFound):
            await own.update_namespace("t/none", lambda old: old)
        with pytest.raises(NotAllowed):
            await own.change_topic_policies(TOPIC, lambda _: TopicPolicies(policies={"nonsense": 1}))
        for ttl in (7, 8):
            await own.update_namespace(
                NS, lambda old, ttl=ttl: deferred_edits.replace(old, policies={"messageTTL": ttl})
            )  # type: ignore[misc]
            await asyncio.sleep(0.1)
            found = view.namespace(NS)
            assert found is not None and found.policies == {"messageTTL": ttl}, "it is obeyed here at once"
        await own.change_topic_policies(TOPIC, lambda _: TopicPolicies(properties={"a": "1"}))
        assert broker_edits.status()["pending"][0]["changes"] == ([["messageTTL"], [], [7]],)
        await admin.update_namespace(NS, lambda old: deferred_edits.replace(old, policies={"messageTTL": 100}))
        region.reaches[0].heal()
        await asyncio.sleep(30)
        rows = broker_edits.status()["conflicts"]
        assert [(row["mine"], row["theirs"], row["before"]) for row in rows] == [
            ((7,), (100,), ()),
            ((8,), (100,), (7,)),
        ]
        assert view.topic_policies(TOPIC) == TopicPolicies(properties={"a": "1"}), "what nobody else touched is merged"
        await broker_edits.resolve(rows[0]["name"], "theirs")
        await broker_edits.resolve(rows[1]["name"], "mine")
        with pytest.raises(NotFound):
            await broker_edits.resolve(rows[1]["name"], "mine")
        await asyncio.sleep(1)
        found = view.namespace(NS)
        assert found is not None and found.policies == {"messageTTL": 8} and not broker_edits.conflicts
        region.reaches[0].cut = True
        await own.update_namespace(NS, lambda old: deferred_edits.replace(old, policies={"messageTTL": 9}))
        await admin.delete_namespace(NS)
        region.reaches[0].heal()
        await asyncio.sleep(30)
        assert [row["because"] for row in broker_edits.status()["conflicts"]] == [f"namespace {NS} was deleted"]
        await broker_edits.stop()

    run_alone(main())


def test_what_is_written_while_an_edit_is_merged_is_seen() -> None:
    """It makes the same of a policy between the look at it and the merge: no conflict is left with what is gone."""

    async def main() -> None:
        world = World(1)
        world.config = EmbeddedStore(KvMachine(settings=MachineSettings(range_limit=3)))
        admin = ConfigAdmin(world.config)
        await admin.create_region("us")
        await admin.create_tenant("t", TenantInfo(allowed_regions=("us",)))
        await admin.create_namespace(NS, NamespacePolicies(regions=("us",)))
        region = Region(world, "us")
        await region.start()
        _, broker_edits, own = region.brokers[0]
        (reach,) = region.reaches
        reach.lossy, reach.cut = False, True

        async def set_ttl(through: ConfigAdmin, ttl: int) -> None:
            await through.update_namespace(NS, lambda old: deferred_edits.replace(old, policies={"messageTTL": ttl}))

        await set_ttl(own, 8)
        await set_ttl(admin, 9)
        reach.cut, txn = False, reach.txn

        async def meanwhile(ops: Sequence[Op]) -> int:
            reach.txn = txn  # type: ignore[method-assign]
            await set_ttl(admin, 8)
            return await txn(ops)

        reach.txn = meanwhile  # type: ignore[method-assign]
        await broker_edits.merge()
        assert not await world.config.range(CONFLICTS, CONFLICTS + "~")
        assert broker_edits.merged == 1 and not await region.meta.range(EDITS, EDITS + "~")
        await broker_edits.stop()

    run_alone(main())


def test_bytes_that_are_no_edit_are_an_error_that_names_them() -> None:
    with pytest.raises(HeliographError, match="newer version"):
        Edit.decode(b'{"format": 9, "id": 1, "key": "x"}')
