"""A host changes in its turn, and only while all of its region is well: against real metadata. The service manager is a
port, and recorded here.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.servers import free_port
from global_config.admin import ConfigAdmin
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.state_machine import KvMachine
from heliograph.model.configuration.configuration_records import TenantInfo
from heliograph.model.errors import ConfigError, MetadataUnavailable
from heliograph.runtime.clock import SystemClock, system_rng
from local_meta import keys
from region_node.hosts import host_steps
from region_node.hosts.host_folders import HostManifest, render
from region_node.hosts.inventory import parse
from region_node.hosts.region_watch import RegionWatch, certificate
from tests.region_node.hosts.conftest import Running

ALL_BOOKIES = {"eu-a-bookie-0": True, "eu-b-bookie-0": True, "eu-c-bookie-0": True}
ALL_BROKERS = ["eu-a-broker-0", "eu-b-broker-0"]


class Recorded:
    """What was started and stopped, in order; nothing runs."""

    def __init__(self, manifest: HostManifest | None = None) -> None:
        self.said: list[str] = []
        self.up: set[str] = set()

    def running(self, node: str) -> bool:
        return node in self.up

    def start(self, node: str) -> None:
        self.said.append(f"start {node}")
        self.up.add(node)

    def stop(self, node: str) -> None:
        self.said.append(f"stop {node}")
        self.up.discard(node)

    def forget(self, node: str) -> None:
        self.said.append(f"forget {node}")


def test_processes_of_a_host_are_stopped_and_started_by_name_or_all(
    tmp_path: Path, described: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    inventory = parse({**described, "prefix": f"{tmp_path}/{{host}}", "data": f"{tmp_path}/data/{{host}}"})
    prefix = tmp_path / "us-a"
    shutil.copytree(
        next(folder for folder in render(inventory, tmp_path / "ca", tmp_path / "out") if folder.name == "us-a"),
        prefix / "etc",
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("")
    kept = [
        prefix / "etc",
        prefix / "etc" / "host.json",
        tmp_path / "data" / "us-a",
        tmp_path / "data" / "us-a" / "lock",
    ]
    kept[2].mkdir(parents=True)
    kept[3].write_text("")
    (kept[2] / "link").symlink_to(elsewhere)
    for path in (*kept, elsewhere):
        path.chmod(0o755)
    recorded = Recorded()
    said: list[str] = []
    monkeypatch.setattr(host_steps, "services_of", lambda manifest: recorded)
    host_steps.start(prefix, [], said.append)
    assert [oct(path.stat().st_mode & 0o777) for path in kept] == ["0o700"] * 4, "what an earlier version left open"
    assert elsewhere.stat().st_mode & 0o777 == 0o755, "a link leads to what is not theirs"
    assert said == ["starts us-a-meta", "starts us-a-bookie-0", "starts us-a-bookie-1", "starts us-a-broker-0"], (
        "metadata first"
    )
    host_steps.stop(prefix, ["us-a-meta", "us-a-broker-0"], said.append)
    assert said[4:] == ["stops us-a-broker-0", "stops us-a-meta"] and recorded.up == {"us-a-bookie-0", "us-a-bookie-1"}
    host_steps.start(prefix, [], said.append)
    assert said[6:] == ["starts us-a-meta", "starts us-a-broker-0"], "what runs is left alone"
    for step in (host_steps.start, host_steps.stop):
        with pytest.raises(
            ConfigError,
            match="us-a runs no us-b-broker-0; it runs us-a-meta, us-a-bookie-0, us-a-bookie-1, us-a-broker-0",
        ):
            step(prefix, ["us-b-broker-0"], said.append)
    assert len(said) == 8


def watch(running: Running, host: str) -> RegionWatch:
    etc = running.prefix(host) / "etc"
    return RegionWatch(HostManifest.read(etc / "host.json"), etc)


def missing(running: Running) -> str:
    async def ask() -> str:
        found = watch(running, "eu-b")
        try:
            return await found.missing()
        finally:
            found.close()

    return asyncio.run(ask())


@pytest.mark.slow
def test_what_a_region_lacks_is_said(running: Running) -> None:
    assert missing(running) == "bookie eu-a-bookie-0 is away"
    running.register(bookies={**ALL_BOOKIES, "eu-b-bookie-0": False}, brokers=[])
    assert missing(running) == "bookie eu-b-bookie-0 takes no writes"
    running.register(bookies=ALL_BOOKIES, brokers=ALL_BROKERS[:1])
    assert missing(running) == "broker eu-b-broker-0 is away"
    running.register(bookies=ALL_BOOKIES, brokers=ALL_BROKERS)
    assert missing(running) == ""


@pytest.mark.slow
def test_one_host_at_a_time_and_balancing_rests(running: Running) -> None:
    async def both() -> None:
        first, second = watch(running, "eu-a"), watch(running, "eu-b")
        try:
            async with first.turn(5):
                assert await first.meta.get(keys.BALANCE_PAUSED) is not None
                with pytest.raises(ConfigError, match="eu-b had no turn within 1 s: it is the turn of eu-a"):
                    async with second.turn(1):
                        raise AssertionError("two hosts have the turn")
            async with second.turn(5):
                pass
            assert await first.meta.get(keys.BALANCE_PAUSED) is None
        finally:
            first.close()
            second.close()

    asyncio.run(both())


@pytest.mark.slow
def test_the_only_voter_does_not_leave(running: Running) -> None:
    async def leave() -> None:
        own = watch(running, "eu-a")
        try:
            with pytest.raises(
                ConfigError,
                match="eu-a-meta is the only voter of the region's metadata: give another host the role meta first",
            ):
                await own.leave(1)
            report, _ = await own.meta.members()
            assert [row["role"] for row in report["members"]] == ["voter"]
        finally:
            own.close()

    asyncio.run(leave())


def staged(running: Running, host: str, **broker: int) -> None:
    """The host's folder as it would be copied, with another setting."""
    target = running.prefix(host) / "etc.next"
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(running.rendered / host, target)
    path = target / f"{host}-broker-0.json"
    fields = json.loads(path.read_text())
    fields["broker"] |= broker
    path.write_text(json.dumps(fields))


