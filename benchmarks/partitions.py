"""`python -m benchmarks.partitions`: ten thousand topics of three partitions each, every entry kept by three bookies
and confirmed by two.

Is: a standalone of one broker and three bookies: partitioned topics made over REST, a message to each partition by
producers that look it up and open it, each message read back by a subscription from the earliest on; how long that
takes, what it costs each process in memory and open files, and whether each ledger lies on three bookies.
Isn't: throughput (`benchmarks.spread` has that), or many more topics than are used (`benchmarks.topics`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import psutil
from rich.console import Console
from rich.table import Table

from benchmarks.many_client import ManyProducers
from benchmarks.raw_client import LoadConnection, simple
from benchmarks.servers import Heliograph, rest
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.kv.metadata_store import prefix_end
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.runtime.clock import SystemClock
from heliograph.wire.pulsar import pulsar_pb2 as pb
from local_meta import keys

NAMESPACE, COPIES, PARTITIONS = "public/three", 3, 3
PAYLOAD_BYTES = 100
_MAKERS = 8
_PIECE = 100


class Readers(LoadConnection):
    """Subscribes to one topic after the other, and takes one message of each. `found`: payload bytes of each."""

    def __init__(self, topics: list[str]) -> None:
        super().__init__()
        self.found: list[int] = []
        self._topics, self._rest = topics, b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data if self._rest else data
        at = 0
        while len(data) - at >= 4:
            end = at + 4 + int.from_bytes(data[at : at + 4], "big")
            if end > len(data):
                break
            head = int.from_bytes(data[at + 4 : at + 8], "big")
            command = pb.BaseCommand()
            command.ParseFromString(data[at + 8 : at + 8 + head])
            self._on_command(command, end - at - 8 - head)
            at = end
        self._rest = data[at:]

    def _on_command(self, command: pb.BaseCommand, rest_bytes: int) -> None:
        kinds, place = pb.BaseCommand, len(self.found)
        if command.type == kinds.CONNECTED:
            self.ready.set_result(None)
            self._look()
        elif command.type == kinds.LOOKUP_RESPONSE:
            subscribe = kinds(type=kinds.SUBSCRIBE)
            subscribe.subscribe.topic, subscribe.subscribe.subscription = self._topics[place], "all"
            subscribe.subscribe.subType, subscribe.subscribe.initialPosition = (
                pb.CommandSubscribe.Exclusive,
                pb.CommandSubscribe.Earliest,
            )
            subscribe.subscribe.consumer_id, subscribe.subscribe.request_id = place, 2
            self.transport.write(simple(subscribe))
        elif command.type == kinds.SUCCESS:
            flow = kinds(type=kinds.FLOW)
            flow.flow.consumer_id, flow.flow.messagePermits = place, 1
            self.transport.write(simple(flow))
        elif command.type == kinds.MESSAGE:
            self.found.append(rest_bytes)
            if len(self.found) == len(self._topics):
                self.done.set_result(None)
            else:
                self._look()
        elif command.type == kinds.PING:
            self.transport.write(simple(kinds(type=kinds.PONG, pong=pb.CommandPong())))
        elif command.type != kinds.ACTIVE_CONSUMER_CHANGE:
            self.connection_lost(ConnectionError(f"unexpected answer: {command}"))
            self.transport.abort()

    def _look(self) -> None:
        lookup = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
        lookup.lookupTopic.topic, lookup.lookupTopic.request_id = self._topics[len(self.found)], 1
        self.transport.write(simple(lookup))


async def make(url: str, topics: int) -> None:
    """Several at a time, as a script of an operator would."""
    rest_of = iter(range(topics))

    async def work(session: aiohttp.ClientSession) -> None:
        for number in rest_of:
            async with session.put(
                f"{url}/admin/v2/persistent/{NAMESPACE}/orders-{number:06d}/partitions", json=PARTITIONS
            ) as answer:
                answer.raise_for_status()

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(work(session) for _ in range(_MAKERS)))


async def by_pieces(
    names: list[str], connections: int, work: Callable[[list[str]], Coroutine[Any, Any, int]]
) -> tuple[int, int]:
    """(sum of what `work` returns, how often some topics were tried again: as clients do where a broker closes them, or
    is busy).
    """
    found = again = 0

    async def one(mine: list[str]) -> None:
        nonlocal found, again
        for start in range(0, len(mine), _PIECE):
            while True:
                try:
                    count = await work(mine[start : start + _PIECE])
                except OSError:
                    again += 1
                    await asyncio.sleep(0.5)
                else:
                    found += count
                    break

    await asyncio.gather(*(one(names[at::connections]) for at in range(connections)))
    return found, again


async def publish(names: list[str], port: int, connections: int) -> tuple[int, int]:
    """Publishes a message to each topic. Returns what `by_pieces` does: messages, tries again."""

    async def work(mine: list[str]) -> int:
        name = f"p{time.time_ns()}"
        _, made = await asyncio.get_running_loop().create_connection(
            lambda: ManyProducers(mine, name, 1, PAYLOAD_BYTES), "127.0.0.1", port
        )
        try:
            await made.ready
            made.start(len(mine))
            await made.done
        finally:
            made.transport.abort()
        return len(mine)

    return await by_pieces(names, connections, work)


async def read(names: list[str], port: int, connections: int) -> tuple[int, int]:
    """Messages that came back whole."""

    async def work(mine: list[str]) -> int:
        _, made = await asyncio.get_running_loop().create_connection(lambda: Readers(mine), "127.0.0.1", port)
        try:
            await made.done
        finally:
            made.transport.abort()
        return sum(size >= PAYLOAD_BYTES for size in made.found)

    return await by_pieces(names, connections, work)


async def copies(address: str) -> tuple[int, int]:
    """(ledgers of the namespace, those of them that name three bookies and want two acknowledgements)."""
    client = MetaClient([address], clock=SystemClock(), rng=random.Random(1), settings=ClientSettings(timeout_s=60))
    ledgers = good = 0
    start = keys.LEDGERS
    while rows := await client.range(start, prefix_end(keys.LEDGERS), limit=1000):
        for _, blob, _ in rows:
            metadata = LedgerMetadata.decode(blob)
            if not metadata.topic.startswith(f"persistent://{NAMESPACE}/"):
                continue
            ledgers += 1
            good += (
                len(set(metadata.fragments[-1][1])) == metadata.write_quorum == COPIES
                and metadata.ack_quorum == COPIES - 1
            )
        start = rows[-1][0] + "\0"
    client.close()
    return ledgers, good


def costs(server: Heliograph) -> dict[str, tuple[float, int, float]]:
    """Measures each process: memory in MB (what is shared counts in part), open files, processor seconds."""
    found = {}
    for row in next(iter(server.status()["regions"].values()))["processes"]:
        process = psutil.Process(row["pid"])
        times = process.cpu_times()
        found[row["name"]] = process.memory_full_info().pss / 1e6, process.num_fds(), times.user + times.system
    return found


def measured(server: Heliograph, topics: int, connections: int, console: Console) -> bool:
    """Whether all came back, from three bookies each."""
    url = f"http://127.0.0.1:{next(iter(server.regions.values()))[1]}"
    rest("PUT", f"{url}/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": 4}})
    persistence = {
        "bookkeeperEnsemble": COPIES,
        "bookkeeperWriteQuorum": COPIES,
        "bookkeeperAckQuorum": COPIES - 1,
        "managedLedgerMaxMarkDeleteRate": 0,
    }
    rest("POST", f"{url}/admin/v2/namespaces/{NAMESPACE}/persistence", persistence)
    names = [
        f"persistent://{NAMESPACE}/orders-{number:06d}-partition-{part}"
        for number in range(topics)
        for part in range(PARTITIONS)
    ]
    before = costs(server)
    steps = Table(title=f"{topics:,} topics of {PARTITIONS} partitions, {COPIES} copies, load {os.getloadavg()[0]:.1f}")
    for column in ("step", "seconds", "a second"):
        steps.add_column(column, justify="left" if column == "step" else "right")

    def step(what: str, count: int, work: Coroutine[Any, Any, Any]) -> Any:
        begun = time.perf_counter()
        found = asyncio.run(work)
        took = time.perf_counter() - begun
        steps.add_row(what, f"{took:.1f}", f"{count / took:,.0f}")
        return found

    step("partitioned topics made", topics, make(url, topics))
    _, late = step("partitions looked up, opened, a message each", len(names), publish(names, server.port, connections))
    came, again = step("partitions subscribed, and read", len(names), read(names, server.port, connections))
    console.print(steps)
    spent = Table(title="processes, before and after")
    for column in ("process", "memory, MB", "more a partition, KiB", "open files", "processor, s"):
        spent.add_column(column, justify="left" if column == "process" else "right")
    for name, (memory, files, cpu) in costs(server).items():
        was = before[name]
        each = (memory - was[0]) * 1e6 / 1024 / len(names)
        spent.add_row(name, f"{was[0]:.0f}, {memory:.0f}", f"{each:.1f}", f"{was[1]}, {files}", f"{cpu - was[2]:.1f}")
    console.print(spent)
    plan = json.loads((server.data / "instance.json").read_text())
    ledgers, good = asyncio.run(copies(f"127.0.0.1:{plan['regions'][0]['metadata']['ports']['meta']}"))
    console.print(f"{came:,} of {len(names):,} messages came back, {late + again} pieces were tried again")
    console.print(f"{good:,} of {ledgers:,} ledgers lie on {COPIES} bookies")
    return came == len(names) and len(names) <= good == ledgers


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.partitions", description=__doc__.partition("\n\n")[0] if __doc__ else ""
    )
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--connections", type=int, default=20)
    parser.add_argument("--on", type=Path, help="a folder for the data; else where temporary files lie")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-", dir=options.on) as scratch:
        server = Heliograph(Path(scratch) / "h", bookies=COPIES)
        try:
            good = measured(server, options.topics, options.connections, Console(width=140))
        finally:
            server.stop()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
