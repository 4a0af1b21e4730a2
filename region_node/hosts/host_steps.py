"""What a host does when it is told: take over the folder and the release that were copied to it, join, leave, write the
regions down.

Is: the order of these steps; each may be repeated, and goes on where an interrupted one stopped. Isn't: copying
(Terraform, or `scp`), or installing.
Invariants: a process that runs is stopped only in the host's turn, after all of the region was seen to be well, and one
with a bookie only while no ledger lacks a copy; the turn ends when it is well again.
Below the prefix: `etc.next` (copied), `etc` (in use), `releases/NAME` (environments), `current` (link to the one in
use), `joined` (a file: which metadata node of this host was made a voter last).
Source: docs/operating/deploying.md.
"""

from __future__ import annotations

import asyncio
import contextlib
import filecmp
import json
import os
import shutil
import stat
from collections.abc import Callable, Sequence
from pathlib import Path

from global_config.admin import ConfigAdmin
from heliograph.kv.metadata_client import MetaClient
from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.errors import ConfigError, HeliographError
from heliograph.raft.disk import life_file
from heliograph.runtime.clock import SystemClock, system_rng
from heliograph.runtime.system_disk import SystemDisk
from region_node.hosts.host_folders import HostManifest
from region_node.hosts.region_watch import RegionWatch, certificate
from region_node.hosts.service_managers import Services, services_of
from region_node.instance.plan import founding
from region_node.runtime.private_files import OTHERS

_POLL_S = 0.3

Say = Callable[[str], None]


def activate(
    prefix: Path, release: str, wait_s: float, say: Say, services_of: Callable[[HostManifest], Services] = services_of
) -> str:
    """Puts `etc.next` and a release to use. Returns what was done. Raises ConfigError.

    `nothing`; `noted`: no process is told anything new, but the host knows its region anew; `started`; `changed`.
    """
    etc, staged, current = prefix / "etc", prefix / "etc.next", prefix / "current"
    if not (prefix / "releases" / release / "bin" / "python").exists():
        raise ConfigError(f"there is no release {release} in {prefix / 'releases'}: install it first")
    wanted = HostManifest.read((staged if staged.exists() else etc) / "host.json")
    before = HostManifest.read(etc / "host.json") if etc.exists() else None
    services = services_of(wanted)
    running = [node for node in (before.nodes if before else ()) if services.running(node)]
    installed = current.exists() and os.readlink(current) == f"releases/{release}"
    news = _differing(etc, staged) if staged.exists() and before is not None else set()

    def switch() -> None:
        if staged.exists():
            _enrol(staged, [node for node in wanted.nodes if before is None or node not in before.nodes])
            old = prefix / "etc.old"
            shutil.rmtree(old, ignore_errors=True)
            if etc.exists():
                etc.rename(old)
            staged.rename(etc)
        fresh = prefix / "current.new"
        fresh.unlink(missing_ok=True)
        fresh.symlink_to(f"releases/{release}")
        fresh.replace(current)
        own(wanted)

    if before is not None and installed and news <= {"host.json"} and set(running) == set(wanted.nodes):
        if news:
            switch()
        shutil.rmtree(staged, ignore_errors=True)
        if wanted.joins and not _has_joined(prefix, wanted):  # an earlier call ended before
            asyncio.run(_join(wanted, prefix, wait_s))
        return "noted" if news else "nothing"
    if not running:
        switch()
        for node in wanted.nodes:
            services.start(node)
        if wanted.joins:
            asyncio.run(_join(wanted, prefix, wait_s))
        return "started"
    assert before is not None
    if not wanted.meta:  # of a witness, which is in no region and has no turn there
        _restart(before, wanted, services, switch, say)
        return "changed"
    asyncio.run(_change(before, wanted, prefix, services, switch, wait_s, say))
    return "changed"


def stop(prefix: Path, names: Sequence[str], say: Say) -> None:
    """Stops these processes of the host, or all, brokers first; they stay down until `start`, or the next boot. Raises
    ConfigError.
    """
    manifest, chosen = _chosen(prefix, names)
    services = services_of(manifest)
    for node in reversed(chosen):
        say(f"stops {node}")
        services.stop(node)


def start(prefix: Path, names: Sequence[str], say: Say) -> None:
    """Starts what `stop` stopped. Raises ConfigError."""
    manifest, chosen = _chosen(prefix, names)
    services = services_of(manifest)
    own(manifest)
    for node in chosen:
        if not services.running(node):
            say(f"starts {node}")
            services.start(node)


def _chosen(prefix: Path, names: Sequence[str]) -> tuple[HostManifest, list[str]]:
    """In the order in which they start."""
    manifest = HostManifest.read(prefix / "etc" / "host.json")
    if unknown := [name for name in names if name not in manifest.nodes]:
        raise ConfigError(f"{manifest.host} runs no {unknown[0]}; it runs {', '.join(manifest.nodes)}")
    return manifest, [node for node in manifest.nodes if not names or node in names]


