"""Verdicts, promises, and signatures: what changes them, and what does not."""

from __future__ import annotations

import asyncio
import random
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.configuration.leadership import Leadership
from heliograph.model.errors import ConfigError, MetadataUnavailable, NotAllowed
from heliograph.model.topic_names import TopicName
from region_node.dr.canary import Canary, CanaryVerdict
from region_node.dr.canary_settings import CanarySettings
from region_node.dr.leadership.write_gates import Writing
from region_node.dr.operations import report_signing
from region_node.dr.operations.drill import judged
from region_node.dr.slo_monitor import Promises


def test_one_bad_try_changes_nothing_and_neither_does_one_good_one() -> None:
    verdict = CanaryVerdict(CanarySettings(bad_after=2, good_after=2))
    assert [verdict.tried(why, 1.0) for why in ("", "x", "", "x", "x", "", "x", "", "")] == [
        True,
        False,
        False,
        False,
        True,
        False,
        False,
        False,
        True,
    ]
    assert verdict.good and (verdict.tries, verdict.failures) == (9, 4)


def test_a_broker_that_begins_badly_is_not_healthy() -> None:
    verdict = CanaryVerdict(CanarySettings())
    assert not verdict.tried("x", 1.0) and not verdict.good and not verdict.tried("", 1.0) and verdict.tried("", 1.0)


@pytest.mark.parametrize("wrong", ({"port": -1}, {"port": 70000}, {"interval_s": 0}, {"bad_after": 0}))
def test_settings_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="canary"):
        CanarySettings(**wrong)


class Clock:
    def monotonic(self) -> float:
        return 0.0

    def wall_ms(self) -> int:
        return 7


class View:
    """The configuration's view: one namespace by default, that promises nothing."""

    def __init__(self, **policies: Any) -> None:
        self.policies, self.changed = policies, list[Any]()

    def on_change(self, callback: Any) -> Any:
        self.changed.append(callback)
        return lambda: None

    def tenants(self) -> list[str]:
        return ["t"]

    def namespaces(self, _: str) -> list[str]:
        return ["t/every"]

    def namespace(self, _: str) -> NamespacePolicies:
        return NamespacePolicies(regions=("us", "eu"), policies=self.policies)


def test_a_policy_promises_where_every_region_is_active() -> None:
    """Both what this region published and others lack, and what others published and it lacks, are at risk."""
    view, ages, told = View(slo={"rpo_s": 5.0}), [0.0, 0.0], list[str]()
    link = SimpleNamespace(at_risk_s=lambda *_: ages[1], untold_s=lambda _: 3.0 if ages[1] == 7.0 else 0.0)
    topic = SimpleNamespace(
        name=TopicName.parse("persistent://t/every/x"),
        text="x",
        volatile=False,
        log=SimpleNamespace(incoming={"eu": link}),
    )
    other = SimpleNamespace(
        name=TopicName.parse("persistent://t/none/x"), text="y", volatile=False, log=SimpleNamespace(incoming={})
    )
    links: Any = SimpleNamespace(at_risk=lambda: {"x": ages[0], "y": 99.0})
    topics: Any = (topic, other)
    made: Any = view
    promises = Promises(
        gates=lambda: (),
        view=made,
        topics=lambda: topics,
        links=links,
        region="us",
        clock=Clock(),
        call_later=lambda *_: None,
        told=lambda event: told.append(event["event"]),
    )
    for ages[0], ages[1] in ((1.0, 5.0), (5.1, 0.0), (0.0, 6.0), (4.0, 4.0), (0.0, 7.0)):
        promises._tick()
    assert told == ["slo.broken", "slo.kept", "slo.broken"] and [event["value"] for event in promises.events] == [
        5.1,
        4.0,
        7.0,
    ]
    assert promises.status() == [
        {"namespace": "t/every", "rpo_s": 5.0, "at_risk_s": 7.0, "silent_s": 3.0, "slo_broken": True}
    ]
    assert {(name, value) for name, _, _, value in promises.samples()} == {
        ("heliograph_dr_at_risk_seconds", 7.0),
        ("heliograph_dr_silent_seconds", 3.0),
        ("heliograph_dr_slo_broken", 1.0),
    }
    view.policies = {}
    view.changed[0]("/namespaces/t/every")
    promises._tick()
    assert not promises.broken and not promises.status(), "nothing is promised any more"


