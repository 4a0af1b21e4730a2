"""What was said of a namespace, or of its regions, ends with it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from global_config.admin import ConfigAdmin
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.configuration.leadership import DRAINING, FENCED, Leadership, leadership, subscription_name
from heliograph.model.errors import NotAllowed
from region_node.dr.leadership.leadership_changes import Switching, closing
from region_node.dr.operations.drill_schedule import Schedule, schedule
from region_node.dr.operations.operation import boundary_prefix, history_prefix, operation_key, reports_prefix
from region_node.faces.admin.tenancy.region_removal import check_active_stays, forget_leadership

NAME = subscription_name("persistent://t/n/x", "s")


def test_nothing_of_a_namespace_is_held_against_another_one_of_its_name() -> None:
    """Not even where it was being moved when it was deleted; a neighbour keeps what it has, and reports stay."""

    async def main() -> None:
        store = EmbeddedStore()
        config, switching = ConfigAdmin(store), Switching(store, lambda: 0)
        for region in ("us", "eu"):
            await config.create_region(region)
        await config.create_tenant("t", TenantInfo(allowed_regions=("us", "eu")))
        for namespace in ("t/n", "t/n2"):
            await config.create_namespace(namespace, NamespacePolicies(regions=("us", "eu")))
            await switching.begin(namespace, "us", {})
            for key in (
                operation_key(namespace),
                f"{history_prefix(namespace)}00000001",
                f"{boundary_prefix(namespace, 2)}000000",
                f"{reports_prefix(namespace)}00000001",
            ):
                await store.put(key, b"{}")
            await store.put(schedule(namespace), Schedule(every_s=60, next_ms=0, to="eu").encode())
        await switching.begin(NAME, "us", {})
        await switching.change("t/n", lambda old: closing(old, "eu", DRAINING, 0))
        before = {key for key, _, _ in store.machine.under("/") if "/t/n/" in f"{key}/" or "//t/n/" in key}
        await config.delete_namespace("t/n")
        assert await store.get(leadership("t/n")) is None, "in the same write"
        admin: Any = SimpleNamespace(leases=SimpleNamespace(store=store), clock=SimpleNamespace(wall_ms=lambda: 0))
        for _ in range(2):
            await forget_leadership(admin, "t/n")
        after = {key for key, _, _ in store.machine.under("/") if "/t/n/" in f"{key}/" or "//t/n/" in key}
        assert len(before) == 8 and after == {f"{reports_prefix('t/n')}00000001"}
        assert len([key for key, _, _ in store.machine.under("/") if "t/n2" in key]) == 7

    run_alone(main())


@pytest.mark.parametrize(
    ("record", "left"),
    [(Leadership(active="us"), "us"), (closing(Leadership(active="us"), "eu", FENCED, 1), "eu")],
    ids=["the active region", "the one that is about to be"],
)
def test_who_takes_messages_or_is_about_to_stays(record: Leadership, left: str) -> None:
    gate = SimpleNamespace(record=record)
    admin: Any = SimpleNamespace(leases=SimpleNamespace(gate=lambda namespace: gate))
    check_active_stays(admin, "t/n", ("us", "eu"))
    with pytest.raises(NotAllowed, match=left):
        check_active_stays(admin, "t/n", [region for region in ("us", "eu", "ap") if region != left])
