"""The console: beside each number of a region that was not heard for more than two seconds stands for how long.

The pages run in node, as they are served, upon answers that are given here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from replicator.health.incoming_stats import SILENT_S
from tests.region_node.console.run_pages import calls, shown

GOOD, OLD = SILENT_S, SILENT_S + 0.1
"""A region that lives is heard each second: the first is as good as now, of the other the age is told."""
TOLD = f"{OLD} s"
NAMES = "t/n"
LAG: dict[str, Any] = {"messages": 3, "bytes": 30, "unheard": [], "at_risk": {"messages": 3}}


def link(topic: str, target: str, silent_s: float | None) -> dict[str, Any]:
    """One of a connected link's rows in a region's status, to a target that has everything."""
    numbers = dict.fromkeys(("backlog_messages", "backlog_bytes", "age_s", "rate_out", "rtt_ms"), 0)
    words = {"cause": "", "cause_text": "", "remedy": "", "slowed": False}
    return {
        "source": "us",
        "target": target,
        "topic": topic,
        "connected": True,
        "silent_s": silent_s,
        **numbers,
        **words,
    }


def test_every_number_of_a_silent_region_has_its_age_beside_it(tmp_path: Path) -> None:
    links = [link("persistent://t/n/x", "eu", OLD), link("persistent://t/n/y", "eu", GOOD)]
    links += [link("persistent://t/n/x", "ap", GOOD), link("persistent://t/n/x", "pulsar", None)]
    status = {"brokers": ["b"], "topics": 2, "version": "1", "links": links}
    row = {"namespace": NAMES, "active": "eu", "state": "open", "at_risk_s": 0.0, "slo_broken": False}
    every = {"lease": {"not_confirmed": 0}, "events": [], "namespaces": [{**row, "silent_s": s} for s in (0.0, OLD)]}
    lag = {region: {**LAG, "silent_s": silent_s} for region, silent_s in (("eu", OLD), ("ap", 0.0))}
    both = {"mode": "active-active", "regions": ["us", "eu", "ap"], "at_risk": lag, "lacks": lag}
    can = {"can_switch": True, "because": "", "at_risk": {"messages": 3}}
    away = {"region": "us", "unreachable": "nothing came"}
    targets = {
        "eu": {**can, "source": {"region": "us", **lag["eu"]}, "target": {}},
        "ap": {**can, "source": {"region": "us", **lag["ap"]}, "target": {}},
        "sa": {**can, "source": away, "target": {"region": "sa", **lag["eu"]}},
    }
    led = {"mode": "active-passive", "active": "us", "epoch": 1, "state": "open", "since_ms": 1, "slo": {}}
    cost = {"steps": {}, "source": {"region": "us", **lag["eu"]}, "target": {"region": "eu", **lag["ap"]}}
    there = calls(tenant="t", namespace="n")
    past: dict[str, Any] = {there["operations"]: [], there["reports"]: []}
    begun = {"source": "us", "target": "eu", "cost": cost}
    the_map, overview, active, passive = shown(
        tmp_path,
        {"page": "map", "rest": [], "answers": {there["clusters"]: ["us"], there["status"]: status}},
        {"page": "disaster", "rest": [], "answers": {there["disaster"]: every}},
        {"page": "disaster", "rest": ["t", "n"], "answers": {there["disasterOf"]: both, **past}},
        {
            "page": "disaster",
            "rest": ["t", "n"],
            "press": "dry eu",
            "answers": {there["disasterOf"]: {**led, "targets": targets}, there["begin"]: begun, **past},
        },
    )
    assert column(the_map, "Links between regions", "Link") == {"us → ap": "", "us → eu": TOLD, "us → pulsar": ""}
    promised = overview["tables"]["Active-passive namespaces"]
    assert [told["Not heard for"] for told in promised] == ["", TOLD]
    for name in ("What would be lost with this region now", "What would be missing here with another region now"):
        assert column(active, name, "Not yet in" if "lost" in name else "Of") == {"eu": TOLD, "ap": ""}
    assert column(passive, "Where it could go", "Region") == {"eu": TOLD, "ap": "", "sa": TOLD}
    assert f"us says: 3 messages (30 B) are not in eu yet, nothing heard for {TOLD}." in passive["text"]
    assert "eu says: 3 messages (30 B) are known to be missing there." in passive["text"]


def column(page: dict[str, Any], name: str, key: str) -> dict[str, str]:
    """For how long each row of the table was not heard, by its key."""
    return {row[key]: row["Not heard for"] for row in page["tables"][name]}


def test_one_topic_tells_how_old_the_numbers_of_each_region_are(tmp_path: Path) -> None:
    there = calls(domain="persistent", tenant="t", namespace="n", topic="x")
    row = {"connected": True, "cause": "", "remedy": "", "messages": 3, "bytes": 30, "age_s": 1, "age_s_max": 1}
    both = {region: {**row, "silent_s": s} for region, s in (("eu", OLD), ("ap", GOOD), ("pulsar", None))}
    answers = {
        there["partitions"]: {"partitions": 0},
        there["stats"]: {"publishers": [], "subscriptions": {}, "replication": {}},
        there["vectors"]: {"regions": {}, "numbers": {}},
        there["risk"]: {"not_yet_elsewhere": both, "not_yet_here": both},
        there["links"]: {"links": []},
    }
    (page,) = shown(tmp_path, {"page": "topics", "rest": ["t", "n", "x"], "answers": answers})
    for title in ("Published here and not yet there", "Published there and not yet here"):
        assert column(page, title, "Region") == {"eu": TOLD, "ap": "", "pulsar": ""}
