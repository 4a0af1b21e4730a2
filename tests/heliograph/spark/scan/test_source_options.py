"""What the source takes is what its documentation says, and the other way round; what is no value of an option is
said.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from heliograph.model.errors import ConfigError
from heliograph.spark.scan.source_options import INTERNAL, KNOWN, Options, RegionAccess
from heliograph.spark.scan.task_reading import RAW
from heliograph.spark.sink import SinkOptions

TEXT = (Path(__file__).resolve().parents[4] / "docs" / "spark.md").read_text()


def section(name: str) -> str:
    return TEXT.split(f"\n## {name}\n")[1].split("\n## ")[0]


def table(name: str) -> set[str]:
    """The options in the first columns of a section's tables of options."""
    tables = re.findall(r"\| option \| default \| \|\n\|[-|]+\|\n((?:\|.*\n)+)", section(name))
    return {
        option
        for rows in tables
        for row in rows.splitlines()
        for option in re.findall(r"`(\w+\*?)`", row.split(" | ")[0])
    }


def test_the_options_of_the_source_are_those_of_its_table() -> None:
    assert table("The source") == KNOWN - INTERNAL


def test_the_options_of_the_sink_are_those_of_its_table() -> None:
    own = set(re.findall(r'given(?:\.get\(|\[)"(\w+)"', inspect.getsource(SinkOptions.__init__)))
    access = {name for name in KNOWN if f'"{name}"' in inspect.getsource(RegionAccess.__init__)} | {"tls_*"}
    assert table("The sink") - access == own


def test_the_columns_of_the_source_are_those_of_its_text() -> None:
    text = section("The source")
    assert not [name for name in RAW if not re.search(rf"\b{name}\b", text[text.index("\nColumns: ") :])]


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"fail_on_data_loss": "0"}, "true or false"),
        ({"patience_s": "-1"}, "seconds"),
        ({"bookies": "sometimes"}, "auto, or never"),
        ({"task_bytes": "0"}, "at least 1"),
        ({"topic": "non-persistent://a/b/c"}, "keeps nothing"),
        ({"topic": "a/b"}, "expected domain"),
    ],
)
def test_what_is_no_value_is_said(given: dict[str, str], what: str) -> None:
    with pytest.raises(ConfigError, match=what):
        Options({"admin_url": "http://x", "topic": "persistent://a/b/c", **given})
