"""The configuration as many operations ask it: together, each as if it were alone; and how often that is."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import ABSENT, Check, Put
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo
from heliograph.model.configuration.leadership import Leadership, Writer, leadership, writer
from heliograph.model.errors import MetadataUnavailable, OutcomeUnknown, VersionConflict
from region_node.dr.operations.grouped_store import SPARE, TOGETHER_MIN, grouped
from region_node.dr.operations.operation import StepAges
from region_node.dr.operations.operation_steps import Conductor
from tests.region_node.dr.operations.counted_store import Counted
from tests.region_node.dr.operations.world import lack, link

NAMES = [f"t/n{number:02}" for number in range(32)]


class Places:
    """The configuration's view, and what both regions know: of each namespace one topic, and all of it is in both."""

    def region(self, name: str) -> RegionInfo:
        return RegionInfo(name=name, number={"us": 1, "eu": 2}[name])

    def namespace(self, name: str) -> NamespacePolicies:
        return NamespacePolicies(regions=("us", "eu"))

    async def facts(self, region: str, namespace: str) -> dict[str, Any]:
        other = "eu" if region == "us" else "us"
        topic: dict[str, Any] = {"vector": {"1.1.a": [7, 9]}, "links": {other: link()}, "lacks": {other: lack()}}
        topic |= {"subscriptions": {}, "producers": 1}
        return {"region": region, "missing": [], "topics": {f"persistent://{namespace}/x": topic}}


async def nothing(*_: Any) -> dict[str, Any]:
    raise AssertionError("nothing is counted")


async def moved(store: Any, below: Counted, kind: str) -> None:
    """Every namespace of NAMES from us to eu, side by side, each step as soon as it can be done."""
    places = Places()

    def conductor() -> Conductor:
        return Conductor(
            store, places, facts_of=places.facts, counts_of=nothing, wall_ms=lambda: 7, ages=StepAges(lambda: 0.0)
        )

    async def obey() -> None:
        """The brokers do what they hear of, soon."""
        obeys = Writer(since=below.machine.index, beside=("b",)).encode()
        await EmbeddedStore.txn(below, [Put(writer(region, "b", 1), obeys) for region in ("us", "eu")])

    async def one(name: str) -> None:
        await conductor().begin(kind, name, "eu", "op")
        for _ in range(100):
            if not (await conductor().advance(name)).running:
                break

    def heard(key: str, *_: Any) -> None:
        loop.call_soon(lambda: tasks.append(loop.create_task(obey())))

    loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[None]]()
    await EmbeddedStore.txn(
        below, [Put(leadership(name), Leadership(active="us", heard=("eu", "us")).encode()) for name in NAMES]
    )
    stop = below.watch("/leadership/", heard)
    await obey()
    await asyncio.gather(*map(one, NAMES))
    stop()
    await asyncio.gather(*tasks)
    for name in NAMES:
        found = await EmbeddedStore.get(below, leadership(name))
        assert found is not None and Leadership.decode(found[0]).active == "eu"


@pytest.mark.parametrize(("kind", "most"), (("switchover", 2.5), ("failover", 4.5)))
def test_many_namespaces_are_moved_with_a_few_calls_each(kind: str, most: float) -> None:
    """Alone each takes more than thirty, one behind the other."""

    async def main() -> None:
        below, alone = Counted(), Counted()
        await moved(grouped(below), below, kind)
        assert below.calls.total() <= most * len(NAMES), below.calls
        await moved(alone, alone, kind)
        assert alone.calls.total() <= 33 * len(NAMES), alone.calls

    run_alone(main())


