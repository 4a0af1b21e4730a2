"""What an audit reads of a topic's bookies: an entry of which no copy is left is told apart from one that is out of
reach now.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import BookieUnavailable, CorruptData, HeliographError, KeyMissing, NoSuchLedger
from heliograph.model.ledger_metadata import LedgerInfo, LedgerMetadata, LedgerState
from heliograph.wire.block import decode_block
from heliograph.wire.run import Buffer, Run
from replicator.audit import bookie_copies
from replicator.audit.bookie_copies import BookieCopies
from storage.sealing.cipher import WITH_HEADER, RunSealer
from tests.storage.ledger.fake_bookies import FakeBookie
from tests.storage.managed_ledger.resealing.world import World
from tests.storage.managed_ledger.resealing.world import run as sealed_world
from tests.storage.managed_ledger.world import Region, names_of, run_of
from tests.storage.sealing.world import Config

AWAY = BookieUnavailable("no connection")
FORGOTTEN = BookieUnavailable("older than this life of the bookie", forgotten=True)
LEDGER = LedgerMetadata(7, 2, 2, ((0, ("a", "b")),), state=LedgerState.CLOSED, last_entry=9, size_bytes=1)


def read(monkeypatch: pytest.MonkeyPatch, answers: dict[str, HeliographError | None]) -> None:
    """answers: what each bookie says of the ledger, none of which can be read; None: it has some of it."""

    class Client:
        def __init__(self, answer: HeliographError | None) -> None:
            self.answer = answer

        async def read_lac(self, ledger: int) -> int:
            if self.answer is not None:
                raise self.answer
            return 9

    async def metadata(*_: Any) -> LedgerMetadata:
        return LEDGER

    async def unread(*_: Any) -> Any:
        raise next((error for error in answers.values() if isinstance(error, BookieUnavailable)), AWAY)

    async def info(_: int) -> LedgerInfo:
        return LedgerInfo(7, 10, 1)

    monkeypatch.setattr(bookie_copies, "ledger_metadata", metadata)
    monkeypatch.setattr(bookie_copies, "read_open", unread)
    pool = SimpleNamespace(client=lambda bookie: Client(answers[bookie]))
    log: Any = SimpleNamespace(ledger=SimpleNamespace(ledger_info=info))
    asyncio.run(BookieCopies(cast(Any, SimpleNamespace(pool=pool))).read(log, 7, 0, 9, 1000))


@pytest.mark.parametrize(
    "answers",
    [
        {"a": FORGOTTEN, "b": FORGOTTEN},
        {"a": FORGOTTEN, "b": None},
        {"a": NoSuchLedger("no"), "b": FORGOTTEN},
        {"a": None, "b": None},
    ],
    ids=("both-emptied", "one-emptied", "one-without-a-trace", "unreadable"),
)
def test_what_every_bookie_has_lost_is_looked_for_in_other_regions(
    answers: dict[str, HeliographError | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the pass ends at it, and what other regions have never comes back."""
    with pytest.raises(CorruptData, match="none can read it"):
        read(monkeypatch, answers)


@pytest.mark.parametrize("other", [None, FORGOTTEN, NoSuchLedger("no")], ids=("there", "emptied", "without-a-trace"))
def test_nobody_is_given_up_who_is_only_out_of_reach(
    other: HeliographError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BookieUnavailable, match="no connection"):
        read(monkeypatch, {"a": AWAY, "b": other})