@pytest.mark.parametrize(
    ("policies", "shadow_of", "trees", "at_risk_s"),
    (
        ({}, "", {}, 60.0),
        ({"replication": ["us", "eu"]}, "", {}, 60.0),
        ({"replication": ["eu"]}, "", {}, 0.0),
        ({"replicationRoutes": {"ap": ["eu"]}}, "", {}, 0.0),
        ({}, "persistent://t/n/source", {}, 0.0),
        ({}, "", {"a tree": 1}, 0.0),
    ),
)
@pytest.mark.parametrize("promised_by", ("dr set", "policy", "policy, ap is heard"))
def test_a_topic_that_was_loaded_after_a_region_fell_silent_is_at_risk(
    policies: dict[str, Any], shadow_of: str, trees: dict[str, int], at_risk_s: float, promised_by: str
) -> None:
    """A broker that takes a topic over while the active region, or one of several, is lost was never told anything of
    it; that is no 0. Who has nothing to tell is not waited for.
    """
    name, active_passive = "t/every", promised_by == "dr set"
    writing = Writing("eu", ttl_s=6, drift=0.1, now=lambda: 0.0)
    if active_passive:
        writing.on_record(name, Leadership(active="us", slo={"rpo_s": 5.0}), 1)
    view: Any = View() if active_passive else View(slo={"rpo_s": 5.0})
    heard = SimpleNamespace(at_risk_s=lambda *_: 0.0, untold_s=lambda _: 0.0)
    topic: Any = SimpleNamespace(
        name=TopicName.parse(f"persistent://{name}/x"),
        text="x",
        volatile=False,
        shadow_of=shadow_of,
        loaded_ms=7 - 60_000,
        policies=SimpleNamespace(values=policies),
        log=SimpleNamespace(
            incoming={"ap": heard} if promised_by == "policy, ap is heard" else {}, state=SimpleNamespace(trees=trees)
        ),
    )
    links: Any = SimpleNamespace(at_risk=dict)
    promises = Promises(
        gates=writing.gates,
        view=view,
        topics=lambda: (topic,),
        links=links,
        region="eu",
        clock=Clock(),
        call_later=lambda *_: None,
    )
    promises._tick()
    assert promises.risk_s == {name: at_risk_s} and promises.silent_s == ({name: at_risk_s} if at_risk_s else {})
    assert (name in promises.broken) is bool(at_risk_s)
    assert [event["silent_s"] for event in promises.events] == ([at_risk_s] if at_risk_s else [])


def test_an_event_when_a_promise_is_broken_and_one_when_it_is_kept_again() -> None:
    writing = Writing("us", ttl_s=6, drift=0.1, now=lambda: 0.0)
    writing.on_record("t/n", Leadership(active="us", slo={"rpo_s": 5.0}), 1)
    writing.on_record("t/free", Leadership(active="us"), 2)
    nothing: Any = None
    view: Any = View()
    promises = Promises(
        gates=writing.gates, view=view, topics=lambda: (), links=nothing, region="us", clock=Clock(), call_later=nothing
    )
    for risk in (1.0, 5.0, 5.1, 9.0, 6.0, 5.0, 4.0, 8.0):
        promises.judge(writing.gates(), {"t/n": risk, "t/free": risk})
    assert [(event["event"], event["value"]) for event in promises.events] == [
        ("slo.broken", 5.1),
        ("slo.kept", 5.0),
        ("slo.broken", 8.0),
    ]
    samples = {(name, labels["namespace"]): value for name, _, labels, value in promises.samples()}
    assert samples["heliograph_dr_slo_broken", "t/n"] == 1 and samples["heliograph_dr_slo_broken", "t/free"] == 0
    writing.on_record("t/n", None, 3)
    promises.judge(writing.gates(), {})
    assert not promises.broken


GOOD = {
    "rpo": {"messages": 0, "bytes": 0, "seconds": 0.0, "down": []},
    "audit": {"left": 0, "unchecked": 0, "errors": [], "found": {}},
    "rto_lost_s": 8.0,
    "clients": {"pulsar": {"measured": True}},
    "publish_latency": {"us": {"verdict": "kept"}, "eu": {"verdict": "no traffic"}},
}


@pytest.mark.parametrize(
    "changed",
    (
        {"rpo": {"messages": 4, "bytes": 4, "seconds": 6.0, "down": []}},
        {"rpo": {"messages": 0, "bytes": 0, "seconds": 0.0, "down": ["x"]}},
        {"rto_lost_s": 16.0},
        {"audit": {"left": 1, "unchecked": 0, "errors": [], "found": {"lost": 1}}},
        {"audit": {"left": 0, "unchecked": 0, "errors": [], "found": {"lost": 2, "twice": 1}}},
        {"audit": {"left": 0, "unchecked": 1, "errors": [], "found": {}}},
        {"audit": {"left": 0, "unchecked": 0, "errors": ["no link"], "found": {}}},
        {"publish_latency": {"us": {"verdict": "not measured"}, "eu": {"verdict": "kept"}}},
        {
            "publish_latency": {
                "us": {"verdict": "kept"},
                "eu": {"verdict": "broken", "p99_before_ms": 3.0, "p99_during_ms": 9.5, "limit_ms": 8.6},
            }
        },
    ),
)
def test_a_drill_passes_only_where_everything_was_measured_and_holds(changed: dict[str, Any]) -> None:
    record = Leadership(active="us", slo={"rpo_s": 5.0, "rto_s": 15.0})
    assert judged(GOOD, record)["passed"]
    verdict = judged({**GOOD, **changed}, record)
    assert not verdict["passed"] and len(verdict["because"]) == 1


