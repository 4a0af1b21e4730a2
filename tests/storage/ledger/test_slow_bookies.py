"""Bookies that are slow, or fail again and again: what is confirmed without them, what is held for them, and how long
they are left alone.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from heliograph.model.errors import BookieUnavailable
from heliograph.wire.block import encode_block
from storage.ledger.bookies.bookie_client import BookieClient, BookieClientSettings
from storage.ledger.bookies.quarantine import FIRST_S, LONGEST_S, Quarantine
from storage.ledger.ledger_context import LedgerSettings
from tests.storage.ledger.writers import Writer, scenario
from tests.storage.managed_ledger.world import Region, run_of, until


def test_a_quarantine_doubles_with_each_failure_after_it_and_is_forgiven_in_time() -> None:
    quarantine = Quarantine()
    assert not quarantine.holds("b", 0.0)
    now, lengths = 0.0, []
    for _ in range(6):
        quarantine.on_failed("b", now)
        for noticed in (0.1, 0.2):  # by other ledgers
            quarantine.on_failed("b", now + noticed)
        length = next(s for s in range(1, 1000) if not quarantine.holds("b", now + s))
        lengths.append(length)
        now += length + 1.0
    assert lengths == [5, 10, 20, 40, 60, 60] and (FIRST_S, LONGEST_S) == (5.0, 60.0)
    assert not quarantine.holds("other", now)
    now += 61.0
    quarantine.on_failed("b", now)
    assert quarantine.holds("b", now + 4.9) and not quarantine.holds("b", now + 5.1)


def test_a_registration_ends_a_quarantine_and_the_next_one_is_longer_all_the_same() -> None:
    quarantine = Quarantine()
    quarantine.on_failed("b", 0.0)
    quarantine.on_registered("b", 1.0)
    assert not quarantine.holds("b", 1.0)
    quarantine.on_failed("b", 2.0)
    assert quarantine.holds("b", 2.0 + 9.9) and not quarantine.holds("b", 2.0 + 10.1)


def test_an_ack_quorum_goes_on_without_the_slow_one_which_gets_no_new_ledger() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((3, 2))
        ensemble = handle.metadata.fragments[0][1]
        slow = ensemble[0]
        region.bookies[slow].silent = True
        for number in range(100):
            handle.append_run(run_of(f"n{number}", pad=1000))
            await asyncio.sleep(0.02)
            assert handle.lac >= number - 5 and len(handle._pending) <= 5, (
                "neither confirmations nor memory wait for it"
            )
        assert (await writer.context.meta.range("/ledgers", "/ledgers~")) and handle.metadata.fragments[0][
            1
        ] == ensemble, "it is not replaced yet"
        for _ in range(5):
            assert slow not in (await writer.open((2, 2))).metadata.fragments[0][1], (
                "two seconds slow: new ledgers go elsewhere"
            )

    scenario(work, bookies=4)


def test_where_acks_take_long_as_a_rule_a_late_one_is_waited_for_in_proportion() -> None:
    async def work(region: Region, writer: Writer) -> None:
        for bookie in region.bookies.values():
            bookie.delay_s = 0.2
        handle = await writer.open((2, 2))
        for number in range(100):
            handle.append_run(run_of(f"n{number}"))
            await writer.reach(number)
        usual = writer.context.acks.percentile(0.99)
        limit = writer.context.stalled_s(False)
        assert usual > 0.2 and limit == min(10 * usual, 5.0) > 2.0
        ensemble = handle.metadata.fragments[-1][1]
        region.bookies[ensemble[0]].silent = True
        handle.append_run(run_of("late"))
        await asyncio.sleep(limit - 0.3)
        assert handle.metadata.fragments[-1][1] == ensemble, "a busy disk is no failure"
        await until(lambda: ensemble[0] not in handle.metadata.fragments[-1][1], limit_s=3.0)
        await writer.reach(100)

    scenario(work, bookies=4)


def test_where_all_are_silent_nobody_is_replaced_before_the_time_out() -> None:
    """One that stands still with all others (a switch, a stalled host, this broker itself) is not the one to blame."""

    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((2, 2))
        ensemble = handle.metadata.fragments[0][1]
        for bookie in ensemble:
            region.bookies[bookie].silent = True
        handle.append_run(run_of("a"))
        await asyncio.sleep(4.9)
        assert handle.metadata.fragments[-1][1] == ensemble and not writer.context.pool.suspected(ensemble[0])
        await writer.reach(0)

    scenario(work, bookies=5)


def test_who_has_failed_one_ledger_is_waited_for_a_quarter_as_long_by_the_next() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((2, 2))
        hung = handle.metadata.fragments[0][1][0]
        region.bookies[hung].silent = True
        writer.context.pool.suspect(hung)
        began = asyncio.get_running_loop().time()
        handle.append_run(run_of("a"))
        await writer.reach(0)
        assert 0.25 < asyncio.get_running_loop().time() - began < 0.6

    scenario(work, bookies=4)


def test_what_waits_for_a_slow_one_is_bounded_and_it_is_replaced() -> None:
    async def work(region: Region, writer: Writer) -> None:
        handle = await writer.open((3, 2))
        slow = handle.metadata.fragments[0][1][0]
        region.bookies[slow].silent = True
        client, most = writer.context.pool.client(slow), 0
        for number in range(200):
            handle.append_run(run_of(f"n{number}", pad=10_000))
            await asyncio.sleep(0.005)
            most = max(most, client.backlog_bytes)
        assert most < 400_000, "the bound, and what comes in one tick"
        await until(lambda: slow not in handle.metadata.fragments[-1][1])
        await writer.reach(199)

    scenario(work, bookies=4, settings=LedgerSettings(backlog_bytes_max=200_000))


@pytest.mark.slow
def test_a_connection_that_nobody_reads_takes_no_writer_after_the_other() -> None:
    """A real socket. Each new writer would leave its adds in the connection's buffer, without any bound."""

    async def main() -> None:
        deaf: list[asyncio.StreamWriter] = []

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            deaf.append(writer)

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        settings = BookieClientSettings(unsent_bytes_max=1 << 20, answer_timeout_s=3.0)
        client = BookieClient(
            "b", "127.0.0.1", server.sockets[0].getsockname()[1], rng=random.Random(1), settings=settings
        )
        lost: list[Exception] = []
        run = run_of("x", pad=100_000)
        most = refused = 0
        began = asyncio.get_running_loop().time()
        client.open_writer(0, lambda through: None, lost.append)
        for _ in range(100_000):
            if deaf and client.connected:
                break
            await asyncio.sleep(0)
        for ledger in range(1, 200):
            before = len(lost)
            client.open_writer(ledger, lambda through: None, lost.append)
            await asyncio.sleep(0)
            for entry in range(5):
                client.add(ledger, entry, 1, encode_block(run, ledger, entry), -1)
            await asyncio.sleep(0)
            most = max(most, client._unsent_bytes())
            refused += any("not sent yet" in str(error) for error in lost[before:])
            client.close_writer(ledger)
        assert refused > 100 and most < (1 << 20) + 10 * 600_000
        assert all(isinstance(error, BookieUnavailable) for error in lost)
        client.close_writer(0)
        while client._unsent_bytes():  # what is never read is given up, also where nobody waits for it any more
            assert asyncio.get_running_loop().time() - began < 90
            await asyncio.sleep(0.05)
        client.close()
        for writer in deaf:
            writer.transport.abort()
        server.close()

    asyncio.run(main())
