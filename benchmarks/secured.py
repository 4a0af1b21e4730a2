"""`make bench-secured`: the same load on an instance with TLS, tokens, and authorisation, and on a plain one,
interleaved in one run; medians of ratios.

Is: the official client, which speaks TLS to a broker; in the secured instance the processes do so among themselves, and
its clients are a role that is no super user. Isn't: a comparison with a peer, or a bound: what security costs is told.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console

from benchmarks.against import PUBLISHED, cases_of
from benchmarks.peers import LINK, ONE, Case, compare
from benchmarks.servers import Heliograph, Server, rest

ROLE, ADMIN = "bench", "operator"
ONE_TOPIC = cases_of((*PUBLISHED, "sync publish 1 KB p50"), ONE, ())
LINKED = cases_of(tuple(case.name for case in LINK), LINK, ())


def heliograph(*words: str) -> str:
    program = str(Path(sys.executable).with_name("heliograph"))
    return subprocess.run([program, *words], check=True, capture_output=True, text=True).stdout.strip()


def secured(folder: Path) -> tuple[Server, str]:
    """Two regions with mutual TLS inside, TLS and tokens for clients; and the token of who may provision."""
    private, public = str(folder / "private.pem"), str(folder / "public.pem")
    heliograph("tokens", "keys", "--private", private, "--public", public)
    admin, client = (heliograph("tokens", "create", "-s", role, "--private", private) for role in (ADMIN, ROLE))
    os.environ["HELIOGRAPH_SECURITY"] = json.dumps(
        {
            "authentication": ["token"],
            "tokens": [{"algorithms": ["ES256"], "public_key_file": public}],
            "authorization": True,
            "super_users": [ADMIN],
        }
    )
    try:
        server = Heliograph(folder / "secured", ("a", "b"), tls=True)
    finally:
        del os.environ["HELIOGRAPH_SECURITY"]
    server.client_environment = {"BENCH_CA": str(trusted(server.data)), "BENCH_TOKEN": client}
    return server, admin


def trusted(data: Path) -> Path:
    """The certificates by which an instance's own are trusted."""
    return data / "tls" / "ca.pem"


def provision(server: Server, token: str = "") -> None:
    """A namespace in both regions and one in the first, in both of which the clients' role may publish and read."""
    url = f"http://127.0.0.1:{server.regions['a'][1]}/admin/v2"
    rest("PUT", f"{url}/tenants/geo", {"adminRoles": [], "allowedClusters": ["a", "b"]}, token=token)
    for name, regions in (("both", ["a", "b"]), ("one", ["a"])):
        rest("PUT", f"{url}/namespaces/geo/{name}", {"replication_clusters": regions}, token=token)
        if token:
            rest("POST", f"{url}/namespaces/geo/{name}/permissions/{ROLE}", ["produce", "consume"], token=token)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", action="append", default=[], help="cases whose name holds this; several times")
    options = parser.parse_args()
    console = Console(width=140)

    def chosen(cases: tuple[Case, ...]) -> tuple[Case, ...]:
        own = [case for case in cases if case.command[0] == "benchmarks.client_cases"]
        return tuple(c for c in own if not options.only or any(part in c.name for part in options.only))

    with tempfile.TemporaryDirectory(prefix="heliograph-secured-") as scratch:
        servers: list[Server] = []
        try:
            server, admin = secured(Path(scratch))
            servers.append(server)
            provision(server, admin)
            servers.append(Heliograph(Path(scratch) / "plain", ("a", "b")))
            provision(servers[1])
            console.print(f"load of the machine: {os.getloadavg()[0]:.2f}")
            for cases, namespace in ((ONE_TOPIC, "geo/one"), (LINKED, "geo/both")):
                table, _ = compare(
                    chosen(cases),
                    servers[0],
                    servers[1],
                    options.rounds,
                    f"persistent://{namespace}",
                    console,
                    names=("secured", "plain"),
                )
                console.print(table)
        finally:
            for server in servers:
                server.stop()


if __name__ == "__main__":
    main()
