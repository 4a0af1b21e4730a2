"""The demo, as a newcomer runs it: its verdict is good, and nothing of it stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from geo_tests.wan.instance import heliograph

pytestmark = pytest.mark.long


@pytest.mark.timeout(960)
def test_the_demo_ends_with_a_good_verdict_and_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    done = heliograph("demo", "--seconds", "3", "--no-spark", timeout_s=700)
    assert "verdict: every region holds the same messages" in done.stdout.replace("\n", " ")
    assert list(tmp_path.glob("heliograph-demo-*")) == []
