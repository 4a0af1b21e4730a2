"""`make bench-spread`: the same bytes over one topic and over a thousand, on Heliograph and on a real Apache Pulsar in
one run.

Is: one connection, a producer a topic, as many entries in flight in both cases; 64 KB entries as batching clients send
them, and 1 KB ones one by one.
Also: a thousand producers of one topic with one entry in flight each. Isn't: a test.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

from benchmarks.servers import Heliograph, Pulsar, Server

CASES = {
    "64 KB": ((1, 1, 64, 65536, 6000), (1000, 1000, 1, 65536, 6000)),
    "1 KB": ((1, 1, 2000, 1024, 60_000), (1000, 1000, 2, 1024, 60_000)),
}
"""(topics, producers, window, bytes, entries) over one topic, and over many."""
CROWD = (1, 1000, 1, 100, 60_000)
CROWD_CONNECTIONS = 100


def rate(server: Server, case: tuple[int, int, int, int, int], connections: int = 1) -> float:
    """Measures entries a second. case: topics, producers, window, bytes an entry, entries."""
    topics, producers, window, size, count = case
    prefix = f"persistent://public/default/spread-{time.time_ns()}"
    words = [str(w) for w in (server.port, prefix, topics, producers, connections, window, size, count)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.many_client", *words], capture_output=True, text=True, timeout=600
    )
    if done.returncode:
        raise SystemExit(f"{server.kind}: {done.stderr[-1500:]}")
    figures = json.loads(done.stdout)
    return float(figures["entries"] / figures["seconds"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--no-peer", action="store_true", help="without Pulsar")
    options = parser.parse_args()
    console = Console(width=140)
    table = Table(title=f"entries/s, medians of {options.rounds} rounds", title_justify="left")
    for column in ("server", "case", "one topic", "1,000 topics", "ratio"):
        table.add_column(column, justify="left" if column in ("server", "case") else "right")
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        servers: list[Server] = []
        try:
            servers.append(Heliograph(Path(scratch) / "h"))
            if not options.no_peer:
                servers.append(Pulsar(Path(scratch) / "p"))
            for name, (one, many) in CASES.items():
                for server in servers:
                    with console.status(f"{server.kind}, {name}"):
                        pairs = [(rate(server, one), rate(server, many)) for _ in range(options.rounds)]
                    table.add_row(
                        server.kind,
                        name,
                        f"{median(a for a, _ in pairs):,.0f}",
                        f"{median(b for _, b in pairs):,.0f}",
                        f"{median(b / a for a, b in pairs):.2f}",
                    )
            crowds = {
                server.kind: median(rate(server, CROWD, CROWD_CONNECTIONS) for _ in range(options.rounds))
                for server in servers
            }
        finally:
            for server in servers:
                server.stop()
    console.print(table)
    for kind, figure in crowds.items():
        console.print(
            f"a thousand producers of one topic, one 100 B entry in flight each, {kind}: {figure:,.0f} entries/s"
        )


if __name__ == "__main__":
    main()
