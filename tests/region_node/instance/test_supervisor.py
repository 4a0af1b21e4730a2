"""A supervisor whose instance cannot start says which process could not, and why."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from region_node.instance.plan.layout import make_plan, save_plan
from region_node.instance.supervisor import Supervisor

pytestmark = pytest.mark.wan


def test_a_process_that_cannot_start_is_named_with_its_reason(tmp_path: Path) -> None:
    plan = make_plan(["us"], brokers={"us": 1}, bookies=2, wan="none")
    save_plan(tmp_path, plan)

    async def never() -> None:
        raise AssertionError("it must not be ready")

    supervisor = Supervisor(tmp_path, plan, toxiproxy=None, progress=lambda _: None)
    with (
        socket.create_server(("127.0.0.1", plan.regions[0].bookies[1].ports["http"])),
        pytest.raises(ConfigError, match=r"us-bookie-1 could not start: a port is already taken"),
    ):
        asyncio.run(supervisor.run(never))