def test_what_is_read_while_others_read_is_read_once_and_after_it_was_asked_for() -> None:
    async def main() -> None:
        below = Counted()
        store = grouped(below)
        await below.txn([Put(f"/k/t/{number:02}", b"%d" % number) for number in range(20)])
        below.calls.clear()
        first = asyncio.create_task(store.get("/k/t/03"))
        await asyncio.sleep(0)
        wanted = [f"/k/t/{number:02}" for number in range(0, 12, 2)] + ["/k/t/zz", "/k/t/none"]
        rest = asyncio.gather(*map(store.get, wanted), store.range("/k/", "/k0"), store.range("/k/", "/k0", limit=2))
        again = asyncio.gather(store.range("/k/", "/k0"), store.get("/k/t/04"))
        await asyncio.sleep(0)
        await EmbeddedStore.txn(below, [Put("/k/t/04", b"new")])  # before the second group is on its way
        assert (await first or (b"",))[0] == b"3"
        *values, every, two = await rest
        assert [value and value[0] for value in values] == [b"0", b"2", b"new", b"6", b"8", b"10", None, None]
        assert every is not None and two is not None and len(every) == 20 and len(two) == 2
        assert (await again)[0] == every and (await again)[0] is not every
        assert (await again)[1] == values[2]
        # keys that lie apart: what their range has not come to is read one by one
        assert below.calls["range"] == 3 and below.calls["get"] == 1 + 2, below.calls

    run_alone(main())


def test_keys_that_lie_far_apart_are_read_one_by_one() -> None:
    async def main() -> None:
        below = Counted()
        store = grouped(below)
        await below.txn([Put(f"/k/t/{number:03}", b"x") for number in range(200)])
        below.calls.clear()
        wanted = [f"/k/t/{number:03}" for number in range(0, 200, 50)]
        assert len(wanted) == TOGETHER_MIN and SPARE < 50
        busy = asyncio.create_task(store.get("/k/t/000"))
        await asyncio.sleep(0)
        assert all(await asyncio.gather(*map(store.get, wanted))) and await busy
        assert below.calls == {"get": 1 + 3, "range": 1}

    run_alone(main())


def test_a_transaction_that_is_refused_keeps_no_other_from_being_made() -> None:
    async def main() -> None:
        below = Counted()
        store = grouped(below)
        version = await store.put("/k/a", b"1", expected=ABSENT)
        busy = asyncio.create_task(store.put("/k/busy", b""))
        await asyncio.sleep(0)
        below.calls.clear()
        good = [store.txn([Put(f"/k/{name}", b"2", ABSENT), Check("/k/a", version)]) for name in "bc"]
        answers = await asyncio.gather(
            *good, store.put("/k/a", b"3", expected=version + 9), store.put("/k/d", b"4"), return_exceptions=True
        )
        await busy
        assert isinstance(answers[2], VersionConflict) and all(isinstance(answers[at], int) for at in (0, 1, 3))
        found = {key: value for key, value, _ in await store.range("/k/", "/k0")}
        assert found == {"/k/a": b"1", "/k/b": b"2", "/k/c": b"2", "/k/d": b"4", "/k/busy": b""}

    run_alone(main())


def test_two_transactions_of_one_key_are_made_one_behind_the_other() -> None:
    """In one both would find it as it was before."""

    async def main() -> None:
        below = Counted()
        store = grouped(below)
        busy = asyncio.create_task(store.put("/k/busy", b""))
        await asyncio.sleep(0)
        answers = await asyncio.gather(
            *(store.put("/k/a", b"%d" % number, expected=ABSENT) for number in range(3)), return_exceptions=True
        )
        await busy
        assert isinstance(answers[0], int) and all(isinstance(other, VersionConflict) for other in answers[1:])
        assert await store.get("/k/a") == (b"0", answers[0])

    run_alone(main())


@pytest.mark.parametrize("error", (OutcomeUnknown("no answer"), MetadataUnavailable("no leader"), ValueError("a bug")))
def test_what_becomes_of_a_group_is_told_to_each_and_the_next_goes_on(error: Exception) -> None:
    async def main() -> None:
        below = Counted()
        store, loop = grouped(below), asyncio.get_running_loop()
        told = list[Any]()
        loop.set_exception_handler(lambda _, what: told.append(what["exception"]))
        below.broken = error
        calls = [store.put(f"/k/{number}", b"") for number in range(6)] + [store.get(f"/k/{n}") for n in range(6)]
        answers = await asyncio.gather(*calls, return_exceptions=True)
        bug = isinstance(error, ValueError)
        expected = MetadataUnavailable if bug else type(error)
        assert all(isinstance(answer, expected) for answer in answers) and set(told) == ({error} if bug else set())
        below.broken = None
        assert await store.put("/k/0", b"x") and await store.get("/k/0")

    asyncio.run(main())