def released(running: Running, host: str, name: str) -> None:
    python = running.prefix(host) / "releases" / name / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()


def activate(running: Running, host: str, release: str, services: Recorded, wait_s: float = 1.0) -> str:
    made: Callable[[HostManifest], Recorded] = lambda manifest: services  # noqa: E731
    return host_steps.activate(running.prefix(host), release, wait_s, lambda text: None, made)


@pytest.mark.slow
def test_a_host_starts_and_changes_only_while_all_is_well(running: Running) -> None:
    services, prefix = Recorded(), running.prefix("eu-b")
    shutil.rmtree(prefix / "etc")
    staged(running, "eu-b")
    with pytest.raises(ConfigError, match="no release one"):
        activate(running, "eu-b", "one", services)
    released(running, "eu-b", "one")
    released(running, "eu-b", "two")
    assert activate(running, "eu-b", "one", services) == "started"
    assert services.said == ["start eu-b-bookie-0", "start eu-b-broker-0"] and (prefix / "current").readlink() == Path(
        "releases/one"
    )

    # What is the same is left alone, whatever the region is like.
    services.said.clear()
    staged(running, "eu-b")
    assert activate(running, "eu-b", "one", services) == "nothing" and not services.said

    # Another host is gone: this one notes it, and no process is touched.
    staged(running, "eu-b")
    path = prefix / "etc.next" / "host.json"
    path.write_text(
        json.dumps(
            {
                **json.loads(path.read_text()),
                "bookies": ["eu-a-bookie-0", "eu-b-bookie-0", "eu-c-bookie-0"],
                "regions": {},
            }
        )
    )
    assert (
        activate(running, "eu-b", "one", services) == "noted"
        and not services.said
        and not (prefix / "etc.next").exists()
    )

    # Another release, while a bookie elsewhere is away: nothing is stopped.
    running.register(bookies={"eu-a-bookie-0": True, "eu-b-bookie-0": True}, brokers=ALL_BROKERS)
    with pytest.raises(ConfigError, match="not well within 1 s before eu-b was changed: bookie eu-c-bookie-0 is away"):
        activate(running, "eu-b", "two", services)
    assert not services.said and (prefix / "current").readlink() == Path("releases/one")

    # All are back, and the copies that were lost with it are not: a host with a bookie waits for them.
    running.register(bookies=ALL_BOOKIES, brokers=ALL_BROKERS)
    running.meta(lambda meta: meta.put(keys.underreplicated(7), b""))
    with pytest.raises(
        ConfigError, match="not well within 1 s before eu-b was changed: 1 ledgers lack a copy, and are being repaired"
    ):
        activate(running, "eu-b", "two", services)
    assert not services.said and (prefix / "current").readlink() == Path("releases/one")

    # Well again: it drains in the reverse order of the start, and takes the new settings too.
    running.meta(lambda meta: meta.delete(keys.underreplicated(7)))
    staged(running, "eu-b", cache_mb=99)
    assert activate(running, "eu-b", "two", services, wait_s=10) == "changed"
    assert services.said == ["stop eu-b-broker-0", "stop eu-b-bookie-0", "start eu-b-bookie-0", "start eu-b-broker-0"]
    assert json.loads((prefix / "etc" / "eu-b-broker-0.json").read_text())["broker"]["cache_mb"] == 99
    assert (prefix / "current").readlink() == Path("releases/two") and not (prefix / "etc.next").exists()

    # The same release with another setting is a change, too.
    staged(running, "eu-b", cache_mb=98)
    assert activate(running, "eu-b", "two", services, wait_s=10) == "changed"
    assert json.loads((prefix / "etc" / "eu-b-broker-0.json").read_text())["broker"]["cache_mb"] == 98


