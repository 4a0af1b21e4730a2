"""The end of a transaction whose own region is lost, as an operator decides it: what readers see, and what changes when
that region comes back.
"""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import RegionInfo
from heliograph.model.errors import CorruptData, NotFound
from heliograph.wire.run import Origin, Run, TxnId
from region_node.faces.admin.transactions.lost_region_transactions import _answers
from region_node.security.allowed_urls import UrlList
from replicator.log.replicated_entries import checked_and_addressed
from replicator.log.transaction_buffer import (
    ABORT,
    COMMIT,
    TransactionBuffer,
    marker_run,
    read_marker,
    read_verdict,
    verdict_run,
)
from tests.region_node.faces.pulsar.codec import entry
from tests.region_node.faces.pulsar.harness import TOPIC, settle
from tests.region_node.transactions.broker import TransactionalBroker, payloads, with_transactions
from tests.replicator.log.transaction_runs import ORIGIN, run, seen

TXN = (3, 1017)


async def arrive(broker: TransactionalBroker, made: Run) -> None:
    broker.topics.loaded[TOPIC].log.publish(made, lambda _: None, lambda _: None)
    await settle()


def foreign(body: bytes, txn: TxnId | None = TXN) -> Run:
    return run(txn, entry(body), origin=ORIGIN)


def marker(action: int, txn: TxnId = TXN) -> Run:
    made = marker_run(txn, action, 0)
    return Run(
        made.parts,
        made.lengths,
        counts=made.counts,
        flags=made.flags,
        transaction=txn,
        origin=ORIGIN,
        spans=((9, 0, 1),),
    )


@pytest.mark.parametrize("commit", [True, False])
def test_readers_go_on_at_once_and_what_the_region_says_later_changes_nothing(commit: bool) -> None:
    async def test(broker: TransactionalBroker) -> None:
        client = await broker.client()
        await client.producer(1)
        await client.subscribe(1, initialPosition=1)
        await client.flow(100)
        await arrive(broker, foreign(b"t0"))
        await arrive(broker, foreign(b"p0", None))
        await client.news()
        assert payloads(client.got) == []
        topic = broker.topics.loaded[TOPIC]
        with pytest.raises(NotFound):
            await topic.transactions.decide((2, 1, 78), TXN, commit=commit)
        with pytest.raises(NotFound):
            await topic.transactions.decide(ORIGIN, (3, 1018), commit=commit)
        await topic.transactions.decide(ORIGIN, TXN, commit=commit)
        await client.news()
        shown = [b"t0", b"p0"] if commit else [b"p0"]
        assert payloads(client.got) == shown and topic.transactions.open == 0
        with pytest.raises(NotFound):
            await topic.transactions.decide(ORIGIN, TXN, commit=not commit)
        await arrive(
            broker, foreign(b"t1")
        )  # the region is back: the rest of it, and its own end, which is the other one
        await arrive(broker, marker(ABORT if commit else COMMIT))
        await arrive(broker, foreign(b"p1", None))
        await client.news()
        assert payloads(client.got) == [*shown, *([b"t1"] if commit else []), b"p1"]
        await broker.topics.unload(TOPIC)
        again = await broker.client()
        await again.subscribe(2, name="other", initialPosition=1)
        await again.flow(100, consumer_id=2)
        assert payloads(again.got) == payloads(client.got), "and so it is for whoever loads the log"

    with_transactions(test)


def test_a_verdict_is_for_its_origin_alone_and_stays_in_its_region() -> None:
    buffer, pieces = TransactionBuffer(), []
    mine: list[tuple[Origin | None, bytes]] = [(None, b"own"), (ORIGIN, b"theirs"), ((2, 2, 77), b"of another life")]
    for at, (origin, body) in enumerate(mine):
        pieces.append((3, at, run(TXN, body, origin=origin)))
        buffer.confirm(*pieces[-1])
    made = verdict_run(ORIGIN, TXN, COMMIT)
    buffer.confirm(3, 3, made)
    assert [key[0] for key in buffer.open] == [None, (2, 2, 77)]
    assert checked_and_addressed(made, "eu")[1] == [], "no other region gets it"
    assert checked_and_addressed(marker_run(TXN, COMMIT, 0), "eu")[1] is None
    assert read_verdict(made.parts[0]) == (ORIGIN, COMMIT) and read_verdict(marker_run(TXN, ABORT, 5).parts[0]) is None
    with pytest.raises(CorruptData):
        read_marker(made.parts[0])  # who does not know it says so: it loads nothing by guessing
    again = TransactionBuffer()
    again.load(buffer.dump())
    buffer.confirm(3, 4, marker_run(TXN, COMMIT, 0))
    again.confirm(3, 4, marker_run(TXN, COMMIT, 0))
    assert list(again.open) == list(buffer.open) == [((2, 2, 77), *TXN)] and seen(again, pieces) == [b"own", b"theirs"]


def test_nothing_is_decided_while_the_region_answers() -> None:
    async def answered(
        info: RegionInfo | None, *, connected: bool = False, allowed: tuple[str, ...] = (), origin: Origin = ORIGIN
    ) -> str | None:
        regions = [] if info is None else [info]
        view = SimpleNamespace(
            regions=lambda: regions, region=lambda name: next((r for r in regions if r.name == name), None)
        )
        incoming = {"eu": SimpleNamespace(connected=connected)}
        admin: Any = SimpleNamespace(view=view, urls=UrlList(allowed))
        topic: Any = SimpleNamespace(text=TOPIC, log=SimpleNamespace(incoming=incoming))
        return await _answers(admin, topic, origin)

    async def main() -> None:
        async def speak(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 503 no\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(speak, "127.0.0.1", 0)
        alive = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with socket.socket() as unused:  # bound, and nobody listens
            unused.bind(("127.0.0.1", 0))
            dead = f"http://127.0.0.1:{unused.getsockname()[1]}"
            eu = RegionInfo(name="eu", number=2, epoch=1)
            assert "is connected" in str(await answered(eu, connected=True))
            assert "answers at" in str(await answered(RegionInfo(name="eu", number=2, epoch=1, admin_url=alive)))
            assert await answered(RegionInfo(name="eu", number=2, epoch=1, admin_url=dead)) is None
            assert await answered(eu) is None, "it has no address, and no link stands"
            assert await answered(RegionInfo(name="eu", number=2, epoch=2, admin_url=alive), connected=True) is None, (
                "it was built anew"
            )
            assert await answered(None) is None, "it was removed"
        server.close()
        await server.wait_closed()

    asyncio.run(main())
