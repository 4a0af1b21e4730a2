"""A broker's connection to one bookie."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.model.errors import BookieUnavailable
from storage.ledger.bookies.bookie_client import BookieClient


def test_a_bookie_whose_host_nobody_can_look_up_is_one_that_is_not_there() -> None:
    with Simulation(seed=1) as sim:

        async def main() -> None:
            client = BookieClient("b", "bookie..test", 1, rng=sim.rng("client"))
            with pytest.raises(BookieUnavailable, match="label"):
                await client.read_lac(5)

        sim.run(main(), limit_s=60)


def test_a_client_that_was_closed_while_it_connected_takes_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    with Simulation(seed=1) as sim:

        async def never(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        async def main() -> None:
            monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
            client, lost = BookieClient("b", "b", 1, rng=random.Random(1)), list[Exception]()
            asked = asyncio.create_task(client.read_lac(5))
            await asyncio.sleep(0.01)
            client.close()
            for after_s in (0.0, 60.0):
                await asyncio.sleep(after_s)
                client.open_writer(5, lambda _: None, lost.append)
                async with asyncio.timeout(1.0):
                    with pytest.raises(BookieUnavailable, match="closed"):
                        await client.read_lac(5)
            await asyncio.sleep(0.01)
            assert [type(error) for error in lost] == [BookieUnavailable] * 2
            assert isinstance(asked.exception(), BookieUnavailable)

        sim.run(main(), limit_s=600)


def test_a_connect_that_raises_something_unexpected_counts_as_one_that_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Simulation(seed=1) as sim:
        tried: list[object] = []

        async def no_memory(*_: object, **__: object) -> None:
            tried.append(None)
            raise MemoryError

        async def main() -> None:
            monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", no_memory)
            client = BookieClient("b", "b", 1, rng=random.Random(1))
            for _ in range(2):
                async with asyncio.timeout(1.0):
                    with pytest.raises(BookieUnavailable, match="MemoryError"):
                        await client.read_lac(5)
                await asyncio.sleep(5.0)
            assert len(tried) == 2
            client.close()

        sim.run(main(), limit_s=600)


class Transport:
    """Takes all that is written but the first, for which there is no memory."""

    def __init__(self) -> None:
        self.writes = 0
        self.aborted = False

    def writelines(self, buffers: Sequence[bytes]) -> None:
        self.writes += 1
        if self.writes == 1:
            raise MemoryError

    def get_write_buffer_size(self) -> int:
        return 0

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize("together", [False, True])
def test_a_writer_whose_add_could_not_be_sent_sends_nothing_behind_it(together: bool) -> None:
    """Acks are cumulative: one of what follows would count for what was never sent."""
    with Simulation(seed=1) as sim:

        async def main() -> None:
            client, lost, acked = BookieClient("b", "b", 1, rng=random.Random(1)), list[Exception](), list[int]()
            connection: Any = SimpleNamespace(transport=Transport())
            client._connection = connection
            client.open_writer(5, acked.append, lost.append)
            if together:
                client.write_lac(5, -1)
            client.add(5, 0, 1, [b"a"], -1)
            await asyncio.sleep(0.01)
            client.add(5, 1, 1, [b"b"], -1)
            assert [type(error) for error in lost] == [BookieUnavailable] and "MemoryError" in str(lost[0])
            assert connection.transport.aborted and connection.transport.writes == 1
            assert client.backlog_bytes == 0 and not acked and not client._out
            client.close()

        sim.run(main(), limit_s=60)
