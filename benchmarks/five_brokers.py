"""`make bench-five`: five brokers, 2,000 topics in one namespace, and then one part of them hot: who balances it, how
soon, and what clients feel.

Is: real processes, clients that publish all the time. The namespace has one bundle at first, and all of it is on one
broker: bundles are split, and move, by themselves. The rules are those of any region, looked at more often (`--cycle`),
and in a smaller measure (`--scale`): on a machine of two cores five brokers never carry a core each, so a tenth of a
share counts for a whole one. Isn't: a test.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.servers import Heliograph, rest
from benchmarks.steady_client import Steady, quantile

NAMESPACE = "public/hot"
THRESHOLD, FLOOR, SPLIT = 0.10, 0.15, 0.25
"""The defaults of `balance.shedding` and `balance.split`."""


async def run(server: Heliograph, options: argparse.Namespace, console: Console) -> bool:
    admin = f"http://127.0.0.1:{next(iter(server.regions.values()))[1]}"
    rest("PUT", f"{admin}/admin/v2/namespaces/{NAMESPACE}", {"bundles": {"numBundles": 1}})
    clients = []
    for index in range(options.topics):
        hot = index < options.hot
        every = 1 / options.hot_rate if hot else options.quiet_s
        clients.append(Steady(f"persistent://{NAMESPACE}/t{index}", server.port, f"s{index}", every_s=every))
    begun = time.perf_counter()
    for at, client in enumerate(clients):
        client.start()
        if at % 50 == 49:
            await asyncio.sleep(0.1)
    await asyncio.gather(*(asyncio.wait_for(client.ready.wait(), 120) for client in clients))
    console.print(
        f"{len(clients):,} topics have their producers after {time.perf_counter() - begun:.1f} s; {options.hot} of "
        f"them at {options.hot_rate} msgs/s"
    )
    begun, balanced, history = time.perf_counter(), 0.0, list[dict[str, Any]]()
    while time.perf_counter() - begun < options.seconds:
        await asyncio.sleep(1)
        shown = await asyncio.to_thread(rest, "GET", f"{admin}/heliograph/v1/balance")
        loads = [broker["load"] for broker in shown["brokers"]]
        spread = max(loads) - sum(loads) / len(loads) if loads else 1.0
        history.append(
            {
                "at": time.perf_counter() - begun,
                "loads": loads,
                "bundles": [broker["bundles"] for broker in shown["brokers"]],
            }
        )
        if len(loads) == options.brokers and spread <= THRESHOLD * options.scale:
            balanced = balanced or history[-1]["at"]
        else:
            balanced = 0.0
    bundles = await asyncio.to_thread(rest, "GET", f"{admin}/admin/v2/namespaces/{NAMESPACE}/bundles")
    for client in clients:
        client.stop()
    errors = [error for client in clients for error in client.errors]
    took = [1000 * seconds for client in clients for _, seconds in client.latencies]
    moved = [1000 * seconds for client in clients if client.reconnects for _, seconds in client.latencies]
    last = history[-1]
    console.print(
        f"bundles: 1 at first, {bundles['numBundles']} now; by broker {last['bundles']}; loads "
        f"{[round(load, 2) for load in last['loads']]}"
    )
    text = f"in balance (nobody {THRESHOLD * options.scale:.1%} above the average) for good after {balanced:.0f} s"
    console.print(text if balanced else "NOT in balance")
    console.print(
        f"moves seen by clients: {sum(client.reconnects for client in clients):,} reconnects; errors: {len(errors)} "
        f"{errors[:3]}"
    )
    console.print(
        f"publish, all: p50 {quantile(took, 0.5):.1f} ms, p99 {quantile(took, 0.99):.0f} ms, longest {max(took):.0f} "
        f"ms ({len(took):,} messages)"
    )
    if moved:
        console.print(
            f"publish, clients whose topic moved: p99 {quantile(moved, 0.99):.0f} ms, longest {max(moved):.0f} ms"
        )
    if options.json:
        print(json.dumps(history))
    return bool(balanced) and not errors


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--brokers", type=int, default=5)
    parser.add_argument("--topics", type=int, default=2000)
    parser.add_argument("--hot", type=int, default=40, help="topics that are hot")
    parser.add_argument("--hot-rate", type=float, default=50, help="messages/s of each of those")
    parser.add_argument("--quiet-s", type=float, default=20, help="seconds between two messages of the others")
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument(
        "--cycle", type=float, default=2, help="seconds between two looks at the load (10 where nobody says otherwise)"
    )
    parser.add_argument(
        "--scale", type=float, default=0.1, help="of the rules' thresholds; 1 where each broker has a core"
    )
    parser.add_argument("--json", action="store_true", help="the loads, second by second, at the end")
    options = parser.parse_args()
    shedding = {
        "threshold": THRESHOLD * options.scale,
        "floor": FLOOR * options.scale,
        "gain": 0.02 * options.scale,
        "moves_per_minute": 60,
    }
    splitting = {"rest_s": 3 * options.cycle, "load": SPLIT * options.scale}
    shedding |= {"patience_s": 11 * options.cycle, "cool_down_s": 10 * options.cycle}
    rules = {"report_s": options.cycle, "cycle_s": options.cycle, "shedding": shedding, "split": splitting}
    os.environ["HELIOGRAPH_BROKER__BALANCE"] = json.dumps(rules)
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        server = Heliograph(Path(scratch) / "h", brokers=options.brokers)
        try:
            good = asyncio.run(run(server, options, Console(width=160)))
        finally:
            server.stop()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
