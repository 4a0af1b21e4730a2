"""A description that is good, and a region of it whose metadata runs: a real process, on an address of the loopback
network of its own.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgpack
import pytest

from benchmarks.servers import free_port
from heliograph.kv.metadata_client import MetaClient
from heliograph.runtime.clock import SystemClock, system_rng
from local_meta import keys
from region_node.hosts.host_folders import render
from region_node.hosts.inventory import Inventory, parse
from region_node.hosts.region_watch import certificate

ALL = ["meta", "config", "bookie", "broker"]
T = TypeVar("T")


@pytest.fixture
def described() -> dict[str, Any]:
    """Regions eu, of three hosts, and us, of one."""
    eu: dict[str, Any] = {
        "eu-a": {"address": "127.0.1.1", "roles": ALL, "zone": "a"},
        "eu-b": {"address": "127.0.1.2", "roles": ["bookie", "broker"], "zone": "b"},
        "eu-c": {"address": "127.0.1.3", "roles": ["bookie"], "zone": "c"},
    }
    us = {"us-a": {"address": "127.0.1.9", "roles": ALL, "bookies": 2}}
    return {
        "name": "test",
        "service": "plain",
        "regions": {"eu": {"number": 1, "hosts": eu}, "us": {"number": 2, "hosts": us}},
    }


@dataclass
class Running:
    """eu's metadata, of eu-a; other hosts' folders are below `prefix(host)`."""

    inventory: Inventory
    rendered: Path

    def prefix(self, host: str) -> Path:
        return Path(self.inventory.prefix_of(host))

    def meta(self, work: Callable[[MetaClient], Awaitable[T]]) -> T:
        """With a client of the metadata."""

        async def run() -> T:
            tls = certificate("eu", self.prefix("eu-a") / "etc", "broker")
            client = MetaClient(
                [f"127.0.1.1:{self.inventory.ports.meta}"], clock=SystemClock(), rng=system_rng(), ssl=tls
            )
            try:
                return await work(client)
            finally:
                client.close()

        return asyncio.run(run())

    def register(self, *, bookies: dict[str, bool], brokers: list[str]) -> None:
        """As bookies (writable or not) and brokers do it."""

        async def put(meta: MetaClient) -> None:
            for name, writable in bookies.items():
                await meta.put(keys.bookie(name), msgpack.packb({"host": "127.0.0.1", "port": 1, "writable": writable}))
            for name in brokers:
                await meta.put(
                    keys.broker(name),
                    msgpack.packb({"format": 1, "listeners": {}, "admin_url": "", "pid": 1, "lease": 0}),
                )

        self.meta(put)


@pytest.fixture
def running(described: dict[str, Any], tmp_path: Path) -> Iterator[Running]:
    described |= {
        "prefix": f"{tmp_path}/{{host}}",
        "data": f"{tmp_path}/data/{{host}}",
        "ports": {name: free_port() for name in ("meta", "config", "raft")},
    }
    inventory = parse(described)
    for folder in render(inventory, tmp_path / "ca", tmp_path / "rendered"):
        shutil.copytree(folder, tmp_path / folder.name / "etc")
    settings = tmp_path / "eu-a" / "etc" / "eu-a-meta.json"
    command = [sys.executable, "-m", "region_node.process", "--settings", str(settings), "--role", "meta"]
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True) as process,
    ):
        try:
            assert process.stdout is not None and json.loads(process.stdout.readline() or "{}").get("ready"), (
                tmp_path / "log"
            ).read_text()
            yield Running(inventory, tmp_path / "rendered")
        finally:
            process.terminate()
            try:
                process.wait(120)
            except subprocess.TimeoutExpired:  # else the `with` waits for ever
                process.kill()
                raise
