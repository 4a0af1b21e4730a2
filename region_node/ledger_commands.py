"""The command `follow-ledger`: the entries of one ledger as its bookies confirm them, without a broker.

Is: options, and what a person sees. Isn't: the reading (`storage.ledger.follow`).
Source: docs/operating/repair.md.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Annotated

import typer

from heliograph.model.errors import ConfigError, HeliographError
from region_node.backup_commands import DataOption, JsonOption, RegionOption, region_of
from region_node.instance.layout import HOST

if TYPE_CHECKING:
    from heliograph.wire.run import Run


def register(app: typer.Typer) -> None:
    app.command("follow-ledger")(follow_ledger)


def follow_ledger(
    ledger: Annotated[int, typer.Argument(help="Its number, as message ids and internal statistics show it.", min=0)],
    region: RegionOption = "",
    data: DataOption = None,
    address: Annotated[str, typer.Option("--address", help="HOST:PORT of a metadata node, without a data folder.")] = "",
    first: Annotated[int, typer.Option("--from", help="The first entry.", min=0)] = 0,
    json_output: JsonOption = False,
) -> None:
    """Print what is confirmed of a ledger, read from its bookies, and go on as its writer adds to it; ends where it is closed."""
    if not address:
        address = f"{HOST}:{region_of(data, region).metadata.ports['meta']}"
    try:
        asyncio.run(_run(address, ledger, first, json_output))
    except HeliographError as error:
        raise ConfigError(f"ledger {ledger}: {error}") from error
    except KeyboardInterrupt:
        pass


async def _run(address: str, ledger: int, first: int, json_output: bool) -> None:
    from heliograph.raft.client import MetaClient
    from heliograph.runtime.clock import SystemClock, system_rng
    from storage.ledger.bookie_client import BookieClient
    from storage.ledger.context import LedgerContext
    from storage.ledger.follow import follow
    from storage.ledger.pool import BookiePool

    rng = system_rng()
    meta = MetaClient([address], clock=SystemClock(), rng=rng)
    pool = BookiePool(meta, lambda name, host, port: BookieClient(name, host, port, rng=rng), rng)
    context = LedgerContext(meta=meta, pool=pool, rng=rng)
    try:
        await pool.ready()
        async for start, run in follow(context, ledger, first):
            typer.echo(_line(ledger, start, run, json_output))
    finally:
        await context.close()
        pool.close()
        meta.close()


def _line(ledger: int, start: int, run: Run, json_output: bool) -> str:
    producers = sorted({name for name, *_ in run.producers})
    if json_output:
        row = {"ledger": ledger, "first": start, "entries": run.count, "messages": run.messages, "bytes": run.size_bytes}
        return json.dumps({**row, "index": run.first_index, "time_ms": run.time_ms, "producers": producers})
    last = start + run.count - 1
    return f"{ledger}:{start}-{last}  {run.messages} messages from index {run.first_index}, {run.size_bytes} bytes, {', '.join(producers) or '-'}"
