"""The demo, as a newcomer runs it: its verdict is good, and nothing of it stays."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from geo_tests.wan.instance import heliograph


@pytest.mark.timeout(300)
def test_the_demo_ends_with_a_good_verdict_and_leaves_nothing() -> None:
    before = set(Path(tempfile.gettempdir()).glob("heliograph-demo-*"))
    done = heliograph("demo", "--seconds", "3", "--no-spark", timeout_s=280)
    assert "verdict: every region holds the same messages" in done.stdout.replace("\n", " ")
    assert set(Path(tempfile.gettempdir()).glob("heliograph-demo-*")) == before
