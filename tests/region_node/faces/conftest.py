"""Fixtures of tests of the faces."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.region_node.faces.guarded_region import Guarded, guarded_region


@pytest.fixture(scope="session")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """One for all faces: their tests leave it as they found it."""
    with guarded_region(tmp_path_factory.mktemp("guarded")) as region:
        yield region
