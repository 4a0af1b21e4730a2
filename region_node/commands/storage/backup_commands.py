"""The commands `backup`, `restore`, and `confirm-restore`.

Is: options, files and folders, asking the bookies, and what a person sees. Isn't: the format
(`heliograph.kv.backup_file`), or the rules of a restore (`local_meta.backup`, `global_config.backup`).
Source: docs/operating.md, "Backup and restore".
"""

from __future__ import annotations

import asyncio
import fcntl
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

from heliograph import __version__
from heliograph.cli.groups import add
from heliograph.cli.servers.metadata_members import Config
from heliograph.cli.show import Output, iso_time
from heliograph.model.errors import ConfigError, CorruptData, HeliographError
from region_node.commands.instance_options import Region
from region_node.commands.storage.tls_options import CertificateFiles, of_instance
from region_node.instance.plan.layout import HOST, InstancePlan, RegionPlan, data_of, load_plan
from region_node.runtime.private_files import private_folder

if TYPE_CHECKING:
    from ssl import SSLContext

    from heliograph.kv.backup_file import BackedUpStore, BackupReader
    from storage.sealing.backup_seal import BackupSeal

DataOption = Annotated[Path | None, typer.Option("--data", help="The data folder of an instance on this machine.")]
AddressOption = Annotated[
    str,
    typer.Option(
        "--address", help="HOST:PORT of a metadata node, or of the configuration's (--config), without a data folder."
    ),
]
KeyFileOption = Annotated[
    Path | None,
    typer.Option(
        "--key-file",
        envvar="HELIOGRAPH_BACKUP_KEY_FILE",
        help="Keys by which backups are sealed, as `heliograph keys master FILE` makes them; the first one seals.",
    ),
]
_DEFAULT_DATA = Path(".heliograph")
_PARTS = {1: "meta", 2: "config"}
"""Store -> its folder in the data folder of a process."""


def register(app: typer.Typer) -> None:
    add(app, backup=backup, restore=restore, confirm_restore=confirm_restore)


# -- backup -----------------------------------------------------------------------------------------------------------


def backup(
    output: Output,
    out: Annotated[Path, typer.Option("--out", help="The file to write; it must not be there yet.")],
    region: Region = "",
    data: DataOption = None,
    config: Config = False,
    address: AddressOption = "",
    key_file: KeyFileOption = None,
    unsealed: Annotated[
        bool, typer.Option("--unsealed", help="Write it in clear: whoever reads the file can do everything there.")
    ] = False,
    files: CertificateFiles = CertificateFiles(),
) -> None:
    """Back up a running region's local metadata, or the global configuration: consistent at one moment, while
    everything goes on.

    It holds everything that was acknowledged before the command began. Messages are not in it: they lie on the bookies.
    It is sealed with a key of yours: keep that elsewhere, as without it the backup cannot be restored.
    """
    from heliograph.kv.backup_file import BackedUpStore
    from region_node.security.encryption_at_rest import read_keys
    from storage.sealing.backup_seal import BackupSeal

    if (key_file is None) is not unsealed:
        raise ConfigError(
            "a backup holds verifiers of passwords, and keys that open the region: give --key-file FILE, which "
            "`heliograph keys master FILE` makes, or --unsealed, and not both"
        )
    seal = None if key_file is None else BackupSeal.new(read_keys(key_file), str(key_file))

    store = BackedUpStore.GLOBAL if config else BackedUpStore.LOCAL
    tls = files.context()
    if address:
        name = region
    else:
        where = region_of(data, region)
        name, address = where.name, f"{HOST}:{where.metadata.ports['config' if config else 'meta']}"
        tls = tls or of_data_folder(data, name)
    if out.exists():
        raise ConfigError(f"{out} is there already: give a new file with --out, so that no older backup is lost")
    console = Console(stderr=True, quiet=output.json)
    columns = (TextColumn("backing up"), BarColumn(), DownloadColumn(binary_units=True))
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task("backing up", total=None)
        found = asyncio.run(
            _back_up(store, name, address, out, tls, seal, lambda size: bar.update(task, completed=size))
        )
    output.told(found, f"{out}: {found['keys']} keys, {found['bytes']} bytes, as of index {found['index']}")


