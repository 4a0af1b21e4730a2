"""What an audit refuses; what it finds: geo_tests/wan/test_spark_jobs.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from heliograph.model.errors import ConfigError, NotFound

pytest.importorskip("pyspark")


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "wants regions"),
        ({"regions": {"us": "a", "eu": "b"}}, "wants path"),
        ({"region": 1}, "no option 'region'"),
        ({"regions": {"us": "a"}}, "two names"),
    ],
)
def test_what_is_wrong_is_said(options: dict[str, Any], what: str, tmp_path: Path) -> None:
    from heliograph.spark.jobs.audit import start

    with pytest.raises(ConfigError, match=what):
        start(None, {}, "audit", options)


@pytest.mark.parametrize("longest_ms", [0, 1, 90_000])
def test_a_picture_shows_what_took_no_time_by_the_clocks_too(longest_ms: int) -> None:
    from heliograph.spark.jobs.audit import plot

    lag = dict.fromkeys(("p50", "p90", "p99"), 0) | {"max": longest_ms}
    picture = plot({"topics": {"persistent://a/b/t": {"missing": [], "arrived": [{"in": "eu", "from": "<us>", "messages": 9, "lag_ms": lag}]}}})
    root = ElementTree.fromstring(picture)
    assert "t: <us> to eu" in [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    spots = [float(each.get("cx", "")) for each in root.iter("{http://www.w3.org/2000/svg}circle")][:4]
    assert spots[:3] == [spots[0]] * 3 and (spots[3] > spots[0]) == (longest_ms > 1)


def test_a_topic_that_one_region_has_not_got_is_none_of_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.spark.jobs import audit
    from heliograph.spark.options import Options

    class Reader:
        def partitions(self, topic: str) -> int:
            if topic.endswith("deleted"):
                raise NotFound(topic)
            return 2 if topic.endswith("parts") else 0

        def snapshots(self, topics: list[str]) -> dict[str, None]:
            return {topic: None for topic in topics if not topic.endswith(("gone", "-1"))}

        def close(self) -> None: ...

    monkeypatch.setattr(Options, "reader", lambda _: Reader())
    names = [f"persistent://a/b/{name}" for name in ("here", "deleted", "gone", "parts")]
    found = audit._there({"admin_url": "http://eu", "topics": ",".join(names)})
    assert [name.rpartition("/")[2] for name in found] == ["here", "parts-partition-0"]