def test_an_unknown_key_is_damage_only_where_something_of_its_ledger_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    opens: set[int] = set()
    asked: list[int] = []

    async def metadata(*_: Any) -> LedgerMetadata:
        return LEDGER

    async def info(_: int) -> LedgerInfo:
        return LedgerInfo(7, 10, 1)

    async def read_open(_: Any, known: LedgerMetadata, first: int, last: int, max_bytes: int) -> list[int]:
        asked.append(first)
        if first not in opens:
            raise KeyMissing("data key 17")
        return [first]

    monkeypatch.setattr(bookie_copies, "ledger_metadata", metadata)
    monkeypatch.setattr(bookie_copies, "read_open", read_open)
    log: Any = SimpleNamespace(ledger=SimpleNamespace(ledger_info=info))
    copies = BookieCopies(cast(Any, SimpleNamespace()))
    with pytest.raises(KeyMissing):
        asyncio.run(copies.read(log, 7, 3, 9, 1000))
    opens.add(9)
    asked.clear()
    for entry in (3, 4):
        with pytest.raises(CorruptData, match=f"entry 7:{entry} names a data key"):
            asyncio.run(copies.read(log, 7, entry, 9, 1000))
    assert asked == [3, 0, 9, 4], "it is asked once"


def test_what_it_writes_into_a_sealed_ledger_is_sealed_whatever_is_wanted_today(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    written: list[int] = []

    class Client:
        async def add_recovery(self, ledger: int, first: int, count: int, block: list[Buffer], lac: int) -> None:
            written.append(decode_block(b"".join(block))[2].seal is not None)

    async def metadata(*_: Any) -> LedgerMetadata:
        return replace(LEDGER, seal_form=WITH_HEADER)

    async def info(_: int) -> LedgerInfo:
        return LedgerInfo(7, 10, 1)

    async def sealed(topic: str, ledger: int, closed_ms: int, first: int, run: Run, form: int, key: int) -> Run:
        return RunSealer(ledger, 1, (1, bytes(32)), lambda: None)(run, first) if form else run

    monkeypatch.setattr(bookie_copies, "ledger_metadata", metadata)
    ledger = SimpleNamespace(topic="t", last_confirmed=(8, 0), ledger_info=info, forget_cached=lambda _: None)
    log: Any = SimpleNamespace(ledger=ledger)
    pool, runs = SimpleNamespace(client=lambda _: Client()), [(3, Run([b"an entry"], [8]))]
    context = SimpleNamespace(meta=EmbeddedStore(), pool=pool, sealing=SimpleNamespace(sealed=sealed))
    asyncio.run(BookieCopies(cast(Any, context)).replace(log, 7, runs))
    assert written == [True, True]
    context.sealing = None
    with pytest.raises(CorruptData, match="ledger 7: entry 3 is not sealed"):
        asyncio.run(BookieCopies(cast(Any, context)).replace(log, 7, runs))
    assert len(written) == 2


def test_a_ledger_that_was_sealed_anew_is_read_and_written_where_it_lies() -> None:
    async def work(region: Region, config: Config) -> None:
        world = await World.make(region, config)
        log: Any = SimpleNamespace(ledger=world.ledger)
        copies, info = BookieCopies(world.broker.factory.context), world.infos[0]
        wanted = [name for ledger, _, name in world.before if ledger == info.ledger]

        async def read() -> list[str]:
            names: list[str] = []
            while len(names) < info.entries:
                runs = await copies.read(log, info.ledger, len(names), info.entries - 1, 1 << 20)
                names += [name for _, run in runs for name in names_of(run)]
            return names

        assert await read() == wanted
        await world.all_anew()
        assert await read() == wanted, "it was read before"
        place = (await world.places())[info.ledger].at
        run = run_of(*wanted[2:4])
        run.first_index, run.time_ms = 2, 7
        assert await copies.replace(log, info.ledger, [(2, run)]) == 2
        assert await read() == wanted and world.keys_held() == {world.newest}
        assert not [
            bookie for bookie in region.bookies.values() if info.ledger in bookie.ledgers if bookie.holds(info.ledger)
        ]
        assert any(
            7 in {block_run.time_ms for _, _, block_run in blocks(bookie, place)} for bookie in region.bookies.values()
        )

    def blocks(bookie: FakeBookie, ledger: int) -> list[tuple[int, int, Run]]:
        return [decode_block(block) for _, block in bookie.ledger(ledger).blocks.values()]

    sealed_world(work)
