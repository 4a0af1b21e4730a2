"""Metrics of how the load lies on brokers, in Pulsar's names, as one broker's Balancer knows it.

Is: its samples. Isn't: the counting (`region_node.placement.balance.balancer`).
"""

from __future__ import annotations

from collections.abc import Iterator
from statistics import fmean, pstdev

from region_node.placement.balance.balancer import Balancer
from region_node.runtime.prometheus_text import Sample


def samples(region: str, balancer: Balancer, owned: int) -> Iterator[Sample]:
    """owned: how many bundles the broker owns."""
    labels = {"cluster": region}
    own = balancer.reports.get(balancer.broker)
    if own is not None:
        yield "heliograph_broker_load", "gauge", labels, own.load
        mine = labels | {"broker": balancer.broker, "metric": "loadBalancing"}
        for name, share in (
            ("cpu", "cpu"),
            ("memory", "memory"),
            ("bandwidth_in", "network_in"),
            ("bandwidth_out", "network_out"),
        ):
            yield f"pulsar_lb_{name}_usage", "gauge", mine, own.used.get(share, 0.0) * 100
        for feature, load in (("max", max(own.used.values(), default=0.0)), ("max_ema", own.load)):
            yield "pulsar_lb_resource_usage", "gauge", mine | {"feature": feature}, load * 100
    if balancer.leader == balancer.broker:
        loads = [report.load * 100 for report in balancer.reports.values()]
        of = labels | {"metric": "bundleUnloading", "feature": "max_ema"}
        for stat, value in (("avg", fmean(loads)), ("std", pstdev(loads))) if loads else ():
            yield "pulsar_lb_resource_usage_stats", "gauge", of | {"stat": stat}, value
    unloading = labels | {"metric": "bundleUnloading"}
    yield "pulsar_lb_unload_bundle_total", "counter", unloading, balancer.moves
    yield "pulsar_lb_unload_broker_total", "counter", unloading, balancer.moves
    for result, reason, count in (("Success", "Overloaded", balancer.moves), ("Failure", "Unknown", balancer.failures)):
        yield (
            "pulsar_lb_unload_broker_breakdown_total",
            "counter",
            unloading | {"result": result, "reason": reason},
            count,
        )
    assigning = labels | {"metric": "assign", "result": "Success", "reason": "Empty"}
    yield "pulsar_lb_assign_broker_breakdown_total", "counter", assigning, balancer.book.placed
    yield (
        "pulsar_sunit_state_chn_owned_su_total",
        "gauge",
        labels | {"metric": "sunitStateChn"},
        owned,
    )
    if balancer.divider is not None:
        yield "pulsar_lb_bundles_split_total", "counter", labels | {"metric": "bundlesSplit"}, balancer.divider.splits
    yield "heliograph_balance_leader", "gauge", labels, balancer.leader == balancer.broker
    yield "heliograph_balance_paused", "gauge", labels, balancer.book.paused
