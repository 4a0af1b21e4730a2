"""What an audit reads of a topic's bookies: an entry of which no copy is left is told apart from one that is out of
reach now.
"""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from heliograph.model.errors import BookieUnavailable, CorruptData, HeliographError, NoSuchLedger
from heliograph.model.ledger_metadata import LedgerInfo, LedgerMetadata, LedgerState
from replicator.audit import bookie_copies
from replicator.audit.bookie_copies import BookieCopies

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
