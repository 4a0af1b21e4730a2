"""`make bench-connections`: very many connections to a region's brokers: what each costs, a broker's death, and consumers that read nothing.

Parts (`--part`): `memory`: connections with a producer each, by broker, in KiB. `storm`: one broker is killed, and its clients come back all at once; others
publish meanwhile. `slow`: consumers that have room for messages and never read their sockets, beside a publisher and a consumer that do.
Is: real processes, and clients in one process (each of which may have as many files open as `ulimit -n` says). Isn't: a test; promises stand beside figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from benchmarks.raw_client import simple
from benchmarks.servers import Heliograph, rest
from benchmarks.steady_client import Steady, quantile
from heliograph.wire import pulsar_pb2 as pb

NAMESPACE = "public/crowd"
KIB_EACH = 60.0
PART_OF_TOPICS = 10
"""Connections to a topic."""
_SLOW_S = 20.0


class Crowd:
    """A region with `brokers`, and what its clients share."""

    def __init__(self, server: Heliograph, console: Console) -> None:
        self.server, self.console = server, console
        self.admin = f"http://127.0.0.1:{next(iter(server.regions.values()))[1]}"
        self.missed: list[str] = []
        rest("PUT", f"{self.admin}/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": 64}})

    def rows(self) -> list[dict[str, Any]]:
        return [row for row in next(iter(self.server.status()["regions"].values()))["processes"] if row["role"] == "broker" and row["pid"]]

    def memory(self) -> int:
        return sum(psutil.Process(row["pid"]).memory_full_info().pss for row in self.rows())

    def say(self, text: str, *, good: bool = True) -> None:
        self.console.print(text + ("" if good else "  [bold]MISSED[/]"))
        if not good:
            self.missed.append(text)

    async def gather(self, count: int, prefix: str, *, every_s: float = 0.0, at_once: int = 200) -> list[Steady]:
        clients = [
            Steady(f"persistent://{NAMESPACE}/{prefix}-{index // PART_OF_TOPICS}", self.server.port, f"{prefix}-{index}", every_s=every_s)
            for index in range(count)
        ]
        for start in range(0, count, at_once):
            part = clients[start : start + at_once]
            for client in part:
                client.start()
            await asyncio.gather(*(asyncio.wait_for(client.ready.wait(), 120) for client in part))
        return clients


async def memory(crowd: Crowd, count: int) -> None:
    warm = await crowd.gather(50, "warm")
    before, begun = crowd.memory(), time.perf_counter()
    clients = await crowd.gather(count, "still")
    seconds = time.perf_counter() - begun
    await asyncio.sleep(3)
    each = (crowd.memory() - before) / count / 1024
    times = [psutil.Process(row["pid"]).cpu_times() for row in crowd.rows()]
    await asyncio.sleep(10)
    after = [psutil.Process(row["pid"]).cpu_times() for row in crowd.rows()]
    busy = sum(b.user + b.system - a.user - a.system for a, b in zip(times, after, strict=True)) / 10
    text = f"{count:,} connections with a producer each: {each:.1f} KiB each (at most {KIB_EACH:.0f}), made at {count / seconds:,.0f}/s"
    crowd.say(text, good=each <= KIB_EACH)
    crowd.say(f"processor time of all brokers while they are idle: {busy:.1%} of a core")
    for client in (*clients, *warm):
        client.stop()
    await asyncio.sleep(1)


async def storm(crowd: Crowd, count: int) -> None:
    steady = await crowd.gather(100, "steady", every_s=0.2)
    clients = await crowd.gather(count, "storm")
    victim = crowd.rows()[0]
    port = victim["ports"]["service"]
    await asyncio.sleep(5)
    calm = [seconds for one in steady for _, seconds in one.latencies]
    mine = [client for client in clients if client._link is not None and client._link.port == port]
    others = [one for one in steady if one._link is not None and one._link.port != port]
    killed = time.perf_counter()
    await asyncio.to_thread(crowd.server.process, "kill", victim["name"])
    back: list[float] = []

    async def returned(client: Steady) -> None:
        while client.ready.is_set() and not client.reconnects:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        await client.ready.wait()
        back.append(time.perf_counter() - killed)

    await asyncio.wait_for(asyncio.gather(*(returned(client) for client in mine)), 170)
    during = [seconds for one in others for at, seconds in one.latencies if killed <= at <= killed + max(back)]
    errors = [error for client in (*clients, *steady) for error in client.errors]
    again = sum(client.reconnects for client in mine) / max(1, len(mine))
    crowd.say(
        f"a broker with {len(mine):,} of {count:,} connections is killed: half are back after {quantile(back, 0.5):.1f} s, all after {max(back):.1f} s"
        f" (the lease is 3 s); {again:.1f} tries each; errors: {len(errors)} {errors[:2]}",
        good=not errors,
    )
    crowd.say(
        f"publish at the other brokers: p50 {1000 * quantile(calm, 0.5):.0f} ms, p99 {1000 * quantile(calm, 0.99):.0f} ms before; "
        f"p50 {1000 * quantile(during, 0.5):.0f} ms, p99 {1000 * quantile(during, 0.99):.0f} ms while the others come"
    )
    await asyncio.to_thread(crowd.server.process, "start", victim["name"])
    for client in (*clients, *steady):
        client.stop()
    await asyncio.sleep(1)


class Deaf(asyncio.Protocol):
    """A consumer that asks for a thousand messages and never reads its socket again."""

    def __init__(self, topic: str, name: str) -> None:
        self.topic, self.name = topic, name
        self.subscribed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport
        hello = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        hello.connect.client_version, hello.connect.protocol_version = "deaf", 19
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        command.subscribe.topic, command.subscribe.subscription, command.subscribe.subType = self.topic, self.name, pb.CommandSubscribe.Exclusive
        command.subscribe.consumer_id, command.subscribe.request_id = 1, 1
        lookup = pb.BaseCommand(type=pb.BaseCommand.LOOKUP)
        lookup.lookupTopic.topic, lookup.lookupTopic.request_id, lookup.lookupTopic.authoritative = self.topic, 2, True
        self.transport.write(simple(hello) + simple(lookup))
        self._command, self._seen = simple(command), b""

    def data_received(self, data: bytes) -> None:
        self._seen += data
        if self._command and b"pulsar://" in self._seen:
            self.transport.write(self._command)
            self._command, self._seen = b"", b""
        elif not self._command and not self.subscribed.done():
            flow = pb.BaseCommand(type=pb.BaseCommand.FLOW)
            flow.flow.consumer_id, flow.flow.messagePermits = 1, 1000
            self.transport.write(simple(flow))
            self.transport.pause_reading()
            self.subscribed.set_result(None)


async def slow(crowd: Crowd, count: int) -> None:
    """count deaf consumers, each with a subscription of its own on a busy topic, and clients on other topics."""
    loop = asyncio.get_running_loop()
    steady = await crowd.gather(100, "brisk", every_s=0.2)
    feeder = Steady(f"persistent://{NAMESPACE}/fed", crowd.server.port, "feeder", every_s=0.01, size_bytes=20_000)
    feeder.start()
    await feeder.ready.wait()
    assert feeder._link is not None
    before = crowd.memory()
    await asyncio.sleep(_SLOW_S)
    calm, fed = [seconds for one in steady for _, seconds in one.latencies], crowd.memory() - before
    before, deaf = crowd.memory(), []
    for index in range(count):
        _, one = await loop.create_connection(lambda index=index: Deaf(feeder.topic, f"deaf-{index}"), "127.0.0.1", feeder._link.port)  # type: ignore[misc]
        await asyncio.wait_for(one.subscribed, 30)
        deaf.append(one)
    begun = time.perf_counter()
    await asyncio.sleep(_SLOW_S)
    during = [seconds for one in steady for at, seconds in one.latencies if at > begun]
    grown = (crowd.memory() - before - fed) / count / 1e6  # what is published fills the entry cache with and without them
    most = 3 * quantile(calm, 0.99) + 0.05
    crowd.say(f"{count} consumers that read nothing: the brokers grow by {grown:.2f} MB each (at most 2)", good=grown <= 2)
    crowd.say(
        f"publish of the others: p99 {1000 * quantile(calm, 0.99):.0f} ms without them, {1000 * quantile(during, 0.99):.0f} ms with them",
        good=quantile(during, 0.99) <= most,
    )
    for one in deaf:
        one.transport.abort()
    for client in (*steady, feeder):
        client.stop()


async def run(server: Heliograph, options: argparse.Namespace, console: Console) -> list[str]:
    crowd = Crowd(server, console)
    random.seed(1)
    for name, part, count in (("memory", memory, options.connections), ("storm", storm, options.connections), ("slow", slow, options.slow)):
        if options.part in ("all", name):
            await part(crowd, count)
    return crowd.missed


def _may_open(wanted: int) -> int:
    """How many files this process may have open by now: as many as anybody allows it, and root allows itself more."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(hard, wanted), max(hard, wanted)))
        return max(hard, wanted)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--connections", type=int, default=20_000)
    parser.add_argument("--slow", type=int, default=100, help="consumers that read nothing")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--part", choices=("all", "memory", "storm", "slow"), default="all")
    options = parser.parse_args()
    files = _may_open(options.connections + 500)
    if files < options.connections + 500:
        sys.exit(f"this process may have {files} files open: give fewer than {files - 500} connections, or raise `ulimit -Hn`")
    os.environ["HELIOGRAPH_BROKER__BALANCE"] = '{"shedding": {"moves_per_minute": 0}, "split": {"enabled": false}}'
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        server = Heliograph(Path(scratch) / "h", brokers=options.brokers)
        try:
            missed = asyncio.run(run(server, options, Console(width=170)))
        finally:
            server.stop()
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
