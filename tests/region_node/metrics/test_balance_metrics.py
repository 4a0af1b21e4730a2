"""Metrics of the balance are the leader's, where they are of all brokers, and else each broker's own."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from region_node.metrics.balance_metrics import samples


@pytest.mark.parametrize(("leader", "told"), [("b1", {"avg": 40.0, "std": 20.0}), ("b2", {})])
def test_the_leader_alone_tells_of_all_loads(leader: str, told: dict[str, float]) -> None:
    loads = {name: SimpleNamespace(load=load, used={"cpu": load}) for name, load in (("b1", 0.2), ("b2", 0.6))}
    book = SimpleNamespace(placed=5, paused=False)
    balancer: Any = SimpleNamespace(
        broker="b1", leader=leader, reports=loads, moves=3, failures=1, book=book, divider=None
    )
    found = list(samples("us", balancer, 7))
    stats = {labels["stat"]: value for name, _, labels, value in found if name.endswith("usage_stats")}
    assert stats == pytest.approx(told)
    one = {name: value for name, _, labels, value in found if set(labels) <= {"cluster", "broker", "metric"}}
    assert (one["pulsar_lb_cpu_usage"], one["pulsar_lb_memory_usage"]) == (20.0, 0.0)
    assert (one["pulsar_sunit_state_chn_owned_su_total"], one["pulsar_lb_unload_bundle_total"]) == (7, 3)
    assert one["heliograph_balance_leader"] == (leader == "b1")