class NeverBack(Recorded):
    """A broker that is stopped is not seen again, whatever starts it."""

    def __init__(self, running: Running) -> None:
        super().__init__()
        self._running = running

    def stop(self, node: str) -> None:
        super().stop(node)
        if "broker" in node:
            self._running.meta(lambda meta: meta.delete(keys.broker(node)))


@pytest.mark.slow
def test_after_a_change_that_went_wrong_the_next_host_is_left_alone(running: Running) -> None:
    running.register(bookies=ALL_BOOKIES, brokers=ALL_BROKERS)
    broken = NeverBack(running)
    broken.up = {"eu-b-bookie-0", "eu-b-broker-0"}
    released(running, "eu-b", "one")
    with pytest.raises(ConfigError, match="after eu-b was changed: broker eu-b-broker-0 is away"):
        activate(running, "eu-b", "one", broken)
    other = Recorded()
    other.up = {"eu-a-meta", "eu-a-bookie-0", "eu-a-broker-0"}
    released(running, "eu-a", "one")
    with pytest.raises(ConfigError, match="before eu-a was changed: broker eu-b-broker-0 is away"):
        activate(running, "eu-a", "one", other)
    assert not other.said


# -- a fresh region ---------------------------------------------------------------------------------------------------


def test_a_first_voter_is_enrolled_by_the_step_that_makes_its_host_and_never_again(
    described: dict[str, Any], tmp_path: Path
) -> None:
    described |= {"prefix": f"{tmp_path}/{{host}}", "data": f"{tmp_path}/data/{{host}}"}
    described["regions"]["eu"]["hosts"]["eu-b"] |= {"roles": ["meta", "bookie", "broker"], "joins": True}
    described["regions"]["us"]["joins"] = True
    rendered = {folder.name: folder for folder in render(parse(described), tmp_path / "ca", tmp_path / "out")}
    services = {name: Recorded() for name in rendered}
    for name in rendered:
        python = tmp_path / name / "releases" / "one" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.touch()

    def give(host: str) -> str:
        shutil.copytree(rendered[host], tmp_path / host / "etc.next")
        return host_steps.activate(tmp_path / host, "one", 0.1, lambda text: None, lambda manifest: services[host])

    def enrolled(host: str, role: str) -> bool:
        return (tmp_path / "data" / host / f"{host}-meta" / role / "enrolled").exists()

    assert give("eu-a") == "started" and give("us-a") == "started"
    assert enrolled("eu-a", "meta") and enrolled("eu-a", "config")
    assert not enrolled("us-a", "meta") and not enrolled("us-a", "config"), "nobody joins its metadata; it joins itself"
    assert give("eu-a") == "nothing" and enrolled("eu-a", "meta")
    shutil.rmtree(tmp_path / "data" / "eu-a")
    services["eu-a"].up.clear()
    assert give("eu-a") == "started" and not enrolled("eu-a", "meta"), "its folder was emptied"
    for _ in range(2):  # nobody leads yet; given again it goes on
        with pytest.raises(ConfigError, match="eu-b-meta is no voter within"):
            give("eu-b")
    assert services["eu-b"].said == ["start eu-b-meta", "start eu-b-bookie-0", "start eu-b-broker-0"]
    (tmp_path / "eu-b" / "joined").write_text("eu-b-meta")
    assert give("eu-b") == "nothing", "it has joined, and asks nobody"