async def _change(
    before: HostManifest,
    wanted: HostManifest,
    prefix: Path,
    services: Services,
    switch: Callable[[], None],
    wait_s: float,
    say: Say,
) -> None:
    staged = prefix / "etc.next"
    watch = RegionWatch(wanted, staged if staged.exists() else prefix / "etc")
    try:
        say("waits for its turn")
        async with watch.turn(wait_s):
            await watch.until_well(wait_s, f"before {wanted.host} was changed", copies=bool(before.own_bookies))
            await asyncio.to_thread(_restart, before, wanted, services, switch, say)
            if wanted.joins:
                await watch.join(wait_s)
                _note_joined(prefix, wanted)
            await watch.until_well(wait_s, f"after {wanted.host} was changed")
    finally:
        watch.close()


def _restart(
    before: HostManifest, wanted: HostManifest, services: Services, switch: Callable[[], None], say: Say
) -> None:
    for node in reversed(before.nodes):
        say(f"stops {node}")
        services.stop(node)
        if node not in wanted.nodes:
            services.forget(node)
    switch()
    for node in wanted.nodes:
        say(f"starts {node}")
        services.start(node)


async def _join(manifest: HostManifest, prefix: Path, wait_s: float) -> None:
    watch = RegionWatch(manifest, prefix / "etc")
    try:
        await watch.join(wait_s)
        _note_joined(prefix, manifest)
    finally:
        watch.close()


def _note_joined(prefix: Path, manifest: HostManifest) -> None:
    (prefix / "joined").write_text(manifest.voter)


def _has_joined(prefix: Path, manifest: HostManifest) -> bool:
    noted = prefix / "joined"
    return noted.exists() and noted.read_text() == manifest.voter


def _enrol(etc: Path, nodes: Sequence[str]) -> None:
    """These nodes were never on this host: a first voter among them that others are to join later may found its group
    without them. One whose folder is emptied afterwards is not enrolled again, and asks them.
    """
    for node in nodes:
        settings = json.loads((etc / f"{node}.json").read_text())
        for role in ("meta", "config"):
            if settings.get(f"{role}_node", {}).get("later"):
                disk = SystemDisk(Path(settings["data_dir"]) / role)
                try:
                    life_file.enrol(disk)
                finally:
                    disk.close()


def well(prefix: Path, wait_s: float) -> None:
    """Returns once all of the region is there; of a witness, once it hears who leads. Raises ConfigError with what is
    missing.
    """

    async def wait() -> None:
        manifest = HostManifest.read(prefix / "etc" / "host.json")
        if not manifest.meta:
            await _led(manifest, prefix / "etc", wait_s)
            return
        watch = RegionWatch(manifest, prefix / "etc")
        try:
            await watch.until_well(wait_s, "after the start")
        finally:
            watch.close()

    asyncio.run(wait())


async def _led(manifest: HostManifest, etc: Path, wait_s: float) -> None:
    """Returns once the configuration node here knows who leads. Raises ConfigError."""
    clock = SystemClock()
    tls = certificate(manifest.region, etc, "config")
    store, deadline = MetaClient([manifest.config], clock=clock, rng=system_rng(), ssl=tls), clock.monotonic() + wait_s
    try:
        while True:
            with contextlib.suppress(HeliographError):
                if (await store.members("here"))[0]["leader"]:
                    return
            if clock.monotonic() > deadline:
                raise ConfigError(
                    f"{manifest.host} hears nobody lead the global configuration within {wait_s:.0f} s: a majority of "
                    "its voters must run and reach each other"
                )
            await asyncio.sleep(_POLL_S)
    finally:
        store.close()


def leave(prefix: Path, wait_s: float, say: Say, *, whole: bool) -> None:
    """Takes the host out of its region and deletes its data. whole: the region ends, so nothing is moved away first,
    and a witness is not asked whether it votes. Raises ConfigError.
    """
    if not (prefix / "etc").exists():
        return
    manifest = HostManifest.read(prefix / "etc" / "host.json")
    services = services_of(manifest)
    brokers = [node for node in manifest.nodes if node in manifest.brokers]
    if not whole and manifest.meta:
        asyncio.run(_empty(manifest, prefix / "etc", services, brokers, wait_s, say))
    elif not whole:
        asyncio.run(_votes_no_more(manifest, prefix / "etc"))
    for node in reversed(manifest.nodes):
        services.stop(node)
        services.forget(node)
    for folder in manifest.folders:
        shutil.rmtree(folder, ignore_errors=True)
    (prefix / "joined").unlink(missing_ok=True)
    shutil.rmtree(prefix / "etc", ignore_errors=True)