def test_a_report_that_was_changed_is_found_out() -> None:
    async def main() -> None:
        meta, config, rng = EmbeddedStore(), EmbeddedStore(), random.Random(3)
        signer = report_signing.Signer("us", meta, config, rng)
        report = await signer.sign({"namespace": "t/n", "passed": False, "why": "ü"})
        report_signing.check(report)
        again = await report_signing.Signer("us", meta, config, rng).sign({"namespace": "t/n"})
        assert again["public_key"] == report["public_key"] and await signer.known("us", report["public_key"])
        assert not await signer.known("eu", report["public_key"]) and not await signer.known("us", "00" * 32)
        other = await report_signing.Signer("eu", EmbeddedStore(), config, rng).sign({"namespace": "t/n"})
        for wrong in (
            {**report, "passed": True},
            {**report, "signature": "00" * 64},
            {**report, "signature": "nothing"},
            {**report, "public_key": other["public_key"]},
            {**report, "more": 1},
            {key: value for key, value in report.items() if key != "signature"},
        ):
            with pytest.raises(NotAllowed):
                report_signing.check(wrong)

    run_alone(main())


def test_asked_by_many_it_tries_once_in_a_while() -> None:
    async def main() -> None:
        tries = []

        async def owns(topic: str) -> bool:
            tries.append(topic)
            await asyncio.sleep(0.1)
            if len(tries) > 1:
                raise MetadataUnavailable("no majority")
            return True

        class LoopClock(Clock):
            def monotonic(self) -> float:
                return asyncio.get_running_loop().time()

        class Topics:
            async def get(self, topic: str, *, create: bool) -> Any:
                raise MetadataUnavailable("not even loaded")

        async def nothing() -> None: ...

        async def ask_nobody(_: str) -> None: ...

        made: Any = Topics()
        canary = Canary(
            broker="b",
            topics=made,
            owns=owns,
            clock=LoopClock(),
            settings=CanarySettings(),
            open_port=nothing,
            close_port=nothing,
            ask_owner=ask_nobody,
        )
        canary.start()
        found = await asyncio.gather(*(canary.once() for _ in range(20)))
        assert len(tries) == 1 and {verdict.reason for verdict in found} == {"not even loaded"} and not found[0].good
        await asyncio.sleep(3)
        assert (await canary.once()).reason == "no majority" and len(tries) == 2

    run_alone(main())


@pytest.mark.parametrize("settings", (CanarySettings(), CanarySettings(by_itself=True), CanarySettings(port=1)))
def test_it_tries_by_itself_where_it_is_told_to_with_a_port_and_without(settings: CanarySettings) -> None:
    async def main() -> None:
        opened, tried = list[int](), list[str]()

        async def owns(topic: str) -> bool:
            return False

        async def owner(topic: str) -> None:
            tried.append(topic)

        async def opens() -> None:
            opened.append(settings.port)

        async def nothing() -> None: ...

        class LoopClock(Clock):
            def monotonic(self) -> float:
                return asyncio.get_running_loop().time()

        topics: Any = None
        canary = Canary(
            broker="b",
            topics=topics,
            owns=owns,
            clock=LoopClock(),
            settings=settings,
            open_port=opens,
            close_port=nothing,
            ask_owner=owner,
        )
        canary.start()
        await asyncio.sleep(9)
        by_itself = settings != CanarySettings()
        assert len(tried) == (5 if by_itself else 0) and canary.verdict.good is by_itself
        assert opened == ([settings.port] if by_itself else []), "once it is well"
        await canary.stop()

    run_alone(main())


def test_a_broker_without_a_bundle_for_its_messages_is_as_well_as_who_has_them() -> None:
    async def main() -> None:
        asked: list[str] = []
        well = [True]

        async def owns(_: str) -> bool:
            return False

        async def owner(topic: str) -> None:
            asked.append(topic)
            if not well[0]:
                raise MetadataUnavailable("broker a answered 503")

        async def nothing() -> None: ...

        class Now(Clock):
            def __init__(self) -> None:
                self.at = 0.0

            def monotonic(self) -> float:
                self.at += 60
                return self.at

        topics: Any = None
        canary = Canary(
            broker="b",
            topics=topics,
            owns=owns,
            clock=Now(),
            settings=CanarySettings(),
            open_port=nothing,
            close_port=nothing,
            ask_owner=owner,
        )
        assert (await canary.once()).good and asked == ["persistent://pulsar/system/canary-b-0"]
        well[0] = False
        assert not (await canary.once()).good and canary.verdict.reason == "broker a answered 503"

    run_alone(main())
