"""The HTTP face of a bookie: what it says in each state, what its levers do, and what it does with bad requests."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import MetadataUnavailable
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.system_disk import SystemDisk
from heliograph.wire.bookie_frames import BookieCode
from local_meta import keys
from region_node.bookie.http_face import Answer, BookieHttp, HttpConnection
from region_node.faces.admin.brokers import bookie_state
from storage.bookie.maintenance.garbage_collector import CollectorSettings, GarbageCollector
from storage.bookie.serving.bookie import Bookie, DirectoryPlace
from tests.region_node.bookie.http_client import ask
from tests.storage.bookie.history import SMALL, NotingPeer, add, read, send


def quiet_bookie(tmp_path: Path) -> Bookie:
    """Not started."""
    places = ([DirectoryPlace(SystemDisk(tmp_path / name))] for name in ("j", "l"))
    return Bookie(*places, SMALL, bookie_id="b0", instance="test", rng=random.Random(1), clock=SystemClock())


def test_pages_and_levers(tmp_path: Path) -> None:
    async def main() -> None:
        disks = [SystemDisk(tmp_path / name) for name in ("journal", "ledgers")]
        bookie = Bookie(
            [DirectoryPlace(disks[0])],
            [DirectoryPlace(disks[1])],
            SMALL,
            bookie_id="b0",
            instance="test",
            rng=random.Random(1),
            clock=SystemClock(),
        )
        bookie.start()
        meta, peer = EmbeddedStore(KvMachine()), NotingPeer()
        collector = GarbageCollector(bookie, meta, CollectorSettings(apart_s=0), rng=random.Random(2))
        pages = BookieHttp(bookie, lambda: collector)
        server = await asyncio.get_running_loop().create_server(lambda: HttpConnection(pages.answer), "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await meta.next_ids(keys.LEDGER_IDS, 5)
        for ledger in range(1, 5):
            await meta.put(keys.ledger(ledger), b"metadata")
            send(bookie, peer, add(ledger, 0, 3))
        while len(peer.acks) < 4:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

        assert await ask(port, "GET /health HTTP/1.1") == (200, {"status": "ok"})
        assert await ask(port, "GET /ready/ HTTP/1.1") == (200, {"status": "ok"})
        status, state = await ask(port, "GET /state HTTP/1.1")
        assert (status, state["writable"], state["ledgers"], state["bookie"]) == (200, True, 4, "b0")
        status, text = await ask(port, "GET /metrics HTTP/1.1")
        assert (
            status == 200
            and "bookie_ledgers_count 4\n" in text
            and "bookie_gc_refused 0\n" in text
            and "bookie_metadata_went_back 0\n" in text
            and "process_open_fds" in text
        )
        assert (
            "bookie_entries_count 12\n" in text
            and "bookie_flush 0\n" in text
            and "bookie_throttled_write_requests 0\n" in text
        )
        records = bookie.counts.records
        assert records and "bookie_journal_JOURNAL_QUEUE_SIZE 0\n" in text
        assert f'bookie_journal_JOURNAL_SYNC_count{{success="true"}} {records}\n' in text
        for name in ("bookkeeper_server_ADD_ENTRY_REQUEST", "bookie_journal_JOURNAL_ADD_ENTRY"):
            assert (
                f'{name}_count{{success="true"}} {records}\n' in text
                and f'{name}{{success="true",quantile="0.99"}}' in text
            )
        assert 'bookkeeper_server_READ_ENTRY_REQUEST_count{success="true"} 0\n' in text
        send(bookie, peer, read(1, 0, 2, 77))
        text = (await ask(port, "GET /metrics HTTP/1.1"))[1]
        assert (
            peer.answers[77][0] == BookieCode.OK
            and 'bookkeeper_server_READ_ENTRY_REQUEST_count{success="true"} 1\n' in text
        )
        assert (
            'bookkeeper_server_ADD_ENTRY_count{success="true"} 12\n' in text
            and 'bookkeeper_server_ADD_ENTRY_count{success="false"} 0\n' in text
        )

        bookie.dirs[0].full = "less than 256 MiB free"
        assert (await ask(port, "GET /ready HTTP/1.1"))[0] == 503 and (await ask(port, "GET /health HTTP/1.1"))[
            0
        ] == 200
        bookie.dirs[0].full, bookie.journals[0].failure = "", "the journal failed"
        assert await ask(port, "GET /health HTTP/1.1") == (
            503,
            {"status": "trouble", "reason": "the journal failed", "dropped": ["the journal failed"]},
        )
        bookie.journals[0].failure = ""

        await meta.delete(keys.ledger(2))
        assert (await ask(port, "POST /gc/confirm HTTP/1.1"))[0] == 409
        status, found = await ask(port, "POST /gc HTTP/1.1")
        assert status == 200 and "more than a fifth" in found["garbageCollection"]["refusal"]
        assert (await ask(port, "POST /gc/confirm HTTP/1.1", "Origin: http://evil.example"))[0] == 403
        assert (await ask(port, "POST /gc/confirm HTTP/1.1"))[0] == 200
        await ask(port, "POST /gc HTTP/1.1")
        assert bookie.ledgers() == [1, 3, 4]

        for lever in ("/compaction/suspend", "/scrub/suspend"):
            status, found = await ask(port, f"POST {lever} HTTP/1.1")
            assert status == 200 and found[lever.split("/")[1]]["suspended"]
        for lever in ("/compaction/resume", "/scrub/resume", "/compaction", "/compaction?major=true", "/scrub"):
            assert (await ask(port, f"POST {lever} HTTP/1.1"))[0] == 200

        assert (await ask(port, "GET /nothing HTTP/1.1"))[0] == 404 and (await ask(port, "POST /nothing HTTP/1.1"))[
            0
        ] == 404
        assert (await ask(port, "PUT /gc HTTP/1.1"))[0] == 405 and (await ask(port, "nonsense"))[0] == 400
        server.close()
        bookie.close()

    asyncio.run(main())


def test_garbage_collection_that_is_off_says_so(tmp_path: Path) -> None:
    async def main() -> None:
        bookie = quiet_bookie(tmp_path)
        pages = BookieHttp(bookie, lambda: None)
        status, _, body = await pages.answer("POST", "/gc")
        assert status == 409 and b"gc_interval_s" in body

    asyncio.run(main())


@pytest.mark.parametrize("size", [9000, 100_000])
def test_a_request_without_an_end_is_cut_off(tmp_path: Path, size: int) -> None:
    async def main() -> None:
        bookie = quiet_bookie(tmp_path)
        pages = BookieHttp(bookie, lambda: None)
        server = await asyncio.get_running_loop().create_server(lambda: HttpConnection(pages.answer), "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1])
        writer.write(b"x" * size)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        server.close()

    asyncio.run(main())


def test_a_broker_reads_an_answer_of_any_length_whole_and_refuses_one_without_end() -> None:
    said = {"bad": ["x" * 1000] * 1000}

    async def main(length: int) -> Any:
        async def answer(method: str, target: str) -> Answer:
            return 200, "application/json", json.dumps(said).encode().ljust(length)

        server = await asyncio.get_running_loop().create_server(lambda: HttpConnection(answer), "127.0.0.1", 0)
        try:
            address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
            return await bookie_state._ask(SimpleNamespace(to_bookies=None), SimpleNamespace(headers={}), address)  # type: ignore[arg-type]
        finally:
            server.close()

    assert asyncio.run(main(0)) == said
    with pytest.raises(MetadataUnavailable, match="larger than 4 MiB"):
        asyncio.run(main(5 << 20))
