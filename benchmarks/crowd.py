"""A crowd of clients that stay (`steady_client`), divided over processes, since a process may have only so many files
open.

Is: `python -m benchmarks.crowd PORT`: one of these processes, which does what lines of JSON on its stdin say and
answers each by one; and `Crowd`, which has as many of them as the number of clients asks for. Isn't: a measurement.
Times are perf_counter seconds, which all processes of a machine share.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import sys
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.steady_client import Steady

CLIENTS_EACH = 10_000
"""Bounds the clients of a process; with what else it has open it stays below 11,000 files."""
AT_ONCE = 100
PER_TOPIC = 10
_POLL_S = 0.1
_LINE_BYTES = 64 << 20


def may_open(wanted: int) -> int:
    """How many files this process may have open by now: as many as anybody allows it, and root allows itself more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, wanted), max(hard, wanted)))
        return max(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


async def gathered(clients: list[Steady], wait_s: float = 170) -> list[Steady]:
    """All of them connected, AT_ONCE after another."""
    for start in range(0, len(clients), AT_ONCE):
        part = clients[start : start + AT_ONCE]
        for client in part:
            client.start()
        await asyncio.gather(*(asyncio.wait_for(client.ready.wait(), wait_s) for client in part))
    return clients


class Crowd:
    """`await gather`, and so on: each is done by all of the processes at once."""

    def __init__(self, processes: list[asyncio.subprocess.Process], shares: list[range]) -> None:
        self._processes, self._shares = processes, shares

    @classmethod
    async def of(cls, count: int, port: int) -> Crowd:
        """Processes for `count` clients, none of which is connected yet; `end` ends them."""
        number = -(-count // CLIENTS_EACH)
        shares = [range(count * at // number, count * (at + 1) // number) for at in range(number)]
        words = (sys.executable, "-m", "benchmarks.crowd", str(port))
        pipe = asyncio.subprocess.PIPE
        processes = [
            await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=_LINE_BYTES) for _ in shares
        ]
        return cls(processes, shares)

    async def end(self) -> None:
        for process in self._processes:
            assert process.stdin is not None
            process.stdin.close()
        await asyncio.gather(*(process.wait() for process in self._processes))

    async def gather(self, namespace: str, prefix: str) -> None:
        """Connects all of them, each with a producer, PER_TOPIC to a topic."""
        asked = [
            {"do": "gather", "namespace": namespace, "prefix": prefix, "first": share.start, "count": len(share)}
            for share in self._shares
        ]
        await asyncio.gather(*(self._ask(at, command) for at, command in enumerate(asked)))

    async def pace(self, every_s: float) -> None:
        """Each publishes a message every so often from now on; 0: no more."""
        await self._all("pace", every_s=every_s)

    async def at(self, port: int) -> int:
        """How many are connected to the broker at that port; they are the ones that `back` waits for."""
        return sum(answer["count"] for answer in await self._all("at", port=port))

    async def back(self, since: float, wait_s: float) -> tuple[list[float], int]:
        """(when each of them had its producer again, after `since`; connections that all of them opened for it, and
        lost or gave up).
        """
        answers = await self._all("back", since=since, wait_s=wait_s)
        return sorted(second for answer in answers for second in answer["seconds"]), sum(
            answer["tries"] for answer in answers
        )

    async def receipts(self, since: float) -> list[list[float]]:
        """Returns for each client the latencies, in seconds, of what it sent after `since`."""
        return [one for answer in await self._all("receipts", since=since) for one in answer["each"]]

    async def errors(self) -> list[str]:
        return [error for answer in await self._all("errors") for error in answer["errors"]]

    async def _all(self, what: str, **fields: Any) -> list[dict[str, Any]]:
        return await asyncio.gather(*(self._ask(at, {"do": what, **fields}) for at in range(len(self._processes))))

    async def _ask(self, at: int, command: Mapping[str, Any]) -> dict[str, Any]:
        process = self._processes[at]
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(command).encode() + b"\n")
        line = await process.stdout.readline()
        if not line:
            raise SystemExit(f"a process of clients has ended while it was told to {command['do']}")
        answer: dict[str, Any] = json.loads(line)
        return answer


class _Clients:
    """What one of the processes has."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._clients: list[Steady] = []
        self._there: list[Steady] = []
        self._reconnects: list[int] = []

    async def gather(self, namespace: str, prefix: str, first: int, count: int) -> dict[str, Any]:
        indices = range(first, first + count)
        topics = [f"persistent://{namespace}/{prefix}-{index // PER_TOPIC}" for index in indices]
        made = [
            Steady(topic, self._port, f"{prefix}-{index}", every_s=0)
            for index, topic in zip(indices, topics, strict=True)
        ]
        self._clients = await gathered(made)
        return {}

    async def pace(self, every_s: float) -> dict[str, Any]:
        for client in self._clients:
            client.pace(every_s)
        return {}

    async def at(self, port: int) -> dict[str, Any]:
        self._there = [client for client in self._clients if client.port_now == port]
        self._reconnects = [client.reconnects for client in self._there]
        return {"count": len(self._there)}

    async def back(self, since: float, wait_s: float) -> dict[str, Any]:
        async with asyncio.timeout(wait_s):
            while any(client.ready_at <= since for client in self._there):  # noqa: ASYNC110
                await asyncio.sleep(_POLL_S)
        tries = sum(client.reconnects for client in self._there) - sum(self._reconnects)
        return {"seconds": [client.ready_at - since for client in self._there], "tries": tries}

    async def receipts(self, since: float) -> dict[str, Any]:
        return {"each": [[seconds for at, seconds in client.latencies if at > since] for client in self._clients]}

    async def errors(self) -> dict[str, Any]:
        return {"errors": [error for client in self._clients for error in client.errors]}

    def stop(self) -> None:
        for client in self._clients:
            client.stop()


async def _serve(port: int) -> None:
    clients, reader = _Clients(port), asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        command = json.loads(line)
        answer = await getattr(clients, command.pop("do"))(**command)
        print(json.dumps(answer), flush=True)
    clients.stop()


if __name__ == "__main__":
    may_open(CLIENTS_EACH + 1000)
    assert time.get_clock_info("perf_counter").monotonic
    asyncio.run(_serve(int(sys.argv[1])))
