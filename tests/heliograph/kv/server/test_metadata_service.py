"""What a leader applies by itself before anybody is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from heliograph.kv.machine_commands import CommandKind, CommandStatus, command, txn_fields, unpack
from heliograph.kv.metadata_store import Put
from heliograph.kv.server.metadata_service import MetaService, ServiceSettings
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import MetadataUnavailable
from heliograph.runtime.clock import SystemClock
from heliograph.wire.metadata_frames import Frame, body
from tests.heliograph.kv.replica import LogReplica, SharedLog


def serving(settings: ServiceSettings) -> tuple[MetaService, SharedLog]:
    """A node that leads."""
    machine, log = KvMachine(), SharedLog()
    replica = LogReplica(log, "a", machine)
    service = MetaService(replica, machine, clock=SystemClock(), settings=settings)
    replica.on_role_change = service.on_role_change  # type: ignore[assignment]
    log.elect("a")
    return service, log


@pytest.mark.parametrize("first", [False, True])
def test_a_leaders_beginning_comes_before_reads_where_it_must(first: bool) -> None:
    async def main() -> list[object]:
        put = command(CommandKind.TXN, txn_fields([Put("/begun", b"1")]))
        service, _ = serving(ServiceSettings(begin=lambda table: [put], begins_for_reads=first))
        try:
            return unpack(await service.handle(Frame.GET, body("/begun")))
        finally:
            await service.stop()

    status, *found = asyncio.run(main())
    assert status == CommandStatus.OK and bool(found) is first


def test_who_is_deposed_at_its_beginning_sends_a_read_on_to_the_next_leader() -> None:
    async def main() -> object:
        service, log = serving(ServiceSettings(begin=lambda table: [], begins_for_reads=True))
        asyncio.get_running_loop().call_soon(log.elect, None)
        try:
            return unpack(await service.handle(Frame.GET, body("/n")))[0]
        finally:
            await service.stop()

    assert asyncio.run(main()) == CommandStatus.NOT_LEADER


def test_a_beginning_that_takes_longer_than_anybody_waits_goes_on() -> None:
    begun: list[int] = []

    def begin(table: KvMachine) -> Iterator[bytes]:
        begun.append(0)
        yield command(CommandKind.TXN, txn_fields([Put("/begun", b"1")]))

    async def main() -> None:
        service, _ = serving(ServiceSettings(begin=begin, begins_for_reads=True))
        disk, propose = asyncio.Event(), service.replica.propose

        async def slowly(command: bytes, *, timeout_s: float) -> bytes:
            await disk.wait()
            return await propose(command, timeout_s=timeout_s)

        service.replica.propose = slowly  # type: ignore[method-assign]
        try:
            with pytest.raises(MetadataUnavailable):
                await service._begun_with(0.01, writes=False)
            disk.set()
            assert unpack(await service.handle(Frame.GET, body("/begun")))[0] == CommandStatus.OK
            assert service.machine.get("/begun") is not None and len(begun) == 1
        finally:
            await service.stop()

    asyncio.run(main())
