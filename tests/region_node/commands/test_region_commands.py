"""`heliograph region`, `heliograph witness`, and `heliograph up --witness` on a folder that has an instance already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from heliograph.model.errors import ConfigError
from region_node.commands import instance_options, region_commands
from region_node.commands.entry import _plan
from region_node.instance.plan.layout import InstancePlan, make_plan, save_plan
from region_node.instance.plan.loopback_ports import LoopbackPorts
from region_node.instance.plan.region_growth import with_witness, without_witness


def test_each_command_asks_the_supervisor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[tuple[str, dict[str, Any]]] = []
    done = {"process": "oslo-witness", "pid": 7, "data": "/d", "service_url": "pulsar://s", "admin_url": "http://a"}

    def call(data: Path, verb: str, **fields: Any) -> dict[str, Any]:
        asked.append((verb, fields))
        if fields.get("dry_run"):
            return {"would_start" if "join" in verb else "would_stop": fields.get("region", "").split()}
        return {"status": {"witness": {"name": "oslo-witness"}}}.get(verb, done)

    for module in (instance_options, region_commands):
        monkeypatch.setattr(module, "call", call)
    region_commands.register(app := typer.Typer())

    def said(*words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--data", str(tmp_path)], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        return result.output.strip()

    assert said("witness", "join", "oslo") == "oslo votes: oslo-witness, process 7"
    assert said("witness", "restart") == "oslo-witness is up, process 7"
    assert said("witness", "leave") == "oslo-witness has left; its data lies in /d: delete it when you like"
    assert [verb for verb, _ in asked] == ["witness join", "status", "restart", "witness leave"]
    assert asked[0][1]["witness"] == "oslo" and asked[2][1]["process"] == "oslo-witness"
    assert said("witness", "join", "oslo", "--dry-run") == "oslo is there: what is missing would be done"
    assert said("region", "join", "eu", "--learner") == "eu has joined: service pulsar://s  admin http://a"
    assert asked[-1][1]["voter"] is False
    assert said("region", "join", "eu", "--dry-run") == "would start eu"
    assert said("region", "leave", "eu") == "eu has left; its data lies in /d: delete it when nobody needs it"
    assert said("region", "leave", "eu", "--dry-run") == "would stop eu"


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
