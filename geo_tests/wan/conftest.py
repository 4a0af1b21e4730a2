"""One two-region instance for the link tests; each test takes its own topic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from geo_tests.wan.instance import Instance


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = str(Path(__file__).parent)
    for item in items:
        if str(item.path).startswith(here):
            item.add_marker(pytest.mark.wan)


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """Regions us (two brokers) and eu, 20 ms apart, namespace public/geo replicated between them."""
    folder = tmp_path_factory.mktemp("pair")
    (folder / "wan.json").write_text(json.dumps({"us-eu": {"rtt_ms": 20, "jitter_ms": 4}}))
    instance = Instance(folder / "data", regions=("us", "eu"), wan=str(folder / "wan.json"), brokers="us=2,eu=1", bookies=3)
    try:
        instance.namespace("public/geo", ["us", "eu"])
        yield instance
    finally:
        instance.down()
