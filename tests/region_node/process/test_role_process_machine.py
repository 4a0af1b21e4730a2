"""What a process takes of its machine, as its settings say, before anything of it runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from region_node.process import role_process


class Handler:
    def say_left_out(self) -> None:
        return


def test_cores_and_the_turn_at_disks_are_taken_before_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[object] = []

    def ended(_: object) -> None:
        raise ConfigError("enough")

    monkeypatch.setattr(role_process, "keep_files_private", lambda: None)
    monkeypatch.setattr(role_process.logs, "install", lambda *_, **__: Handler())
    monkeypatch.setattr(role_process.process_usage, "pin", taken.append)
    monkeypatch.setattr(role_process.process_usage, "disk_priority", taken.append)
    monkeypatch.setattr(role_process, "_folder", ended)
    fields = {"region": "us", "node_id": "m", "roles": ["meta"], "data_dir": str(tmp_path)}
    for more, found in (({"cpus": "0-2,7", "disk_priority": 6}, [[0, 1, 2, 7], 6]), ({}, [])):
        (path := tmp_path / "settings.json").write_text(json.dumps({**fields, **more}))
        taken.clear()
        with pytest.raises(SystemExit) as end:
            role_process.main(["--settings", str(path)])
        assert end.value.code == 2 and taken == found