async def _back_up(
    store: BackedUpStore,
    region: str,
    address: str,
    out: Path,
    tls: SSLContext | None,
    seal: BackupSeal | None,
    progress: Callable[[int], None],
) -> dict[str, Any]:
    from heliograph.kv.backup_client import fetch
    from heliograph.kv.backup_file import BackupReader, BackupWriter, Info
    from heliograph.kv.engine.table_image import head_of
    from heliograph.kv.metadata_client import MetaClient
    from heliograph.runtime.clock import SystemClock, system_rng
    from heliograph.runtime.system_disk import SystemDisk

    folder = SystemDisk(str(out.parent.resolve()))
    scratch = f"{out.name}.new"
    out.with_name(scratch).touch(
        mode=0o600
    )  # verifiers of passwords and the key that reports are signed with are in it
    file = folder.open(scratch, create=True)
    clock = SystemClock()
    client = MetaClient([address], clock=clock, rng=system_rng(), ssl=tls)
    try:
        file.truncate(0)
        writer = BackupWriter(file, seal)

        def on_piece(piece: bytes) -> None:
            if not writer.size_bytes:
                writer.begin(Info(store, region, clock.wall_ms(), head_of(piece).index, __version__))
            writer.add(piece)
            progress(writer.size_bytes)

        await fetch(client, address, on_piece, ssl=tls)
        file.datasync()
        reader = BackupReader(file) if seal is None else BackupReader(file, lambda about: seal)
        keys = sum(1 for _ in reader.rows())
        folder.rename(scratch, out.name)
        folder.sync_directory()
        return {
            "file": str(out),
            "region": region,
            "index": reader.info.index,
            "keys": keys,
            "bytes": writer.size_bytes,
            "sealed": seal is not None,
        }
    finally:
        client.close()
        file.close()
        if scratch in folder.names():
            folder.remove(scratch)
        folder.close()


# -- restore ----------------------------------------------------------------------------------------------------------


def restore(
    output: Output,
    file: Annotated[Path, typer.Argument(help="What `heliograph backup` wrote.")],
    region: Region = "",
    data: DataOption = None,
    prefix: Annotated[
        Path | None, typer.Option("--prefix", help="On a host: where program and settings lie; they say the rest.")
    ] = None,
    to: Annotated[
        Path | None,
        typer.Option("--to", help="The data folder of one stopped metadata process, without an instance's folder."),
    ] = None,
    voter: Annotated[
        list[str] | None,
        typer.Option("--voter", help="With --to: the node id of each voter; the same for all of them."),
    ] = None,
    bookie: Annotated[
        list[str] | None, typer.Option("--bookie", help="ID=HOST:PORT of a bookie that moved since the backup.")
    ] = None,
    without_bookie: Annotated[
        list[str] | None, typer.Option("--without-bookie", help="ID of a bookie that is gone for good.")
    ] = None,
    key_file: KeyFileOption = None,
    files: CertificateFiles = CertificateFiles(),
) -> None:
    """Make the local metadata, or the global configuration, anew from a backup. Its processes and the region's brokers
    must be stopped.

    Bookies are asked what they hold, so they must run. Nothing is deleted there until `heliograph confirm-restore`.
    """
    from heliograph.kv.backup_file import BackedUpStore, BackupReader
    from heliograph.runtime.system_disk import SystemDisk
    from region_node.security.encryption_at_rest import read_keys
    from storage.sealing.backup_seal import BackupSeal

    keys = None if key_file is None else read_keys(key_file)
    if not file.is_file():
        raise ConfigError(f"there is no backup {file}")
    disk = SystemDisk(str(file.parent.resolve()))
    opened = disk.open(file.name)
    tls: SSLContext | None
    try:
        reader = BackupReader(opened, lambda about: BackupSeal.found(about, keys, str(key_file)))
        if prefix is not None:
            targets, voters, tls = _of_host(reader, prefix)
        else:
            targets, voters = _targets(reader, region, data, to, voter or [])
            tls = files.context() or (of_data_folder(data, region or reader.info.region) if to is None else None)
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(binary_units=True))
        with (
            _locked(targets),
            Progress(*columns, console=Console(stderr=True, quiet=output.json), transient=True) as bar,
        ):
            if reader.info.store is BackedUpStore.GLOBAL:
                found = _restore_global(reader, targets, voters, bar)
            else:
                found = _restore_local(reader, targets, voters, bar, _given(bookie or []), without_bookie or [], tls)
    except CorruptData as error:
        raise ConfigError(f"{file} cannot be restored: {error}; use another backup") from error
    finally:
        opened.close()
        disk.close()
    if output.json:
        output.show(found)
        return
    typer.echo(f"restored {found['keys']} keys as of {found['made']} into {', '.join(found['folders'])}")
    if not found["sealed"]:
        typer.echo("this backup was not sealed: whoever could write to its file could change it")
    if reader.info.store is BackedUpStore.LOCAL:
        typer.echo(
            f"ledgers that were deleted since, and are forgotten again: {found['vanished_ledgers']}; new ledger ids "
            f"begin at {found['ledger_ids_from']}"
        )
        typer.echo(
            f"ledgers on bookies that the backup does not know: {found['unknown_ledgers']}; they stay until "
            "`heliograph confirm-restore`"
        )
    for key in found.get("unreadable_records", ()):
        typer.echo(f"this record cannot be read, and was restored as it is: {key}")
    typer.echo("start the metadata processes, then the brokers")


