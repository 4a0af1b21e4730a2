"""The table of lost and doubtful disks: each row has a story, or a test that walks it, and what it names is there."""

from __future__ import annotations

from tests.guide.page import DOCS
from tests.system.disk_stories import STORIES, rows

ROOT = DOCS.parent


def test_each_row_has_a_story_and_each_alert_is_one() -> None:
    assert [(row.what, row.state) for row in rows()] == list(STORIES)
    alerts = (ROOT / "deploy" / "prometheus" / "alerts.yaml").read_text()
    for row in rows():
        assert row.seen or row.alerts or callable(STORIES[row.what, row.state]), row.name
        for alert in row.alerts:
            assert f"alert: {alert}\n" in alerts, f"{row.name}: there is no alert {alert}"
    for where in STORIES.values():
        if isinstance(where, str):
            path, _, name = where.partition("::")
            assert f"def {name}(" in (ROOT / path).read_text(), where
