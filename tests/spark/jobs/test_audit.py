"""What an audit refuses; what it finds: geo_tests/wan/test_spark_jobs.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import ConfigError

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
