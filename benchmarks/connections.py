"""`make bench-connections`: very many connections to a region's brokers: what each costs, a broker's death, and
consumers that read nothing.

Parts (`--part`): `memory`: connections with a producer each, by broker, in KiB; and how equally they are served when
all of them publish, without and with a greedy one. `storm`: one broker is killed, and its clients come back all at
once; others publish meanwhile. `slow`: consumers that have room for messages and never read their sockets, beside a
publisher and a consumer that do.
Is: real processes, and clients in as many processes as their number asks for (`crowd`). Isn't: a test; promises stand
beside figures.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, cast

import psutil
from rich.console import Console

from benchmarks.crowd import CLIENTS_EACH, PER_TOPIC, Crowd, gathered, may_open
from benchmarks.raw_client import simple
from benchmarks.servers import Heliograph, rest
from benchmarks.steady_client import Steady, quantile
from heliograph.wire.pulsar import pulsar_pb2 as pb

NAMESPACE = "public/crowd"
KIB_EACH = 60.0
FAIR_MESSAGES_S = 1000
STORM_S = 170.0
_SLOW_S = 20.0


class Load:
    """A region with `brokers`, what is said of it, and the few clients whose publishes are timed: they are in this
    process, the crowd is not.
    """

    def __init__(self, server: Heliograph, console: Console) -> None:
        self.server, self.console = server, console
        self.admin = f"http://127.0.0.1:{next(iter(server.regions.values()))[1]}"
        self.missed: list[str] = []
        rest("PUT", f"{self.admin}/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": 64}})

    def rows(self) -> list[dict[str, Any]]:
        return [
            row
            for row in next(iter(self.server.status()["regions"].values()))["processes"]
            if row["role"] == "broker" and row["pid"]
        ]

    def memory(self) -> int:
        return sum(psutil.Process(row["pid"]).memory_full_info().pss for row in self.rows())

    def say(self, text: str, *, good: bool = True) -> None:
        self.console.print(text + ("" if good else "  [bold]MISSED[/]"))
        if not good:
            self.missed.append(text)

    async def few(self, count: int, prefix: str, *, every_s: float = 0.0) -> list[Steady]:
        topics = [f"persistent://{NAMESPACE}/{prefix}-{index // PER_TOPIC}" for index in range(count)]
        return await gathered(
            [
                Steady(topic, self.server.port, f"{prefix}-{index}", every_s=every_s)
                for index, topic in enumerate(topics)
            ]
        )

    async def crowd(self, count: int, prefix: str) -> Crowd:
        made = await Crowd.of(count, self.server.port)
        await made.gather(NAMESPACE, prefix)
        return made


async def memory(load: Load, count: int) -> None:
    warm = await load.few(50, "warm")
    before, begun = load.memory(), time.perf_counter()
    crowd = await load.crowd(count, "still")
    seconds = time.perf_counter() - begun
    await asyncio.sleep(3)
    each = (load.memory() - before) / count / 1024
    times = [psutil.Process(row["pid"]).cpu_times() for row in load.rows()]
    await asyncio.sleep(10)
    after = [psutil.Process(row["pid"]).cpu_times() for row in load.rows()]
    busy = sum(b.user + b.system - a.user - a.system for a, b in zip(times, after, strict=True)) / 10
    text = (
        f"{count:,} connections with a producer each: {each:.1f} KiB each (at most {KIB_EACH:.0f}), made at "
        f"{count / seconds:,.0f}/s"
    )
    load.say(text, good=each <= KIB_EACH)
    load.say(f"processor time of all brokers while they are idle: {busy:.1%} of a core")
    await fair(load, crowd, count)
    await crowd.end()
    for client in warm:
        client.stop()
    await asyncio.sleep(1)


async def fair(load: Load, crowd: Crowd, count: int) -> None:
    """All of the crowd publish at one pace, together FAIR_MESSAGES_S; then a client beside them publishes as fast as it
    gets receipts.
    """
    every_s = max(1.0, count / FAIR_MESSAGES_S)
    found: list[tuple[float, float, float, int]] = []
    for greedy in (False, True):
        busy = (
            [Steady(f"persistent://{NAMESPACE}/greedy", load.server.port, "greedy", every_s=0.0005, size_bytes=1000)]
            if greedy
            else []
        )
        await gathered(busy)
        await crowd.pace(every_s)
        await asyncio.sleep(every_s)
        since = time.perf_counter()
        await asyncio.sleep(3 * every_s)
        until = time.perf_counter() - since
        await crowd.pace(0)
        await asyncio.sleep(2)
        each = await crowd.receipts(since)
        numbers = [len(one) for one in each]
        jain = sum(numbers) ** 2 / (len(numbers) * sum(number**2 for number in numbers)) if sum(numbers) else 0.0
        slowest = sorted(max(one, default=float("inf")) for one in each)
        every = [second for one in each for second in one]
        found.append((jain, quantile(every, 0.5), quantile(every, 0.99), sum(one.receipts for one in busy)))
        beside = (
            f" beside one that stores {sum(one.receipts for one in busy) / (until + every_s + 2):,.0f}/s"
            if greedy
            else ""
        )
        load.say(
            f"all {count:,} publish every {every_s:.0f} s{beside}: {min(numbers)} to {max(numbers)} receipts each, "
            f"fairness (Jain's index) {jain:.4f}"
            f" (at least 0.95); p50 {1000 * found[-1][1]:.1f} ms, p99 {1000 * found[-1][2]:.0f} ms, the worst of any "
            f"client {1000 * slowest[-1]:.0f} ms",
            good=jain >= 0.95 and min(numbers) > 0,
        )
        for client in busy:
            client.stop()


async def storm(load: Load, count: int) -> None:
    steady = await load.few(100, "steady", every_s=0.2)
    crowd = await load.crowd(count, "storm")
    victim = load.rows()[0]
    port = victim["ports"]["service"]
    await asyncio.sleep(5)
    calm = [seconds for one in steady for _, seconds in one.latencies]
    mine = await crowd.at(port)
    others = [one for one in steady if one.port_now not in (0, port)]
    killed = time.perf_counter()
    await asyncio.to_thread(load.server.process, "kill", victim["name"])
    back, tries = await crowd.back(killed, STORM_S)
    during = [seconds for one in others for at, seconds in one.latencies if killed <= at <= killed + max(back)]
    errors = await crowd.errors() + [error for client in steady for error in client.errors]
    busiest = max(sum(1 for second in back if at <= second < at + 1) for at in range(int(max(back)) + 1))
    load.say(
        f"a broker with {mine:,} of {count:,} connections is killed: half are back after {quantile(back, 0.5):.1f} s, "
        f"all after {max(back):.1f} s"
        f" (the lease is 3 s), {busiest:,} of them in the busiest second; {tries / max(1, mine):.1f} tries each; "
        f"errors: {len(errors)} {errors[:2]}",
        good=not errors,
    )
    load.say(
        f"publish at the other brokers: p50 {1000 * quantile(calm, 0.5):.0f} ms, p99 "
        f"{1000 * quantile(calm, 0.99):.0f} ms before; "
        f"p50 {1000 * quantile(during, 0.5):.0f} ms, p99 {1000 * quantile(during, 0.99):.0f} ms while the others come"
    )
    await asyncio.to_thread(load.server.process, "start", victim["name"])
    await crowd.end()
    for client in steady:
        client.stop()
    await asyncio.sleep(1)


class Deaf(asyncio.Protocol):
    """A consumer that asks for a thousand messages and never reads its socket again."""

    def __init__(self, topic: str, name: str) -> None:
        self.topic, self.name = topic, name
        self.subscribed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        hello = pb.BaseCommand(type=pb.BaseCommand.CONNECT)
        hello.connect.client_version, hello.connect.protocol_version = "deaf", 19
        command = pb.BaseCommand(type=pb.BaseCommand.SUBSCRIBE)
        command.subscribe.topic, command.subscribe.subscription, command.subscribe.subType = (
            self.topic,
            self.name,
            pb.CommandSubscribe.Exclusive,
        )
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


async def slow(load: Load, count: int) -> None:
    """count deaf consumers, each with a subscription of its own on a busy topic, and clients on other topics."""
    loop = asyncio.get_running_loop()
    steady = await load.few(100, "brisk", every_s=0.2)
    feeder = Steady(f"persistent://{NAMESPACE}/fed", load.server.port, "feeder", every_s=0.01, size_bytes=20_000)
    feeder.start()
    await feeder.ready.wait()
    assert feeder._link is not None
    before = load.memory()
    await asyncio.sleep(_SLOW_S)
    calm, fed = [seconds for one in steady for _, seconds in one.latencies], load.memory() - before
    before, deaf = load.memory(), []
    for index in range(count):
        _, one = await loop.create_connection(
            lambda index=index: Deaf(feeder.topic, f"deaf-{index}"), "127.0.0.1", feeder._link.port
        )  # type: ignore[misc]
        await asyncio.wait_for(one.subscribed, 30)
        deaf.append(one)
    begun = time.perf_counter()
    await asyncio.sleep(_SLOW_S)
    during = [seconds for one in steady for at, seconds in one.latencies if at > begun]
    grown = (
        (load.memory() - before - fed) / count / 1e6
    )  # what is published fills the entry cache with and without them
    most = 3 * quantile(calm, 0.99) + 0.05
    load.say(
        f"{count} consumers that read nothing: the brokers grow by {grown:.2f} MB each (at most 2)", good=grown <= 2
    )
    load.say(
        f"publish of the others: p99 {1000 * quantile(calm, 0.99):.0f} ms without them, "
        f"{1000 * quantile(during, 0.99):.0f} ms with them",
        good=quantile(during, 0.99) <= most,
    )
    for one in deaf:
        one.transport.abort()
    for client in (*steady, feeder):
        client.stop()


async def run(server: Heliograph, options: argparse.Namespace, console: Console) -> list[str]:
    load = Load(server, console)
    random.seed(1)
    for name, part, count in (
        ("memory", memory, options.connections),
        ("storm", storm, options.connections),
        ("slow", slow, options.slow),
    ):
        if options.part in ("all", name):
            await part(load, count)
    return load.missed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--connections", type=int, default=20_000)
    parser.add_argument("--slow", type=int, default=100, help="consumers that read nothing")
    parser.add_argument("--brokers", type=int, default=3)
    parser.add_argument("--part", choices=("all", "memory", "storm", "slow"), default="all")
    options = parser.parse_args()
    # a broker that is left has its share of a dead one's connections, and takes a thousand fewer than it may have files
    files, each = may_open(20_000), options.connections // max(1, options.brokers - 1)
    if files < max(each + 1500, min(options.connections, CLIENTS_EACH) + 1000):
        dead = f"more --brokers (once one is dead each of the others has {each:,})"
        sys.exit(f"a process may have {files} files open: give fewer connections, or {dead}, or raise `ulimit -Hn`")
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
