"""Three small regions, each in a network namespace of its own, and a router between them that can be told to drop what
one of them sends and is sent, and whose cable to one of them can be told to lose some of it.

Is: the namespaces, the processes in them (two a region), what the instance wants to begin with. Isn't: a test. Wants
root and iproute2. The machine's own network is not touched; everything ends with `close`, processes by their ids.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from global_config.admin import ConfigAdmin
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.configuration.configuration_records import NamespacePolicies, RegionInfo, TenantInfo
from heliograph.runtime.clock import SystemClock, system_rng
from region_node.instance.plan.layout import HOST, InstancePlan, RegionPlan, make_plan, node_settings
from region_node.security.certificate_authority import ensure_certificates
from region_node.security.tls import only
from tests.region_node.forked_processes import ForkedPopen, Forks
from tests.system.hosts import remove_space, run
from tests.system.lossy_cable import LossyCable

REPOSITORY = Path(__file__).resolve().parents[2]
REGIONS = ("us", "eu", "ap")
LOSSY = "us"
"""The region whose cable to the router can lose packets."""
_NEW_NETWORK = 0x40000000
"""CLONE_NEWNET of setns(2)."""
_DROPPED = "9"
"""The preference of the router's rules that drop."""


class RoutedRegions:
    """Region -> its brokers' `admin` and `service` address, as they are reached inside a region (`inside`)."""

    def __init__(self, folder: Path) -> None:
        if os.geteuid() != 0:
            pytest.skip("network namespaces want root, which this user is not")
        if shutil.which("ip") is None:
            pytest.skip("network namespaces want iproute2, which is absent")
        self._tag, self._spaces = f"hgr{os.getpid()}", list[str]()
        self._forks: list[Forks] = []
        self._processes: list[ForkedPopen] = []
        self._cables: list[LossyCable] = []
        self._folder = folder
        self.plan = make_plan(list(REGIONS), brokers=dict.fromkeys(REGIONS, 1), bookies=2, wan="none", tls=True)
        try:
            self._cable()
            self._start()
            with self.inside(REGIONS[0]):
                asyncio.run(self._provision())
        except BaseException:
            self.close()
            raise

    # -- the network ------------------------------------------------------------------------------------------------

    @staticmethod
    def address(region: str) -> str:
        return f"10.67.{REGIONS.index(region) + 1}.2"

    def _space(self, name: str) -> str:
        return f"{self._tag}-{name}"

    def _cable(self) -> None:
        router = self._space("router")
        for name in ("router", *REGIONS):
            done = subprocess.run(["ip", "netns", "add", self._space(name)], capture_output=True, text=True)
            if done.returncode:
                pytest.skip(f"network namespaces cannot be made here: {done.stderr.strip()}")
            self._spaces.append(self._space(name))
        with self.inside("router"):
            try:
                Path("/proc/sys/net/ipv4/ip_forward").write_text("1")
            except OSError as error:
                pytest.skip(f"a network namespace cannot be made a router here: {error.strerror}")
        for number, region in enumerate(REGIONS, 1):
            space = self._space(region)
            if region == LOSSY:
                ends = (self.inside("router"), region), (self.inside(region), "eth0")
                self._cables.append(LossyCable(*ends, seed=number))
            else:
                run("ip", "-n", router, "link", "add", region, "type", "veth", "peer", "name", "eth0", "netns", space)
            run("ip", "-n", router, "addr", "add", f"10.67.{number}.1/24", "dev", region)
            run("ip", "-n", router, "link", "set", region, "up")
            run("ip", "-n", space, "addr", "add", f"{self.address(region)}/24", "dev", "eth0")
            for device in ("lo", "eth0"):
                run("ip", "-n", space, "link", "set", device, "up")
            run("ip", "-n", space, "route", "add", "default", "via", f"10.67.{number}.1")

    @contextlib.contextmanager
    def inside(self, region: str) -> Iterator[None]:
        """This thread, and what it starts meanwhile, is in the network of the region."""
        own = os.open("/proc/thread-self/ns/net", os.O_RDONLY)
        theirs = os.open(f"/run/netns/{self._space(region)}", os.O_RDONLY)
        try:
            _enter(theirs)
            yield
        finally:
            _enter(own)
            os.close(own)
            os.close(theirs)

    def drop(self, region: str) -> None:
        """The router drops every packet from and to the region, without a word to anybody."""
        for way in ("from", "to"):
            rule = (way, self.address(region), "pref", _DROPPED, "type", "blackhole")
            run("ip", "-n", self._space("router"), "rule", "add", *rule)

    def lose(self, share: float) -> None:
        """The cable to LOSSY loses so much of what is sent each way."""
        for cable in self._cables:
            cable.share = share

    def pass_on(self) -> None:
        """Nothing is dropped or lost any more."""
        self.lose(0.0)
        rule = ("ip", "-n", self._space("router"), "rule", "del", "pref", _DROPPED)
        while subprocess.run(rule, capture_output=True).returncode == 0:
            pass

    # -- the regions ------------------------------------------------------------------------------------------------

    def _start(self) -> None:
        ensure_certificates(self._folder / "tls", list(REGIONS), {name: [self.address(name)] for name in REGIONS})
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("HELIOGRAPH_", "PYT"))}
        for region in self.plan.regions:
            with self.inside(region.name):
                forks = Forks(REPOSITORY, environment)
            self._forks.append(forks)
            for settings in self._settings(region):
                path = self._folder / f"{settings['node_id']}.json"
                path.write_text(json.dumps(settings))
                with path.with_suffix(".log").open("ab") as log:
                    words = ("--role", ",".join(settings["roles"]), "--settings", str(path))
                    self._processes.append(forks.fork(words, log.fileno()))
        for process in self._processes:
            assert process.stdout.readline(), f"one did not start: {self.logs()}"

    def _settings(self, region: RegionPlan) -> Iterator[dict[str, Any]]:
        """Of its two processes: metadata, configuration, and a bookie; and a bookie and the broker."""
        for node, bookie in zip((region.metadata, *region.brokers), region.bookies, strict=True):
            one, other = (node_settings(self._folder, self.plan, each) for each in (node, bookie))
            roles = [*one["roles"], "bookie"]
            both = {**one, "bookie": other["bookie"], "roles": roles, "security": {"allow_insecure": True}}
            settings: dict[str, Any] = json.loads(json.dumps(both).replace(HOST, self.address(region.name)))
            if "config_node" in settings:
                peers = {r.name: f"{self.address(r.name)}:{r.metadata.ports['raft']}" for r in self.plan.regions}
                settings["config_node"]["peers"] = peers
            yield settings

    async def _provision(self) -> None:
        tls = self._folder / "tls"
        own = (str(tls / f"config.{REGIONS[0]}.{end}") for end in ("pem", "key"))
        ssl = only(("config",), REGIONS[0], str(tls / "ca.pem"), *own)
        first = f"{self.address(REGIONS[0])}:{self.plan.regions[0].metadata.ports['config']}"
        with contextlib.closing(MetaClient([first], clock=SystemClock(), rng=system_rng(), ssl=ssl)) as store:
            admin = ConfigAdmin(store)
            for region in self.plan.regions:
                await admin.ensure_region(self._info(self.plan, region))
            await admin.create_tenant("public", TenantInfo(admin_roles=(), allowed_regions=REGIONS))
            for name in ("every", "led"):
                kept = {"retention": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}}
                await admin.create_namespace(f"public/{name}", NamespacePolicies(regions=REGIONS, policies=kept))

    def _info(self, plan: InstancePlan, region: RegionPlan) -> RegionInfo:
        own = f"pulsar+ssl://{self.address(region.name)}:{region.brokers[0].ports['link']}"
        return RegionInfo(
            name=region.name,
            number=region.number,
            service_url=self.service(region.name),
            admin_url=self.admin(region.name),
            link_urls={other.name: [own] for other in plan.regions if other is not region},
        )

    def admin(self, region: str) -> str:
        return f"http://{self.address(region)}:{self.plan.region(region).admin_port}"

    def service(self, region: str) -> str:
        return f"pulsar://{self.address(region)}:{self.plan.region(region).service_port}"

    def logs(self) -> str:
        return "\n".join(f"{path.name}: {path.read_text()[-1500:]}" for path in sorted(self._folder.glob("*.log")))

    def close(self) -> None:
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            process.stdout.close()
        for forks in self._forks:
            forks.close()
        for cable in self._cables:
            cable.close()
        for space in self._spaces:
            remove_space(space)


def _enter(space: int) -> None:
    library = ctypes.CDLL(None, use_errno=True)
    if library.setns(space, _NEW_NETWORK):
        raise OSError(ctypes.get_errno(), "no network namespace can be entered")
