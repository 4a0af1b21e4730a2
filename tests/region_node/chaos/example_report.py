"""A report of a run, as tests of what is made of one want it."""

from __future__ import annotations

from region_node.chaos.judge import BrokenPromise
from region_node.chaos.report import ChaosReport, FaultRecord


def report(*broken: BrokenPromise, scenario: str = "two faults") -> ChaosReport:
    return ChaosReport(
        scenario=scenario,
        seed=3,
        run="6b0d",
        version="0.1.0",
        client="pulsar",
        topic="persistent://public/chaos/numbers",
        regions=["us", "eu"],
        began=1_700_000_000.0,
        took_s=30.0,
        faults=[
            FaultRecord(fault="cut", where="us-eu", line=4, began_s=2.0, ended_s=12.0, whole_s=2.5),
            FaultRecord(fault="stop", where="us-bookie-0", line=9, began_s=20.0, ended_s=20.0),
        ],
        published={
            region: {"sent": 100, "acknowledged": acked, "refused": 0} for region, acked in (("us", 100), ("eu", 99))
        },
        read={region: {"messages": 199, "again": again} for region, again in (("us", 3), ("eu", 0))},
        compared={"at risk": 40},
        broken=list(broken),
        not_compared=["what was said during stop: another fault held"],
        series={
            "sent": {"us": [[0, 5], [1, 6]], "eu": [[0, 5]]},
            "latency_ms_p99": {"us": [[0, 12.5]]},
            "at risk": {"us-eu": [[at, at] for at in range(5000)]},
        },
    )
