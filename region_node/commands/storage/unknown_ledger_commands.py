"""The command `unknown-ledgers`: what lies on bookies and is in no topic, because it was published after the backup
that was restored.

Is: options, what is published of it, and what a person sees. Isn't: the reading
(`storage.ledger.reading.unknown_ledgers`), or the publishing (`region_node.commands.storage.raw_producer`).
Invariants: what the topic has under the same coordinate, as other regions have brought it back, is not published again.
Source: docs/operating.md, "Backup and restore".
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import msgpack
import typer
from rich.console import Console
from rich.table import Table

from heliograph.cli.groups import add
from heliograph.cli.show import Output, iso_time
from heliograph.model.errors import ConfigError, HeliographError
from region_node.commands.instance_options import Region
from region_node.commands.storage.backup_commands import (
    AddressOption,
    DataOption,
    of_data_folder,
    region_of,
)
from region_node.commands.storage.tls_options import CertificateFiles
from region_node.instance.plan.layout import HOST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from ssl import SSLContext

    from heliograph.kv.metadata_store import MetadataStore
    from heliograph.wire.run import Run
    from region_node.commands.storage.raw_producer import RawProducer
    from storage.ledger.bookies.bookie_client import BookieClient
    from storage.ledger.reading.unknown_ledgers import Unknown

_ASKED = 1000
"""Entries of one question for what the topic has; no run has more."""


def register(app: typer.Typer) -> None:
    add(app, unknown_ledgers=unknown_ledgers)


def unknown_ledgers(
    output: Output,
    region: Region = "",
    data: DataOption = None,
    address: AddressOption = "",
    ledger: Annotated[int | None, typer.Option(help="Only this ledger.", min=0)] = None,
    publish_to: Annotated[
        str, typer.Option("--publish-to", help="Publish the messages of --ledger to this topic, as they once were.")
    ] = "",
    after: Annotated[int, typer.Option(help="Publish only what lies behind this entry.", min=-1)] = -1,
    service: Annotated[
        str,
        typer.Option("--service", help="pulsar://HOST:PORT of a broker; of an instance on this machine it is known."),
    ] = "",
    files: CertificateFiles = CertificateFiles(),
) -> None:
    """List what lies on bookies and is in no topic since a restore; publish one such ledger again, but for what other
    regions have brought back.

    Which topic it belonged to only the lost metadata knew: producers, times, and counts help to tell.
    """
    if publish_to and ledger is None:
        raise ConfigError("--publish-to wants one --ledger: list them first, without it")
    if after >= 0 and not publish_to:
        raise ConfigError(
            "--after says from where on to publish: give --ledger and --publish-to with it, or leave it out"
        )
    tls = files.context()
    if not address:
        where = region_of(data, region)
        tls = tls or of_data_folder(data, where.name)
        address, service = f"{HOST}:{where.metadata.ports['meta']}", service or f"pulsar://{HOST}:{where.service_port}"
    if publish_to and not service:
        raise ConfigError("--publish-to wants the address of a broker, with --service pulsar://HOST:PORT")
    found, there = asyncio.run(_run(address, tls, ledger, publish_to, service, after))
    if output.json:
        output.show([{**asdict(one), "producers": sorted(one.producers)} for one in found])
    else:
        _show(found)
    if publish_to:
        one = found[0]
        what = f"{one.entries - one.replicated_entries} entries" if after < 0 else f"what lies behind entry {after}"
        but = f", but {there} that the topic has already" if there else ""
        typer.echo(f"published to {publish_to}: {what} of ledger {one.ledger}{but}", err=output.json)


async def _run(
    address: str, tls: SSLContext | None, wanted: int | None, topic: str, service: str, after: int
) -> tuple[list[Unknown], int]:
    """What there is; and how many entries were not published, as the topic has them."""
    from storage.ledger.reading.unknown_ledgers import Unknown, read_unknown
    from storage.ledger.reading.unknown_ledgers import unknown_ledgers as find

    async with _bookies(address, tls) as (meta, bookies):
        held = await find(meta, bookies)
        if wanted is not None and wanted not in held:
            raise ConfigError(
                f"ledger {wanted} is on no bookie, or the metadata knows it: `heliograph unknown-ledgers` lists those "
                "that it does not know"
            )
        found: list[Unknown] = []
        there = 0
        for ledger, names in held.items():
            if wanted is None or ledger == wanted:
                one = Unknown(ledger, names)
                runs = read_unknown(ledger, [bookies[name] for name in names], one)
                if topic:
                    there = await _publish(runs, ledger, topic, service, after, await _asks(meta, topic, ledger))
                else:
                    async for _ in runs:
                        pass
                found.append(one)
        return found, there


async def _asks(meta: MetadataStore, topic: str, ledger: int) -> Callable[[int, int], Awaitable[list[tuple[int, int]]]]:
    """Asks a broker which entries from one to another the topic has under their coordinates. Raises ConfigError."""
    from heliograph.cli.rest import Rest
    from heliograph.kv.metadata_store import rows_under
    from heliograph.model.admin_paths import OWN_TOPIC, path_of
    from local_meta import keys
    from region_node.placement.ownership.broker_records import BrokerRecord

    brokers = [BrokerRecord.decode(keys.id_of(key), value) for key, value, _ in await rows_under(meta, keys.BROKERS)]
    url = next((broker.admin_url for broker in brokers if broker.admin_url), "")
    if not url:
        raise ConfigError("no broker with an admin port is registered: start one, it is asked what the topic has")
    rest, path = Rest(url), path_of(f"{OWN_TOPIC}/back/{{ledger}}", topic=topic, ledger=ledger)

    async def ask(first: int, last: int) -> list[tuple[int, int]]:
        answer = await asyncio.to_thread(rest.get, path, first=first, last=last)
        return [(low, high) for low, high in answer["here"]]

    return ask


async def _publish(
    runs: AsyncIterator[tuple[int, Run]],
    ledger: int,
    topic: str,
    service: str,
    after: int,
    ask: Callable[[int, int], Awaitable[list[tuple[int, int]]]],
) -> int:
    """Returns how many entries the topic has: these are left out. What was first published in another region comes from
    there, and what no consumer ever saw is left out, too; so is what lies up to entry `after`.
    """
    from region_node.commands.storage.raw_producer import open_producer
    from storage.ledger.repair.replica_holdings import without

    there, asked = 0, -1
    here: list[tuple[int, int]] = []
    producer = await open_producer(service, topic, f"restored-ledger-{ledger}")
    try:
        async for first, run in runs:
            last = first + run.count - 1
            if run.origin is not None or last <= after:
                continue
            if last > asked:
                asked = max(last, first + _ASKED - 1)
                here = await ask(first, asked)
            wanted = [(max(first, after + 1), last)]
            left = without(wanted, here)
            there += last - wanted[0][0] + 1 - sum(high - low + 1 for low, high in left)
            for low, high in left:
                await _publish_run(producer, low, run.cut(low - first, high + 1 - first))
        await producer.finish()
    except (HeliographError, TimeoutError) as error:
        with suppress(HeliographError, TimeoutError):  # what is on its way still counts
            await producer.finish()
        raise ConfigError(_broken_off(max(after, producer.confirmed), error)) from error
    finally:
        producer.close()
    return there


def _broken_off(through: int, error: Exception) -> str:
    """What to do where a publishing did not come to its end. through: the last entry that was certainly published."""
    reason = str(error) or "no answer came in time"
    if through < 0:
        return f"it did not come to its end, and nothing was certainly published: {reason}; begin again"
    return (
        f"it did not come to its end: {reason}; what lies up to entry {through} is done: go on with --after {through}"
    )


async def _publish_run(producer: RawProducer, first: int, run: Run) -> None:
    from heliograph.wire.run import FLAG_KAFKA

    for index in range(run.count) if run.flags is not None else (-1,):
        if index < 0:
            await producer.publish(first, run)
        elif run.flags is not None and not run.flags[index] & ~FLAG_KAFKA:
            await producer.publish(first + index, run.cut(index, index + 1))


@asynccontextmanager
async def _bookies(
    address: str, tls: SSLContext | None
) -> AsyncIterator[tuple[MetadataStore, dict[str, BookieClient]]]:
    """A client of the metadata, and one of each bookie that is registered there."""
    from heliograph.kv.metadata_client import MetaClient
    from heliograph.kv.metadata_store import rows_under
    from heliograph.runtime.clock import SystemClock, system_rng
    from local_meta import keys
    from storage.ledger.bookies.bookie_client import BookieClient

    rng = system_rng()
    meta, clients = MetaClient([address], clock=SystemClock(), rng=rng, ssl=tls), dict[str, BookieClient]()
    try:
        for key, value, _ in await rows_under(meta, keys.BOOKIES):
            fields = msgpack.unpackb(value)
            clients[keys.id_of(key)] = BookieClient(
                keys.id_of(key), str(fields["host"]), int(fields["port"]), rng=rng, ssl=tls
            )
        if not clients:
            raise ConfigError(f"no bookie is registered in the metadata at {address}: start them first")
        yield meta, clients
    except ConfigError:
        raise
    except HeliographError as error:
        raise ConfigError(f"it did not come to its end: {error}; begin again") from error
    finally:
        for client in clients.values():
            client.close()
        meta.close()


def _show(found: list[Unknown]) -> None:
    if not found:
        typer.echo("the metadata knows every ledger that lies on a bookie")
        return
    table = Table("ledger", "on", "entries", "messages", "bytes", "first published", "last published", "producers", "")
    for one in found:
        notes = ["behind a gap there is more"] if one.beyond_a_gap else []
        notes += [f"{one.replicated_entries} entries of other regions"] if one.replicated_entries else []
        numbers = (str(one.entries), str(one.messages), str(one.size_bytes))
        names = ", ".join(sorted(one.producers)[:3]) + (" …" if len(one.producers) > 3 else "")
        table.add_row(
            str(one.ledger),
            ", ".join(one.bookies),
            *numbers,
            _when(one.first_ms),
            _when(one.last_ms),
            names,
            "; ".join(notes),
        )
    Console().print(table)


def _when(wall_ms: int) -> str:
    return iso_time(wall_ms) if wall_ms else "-"