# -- a witness --------------------------------------------------------------------------------------------------------


class Says:
    """A configuration node that says which role oslo has; "": it does not answer."""

    def __init__(self, role: str) -> None:
        self.role = role

    async def members(self, verb: str) -> tuple[dict[str, Any], bool]:
        if verb != "here" or not self.role:
            raise MetadataUnavailable("no connection")
        return {"members": [{"member": "oslo", "role": self.role}, {"member": "us", "role": "voter"}]}, False

    def close(self) -> None:
        pass


@pytest.mark.slow
def test_a_witness_changes_without_a_turn_and_leaves_without_a_region(
    described: dict[str, object], tmp_path: Path
) -> None:
    described |= {
        "witness": {"name": "oslo", "address": "127.0.1.7"},
        "prefix": f"{tmp_path}/{{host}}",
        "data": f"{tmp_path}/data/{{host}}",
    }
    rendered = next(one for one in render(parse(described), tmp_path / "ca", tmp_path / "out") if one.name == "oslo")
    prefix, services = tmp_path / "oslo", Recorded()

    def give(level: str) -> str:
        shutil.copytree(rendered, prefix / "etc.next")
        path = prefix / "etc.next" / "oslo-witness.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "log": {"format": level}}))
        return host_steps.activate(prefix, "one", 1.0, lambda text: None, lambda manifest: services)

    (prefix / "releases" / "one" / "bin").mkdir(parents=True)
    (prefix / "releases" / "one" / "bin" / "python").touch()
    assert [give("console"), give("console"), give("json")] == ["started", "nothing", "changed"]
    assert services.said == ["start oslo-witness", "stop oslo-witness", "start oslo-witness"]
    assert "json" in (prefix / "etc" / "oslo-witness.json").read_text()
    (tmp_path / "data" / "oslo").mkdir(parents=True, exist_ok=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_steps, "services_of", lambda manifest: services)
        patch.setattr(host_steps, "MetaClient", lambda *_, **__: Says("voter"))
        with pytest.raises(ConfigError, match=r"oslo votes .* `heliograph meta remove oslo --config`"):
            host_steps.leave(prefix, 1.0, lambda text: None, whole=False)
        patch.setattr(host_steps, "MetaClient", lambda *_, **__: Says(""))
        with pytest.raises(ConfigError, match="oslo does not say whether it votes: start it"):
            host_steps.leave(prefix, 1.0, lambda text: None, whole=False)
        patch.setattr(host_steps, "MetaClient", lambda *_, **__: Says("learner"))
        assert services.said[3:] == [] and (tmp_path / "data" / "oslo").exists()
        host_steps.leave(prefix, 1.0, lambda text: None, whole=False)
    assert services.said[3:] == ["stop oslo-witness", "forget oslo-witness"]
    assert not (tmp_path / "data" / "oslo").exists() and not (prefix / "etc").exists()


# -- regions write themselves down ------------------------------------------------------------------------------------


class Configuration(EmbeddedStore):
    """The global configuration, whose voters are these."""

    def __init__(self, machine: KvMachine, voters: list[str]) -> None:
        super().__init__(machine)
        self.voters = voters

    async def members(self, verb: str = "", name: str = "", address: str = "") -> tuple[dict[str, Any], bool]:
        if verb == "promote":
            self.voters.append(name)
        return {"members": [{"member": each, "role": "voter"} for each in self.voters]}, False


def written(machine: KvMachine, kind: str) -> Any:
    found = machine.get(kind)
    return None if found is None else json.loads(found[0])


