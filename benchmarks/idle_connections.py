"""`make bench-idle`: what an idle plain connection costs a broker in memory: 5,000 of them, each after its handshake.

Is: a standalone's broker, its proportional memory (PSS) without and with the connections; the promise is 40 KiB each.
Isn't: a test.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import sys
import tempfile
import time
from pathlib import Path

import psutil
from rich.console import Console

from benchmarks.raw_client import simple
from benchmarks.servers import Heliograph
from heliograph.wire.pulsar import pulsar_pb2 as pb

PROMISE_KIB = 40.0


async def connected(port: int, count: int) -> list[asyncio.Transport]:
    """So many connections whose CONNECT was answered."""
    hello = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
    hello.connect.client_version, hello.connect.protocol_version = "idle", 20
    frame, loop = simple(hello), asyncio.get_running_loop()
    answered = asyncio.Semaphore(0)

    class Idle(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transport.write(frame)  # type: ignore[attr-defined]

        def data_received(self, data: bytes) -> None:
            answered.release()

    made = []
    for _ in range(count):
        transport, _ = await loop.create_connection(Idle, "127.0.0.1", port)
        made.append(transport)
    for _ in range(count):
        await answered.acquire()
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--connections", type=int, default=5000)
    parser.add_argument("--check", action="store_true", help="exit 1 where the promise is missed")
    options = parser.parse_args()
    wanted = options.connections + 200
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard if hard < wanted else max(wanted, 4096), hard))
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        server = Heliograph(Path(scratch) / "h")
        try:
            rows = next(iter(server.status()["regions"].values()))["processes"]
            broker = psutil.Process(next(row["pid"] for row in rows if row["role"] == "broker"))
            asyncio.run(_warm(server.port))
            before = broker.memory_full_info().pss
            grown = asyncio.run(_grown(broker, server.port, options.connections, before))
        finally:
            server.stop()
    each = grown / options.connections / 1024
    Console().print(f"{options.connections:,} idle connections: {each:.1f} KiB each (at most {PROMISE_KIB:.0f})")
    sys.exit(1 if options.check and each > PROMISE_KIB else 0)


async def _warm(port: int) -> None:
    for transport in await connected(port, 50):
        transport.abort()


async def _grown(broker: psutil.Process, port: int, count: int, before: int) -> int:
    held = await connected(port, count)
    await asyncio.to_thread(time.sleep, 2)
    grown: int = broker.memory_full_info().pss - before
    for transport in held:
        transport.abort()
    return grown


if __name__ == "__main__":
    main()
