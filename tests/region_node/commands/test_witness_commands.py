"""`heliograph witness`, and `heliograph up --witness` on a folder that has an instance already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from heliograph.model.errors import ConfigError
from region_node.commands import witness_commands
from region_node.commands.entry import _plan
from region_node.instance.plan.layout import InstancePlan, make_plan, save_plan
from region_node.instance.plan.loopback_ports import LoopbackPorts
from region_node.instance.plan.region_growth import with_witness, without_witness


def test_each_command_asks_the_supervisor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []

    def call(data: Path, verb: str, **fields: Any) -> dict[str, Any]:
        asked.append((verb, fields))
        row = {"name": "oslo-witness"}
        return {"status": {"witness": row}}.get(verb, {"process": "oslo-witness", "pid": 7, "data": "/d"})

    monkeypatch.setattr(witness_commands, "call", call)
    witness_commands.register(app := typer.Typer())
    said = []
    for command in (["join", "oslo"], ["restart"], ["leave"]):
        done = CliRunner().invoke(app, ["witness", *command, "--data", str(tmp_path)])
        assert done.exit_code == 0, done.output
        said.append(done.output)
    assert [verb for verb, _ in asked] == ["witness join", "status", "restart", "witness leave"]
    assert asked[0][1]["witness"] == "oslo" and asked[2][1]["process"] == "oslo-witness"
    assert "oslo votes" in said[0] and "is up" in said[1] and "has left" in said[2]


def test_up_goes_on_with_the_witness_that_is_there(tmp_path: Path) -> None:
    plan = make_plan(["us", "eu"], brokers={"us": 1, "eu": 1}, bookies=2, wan="none", witness="oslo")

    def up(witness: str) -> InstancePlan:
        wanted = {"brokers": {"us": 1, "eu": 1}, "bookies": 2, "wan": "none", "tls": False, "witness": witness}
        return _plan(tmp_path, ["us", "eu"], wanted, LoopbackPorts())

    save_plan(tmp_path, plan)
    assert up("oslo") == up("") == plan
    with pytest.raises(ConfigError, match="with the witness oslo: leave --witness out"):
        up("bergen")
    save_plan(tmp_path, gone := without_witness(plan))
    assert up("") == gone
    with pytest.raises(ConfigError, match="no witness"):
        up("oslo")
    save_plan(tmp_path, other := with_witness(gone, "bergen"))
    assert up("") == other