def _restore_local(
    reader: BackupReader,
    targets: list[Path],
    voters: list[str],
    bar: Progress,
    bookies: Mapping[str, tuple[str, int]],
    without: Iterable[str],
    tls: SSLContext | None,
) -> dict[str, Any]:
    from heliograph.kv.backup_file import restored_index, restored_pieces
    from heliograph.runtime.clock import SystemClock, system_rng
    from local_meta import backup as rules
    from region_node.faces.kafka.transactions.restored_ids import with_new_producers

    known = rules.survey(_watched(reader, bar, "verifying"))
    held = asyncio.run(_ask_bookies(rules.addresses(known, bookies, without), tls))
    counters = dict(reader.head.counters)
    now_ms, instance = SystemClock().wall_ms(), rules.new_instance(system_rng())
    first_ledger = rules.ledger_ids_from(counters, known, held, now_ms)
    index = restored_index(reader.info.index, now_ms / 1000)
    for target in targets:
        done = rules.RestoredKeys()
        rows = with_new_producers(rules.restored_rows(_watched(reader, bar, "restoring"), held, instance, done))
        begun = rules.restored_counters(counters, first_ledger, now_ms)
        _write(target, index, voters, restored_pieces(index, begun, rows))
    on_bookies = {ledger for ledgers in held.values() for ledger in ledgers}
    found = {
        "vanished_ledgers": len(done.vanished),
        "unreadable_records": done.unreadable,
        "unknown_ledgers": len(on_bookies - known.ledgers),
        "ledger_ids_from": first_ledger,
    }
    return {**_summary(reader, targets, done.keys), **found, "instance": instance, "bookies": sorted(held)}


def _restore_global(reader: BackupReader, targets: list[Path], voters: list[str], bar: Progress) -> dict[str, Any]:
    from global_config import backup as rules
    from heliograph.kv.backup_file import restored_index, restored_pieces
    from heliograph.runtime.clock import SystemClock

    now_ms = SystemClock().wall_ms()
    count = sum(1 for _ in rules.restored_rows(_watched(reader, bar, "verifying"), now_ms))
    index = restored_index(reader.info.index, now_ms / 1000)
    for target in targets:
        rows = rules.restored_rows(_watched(reader, bar, "restoring"), now_ms)
        _write(target, index, voters, restored_pieces(index, rules.restored_counters(dict(reader.head.counters)), rows))
    return _summary(reader, targets, count)


def _summary(reader: BackupReader, targets: list[Path], count: int) -> dict[str, Any]:
    made, folders = iso_time(reader.info.made_ms), [str(target) for target in targets]
    return {
        "keys": count,
        "made": made,
        "region": reader.info.region,
        "folders": folders,
        "sealed": reader.sealed,
    }


