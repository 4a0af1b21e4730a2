"""Disks of a running instance that are lost, or doubtful: emptied, unmounted, put back to an older copy.

Is: kinds of fault for `chaos`, each with what an operator does about it (docs/operating/disks.md), and what the product
says meanwhile, compared. Isn't: a disk that fails, or is full (tests/system/test_disks.py).
Invariants: one disk of a region is away at a time; the next one goes only once the copies of the last are made again.
"""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from region_node.chaos.faults import BegunFault
from region_node.instance.plan.layout import data_of
from region_node.instance.plan.loopback_ports import LoopbackPorts
from tests.region_node.region_processes import Process

VOTERS = 3
Load = Callable[[float], None]


class LostDisks:
    """Of one instance. compared: by kind of report, counts what was held against the truth."""

    def __init__(self, instance: Instance, rng: random.Random, compared: Counter[str], *, patience_s: float) -> None:
        self._instance, self._rng, self._compared, self._patience_s = instance, rng, compared, patience_s
        self.voters: dict[str, tuple[dict[str, Any], Process]] = {}
        """Those that were added to the metadata of `_voting`: node -> its settings, and its process."""
        self._voting = ""

    def end(self) -> None:
        """Ends the processes that were started here."""
        for _, process in self.voters.values():
            process.kill()

    # -- bookies -------------------------------------------------------------------------------------------------------

    def wipe_bookie(self, load: Load, region: str = "", without: str = "") -> BegunFault:
        """Its folder is empty when it comes back. without: not this one."""
        name = self._bookie(region, without)
        self._down(name)
        shutil.rmtree(self._folder(name))
        self._up(name)
        self.limbo(name)
        return BegunFault(where=name, heal=lambda: self.new_life(name))

    def wipe_two_bookies(self, load: Load) -> BegunFault:
        """Of one region, one after the other: what the first lost lies on it again before the second goes."""
        region = self._rng.choice(list(self._instance.state["regions"]))
        first = self.wipe_bookie(load, region)
        load(1.0)
        first.heal()
        load(1.0)
        second = self.wipe_bookie(load, region, without=first.where)
        return BegunFault(where=f"{first.where}, {second.where}", heal=second.heal)

    def unmount_bookie(self) -> BegunFault:
        """It starts on an empty mount point, and is stopped and given its disk afterwards; no command is needed."""
        name = self._bookie()
        self._down(name)
        mine = self._folder(name)
        disk = mine.with_name(f"{mine.name}.unmounted")
        mine.rename(disk)
        self._up(name)
        self.limbo(name)

        def mount() -> None:
            self._down(name)
            shutil.rmtree(mine)
            disk.rename(mine)
            self._up(name)
            eventually(lambda: not self._row(name)["limbo"], f"{name} is itself again with its disk", self._patience_s)

        return BegunFault(where=name, heal=mount)

    def roll_back_bookie(self, load: Load) -> BegunFault:
        """A copy of its folder, made while it was stopped, comes back after it has taken more. It is never believed."""
        name = self._bookie()
        self._down(name)
        mine = self._folder(name)
        copy = mine.with_name(f"{mine.name}.copy")
        shutil.copytree(mine, copy)
        self._up(name)
        load(3.0)
        self._down(name)
        shutil.rmtree(mine)
        copy.rename(mine)
        self._up(name)
        self.limbo(name)
        return BegunFault(where=name, heal=lambda: self.new_life(name))

    def new_life(self, name: str) -> None:
        """As an operator: grants it, where nothing is lost by that, and waits until the copies are made again."""
        admin = self._instance.admin(self._region(name))
        path = f"{admin}/heliograph/v1/bookies/{name}/new-life"

        def granted() -> bool:
            price = rest("GET", path)
            if price["state"] == "limbo" and price["no_copy_ledgers"]:
                return False  # copies on their way, or a bookie that has just come back
            heliograph("bookies", "new-life", name, "--yes", "--admin", admin)
            return True

        eventually(granted, f"{name} may begin a new life, and nothing is lost", self._patience_s)
        try:
            eventually(lambda: rest("GET", path)["state"] == "whole", f"{name} has its copies again", self._patience_s)
        except AssertionError as error:
            raise AssertionError(f"{error}: {rest('GET', path)}; {self._waiting(name)}") from error
        left = rest("GET", path)
        assert not left["one_copy_ledgers"] and not left["no_copy_ledgers"], f"{name} is whole, but {left}"
        self._compared["cost of a new life"] += 2

    def _waiting(self, name: str) -> str:
        """What the ledgers wait for that lack copies in the region of a bookie."""
        data, region = str(self._instance.data), self._region(name)
        found = heliograph("lacking-copies", "--data", data, "--region", region, check=False)
        return found.stdout.strip() or "nothing is marked"

    # -- voters --------------------------------------------------------------------------------------------------------

    def add_voters(self, region: str) -> None:
        """Makes the metadata of a region a group of three."""
        self._voting, admin = region, self._instance.admin(region)
        first = json.loads((self._instance.data / "settings" / f"{region}-meta-0.json").read_text())
        peers = first["meta_node"]["peers"]
        for number in range(1, VOTERS):
            name = f"{region}-meta-{number}"
            with LoopbackPorts() as ports:
                port = ports.free()
            node = {"node_id": name, "port": port, "peers": peers, "joining": True}
            settings = {
                **{key: first[key] for key in ("format", "region", "bind", "tls")},
                "node_id": name,
                "data_dir": str(data_of(self._instance.data, region, name)),
                "roles": ["meta"],
                "meta_node": node,
            }
            self.voters[name] = settings, Process(self._instance.data, settings).wait_ready()
            heliograph("meta", "add", name, f"127.0.0.1:{port}", "--promote", "--admin", admin)

    def wipe_voter(self) -> BegunFault:
        """One of three, the leader or not, comes back with an empty folder: the others bring it up."""
        name = self._rng.choice(sorted(self.voters))
        settings, process = self.voters[name]
        leads = self._rng.random() < 0.5
        if leads:
            self.lead(self._voting, name)
        process.kill()
        shutil.rmtree(settings["data_dir"])
        self.voters[name] = settings, Process(self._instance.data, settings).wait_ready()
        return BegunFault(where=f"{name}{', which led' if leads else ''}", heal=lambda: self.lead(self._voting, name))

    def wipe_config_voter(self) -> BegunFault:
        """A region's voter of the global configuration comes back with an empty folder."""
        region = self._rng.choice(list(self._instance.state["regions"]))
        name = f"{region}-meta-0"
        self._down(name)
        shutil.rmtree(self._folder(name) / "config")
        self._up(name)
        other = self._rng.choice([one for one in self._instance.state["regions"] if one != region])
        return BegunFault(where=region, heal=lambda: self.lead(other, region, "--config"))

    def lead(self, region: str, member: str, *options: str) -> None:
        """Until the member counts, nobody hands it the lead. region: whose broker is asked."""

        def leads() -> bool:
            arguments = ("meta", "transfer", member, *options, "--admin", self._instance.admin(region))
            return heliograph(*arguments, check=False).returncode == 0

        eventually(leads, f"{member} counts, and leads", self._patience_s)
        self._compared["members that count"] += 1

    # -- what they share -----------------------------------------------------------------------------------------------

    def _bookie(self, region: str = "", without: str = "") -> str:
        """One that has a ledger: of another one the loss is none, and it is enrolled again by itself."""
        region = region or self._rng.choice(list(self._instance.state["regions"]))
        rows = self._instance.status()["regions"][region]["processes"]
        names = [row["name"] for row in rows if "bookie" in row["name"] and row["pid"]]
        return self._rng.choice([name for name in names if name != without and self._row(name)["state"]["ledgers"]])

    def _region(self, name: str) -> str:
        return name.partition("-")[0]

    def _folder(self, name: str) -> Path:
        return data_of(self._instance.data, self._region(name), name)

    def _pid(self, name: str) -> int | None:
        rows = self._instance.status()["regions"][self._region(name)]["processes"]
        return next((row["pid"] for row in rows if row["name"] == name), None)

    def _down(self, name: str) -> None:
        heliograph("process", "kill", name, "--data", str(self._instance.data))
        eventually(lambda: not self._pid(name), f"{name} is down", self._patience_s)

    def _up(self, name: str) -> None:
        heliograph("process", "start", name, "--data", str(self._instance.data))

    def _row(self, name: str) -> dict[str, Any]:
        return dict(rest("GET", f"{self._instance.admin(self._region(name))}/heliograph/v1/bookies/{name}"))

    def limbo(self, name: str) -> None:
        """It is not believed, and the region says so."""
        eventually(lambda: self._row(name)["limbo"], f"{name} is in limbo", self._patience_s)
        assert not self._row(name)["writable"], f"{name} is in limbo, and takes entries"
        self._compared["limbo"] += 2
