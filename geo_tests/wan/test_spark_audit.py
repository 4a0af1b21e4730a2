"""The Spark audit of two real regions, of which one was not meant to have everything, and lost something."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from geo_tests.wan.damaged_copies import damage, restart_bookies
from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from heliograph.client.block_reader import OriginHoldings
from heliograph.model.coordinates import Origin
from heliograph.model.errors import ConfigError, HeliographError

pytestmark = pytest.mark.long

pytest.importorskip("pyspark")

OWN = (1, 1, 0xABCD)
COLUMNS = (
    "topic string, origin_region string, publish_time timestamp, stored_time timestamp, origin_time timestamp, "
    "producer_name string, replicate_to string,"
    " first_sequence_id long, region int, epoch int, incarnation string, ledger long, entry long, messages int"
)


@pytest.fixture(scope="module")
def spark() -> Iterator[Any]:
    from heliograph.spark import session

    made = session("audit", settings={"spark.sql.shuffle.partitions": "2"})
    yield made
    made.stop()


def message(topic: str, entry: int, *, to: str | None = None, sent: int | None = None) -> tuple[Any, ...]:
    """sent: by region 2, where it has another coordinate, and is that one again."""
    sequence = entry if sent is None else sent
    at = datetime.fromtimestamp(sequence, UTC)
    region, name, incarnation = (1, "us", f"{OWN[2]:016x}") if sent is None else (2, "eu", f"{7:016x}")
    return topic, name, at, at, at, "p", to, sequence, region, 1, incarnation, 3, entry, 1


def test_what_is_missing_is_named_as_regions_name_it(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.spark.jobs import audit

    again = message("fine", 77, sent=2)
    given = {
        "us": [*(message("fine", n, to="us,cn" if n == 1 else None) for n in range(4)), again],
        "eu": [message("fine", 0), message("fine", 3), again],
    }
    for topic, here, there in (
        ("named", 6, (0, 4, 5)),
        ("tail", 4, (0, 1)),
        ("cut", 3, ()),
        ("late", 3, (0,)),
        ("deaf", 2, (0,)),
    ):
        given["us"] += [message(topic, n) for n in range(here)]
        given["eu"] += [message(topic, n) for n in there]
    through = {"tail": (3, 3), "cut": (3, 2), "late": (3, 0)}

    def ask(source: dict[str, str], topic: str) -> dict[Origin, OriginHoldings]:
        assert source["region"] == "eu", "who has it all is not asked"
        if topic == "deaf":
            raise HeliographError("nobody knows")
        named = (((3, 0), (3, 2), "lost"), ((3, 2), (3, 3), None))
        return {OWN: OriginHoldings(through.get(topic, (3, 9)), named if topic == "named" else ())}

    monkeypatch.setattr(audit, "_side", lambda spark, source: spark.createDataFrame(given[source["region"]], COLUMNS))
    monkeypatch.setattr(audit, "ask", ask)
    report, _ = audit.audit(spark, {name: {"region": name} for name in ("us", "eu")}, 100_000, 100)
    found = {
        topic: [(each["kind"], each["messages"]) for each in of["missing"]] for topic, of in report["topics"].items()
    }
    assert found == {
        "fine": [("alias", 1), ("elsewhere", 1)],
        "named": [("lost", 2), ("named", 1)],
        "tail": [("gap", 2)],  # it says that it had taken these over
        "cut": [("before", 3)],
        "late": [("behind", 2)],
        "deaf": [("behind", 1)],
    }
    assert [topic for topic, of in report["topics"].items() if of["same"]] == ["fine"] and not report["same"]
    assert report["not_told"] == ["deaf in eu: nobody knows"]


def lose(pair: Instance, topic: str, bodies: list[str], lost: str) -> list[str]:
    """Publishes in us; eu lacks `lost`, given up while it could not be read, and us has all of them again. Returns what
    eu lacks.
    """
    us, path, broken = pair.admin("us"), topic.removeprefix("persistent://"), lost.encode()
    producer = pair.client("us").create_producer(topic, batching_enabled=False)
    producer.send(bodies[0].encode())
    eventually(lambda: pair.read_all("eu", topic) == bodies[:1], "the link is up")
    try:
        for proxy in pair.proxies("link", "us", "eu"):
            pair.toxiproxy.cut(proxy.name)
        for body in bodies[1:]:
            producer.send(body.encode())
        rest("PUT", f"{us}/admin/v2/persistent/{path}/unload")
        restart_bookies(pair, "us")
        damage(pair, "us", broken)
    finally:
        for proxy in pair.proxies("link", "us", "eu"):
            pair.toxiproxy.heal(proxy.name)

    def given_up() -> bool:
        try:
            links = rest("GET", f"{us}/heliograph/v1/topics/{path}/links")["links"]
        except ConfigError:  # nobody has the topic at this moment
            return False
        if not any(link["cause"] == "storage" for link in links):
            return False
        return (
            heliograph("topics", "give-up", topic, "--region", "eu", "--json", "--admin", us, check=False).returncode
            == 0
        )

    eventually(given_up, "what the link stands before is given up")
    left = eventually(
        lambda: (found := pair.read_all("eu", topic))[-1:] == bodies[-1:] and found, "what is behind it arrives"
    )
    damage(pair, "us", bytes([broken[0] ^ 0x40]) + broken[1:])  # the same bit again: us can be read as before
    eventually(lambda: pair.read_all("us", topic) == bodies, "us has all of it")
    return [body for body in bodies if body not in left]


@pytest.mark.system
def test_what_a_region_lacks_is_told_from_what_it_was_not_to_have(pair: Instance, spark: Any, tmp_path: Path) -> None:
    from heliograph.spark.jobs.audit import start

    some, cut = "persistent://public/geo/spark-audit-some", "persistent://public/geo/spark-audit-cut"
    producer = pair.client("us").create_producer(some, batching_enabled=False)
    for n in range(20):
        producer.send(b"%d" % n, replication_clusters=["us"] if n % 2 else None)
    gone = lose(pair, cut, [f"spark-audit-{n:03}" for n in range(40)], "spark-audit-020")
    eventually(lambda: len(pair.read_all("eu", some)) == 10, "the others have arrived")
    regions = {name: pair.admin(name) for name in ("us", "eu")}
    assert start(spark, {}, "audit", {"topics": [some, cut], "regions": regions, "path": str(tmp_path)}) == []
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["not_told"] == [] and not report["same"]

    def missing(topic: str) -> list[tuple[str, str, int]]:
        return [(each["in"], each["kind"], each["messages"]) for each in report["topics"][topic]["missing"]]

    assert report["topics"][some]["same"] and missing(some) == [("eu", "elsewhere", 10)]
    assert not report["topics"][cut]["same"] and missing(cut) in (
        [("eu", kind, len(gone))] for kind in ("lost", "admin")
    )
