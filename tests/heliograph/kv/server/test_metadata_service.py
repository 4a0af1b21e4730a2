"""What a leader applies by itself before anybody is answered."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.kv.machine_commands import CommandKind, CommandStatus, command, txn_fields, unpack
from heliograph.kv.metadata_store import Put
from heliograph.kv.server.metadata_service import MetaService, ServiceSettings
from heliograph.kv.state_machine import KvMachine
from heliograph.runtime.clock import SystemClock
from heliograph.wire.metadata_frames import Frame, body
from tests.heliograph.kv.replica import LogReplica, SharedLog


@pytest.mark.parametrize("first", [False, True])
def test_a_leaders_beginning_comes_before_reads_where_it_must(first: bool) -> None:
    async def main() -> list[object]:
        machine, log = KvMachine(), SharedLog()
        replica = LogReplica(log, "a", machine)
        put = command(CommandKind.TXN, txn_fields([Put("/begun", b"1")]))
        settings = ServiceSettings(begin=lambda table: [put], begins_for_reads=first)
        service = MetaService(replica, machine, clock=SystemClock(), settings=settings)
        replica.on_role_change = service.on_role_change  # type: ignore[assignment]
        log.elect("a")
        try:
            return unpack(await service.handle(Frame.GET, body("/begun")))
        finally:
            await service.stop()

    status, *found = asyncio.run(main())
    assert status == CommandStatus.OK and bool(found) is first
