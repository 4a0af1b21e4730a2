"""The metadata's table on a file system that is full: what LMDB really says then, and that nothing is lost. Needs root
(a small tmpfs is mounted).
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path

import pytest

from heliograph.kv.metadata_store import Put
from tests.heliograph.kv.kept_table import Node

pytestmark = pytest.mark.system
SMALL_MIB = 3


def test_what_does_not_fit_stays_in_memory_and_is_stored_once_there_is_room(
    small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(small / "table", map_bytes=64 << 20)
    node.put(Put("/first", b"1"))
    node.save()
    node.steps.run_all()
    for number in range(60):
        node.put(Put(f"/k/{number}", bytes(100_000)))
    monkeypatch.setattr(node.steps, "free_bytes", lambda: os.statvfs(small).f_bavail * os.statvfs(small).f_frsize)
    for _ in range(2):
        node.save()
        node.steps.run_all()
        error = node.errors[-1]
        assert isinstance(error, OSError) and error.errno == errno.ENOSPC, error
        assert node.machine.get("/first") is not None and len(node.machine.under("/k/")) == 60
    subprocess.run(["mount", "-o", "remount,size=40m", str(small)], check=True)
    node.save()
    node.steps.run_all()
    assert node.errors[-1] is None
    node.crash()
    assert len(node.machine.under("/k/")) == 60 and node.machine.unsaved_bytes == 0
    node.store.close()
