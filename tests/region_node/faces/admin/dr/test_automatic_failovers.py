"""Whether a namespace fails over by itself, as the admin interface is asked for it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import NotAllowed, NotFound
from region_node.dr.leadership.leadership_changes import Switching
from region_node.dr.operations.automatic_policy import ALL_HELD, Automatic, automatic, held
from region_node.faces.admin.dr import automatic_failovers, disaster_recovery
from region_node.faces.admin.dr.automatic_failovers import WantedAutomatic, WantedHold
from tests.region_node.dr.operations.world import NS


class Asked:
    """A broker's interface, and what its audit log has."""

    def __init__(self) -> None:
        self.store, self.changes = EmbeddedStore(), list[tuple[Any, Any]]()
        self.admin: Any = SimpleNamespace(
            leases=SimpleNamespace(store=self.store, settings=SimpleNamespace(ttl_ms=6000)),
            clock=SimpleNamespace(wall_ms=lambda: 7),
            policies=lambda _: NamespacePolicies(regions=("us", "eu")),
            changed=lambda request, before, after: self.changes.append((before, after)),
            automatic=None,
        )
        self.request: Any = {"principal": SimpleNamespace(role="anna")}


def test_it_is_set_for_what_is_active_passive_and_taken_away_and_every_change_is_in_the_audit_log() -> None:
    async def main() -> None:
        asked = Asked()
        admin, request = asked.admin, asked.request
        wanted = WantedAutomatic(after_s=30.0, to=["eu"], risk_s=2.0)
        with pytest.raises(NotFound, match="active-active"):
            await automatic_failovers.put(admin, request, NS, wanted)
        await Switching(asked.store, lambda: 0).begin(NS, "us", {})
        with pytest.raises(NotAllowed, match="after 10 s"):
            await automatic_failovers.put(admin, request, NS, WantedAutomatic(after_s=3.0))
        made = await automatic_failovers.put(admin, request, NS, wanted)
        found = await asked.store.get(automatic(NS))
        assert found is not None and Automatic.decode(found[0]) == made
        assert (made.by, made.to, made.hold_s, made.risk_s) == ("anna", ("eu",), 600.0, 2.0)
        await automatic_failovers.delete(admin, request, NS)
        with pytest.raises(NotFound):
            await automatic_failovers.delete(admin, request, NS)
        assert [after for _, after in asked.changes] == [made, None]

    run_alone(main())


def test_it_is_held_and_released_one_or_all() -> None:
    async def main() -> None:
        asked = Asked()
        admin, request = asked.admin, asked.request
        await automatic_failovers.put_hold(admin, request, NS, WantedHold(for_s=60.0))
        await automatic_failovers.put_hold_all(admin, request, WantedHold(for_s=60.0))
        assert await held(asked.store, NS) and await asked.store.get(ALL_HELD)
        await automatic_failovers.delete_hold_all(admin, request)
        assert await held(asked.store, NS) == "anna holds it for 60 s"
        await automatic_failovers.delete_hold(admin, request, NS)
        assert await held(asked.store, NS) == ""
        for released in (
            automatic_failovers.delete_hold_all(admin, request),
            automatic_failovers.delete_hold(admin, request, NS),
        ):
            with pytest.raises(NotFound, match="nothing holds"):
                await released
        assert len(asked.changes) == 4

    run_alone(main())


def test_a_namespace_that_is_made_active_active_does_not_fail_over_by_itself_any_more() -> None:
    async def main() -> None:
        asked = Asked()
        switching = Switching(asked.store, lambda: 0)
        await switching.begin(NS, "us", {})
        await automatic_failovers.put(asked.admin, asked.request, NS, WantedAutomatic(after_s=30.0))
        asked.admin.view, asked.admin.step_ages = None, None
        disaster = SimpleNamespace(switching=switching)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(disaster_recovery, "conductor_for", lambda *_: disaster)
            await disaster_recovery.make_active(asked.admin, asked.request, NS)
        assert await asked.store.get(automatic(NS)) is None

    run_alone(main())
