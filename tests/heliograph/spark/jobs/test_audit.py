"""What an audit refuses; what it finds: geo_tests/wan/test_spark_jobs.py."""

from __future__ import annotations

import json
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
    picture = plot(
        {
            "topics": {
                "persistent://a/b/t": {
                    "missing": [],
                    "arrived": [{"in": "eu", "from": "<us>", "messages": 9, "lag_ms": lag}],
                }
            }
        }
    )
    root = ElementTree.fromstring(picture)
    assert "t: <us> to eu" in [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    spots = [float(each.get("cx", "")) for each in root.iter("{http://www.w3.org/2000/svg}circle")][:4]
    assert spots[:3] == [spots[0]] * 3 and (spots[3] > spots[0]) == (longest_ms > 1)


def missing(kind: str, longest_ms: int) -> dict[str, Any]:
    return {"in": "eu", "kind": kind, "messages": 2, "age_ms": dict.fromkeys(("p50", "p90", "p99", "max"), longest_ms)}


def labels(topics: dict[str, Any]) -> list[str]:
    """The names of a picture's lines, all of which begin within it."""
    from heliograph.spark.jobs.audit import _LETTER, plot

    texts = [
        each
        for each in ElementTree.fromstring(plot({"topics": topics})).iter("{http://www.w3.org/2000/svg}text")
        if each.get("text-anchor") == "end"
    ]
    assert all(float(each.get("x", "")) >= _LETTER * len(each.text or "") for each in texts)
    return [each.text or "" for each in texts]


def test_a_picture_names_topics_so_that_they_can_be_told_apart() -> None:
    lost = {"missing": [missing("gap", 5)], "arrived": []}
    long = "orders-of-customers-in-scandinavia-and-elsewhere-partition-3"
    assert labels({f"persistent://a/b/{long}": lost}) == [f"{long}: gap in eu"]
    assert labels({"persistent://a/b/t": lost, "persistent://a/c/t": lost}) == ["a/b/t: gap in eu", "a/c/t: gap in eu"]
    (cut,) = labels({"persistent://a/b/" + "x" * 300: lost})
    assert len(cut) == 90 and cut.startswith("\u2026x") and cut.endswith("x: gap in eu")


def test_a_picture_has_what_differs_before_what_took_long() -> None:
    fine = {"missing": [missing("elsewhere", 9_000_000)], "arrived": []}
    found = labels(
        {f"persistent://a/b/fine-{n}": fine for n in range(50)}
        | {"persistent://a/b/t": {"missing": [missing("gap", 5)], "arrived": []}}
    )
    assert len(found) == 40 and found[-1] == "t: gap in eu"


def test_a_folder_that_takes_nothing_is_told_before_anything_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from heliograph.spark.jobs import audit

    monkeypatch.setattr(audit, "audit", lambda *_: pytest.fail("it was read"))
    (tmp_path / "file").touch()
    options = {
        "topics": ["t"],
        "regions": {"us": "http://a", "eu": "http://b"},
        "path": str(tmp_path / "file" / "audit"),
    }
    with pytest.raises(ConfigError, match="nothing can be written into path"):
        audit.start(None, {}, "audit", options)


def test_the_log_says_whether_the_copies_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from heliograph.spark.jobs import audit

    def topic(*lacks: dict[str, Any], twice: int = 0) -> dict[str, Any]:
        return {
            "both": 7,
            "duplicates": {"us": twice, "eu": 0},
            "arrived": [],
            "missing": list(lacks),
            "same": not lacks and not twice,
        }

    topics = {
        "a": topic(missing("gap", 5), missing("elsewhere", 1)),
        "b": topic(missing("gap", 9)),
        "c": topic(twice=3),
        "d": topic(),
    }
    monkeypatch.setattr(audit, "audit", lambda *_: ({"same": False, "not_told": ["x"], "topics": topics}, []))
    assert (
        audit.start(
            None,
            {},
            "nightly",
            {"topics": ["t"], "regions": {"us": "http://a", "eu": "http://b"}, "path": str(tmp_path)},
        )
        == []
    )
    told = json.loads(capsys.readouterr().out)
    del told["at"]
    assert told == {"event": "audit.compared", "query": "nightly", "report": str(tmp_path / "report.json"), "same": False} | {  # noqa: E501
        "topics": 4, "differ": 3, "both": 28, "missing": {"gap in eu": 4}, "duplicates": 3, "not_told": 1
    }  # fmt: skip
    assert json.loads((tmp_path / "report.json").read_text())["topics"].keys() == topics.keys()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["lag.svg", "ranges.csv", "report.json"]


def test_a_topic_that_one_region_has_not_got_is_none_of_its_topics(monkeypatch: pytest.MonkeyPatch) -> None:
    from heliograph.spark.jobs import audit
    from heliograph.spark.scan.source_options import Options

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
