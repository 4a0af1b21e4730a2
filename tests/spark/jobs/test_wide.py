"""A wide table's options, and what they become."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.errors import ConfigError
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
    last = "substring_index(_topic, '/', -1)"
    assert plan.columns == {
        "clicks": f"count(*) FILTER (WHERE {last} = 'ab-clicks')",
        "paid": f"sum(amount) FILTER (WHERE {last} rlike '^(?:ab-(orders|it\\'s))$')",
        "all": "count(*)",
    }


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"keys": []}, "wants keys"),
        ({"keys": ["lower(country)"]}, "expression as name"),
        ({"keys": ["period"]}, "not period"),
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
        ({"offline": {"sql": "x"}}, "no option 'topics'"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(change: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plan_of({**GIVEN, **change}, "here")
