"""`heliograph dr`: a command that dies anywhere goes on when it is given again, and ends as it would have."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any, cast

import pytest

from geo_tests.sim.loop import SimLoop
from heliograph.cli.regions import disaster_recovery
from heliograph.cli.regions.dr_operations import OperationRequest
from heliograph.cli.show import Output
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Put
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.configuration.leadership import OPEN, Writer, subscription_name, writer
from heliograph.model.errors import ConfigError, HeliographError
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.operations import namespace_facts
from region_node.dr.operations.messages_at_risk import at_risk
from region_node.dr.operations.operation import STEPS, Operation
from region_node.faces.admin.dr import subscription_switchover
from tests.region_node.dr.operations.world import NS, Interrupted, World, lack

SUBSCRIPTION = subscription_name(f"persistent://{NS}/x", "s")


class Died(BaseException):
    """Ctrl-C, or the machine of whoever gave the command."""


class Broker:
    """What a command asks of a broker, answered by the conductor itself, and by regions that obey. It dies at the
    `at`-th call, its answer lost or not.
    """

    pause_s = 0.0

    def __init__(self, loop: SimLoop, world: World) -> None:
        self.loop, self.world = loop, world
        self.at, self.calls, self.before = 0, 0, False

    def _ask(self, work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        self.calls += 1
        if self.calls == self.at and self.before:
            raise Died
        try:
            answer = self.loop.run(work())
        except HeliographError as error:
            raise ConfigError(str(error)) from error
        if self.calls == self.at:
            raise Died
        return answer

    def get(self, path: str) -> Any:
        return self._ask(self._status)

    def post(self, path: str, given: Any = None, **_: Any) -> Any:
        if path.endswith("/advance"):
            return self._ask(self._advance)
        assert path.endswith("/operations")
        return self._ask(lambda: self._begin(given["kind"], given["to"]))

    async def _status(self) -> dict[str, Any]:
        found, _ = await self.world.make().operation(NS)
        return {"active": (await self.world.leadership()).active, "operation": None if found is None else _shown(found)}

    async def _begin(self, kind: str, to: str) -> dict[str, Any]:
        return _shown(await self.world.make().begin(kind, NS, to, "op"))

    async def _advance(self) -> dict[str, Any]:
        after = await self.world.make().advance(NS)
        for region in ("us", "eu"):
            await self.world.obey(region)
        return _shown(after)


def _shown(operation: Operation) -> dict[str, Any]:
    return {**asdict(operation), "steps": [{"step": name, "found": text} for name, _, text in operation.steps]}


def wanted(kind: str, to: str, **more: bool) -> OperationRequest:
    return OperationRequest(kind=kind, namespace=NS, to=to, **more)


COMMANDS: dict[str, tuple[Callable[[Any], None], list[str], str]] = {
    "switchover": (
        lambda rest: disaster_recovery.switchover(rest, Output(), wanted("switchover", "eu")),
        ["switchover"],
        "eu",
    ),
    "failover": (
        lambda rest: disaster_recovery.failover(rest, Output(), wanted("failover", "eu", yes=True)),
        ["failover"],
        "eu",
    ),
    "rejoin": (lambda rest: disaster_recovery.rejoin(rest, Output(), NS, "us"), ["failover", "rejoin"], "eu"),
    "failback": (
        lambda rest: disaster_recovery.failback(rest, Output(), wanted("failback", "us")),
        ["failover", "rejoin", "switchover"],
        "us",
    ),
    "drill": (lambda rest: disaster_recovery.drill(rest, Output(), wanted("drill", "eu")), ["drill"], "us"),
}
"""Command -> itself, the operations that are on record when it has ended, and the region that is active then."""


@pytest.fixture
def loop() -> Iterator[SimLoop]:
    made = SimLoop()
    asyncio.set_event_loop(made)
    yield made
    asyncio.set_event_loop(None)
    made.close()


def lives(loop: SimLoop, command: str, at: int, before: bool) -> int:
    """Gives the command until it ends. It dies at call `at`, before or after that is done; 0: it does not. Returns its
    calls.
    """
    run, operations, active = COMMANDS[command]
    world = World()
    broker = Broker(loop, world)
    loop.run(world.begin())
    if operations[0] == "failover" and command != "failover":
        disaster_recovery.failover(cast(Any, broker), Output(), wanted("failover", "eu", yes=True))
        world.topic("eu")["vector"] = {"1.1.a": [7, 11]}
    broker.at, broker.before, broker.calls = at, before, 0
    try:
        run(broker)
    except Died:
        try:
            run(broker)
        except ConfigError as error:  # it had ended, and had not heard of it
            assert "active in" in str(error) and "already" in str(error), f"died at call {at}: {error}"
    record = loop.run(world.leadership())
    done = loop.run(world.conductor.history(NS))
    kinds = [op.kind for op in done if op.state == "done"]
    again = command in ("rejoin", "drill", "failback") and len(kinds) > len(
        operations
    )  # it may be done twice: nothing is moved by it
    assert kinds == operations or (again and set(kinds) == set(operations)), f"died at call {at}: {kinds}"
    assert all([step[0] for step in op.steps] == list(STEPS[op.kind]) for op in done), "each step once, in order"
    assert (record.active, record.state) == (active, "open"), f"died at call {at}"
    return broker.calls


@pytest.mark.parametrize("before", (True, False), ids=("asked", "answered"))
@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_that_dies_at_any_call_goes_on(command: str, before: bool, loop: SimLoop) -> None:
    calls = lives(loop, command, 0, before)
    assert calls > len(STEPS[COMMANDS[command][1][-1]]), "it asks for each step"
    for at in range(1, calls + 1):
        lives(loop, command, at, before)


def test_a_command_whose_operation_was_given_up_says_so_and_ends(
    loop: SimLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World()
    broker = Broker(loop, world)
    loop.run(world.begin())
    begin = broker._begin

    async def begin_and_be_passed_over(kind: str, to: str) -> dict[str, Any]:
        begun = await begin(kind, to)
        await world.make().begin("switchover", NS, "eu", "another")
        return begun

    monkeypatch.setattr(broker, "_begin", begin_and_be_passed_over)
    with pytest.raises(ConfigError, match="a switchover to eu was begun"):
        disaster_recovery.drill(cast(Any, broker), Output(), wanted("drill", "eu"))


# -- moving a subscription ---------------------------------------------------------------------------------------------


class Mover:
    """The broker that a move is asked of; the regions' brokers obey after each step. Interrupted: at a write, before or
    after it.
    """

    pause_s = 0.0

    def __init__(self, loop: SimLoop, store: Interrupted) -> None:
        self.loop, self.store = loop, store
        self.admin: Any = SimpleNamespace(
            subscription_leadership=SimpleNamespace(switching=Switching(store, lambda: 0)),
            clock=SimpleNamespace(wall_ms=lambda: 0),
            policies=lambda _: NamespacePolicies(regions=("us", "eu")),
        )

    def post(self, path: str, given: Any) -> Any:
        try:
            return self.loop.run(self._move(given))
        except HeliographError as error:
            raise ConfigError(str(error)) from error

    async def _move(self, given: Any) -> Any:
        found = await subscription_switchover._step(
            self.admin, SimpleNamespace(), SUBSCRIPTION, given["to"], fence=given["fence"], force=given["force"]
        )
        for region in (
            "us",
            "eu",
        ):  # a store that is interrupted is the configuration's, and they write to it on their own
            await EmbeddedStore.txn(
                self.store,
                [Put(writer(region, "b", 1), Writer(since=self.store.machine.index, beside=("b",)).encode())],
            )
        return found


@pytest.mark.parametrize("after", (False, True), ids=("lost", "answer-lost"))
@pytest.mark.parametrize("drain_s", (60.0, 0.0), ids=("drained", "fenced"))
def test_a_move_of_a_subscription_that_is_interrupted_at_any_write_goes_on(
    drain_s: float, after: bool, loop: SimLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def in_step(*_: Any) -> str:
        return ""

    assert inspect.iscoroutinefunction(subscription_switchover._out_of_step)
    monkeypatch.setattr(subscription_switchover, "_out_of_step", in_step)  # what is acknowledged here is known there
    for at in range(1, 20):
        store = Interrupted(0, after)
        mover = Mover(loop, store)
        loop.run(mover.admin.subscription_leadership.switching.begin(SUBSCRIPTION, "us", {}))
        store.at, store.writes = at, 0
        for _ in range(3):
            try:
                disaster_recovery.subscription_move(
                    cast(Any, mover), Output(), f"persistent://{NS}/x", "s", "eu", drain_s=drain_s
                )
                break
            except ConfigError as error:
                assert "interrupted" in str(error)
        record, _ = loop.run(mover.admin.subscription_leadership.switching.get(SUBSCRIPTION))
        assert (record.active, record.state, record.epoch) == ("eu", OPEN, 2), f"interrupted at write {at}"
        if store.writes < at:
            return
    raise AssertionError("a move has fewer writes than that")


# -- what is shown -----------------------------------------------------------------------------------------------------


def test_a_leadership_that_asks_for_its_region_says_so_and_names_the_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = {"mode": "active-passive", "active": "us", "epoch": 7, "state": "fenced", "operation": None, "targets": {}}
    asks = "the configuration was restored from a backup"
    rest = SimpleNamespace(get=lambda path: {**found, "asks": asks})
    disaster_recovery.status(cast(Any, rest), Output(), NS)
    said = " ".join(capsys.readouterr().out.split())
    assert asks in said and f"heliograph dr set {NS}" in said


def test_what_is_not_known_to_be_at_risk_is_shown_as_unknown_by_status_and_plan(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """us was heard last 40 s ago; then 105 messages of it were not in eu."""
    risk = at_risk("us", "eu", None, namespace_facts.lacking(SILENT, "us"))
    cost = {
        "source": {"region": "us", "unreachable": "nothing came"},
        "target": {"region": "eu", **namespace_facts.lacking(SILENT, "us")},
        "at_risk": risk,
    }
    shown = {"mode": "active-passive", "active": "us", "epoch": 7, "state": "open", "operation": None, "asks": ""}
    targets = {"eu": {"can_switch": False, "because": "us does not answer", **cost}}
    plan = {"kind": "failover", "namespace": NS, "source": "us", "target": "eu"}
    rest = SimpleNamespace(
        get=lambda path: {**shown, "targets": targets},
        post=lambda path, given: {**plan, "cost": {**cost, "active": "us", "epoch": 7, "steps": {}}},
    )
    disaster_recovery.status(cast(Any, rest), Output(), NS)
    assert "? (105)" in capsys.readouterr().out
    disaster_recovery.failover(cast(Any, rest), Output(), wanted("failover", "eu", dry_run=True))
    said = capsys.readouterr().out
    assert f"at risk: {risk['text']}" in said and "105 messages" in risk["text"] and "40.0 s ago" in risk["text"]


SILENT: dict[str, Any] = {
    "missing": [],
    "topics": {"x": {"lacks": {"us": lack(messages=105, silent_s=40.0, connected=False)}}},
}