def _write(target: Path, index: int, voters: list[str], pieces: Iterable[bytes]) -> None:
    from heliograph.kv.backup_file import RESTORED_TERM, group_of
    from heliograph.raft.disk import life_file
    from heliograph.raft.disk.snapshot_file import write_snapshot
    from heliograph.runtime.system_disk import SystemDisk

    disk = SystemDisk(str(target))
    try:
        write_snapshot(disk, index, RESTORED_TERM, group_of(voters), pieces)
        life_file.restore(disk)
    finally:
        disk.close()


def _watched(reader: BackupReader, bar: Progress, what: str) -> Iterator[Any]:
    task = bar.add_task(what, total=None)
    yield from reader.rows(lambda done, total: bar.update(task, completed=done, total=total))


async def _ask_bookies(wanted: Mapping[str, tuple[str, int]], tls: SSLContext | None) -> dict[str, list[int]]:
    """Bookie -> the ledgers it holds."""
    from heliograph.runtime.clock import system_rng
    from storage.ledger.bookies.bookie_client import BookieClient

    held: dict[str, list[int]] = {}
    for name, (host, port) in wanted.items():
        client = BookieClient(name, host, port, rng=system_rng(), ssl=tls)
        try:
            held[name] = await client.ledgers()
        except HeliographError as error:
            raise ConfigError(
                f"bookie {name} at {host}:{port} does not answer ({error}): start it, give its new address with "
                f"--bookie {name}=HOST:PORT, "
                f"or --without-bookie {name} if it is gone for good"
            ) from error
        finally:
            client.close()
    return held


def _targets(
    reader: BackupReader, region: str, data: Path | None, to: Path | None, voter: list[str]
) -> tuple[list[Path], list[str]]:
    """The folders to fill, and the voters of the group."""
    from heliograph.kv.backup_file import BackedUpStore

    info = reader.info
    part = _PARTS[info.store]
    if to is not None:
        if not voter:
            raise ConfigError("--to needs the node id of each voter of the group, with --voter")
        return [to.resolve() / part], voter
    folder, plan = _folder(data), _plan_of(data)
    if info.store is BackedUpStore.GLOBAL:
        voters = plan.voters()
        return [data_of(folder, name, node.name) / part for name, node in voters.items()], list(voters)
    where = plan.region(region or info.region)
    if info.region != where.name:
        raise ConfigError(f"the backup is of region {info.region}, not of {where.name}")
    return [_process_folder(folder, where) / part], [where.metadata.name]


def _of_host(reader: BackupReader, prefix: Path) -> tuple[list[Path], list[str], SSLContext]:
    """The folder of the host's metadata process, the voters of the group, and by which certificate bookies are
    asked.
    """
    from heliograph.kv.backup_file import BackedUpStore
    from region_node.hosts.host_folders import HostManifest
    from region_node.hosts.region_watch import certificate

    etc, info = prefix / "etc", reader.info
    manifest = HostManifest.read(etc / "host.json")
    part = _PARTS[info.store]
    if not manifest.config if info.store is BackedUpStore.GLOBAL else not manifest.voter:
        raise ConfigError(f"{manifest.host} has not the role {part}: give this command on a host that has it")
    if info.store is BackedUpStore.LOCAL and info.region != manifest.region:
        raise ConfigError(f"the backup is of region {info.region}, and {manifest.host} is in {manifest.region}")
    name = next(node for node in manifest.nodes if part in json.loads((etc / f"{node}.json").read_text())["roles"])
    folder = Path(json.loads((etc / f"{name}.json").read_text())["data_dir"])
    if info.store is BackedUpStore.GLOBAL:
        return [folder / part], [*manifest.regions, *manifest.witness], certificate(manifest.region, etc, "config")
    return [folder / part], list(manifest.voters), certificate(manifest.region, etc, "broker")


def _process_folder(data: Path, region: RegionPlan) -> Path:
    return data / region.name / region.metadata.name.removeprefix(f"{region.name}-")


