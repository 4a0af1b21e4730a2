"""Whether a broker is well: all who say so say the same; and whether its region takes messages."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.model.configuration.leadership import DRAINING, Leadership
from heliograph.model.errors import MetadataUnavailable
from region_node.dr.leadership.write_gates import Writing
from region_node.faces.admin.brokers import brokers
from region_node.faces.admin.calls.admin_context import EXPECTED
from region_node.faces.admin.dr import disaster_recovery


class OneTry:
    """A canary, and how often it was asked."""

    def __init__(self, *, good: bool) -> None:
        self.verdict = SimpleNamespace(good=good, latency_ms=3.0)
        self.asked = 0

    async def once(self) -> Any:
        self.asked += 1
        return self.verdict


def admin_of(canary: OneTry, *registered: str) -> Any:
    live = [SimpleNamespace(broker=name) for name in registered]
    ownership = SimpleNamespace(record=SimpleNamespace(broker="b1"), brokers=lambda: live)
    return SimpleNamespace(region="eu", canary=canary, ownership=ownership)


@pytest.mark.parametrize("registered", [("b1", "b2"), ()])
@pytest.mark.parametrize("good", [True, False])
def test_health_is_one_judgement_and_readiness_asks_nobody(good: bool, registered: tuple[str, ...]) -> None:
    """What is known of the region's brokers stays as it was while the metadata is away: it says nothing of health."""

    async def main() -> None:
        canary = OneTry(good=good)
        admin = admin_of(canary, *registered)
        ours = (await disaster_recovery.health(admin)).status
        try:
            theirs, text = 200, (await brokers.health(admin)).text
        except MetadataUnavailable:
            theirs, text = 503, None
        assert ours == theirs == (200 if good else 503) and text == ("ok" if good else None)
        canary.asked = 0
        try:
            is_ready = (await brokers.ready(admin)).text == "ok"
        except MetadataUnavailable:
            is_ready = False
        assert is_ready is bool(registered) and not canary.asked

    run_alone(main())


DELETED, EVERY = "t/deleted", "t/every"


async def is_active(admin: Any, namespace: str) -> bool:
    """What is refused is refused in one sentence, whatever the reason, and leaves no line in the log."""
    try:
        found = await brokers.active(admin, namespace=namespace)
    except MetadataUnavailable:
        return False
    if isinstance(found, dict):
        return found == {"serviceUrl": "pulsar://eu:6650"}
    assert found.status == 503 and "does not take messages there" in found.text and EXPECTED in found
    return False


@pytest.mark.parametrize(
    ("record", "until", "registered", "led", "region"),
    [
        (Leadership(active="eu"), 5.4, True, True, True),
        (Leadership(active="us"), 5.4, True, False, True),
        (Leadership(active="eu", state=DRAINING, to="us"), 5.4, True, False, True),
        (Leadership(active="eu", asks="it was restored"), 5.4, True, False, True),
        (Leadership(active="eu"), 0.0, True, False, False),
        (Leadership(active="eu"), 5.4, False, False, False),
        (None, 0.0, True, True, True),
    ],
    ids=["active", "passive", "draining", "asks", "no lease", "not registered", "every region"],
)
def test_a_region_is_active_where_it_takes_messages_at_this_moment(
    record: Leadership | None, until: float, registered: bool, led: bool, region: bool
) -> None:
    """led: of a namespace with that leadership; region: of no namespace in particular."""
    writing = Writing("eu", ttl_s=6, drift=0.1, now=lambda: 0.0)
    writing.on_record("t/led", record, 1)
    writing.on_registered(1, ["t/led"])
    writing.until = until

    def elsewhere(namespace: str) -> Any:
        return gate.refusal() if (gate := writing.gate(namespace)) is not None else None

    served = {"t/led": object(), DELETED: object(), EVERY: object()}
    live = [SimpleNamespace(broker="b1")] if registered else []
    admin: Any = SimpleNamespace(
        region="eu",
        leases=SimpleNamespace(core=writing),
        view=SimpleNamespace(region=lambda _: SimpleNamespace(service_url="pulsar://eu:6650")),
        ownership=SimpleNamespace(record=SimpleNamespace(broker="b1"), brokers=lambda: live, bundles=served.get),
        topics=SimpleNamespace(gates=SimpleNamespace(elsewhere=elsewhere)),
        tombstones=SimpleNamespace(known={DELETED: (SimpleNamespace(asks=""), 1)}),
    )

    async def main() -> None:
        assert await is_active(admin, "t/led") is led and await is_active(admin, "") is region
        assert await is_active(admin, EVERY) is registered, "no lease is wanted"
        for name in (DELETED, "t/absent", "t", "../x"):
            assert not await is_active(admin, name)

    run_alone(main())
