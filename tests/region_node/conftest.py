"""Fixtures of tests of security."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.region_node.security.authentication.issuer import SECRET


@pytest.fixture
def secret(tmp_path: Path) -> str:
    """A file with the key that signs tokens."""
    path = tmp_path / "secret"
    path.write_bytes(SECRET)
    return str(path)