async def _votes_no_more(manifest: HostManifest, etc: Path) -> None:
    """Raises ConfigError where the witness here is a voter, or does not say that it is none."""
    tls = certificate(manifest.region, etc, "config")
    store = MetaClient([manifest.config], clock=SystemClock(), rng=system_rng(), ssl=tls)
    gone = f"`heliograph meta remove {manifest.region} --config` in a region; where that was done, `--whole-region`"
    try:
        report, _ = await store.members("here")
    except HeliographError as error:
        raise ConfigError(f"{manifest.host} does not say whether it votes: start it, or {gone} ({error})") from error
    finally:
        store.close()
    if any(row["member"] == manifest.region and row["role"] == "voter" for row in report["members"]):
        raise ConfigError(f"{manifest.host} votes in the global configuration: first {gone}")


async def _empty(
    manifest: HostManifest, etc: Path, services: Services, brokers: list[str], wait_s: float, say: Say
) -> None:
    watch = RegionWatch(manifest, etc)
    try:
        async with watch.turn(wait_s):
            for bookie in manifest.own_bookies:
                say(f"empties {bookie}")
                await watch.empty(bookie, wait_s)
            for node in brokers:
                say(f"stops {node}")
                await asyncio.to_thread(services.stop, node)
            if manifest.voter:
                await watch.leave(wait_s)
            for bookie in manifest.own_bookies:
                await asyncio.to_thread(services.stop, bookie)
                await watch.forget(bookie)
    finally:
        watch.close()


def provision(prefix: Path, wait_s: float, say: Say) -> None:
    """Writes all regions of its description into the global configuration, from a host with the role config; those that
    the instance begins with enter `public/default`. Raises ConfigError.
    """
    manifest = HostManifest.read(prefix / "etc" / "host.json")
    if not manifest.config:
        raise ConfigError(
            f"{manifest.host} has not the role config: give this command to the host of the region that has it"
        )
    asyncio.run(_provision(manifest, prefix / "etc", wait_s, say))


async def _provision(manifest: HostManifest, etc: Path, wait_s: float, say: Say) -> None:
    clock = SystemClock()
    store = MetaClient(
        [manifest.config], clock=clock, rng=system_rng(), ssl=certificate(manifest.region, etc, "config")
    )
    deadline = clock.monotonic() + wait_s
    try:
        while True:
            try:
                await _write_down(store, manifest, say)
                return
            except ConfigError:  # no waiting makes it good
                raise
            except HeliographError as error:  # a majority of the regions may still be starting
                if clock.monotonic() > deadline:
                    raise ConfigError(
                        f"the global configuration could not be written within {wait_s:.0f} s: {error}"
                    ) from error
            await asyncio.sleep(_POLL_S)
    finally:
        store.close()


async def _write_down(store: MetaClient, manifest: HostManifest, say: Say) -> None:
    regions = manifest.regions
    for name, row in regions.items():  # before it would get its vote back
        await founding.check_stays(store, name, row["number"])
    report, _ = await store.members()
    roles = {row["member"]: row["role"] for row in report["members"]}
    for name, raft in ({name: row["raft"] for name, row in regions.items()} | manifest.witness).items():
        if name not in roles:
            say(f"{name} receives the configuration")
            await store.members("add", name, raft)
        if roles.get(name) != "voter":
            await store.members("promote", name)
    admin = ConfigAdmin(store)
    for name, row in regions.items():
        info = RegionInfo(
            name=name,
            number=row["number"],
            service_url=row["service_url"],
            admin_url=row["admin_url"],
            link_urls=row["link_urls"],
        )
        await (admin.ensure_region(info) if row.get("joins") else founding.found(store, info))


def _differing(one: Path, other: Path) -> set[str]:
    """Names, relative, of files that are not the same in both, or in one alone."""
    files = [
        {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()} for folder in (one, other)
    ]
    both = files[0].keys() & files[1].keys()
    return (files[0].keys() ^ files[1].keys()) | {
        name for name in both if not filecmp.cmp(files[0][name], files[1][name], shallow=False)
    }


def own(manifest: HostManifest) -> None:
    """Data and keys are for the processes' user alone, which with systemd is one of its own."""
    if manifest.user:
        for folder in manifest.folders:
            Path(folder).mkdir(parents=True, exist_ok=True)
    for top in (*manifest.folders, str(Path(manifest.prefix) / "etc")):
        for folder, _, files in os.walk(top):
            for path in (folder, *(os.path.join(folder, name) for name in files)):
                found = os.lstat(path)
                if stat.S_ISLNK(found.st_mode):  # where it leads is not theirs to have
                    continue
                if manifest.user:
                    shutil.chown(path, manifest.user)
                if found.st_mode & OTHERS and os.geteuid() in (0, found.st_uid):
                    os.chmod(path, stat.S_IMODE(found.st_mode) & ~OTHERS)
