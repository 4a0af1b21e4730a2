"""A wide table's options, and what they become."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from heliograph.model.errors import ConfigError, HeliographError
from heliograph.spark.jobs.wide import plan_of

GIVEN: dict[str, Any] = {
    "keys": ["user", "lower(country) as country"],
    "columns": {
        "clicks": {"topics": "ab-clicks", "value": "count(*)"},
        "paid": {"topics": "ab-(orders|it's)", "value": "sum(amount)"},
        "all": {"value": "count(*)"},
    },
    "table": [{"name": "hourly"}, {"name": "daily", "period": "1 day"}],
}


def test_a_column_is_an_aggregate_of_its_topics() -> None:
    plan = plan_of(GIVEN, "here")
    assert plan.keys == {"user": "user", "country": "lower(country)"}
    assert plan.periods == {"hourly": 60, "daily": 1440} and plan.time == "_publish_time"
    assert plan.columns == {
        "clicks": "count(*) FILTER (WHERE _part = 'ab-clicks')",
        "paid": "sum(amount) FILTER (WHERE _part rlike '^(?:ab-(orders|it\\'s))$')",
        "all": "count(*)",
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"keys": []}, "wants keys"),
        ({"keys": ["lower(country)"]}, "expression as name"),
        ({"keys": ["period"]}, "not period"),
        ({"keys": ["user", "lower(country) as User"]}, "two are named 'User'"),
        ({"table": []}, "has no \\[\\[query.options.table"),
        ({"table": [{"name": "a b"}]}, "letters, digits, and _"),
        ({"table": [{"name": "a"}, {"name": "a"}]}, "no other table's"),
        ({"table": [{"name": "a", "period": "1 month"}]}, "minutes, hours, or days"),
        ({"table": [{"name": "a", "period": "0 hours"}]}, "minutes, hours, or days"),
        ({"columns": {}}, "has no columns"),
        ({"columns": {"user": {"value": "count(*)"}}}, "and no key"),
        ({"columns": {"n": {"topics": "a"}}}, "wants value"),
        ({"columns": {"n": {"topics": "(", "value": "count(*)"}}}, "no regular expression"),
        ({"columns": {"n": {"of": "a", "value": "count(*)"}}}, "no option 'of'"),
        ({"columns": {"n": {"topics": "a", "value": "sum(x) / count(*)"}}}, "one call of an aggregate"),
        ({"columns": {"n": {"topics": "a", "value": "sum(x) filter (where y)"}}}, "one call of an aggregate"),
        ({"columns": {"n": {"topics": "a", "value": "1 + sum(x)"}}}, "one call of an aggregate"),
        ({"offline": {"sql": "x"}}, "no option 'topics'"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_of({**GIVEN, **change}, "here")


@pytest.mark.parametrize(
    "value",
    [
        "count(*)",
        "sum((a + b) * least(c, 2))",
        "max(concat('it''s) + (', `a)b`, \"(\"))",
        "percentile_cont(0.5) WITHIN GROUP (ORDER BY (a))",
        " db.first (a) ",
    ],
)
def test_one_call_may_hold_anything(value: str) -> None:
    plan = plan_of({**GIVEN, "columns": {"n": {"topics": "a", "value": value}}}, "here")
    assert plan.columns == {"n": f"{value} FILTER (WHERE _part = 'a')"}


@pytest.mark.parametrize(
    "change", [{"keys": ["user", "n % 8 as bucket"]}, {"columns": {"bucket": {"value": "max(n)"}}}]
)
def test_a_column_that_folders_have_already_is_refused(change: dict[str, Any]) -> None:
    from heliograph.spark.jobs.wide import start

    for store in ("parquet", "hive"):
        with pytest.raises(ConfigError, match="bucket is the column of the folders"):
            start(
                None,
                {},
                "ab",
                {**GIVEN, **change, "target": [{"store": "delta", "path": "/x"}, {"store": store, "path": "/x"}]},
            )


def test_what_a_store_refuses_of_an_offline_table_is_that_querys_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A job file ends by a ConfigError, with all its queries: it is for what is wrong with the file."""
    from heliograph.spark.jobs import wide

    class Rows:
        def toArrow(self) -> pa.Table:
            return pa.table(
                {"_table": ["hourly"], "period": pa.array([0], pa.timestamp("us", "UTC")), "user": ["u"], "n": [1]}
            )

    class Full:
        def upsert(self, given: Any) -> None:
            raise ConfigError("ClickHouse refuses: Memory limit exceeded")

        def close(self) -> None: ...

    monkeypatch.setattr(wide, "_offline", lambda *_: None)
    monkeypatch.setattr(wide, "by_key", lambda *_: Rows())
    monkeypatch.setattr(wide, "store_of", lambda *_: Full())
    options = {
        "keys": ["user"],
        "columns": {"n": {"value": "count(*)"}},
        "table": [{"name": "hourly"}],
        "target": [{}],
        "offline": {"sql": "x"},
        "time": "at",
    }
    with pytest.raises(HeliographError, match="Memory limit") as refused:
        wide.start(None, {}, "users", options)
    assert not isinstance(refused.value, ConfigError)
