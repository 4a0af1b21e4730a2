"""What is stored of a reseal job, and which ledgers it is about."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import CorruptData
from heliograph.model.ledger_metadata import LedgerInfo, LedgerPage, ManagedLedgerMetadata, encode_page
from local_meta import keys
from storage.managed_ledger.resealing import reseal_job
from storage.managed_ledger.resealing.reseal_job import ResealJob, ledgers_begun_before


def test_what_is_stored_of_a_job_is_read_again_or_refused() -> None:
    job = ResealJob("t", 1, 2, 3, 4, 5, waits_for=("a",))
    assert ResealJob.decode(job.encode()) == job
    for blob in (
        b"{",
        b"{}",
        b'{"format": 2}',
        job.encode().replace(b"begun_ms", b"other"),
        job.encode().replace(b"running", b"asleep"),
    ):
        with pytest.raises(CorruptData):
            ResealJob.decode(blob)
    assert keys.reseal("a/b") == "/reseals/a%2Fb" and not replace(job, state=reseal_job.JobState.DONE).active


def test_it_is_about_the_ledgers_of_one_tenant_that_were_begun_before_also_those_in_pages() -> None:
    async def main() -> None:
        meta = EmbeddedStore()
        infos = [LedgerInfo(number, 5, 50, number * 10) for number in range(1, 7)]
        old, paged, new = (f"persistent://t/n/{name}" for name in ("old", "paged", "new"))
        await meta.put(keys.managed_ledger(old), ManagedLedgerMetadata((infos[0], infos[1], LedgerInfo(7))).encode())
        page = LedgerPage.of(3, 0, infos[2:4])
        await meta.put(keys.ledger_page(paged, 3), encode_page(infos[2:4]))
        await meta.put(keys.managed_ledger(paged), ManagedLedgerMetadata(tuple(infos[4:]), pages=(page,)).encode())
        other = ManagedLedgerMetadata((infos[0],)).encode()
        await meta.put(keys.managed_ledger("persistent://t2/n/other"), other)
        properties = {"heliograph.trimmed_ms": "45"}
        late = ManagedLedgerMetadata((replace(infos[5], ledger=8),), properties=properties)
        await meta.put(keys.managed_ledger(new), late.encode())
        await meta.put(keys.managed_ledger("persistent://t/n/zz"), b"\xff")
        found = [(topic, begun, info.ledger) async for topic, begun, info in ledgers_begun_before(meta, "t", 45)]
        wanted = [(old, 0, 1), (old, 10, 2), (old, 20, 7)]
        assert sorted(found) == sorted([*wanted, (paged, 0, 3), (paged, 30, 4), (paged, 40, 5)])

    asyncio.run(main())
