"""The commands for a stopped bookie's directory: `bookie inspect` and `bookie fsck`.

Is: options, and what a person sees. Isn't: the examination (`storage.bookie.maintenance.fsck`).
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from heliograph.cli.groups import add, group
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError

if TYPE_CHECKING:
    from heliograph.runtime.disk import Disk
    from storage.bookie.maintenance.fsck import Examination, LedgerSummary

Data = Annotated[
    Path,
    typer.Option(
        "--data", help="The data folder of the bookie: it holds journal/ and ledgers/. Stop the bookie first."
    ),
]
JournalDirs = Annotated[
    list[Path] | None,
    typer.Option("--journal", help="The journal's folder, where it lies elsewhere; again for each further one."),
]
LedgerDirs = Annotated[
    list[Path] | None,
    typer.Option("--ledgers", help="The ledgers' folder, where it lies elsewhere; again for each further one."),
]
_RANGES_SHOWN = 3


def register(app: typer.Typer) -> None:
    bookie = group(app, "bookie", "Look into the directory of a stopped bookie.")
    add(bookie, inspect=inspect, fsck=fsck)


def inspect(
    output: Output,
    data: Data,
    journal: JournalDirs = None,
    ledgers: LedgerDirs = None,
    ledger: Annotated[int | None, typer.Option(help="Only this ledger, with all its ranges of entries.", min=0)] = None,
) -> None:
    """List ledgers, entries, entry logs, and journal segments; exit code 1 where something cannot be read.

    Reads indexes and the journal only; `heliograph bookie fsck` reads every block.
    """
    from storage.bookie.maintenance.fsck import examine

    found = examine(*_disks(data, journal, ledgers), verify_blocks=False)
    if ledger is not None:
        found.ledgers = [one for one in found.ledgers if one.ledger == ledger]
        if not found.ledgers:
            raise ConfigError(
                f"ledger {ledger} is not on bookie {found.bookie}: `heliograph bookie inspect --data {data}` lists "
                "those that are"
            )
    if output.json:
        output.show(dataclasses.asdict(found))
    else:
        _show(found, whole=ledger is not None)
    raise typer.Exit(1 if found.problems else 0)


def fsck(output: Output, data: Data, journal: JournalDirs = None, ledgers: LedgerDirs = None) -> None:
    """Verify the checksum of everything that a bookie holds; changes nothing. Exit code 1 on damage."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    from storage.bookie.maintenance.fsck import examine

    disks = _disks(data, journal, ledgers)
    columns = (TextColumn("verifying"), BarColumn(), DownloadColumn(binary_units=True), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True, quiet=output.json), transient=True) as bar:
        task = bar.add_task("verifying", total=None)
        found = examine(
            *disks, verify_blocks=True, progress=lambda done, total: bar.update(task, completed=done, total=total)
        )
    if output.json:
        output.show(dataclasses.asdict(found))
        raise typer.Exit(1 if found.problems else 0)
    _say(found)
    entries = sum(one.entries for one in found.ledgers)
    held = (
        f"{len(found.ledgers)} ledgers, {entries} entries, {found.verified_bytes} bytes in {len(found.logs)} entry logs"
    )
    held += f", {found.journal_records} journal records"
    if found.problems:
        typer.echo(f"bookie {found.bookie or '?'} is damaged: {len(found.problems)} problems; {held} looked at")
        typer.echo(
            "keep this folder, and start the bookie with an empty one: its ledgers are copied there from the other "
            "bookies"
        )
        raise typer.Exit(1)
    typer.echo(f"bookie {found.bookie} is whole: {held} verified")


def _disks(data: Path, journals: list[Path] | None, ledgers: list[Path] | None) -> tuple[list[Disk], list[Disk]]:
    from heliograph.runtime.system_disk import SystemDisk

    kinds = journals or [data / "journal"], ledgers or [data / "ledgers"]
    for place in (place for places in kinds for place in places):
        if not place.is_dir():
            raise ConfigError(
                f"{data} is not the data folder of a bookie: there is no folder {place}; give the folder that holds "
                "journal/ and ledgers/ with --data"
            )
    return [SystemDisk(place) for place in kinds[0]], [SystemDisk(place) for place in kinds[1]]


def _say(found: Examination) -> None:
    for text in found.notes:
        typer.echo(f"note: {text}")
    for text in found.problems:
        typer.echo(f"damage: {text}")


def _show(found: Examination, *, whole: bool) -> None:
    console = Console()
    point = found.checkpoint
    deleted = sum(last - first + 1 for first, last in found.dead)
    console.print(
        f"bookie [bold]{found.bookie or '?'}[/] of {found.instance or '?'}, start {point.start}, {deleted} ledgers "
        "deleted"
    )
    console.print(
        f"journal: {found.segments} segments, flushed through record {point.flushed_through}, {found.journal_records} "
        "records to replay"
    )
    if not whole:
        logs = Table("log", "ledgers", "blocks", "bytes", "live", title="entry logs", title_justify="left")
        for log in found.logs:
            live = f"{100 * log.live_bytes // log.size_bytes} %" if log.size_bytes else "-"
            logs.add_row(str(log.number), str(log.ledgers), str(log.blocks), str(log.size_bytes), live)
        console.print(logs)
    ledgers = Table(
        "ledger", "entries", "ranges", "bytes", "LAC", "fenced", "in logs", title="ledgers", title_justify="left"
    )
    for one in found.ledgers:
        ledgers.add_row(*_row(one, whole=whole))
    console.print(ledgers)
    _say(found)


def _row(one: LedgerSummary, *, whole: bool) -> list[str]:
    shown = one.ranges if whole else one.ranges[:_RANGES_SHOWN]
    ranges = ", ".join(f"{first}-{last}" for first, last in shown) + (" …" if len(shown) < len(one.ranges) else "")
    places = [str(number) for number in one.logs] + (["journal"] if one.journal else [])
    return [
        str(one.ledger),
        str(one.entries),
        ranges or "-",
        str(one.size_bytes),
        str(one.lac),
        "yes" if one.fenced else "",
        ", ".join(places) or "-",
    ]
