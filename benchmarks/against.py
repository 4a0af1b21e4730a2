"""`make bench-against AGAINST=COMMIT`: publishing, reading, and a link on this checkout and on an older one,
interleaved in one run; medians of ratios.

Is: what tells whether a change made the data path slower: CPU an entry at most 1.08 of the older one's, the rate at
least 0.90. Isn't: a comparison with a peer (`benchmarks.peers`). Both run as `heliograph up` of two regions on this
machine, side by side, and one has no load while the other is measured. The load is this checkout's. Exits with 1 where
a bound is missed: measure again then, with nothing else running.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from benchmarks.peers import LINK, ONE, Case, Want, compare
from benchmarks.servers import Heliograph, Server, rest

ROOT = Path(__file__).resolve().parents[1]
NOT_SLOWER: tuple[Want, ...] = (("cpu", 1.08, "max"), ("rate", 0.90, "min"))
PUBLISHED = (
    "unbatched 100 B",
    "unbatched 1 KB",
    "unbatched 64 KB",
    "official client batched 1 KB",
    "receive + acknowledge 1 KB",
)
LINKED = ("link, unbatched 1 KB", "link, batched 1 KB")


def cases_of(names: tuple[str, ...], among: tuple[Case, ...], want: tuple[Want, ...]) -> tuple[Case, ...]:
    """Those of these names, with other bounds."""
    return tuple(replace(case, want=want) for case in among if case.name in names)


def checkout(what: str, scratch: Path) -> Path:
    """The folder of a checkout that has its environment: `what` itself, or a clone of that commit, set up here.

    Raises CalledProcessError, with what git or make said above it.
    """
    if (Path(what) / ".venv" / "bin" / "heliograph").exists():
        return Path(what).resolve()
    folder = scratch / "older"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    subprocess.run(["git", "checkout", "--quiet", "--detach", what], cwd=folder, check=True)
    environment = {key: value for key, value in os.environ.items() if key not in ("VIRTUAL_ENV", "MAKEFLAGS")}
    subprocess.run(["make", "setup"], cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    return folder


def regions_of(root: Path, data: Path) -> Server:
    """Two regions of that checkout's own release, with a namespace in both and one in each."""
    server = Heliograph(data, ("a", "b"), programs=root / ".venv" / "bin")
    url = f"http://127.0.0.1:{server.regions['a'][1]}/admin/v2"
    rest("PUT", f"{url}/tenants/geo", {"adminRoles": [], "allowedClusters": ["a", "b"]})
    rest("PUT", f"{url}/namespaces/geo/both", {"replication_clusters": ["a", "b"]})
    rest("PUT", f"{url}/namespaces/geo/one", {"replication_clusters": ["a"]})
    return server


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("against", help="a commit, or the folder of a checkout that is set up")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="cases whose name holds this; several times")
    options = parser.parse_args()
    console = Console(width=140)
    missed: list[str] = []

    def chosen(cases: tuple[Case, ...]) -> tuple[Case, ...]:
        return tuple(c for c in cases if not options.only or any(part in c.name for part in options.only))

    with tempfile.TemporaryDirectory(prefix="heliograph-against-") as scratch:
        older = checkout(options.against, Path(scratch))
        servers: list[Server] = []
        try:
            servers += [regions_of(ROOT, Path(scratch) / "now"), regions_of(older, Path(scratch) / "then")]
            console.print(f"load of the machine: {os.getloadavg()[0]:.2f}")
            for names, among, namespace in ((PUBLISHED, ONE, "geo/one"), (LINKED, LINK, "geo/both")):
                table, more = compare(
                    chosen(cases_of(names, among, NOT_SLOWER)),
                    servers[0],
                    servers[1],
                    options.rounds,
                    f"persistent://{namespace}",
                    console,
                    names=("this", options.against[:12]),
                )
                console.print(table)
                missed += more
        finally:
            for server in servers:
                server.stop()
            shutil.rmtree(Path(scratch) / "older", ignore_errors=True)
    for sentence in missed:
        console.print(f"[red]missed[/] {sentence}")
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