@pytest.mark.parametrize("alone", [False, True])
@pytest.mark.parametrize("order", [("eu-a", "us-a"), ("us-a", "eu-a")])
def test_the_default_namespace_is_in_all_regions_whoever_writes_first(
    described: dict[str, Any], tmp_path: Path, order: tuple[str, str], alone: bool
) -> None:
    """alone: each region's description has that region alone, as on Kubernetes."""
    described |= {"prefix": f"{tmp_path}/{{host}}", "data": f"{tmp_path}/data/{{host}}"}
    for folder in render(parse(described), tmp_path / "ca", tmp_path / "out"):
        shutil.copytree(folder, tmp_path / folder.name / "etc")
        path = tmp_path / folder.name / "etc" / "host.json"
        known = json.loads(path.read_text())
        if alone:
            rows = {name: row for name, row in known["regions"].items() if name == known["region"]}
            path.write_text(json.dumps(known | {"regions": rows}))
    machine, voters = KvMachine(), ["eu", "us"]

    def provision(host: str) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(host_steps, "MetaClient", lambda *_, **__: Configuration(machine, voters))
            host_steps.provision(tmp_path / host, 5.0, lambda text: None)

    for host in (*order, *order):
        provision(host)
    assert sorted(written(machine, "/namespaces/public/default")["regions"]) == ["eu", "us"]
    assert sorted(written(machine, "/tenants/public")["allowed_regions"]) == ["eu", "us"]

    async def taken_out() -> None:
        admin = ConfigAdmin(EmbeddedStore(machine))
        await admin.update_namespace("public/default", lambda old: replace(old, regions=("eu",)))
        await admin.update_tenant("public", TenantInfo(allowed_regions=("eu",)))

    asyncio.run(taken_out())
    for host in order:
        provision(host)
    assert written(machine, "/namespaces/public/default")["regions"] == ["eu"], "it was taken out on purpose"
    asyncio.run(ConfigAdmin(EmbeddedStore(machine)).delete_region("us"))
    voters.remove("us")
    with pytest.raises(ConfigError, match="region us was taken out of this instance"):
        provision("us-a")
    assert voters == ["eu"] and written(machine, "/regions/us") is None


def test_a_region_that_joins_enters_no_namespace_by_itself(described: dict[str, Any], tmp_path: Path) -> None:
    described |= {"prefix": f"{tmp_path}/{{host}}", "data": f"{tmp_path}/data/{{host}}"}
    described["regions"]["us"]["joins"] = True
    for folder in render(parse(described), tmp_path / "ca", tmp_path / "out"):
        shutil.copytree(folder, tmp_path / folder.name / "etc")
    machine = KvMachine()
    voters = ["eu"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_steps, "MetaClient", lambda *_, **__: Configuration(machine, voters))
        host_steps.provision(tmp_path / "eu-a", 5.0, lambda text: None)
    assert written(machine, "/namespaces/public/default")["regions"] == ["eu"]
    assert written(machine, "/regions/us")["number"] == 2 and voters == ["eu", "us"]


@pytest.mark.wan
def test_provisioning_makes_a_witness_a_voter(described: dict[str, object], tmp_path: Path) -> None:
    """Real processes: the configuration nodes of two regions, and the witness, which was not there at first."""
    described |= {
        "witness": {"name": "oslo", "address": "127.0.1.7", "joins": True},
        "prefix": f"{tmp_path}/{{host}}",
        "data": f"{tmp_path}/data/{{host}}",
        "ports": {name: free_port() for name in ("meta", "config", "raft")},
    }
    inventory = parse(described)
    for folder in render(inventory, tmp_path / "ca", tmp_path / "out"):
        shutil.copytree(folder, tmp_path / folder.name / "etc")
    with contextlib.ExitStack() as stack:
        started = []
        for host, node in (("eu-a", "eu-a-meta"), ("us-a", "us-a-meta"), ("oslo", "oslo-witness")):
            settings = str(tmp_path / host / "etc" / f"{node}.json")
            command = [sys.executable, "-m", "region_node.process", "--settings", settings, "--role", "config"]
            log = stack.enter_context((tmp_path / f"{node}.log").open("wb"))
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            stack.enter_context(process)
            stack.callback(process.terminate)
            started.append(process)
        for process in started:
            assert process.stdout is not None and json.loads(process.stdout.readline() or "{}").get("ready")
        host_steps.provision(tmp_path / "eu-a", 60.0, lambda text: None)
        host_steps.well(tmp_path / "oslo", 60.0)

        async def members() -> dict[str, str]:
            etc = tmp_path / "oslo" / "etc"
            tls = certificate("oslo", etc, "config")
            address = HostManifest.read(etc / "host.json").config
            store = MetaClient([address], clock=SystemClock(), rng=system_rng(), ssl=tls)
            try:
                return {row["member"]: row["role"] for row in (await store.members())[0]["members"]}
            finally:
                store.close()

        assert asyncio.run(members()) == {"eu": "voter", "us": "voter", "oslo": "voter"}
