"""The commands `follow-ledger` and `lacking-copies`: one ledger as its bookies confirm it, and what ledgers that lack
copies wait for; without a broker.

Is: options, and what a person sees. Isn't: the reading (`storage.ledger.reading.ledger_follow`), or auto-recovery.
Source: docs/operating/repair.md.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph.cli.groups import add
from heliograph.cli.show import Output
from heliograph.model.errors import ConfigError, CorruptData, HeliographError
from region_node.commands.instance_options import Region
from region_node.commands.storage.backup_commands import AddressOption, DataOption, region_of
from region_node.instance.plan.layout import HOST

if TYPE_CHECKING:
    from heliograph.wire.run import Run
    from storage.ledger.ledger_context import LedgerContext

_PAGE = 200


def register(app: typer.Typer) -> None:
    add(app, follow_ledger=follow_ledger, lacking_copies=lacking_copies)


def follow_ledger(
    output: Output,
    ledger: Annotated[int, typer.Argument(help="Its number, as message ids and internal statistics show it.", min=0)],
    region: Region = "",
    data: DataOption = None,
    address: AddressOption = "",
    first: Annotated[int, typer.Option("--from", help="The first entry.", min=0)] = 0,
) -> None:
    """Print what is confirmed of a ledger, read from its bookies, and go on as its writer adds to it; ends where it is
    closed.
    """
    try:
        asyncio.run(_run(address or _metadata_of(data, region), ledger, first, output.json))
    except HeliographError as error:
        raise ConfigError(f"ledger {ledger}: {error}") from error
    except KeyboardInterrupt:
        pass


def lacking_copies(output: Output, region: Region = "", data: DataOption = None, address: AddressOption = "") -> None:
    """List the ledgers that lack copies, and what each waits for. Exit code 1 where there are any."""
    try:
        found = asyncio.run(_lacking(address or _metadata_of(data, region)))
    except HeliographError as error:
        raise ConfigError(f"the ledgers that lack copies: {error}") from error
    for row in found:
        output.told(row, f"{row['ledger']:>8}  {row['topic']}: {row['waits_for']}")
    if not found and not output.json:
        typer.echo("no ledger lacks a copy")
    raise typer.Exit(1 if found else 0)


def _metadata_of(data: Path | None, region: str) -> str:
    return f"{HOST}:{region_of(data, region).metadata.ports['meta']}"


async def _lacking(address: str) -> list[dict[str, object]]:
    from heliograph.kv.metadata_store import prefix_end
    from heliograph.model.ledger_metadata import LedgerMetadata
    from local_meta import keys
    from storage.ledger.repair.repair_waits import waits_for
    from storage.ledger.repair.replica_holdings import look
    from storage.ledger.underreplicated_marks import Mark

    rows: list[dict[str, object]] = []
    async with _context(address) as context:
        start = keys.UNDERREPLICATED
        while page := await context.meta.range(start, prefix_end(keys.UNDERREPLICATED), limit=_PAGE):
            for key, blob, _ in page:
                ledger = keys.ledger_of(key)
                stored = await context.meta.get(keys.ledger(ledger))
                try:
                    mark = Mark.decode(blob)
                    metadata = LedgerMetadata.decode(stored[0]) if stored is not None else None
                except CorruptData as error:
                    said = {"lost": [], "lacking": {}, "waits_for": f"its record cannot be read: {error}"}
                    rows.append({"ledger": ledger, "topic": "", **said})
                    continue
                silent = (
                    (await look(context, metadata, max(mark.lacking.values(), default=-1))).silent
                    if metadata is not None and mark.lacking
                    else {}
                )
                said = {
                    "lost": list(mark.lost),
                    "lacking": dict(mark.lacking),
                    "waits_for": waits_for(context.pool, metadata, mark, silent),
                }
                rows.append({"ledger": ledger, "topic": metadata.topic if metadata is not None else "", **said})
            start = page[-1][0] + "\0"
    return rows


async def _run(address: str, ledger: int, first: int, json_output: bool) -> None:
    from storage.ledger.reading.ledger_follow import follow

    async with _context(address) as context:
        async for start, run in follow(context, ledger, first):
            typer.echo(_line(ledger, start, run, json_output))


@asynccontextmanager
async def _context(address: str) -> AsyncIterator[LedgerContext]:
    from heliograph.kv.metadata_client import MetaClient
    from heliograph.runtime.clock import SystemClock, system_rng
    from storage.ledger.bookies.bookie_client import BookieClient
    from storage.ledger.bookies.bookie_pool import BookiePool
    from storage.ledger.ledger_context import LedgerContext

    rng = system_rng()
    meta = MetaClient([address], clock=SystemClock(), rng=rng)
    pool = BookiePool(meta, lambda name, host, port: BookieClient(name, host, port, rng=rng), rng)
    context = LedgerContext(meta=meta, pool=pool, rng=rng)
    try:
        await pool.ready()
        yield context
    finally:
        await context.close()
        pool.close()
        meta.close()


def _line(ledger: int, start: int, run: Run, json_output: bool) -> str:
    producers = sorted({name for name, *_ in run.producers})
    if json_output:
        row = {
            "ledger": ledger,
            "first": start,
            "entries": run.count,
            "messages": run.messages,
            "bytes": run.size_bytes,
        }
        return json.dumps({**row, "index": run.first_index, "time_ms": run.time_ms, "producers": producers})
    last = start + run.count - 1
    return (
        f"{ledger}:{start}-{last}  {run.messages} messages from index {run.first_index}, {run.size_bytes} bytes, "
        f"{', '.join(producers) or '-'}"
    )