@contextmanager
def _locked(targets: list[Path]) -> Iterator[None]:
    """Keeps each target's process from starting, and says so where it runs, or where the target is not empty."""
    locks = []
    try:
        for target in targets:
            private_folder(target)
            lock = (target.parent / "lock").open("a+")
            locks.append(lock)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                stop = "`heliograph process kill NAME`, on a host `heliograph host stop NAME`"
                raise ConfigError(f"the process of {target.parent} is running: stop it first ({stop})") from error
            if any(target.iterdir()):
                raise ConfigError(
                    f"{target} is not empty: move it away first, such as with `mv {target} {target}.old`; it is not "
                    "deleted for you"
                )
        yield
    finally:
        for lock in locks:
            lock.close()


def _given(texts: list[str]) -> dict[str, tuple[str, int]]:
    found = {}
    for text in texts:
        name, _, address = text.partition("=")
        host, _, port = address.rpartition(":")
        if not name or not host or not port.isdigit():
            raise ConfigError(f"--bookie {text}: expected ID=HOST:PORT")
        found[name] = (host.strip("[]"), int(port))
    return found


# -- confirm ----------------------------------------------------------------------------------------------------------


def confirm_restore(
    region: Region = "",
    data: DataOption = None,
    http: Annotated[
        list[str] | None, typer.Option("--http", help="HOST:PORT of a bookie's HTTP, without a data folder.")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    files: CertificateFiles = CertificateFiles(),
    token: Annotated[
        str,
        typer.Option("--token", envvar="HELIOGRAPH_TOKEN", help="A super user's token, where the bookies want one."),
    ] = "",
) -> None:
    """Let the bookies collect garbage by a metadata that was restored, or went back to an earlier state: what it does
    not know goes. Look before at what was published since.
    """
    tls = files.context()
    if http:
        places = {address: address for address in http}
    else:
        where = region_of(data, region)
        tls = tls or of_data_folder(data, where.name)
        places = {node.name: f"{HOST}:{node.ports['http']}" for node in where.bookies if node.ports.get("http")}
    if not places:
        raise ConfigError(
            "these bookies have no HTTP port: set bookie.http_port, start them again, and give it with --http HOST:PORT"
        )
    for _ in range(2):  # that it is another metadata, and then that it does not know so many ledgers
        refusals = {
            name: str(_ask(address, "POST", "/gc", tls, token)["garbageCollection"]["refusal"])
            for name, address in places.items()
        }
        for name, refusal in refusals.items():
            typer.echo(f"{name}: {refusal or 'collects garbage; there is nothing to confirm'}")
        waiting = [name for name, refusal in refusals.items() if refusal]
        if not waiting:
            return
        if not yes and not typer.confirm("What the metadata does not know will be deleted there. Go on?"):
            raise typer.Exit(1)
        for name in waiting:
            _ask(places[name], "POST", "/gc/confirm", tls, token)
            typer.echo(f"{name}: confirmed")


def _ask(address: str, method: str, path: str, tls: SSLContext | None, token: str) -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    request = urllib.request.Request(f"http{'s' if tls else ''}://{address}{path}", method=method, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=30, context=tls) as response:
            answer: dict[str, Any] = json.load(response)
            return answer
    except urllib.error.HTTPError as error:
        try:
            reason = json.load(error).get("reason", "")
        except ValueError:
            reason = str(error)
        raise ConfigError(f"the bookie at {address} refuses: {reason}") from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"the bookie at {address} does not answer ({error}): start it first") from error


# -- the instance -----------------------------------------------------------------------------------------------------


def _folder(data: Path | None) -> Path:
    return (data or _DEFAULT_DATA).resolve()


def region_of(data: Path | None, name: str) -> RegionPlan:
    plan = _plan_of(data)
    if not name and len(plan.regions) > 1:
        raise ConfigError(f"which region? give --region, one of {', '.join(r.name for r in plan.regions)}")
    return plan.region(name) if name else plan.regions[0]


def of_data_folder(data: Path | None, region: str) -> SSLContext | None:
    """TLS of an instance on this machine; None: it speaks plainly inside."""
    return of_instance(_plan_of(data), _folder(data), region)


def _plan_of(data: Path | None) -> InstancePlan:
    folder = _folder(data)
    plan = load_plan(folder)
    if plan is None:
        raise ConfigError(f"there is no instance in {folder}: give its folder with --data, or an address")
    return plan
