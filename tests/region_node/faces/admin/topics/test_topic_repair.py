"""What the answer to a repair says of what is missing after it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.errors import NotAllowed
from heliograph.model.ledger_metadata import LedgerInfo
from region_node.faces.admin.topics import topic_repair
from storage.ledger.repair.in_place_repair import Refilled

TOPIC = "persistent://public/default/t"


def repaired(monkeypatch: pytest.MonkeyPatch, *, linked: bool) -> tuple[dict[str, Any], list[str]]:
    """(the answer, which audits were wanted)."""
    wanted: list[str] = []

    async def damaged(_: int) -> list[tuple[int, int]]:
        return [(0, 9)]

    async def refill(*_: Any) -> Refilled:
        return Refilled(missing=((2, 4), (9, 9)))

    def want(topic: str) -> None:
        if not linked:
            raise NotAllowed("no link")
        wanted.append(topic)

    infos = [LedgerInfo(7, 10, 1, closed_ms=1)]
    ledger = SimpleNamespace(topic=TOPIC, ledgers=lambda: infos, damaged=damaged, refill=refill)
    log: Any = SimpleNamespace(ledger=ledger, topic=TOPIC)
    admin: Any = SimpleNamespace(tier=None, links=SimpleNamespace(auditor=SimpleNamespace(want=want)))
    return asyncio.run(topic_repair.repair(admin, log, topic_repair.TopicRepair())), wanted


@pytest.mark.parametrize("linked", [True, False])
def test_what_is_missing_is_counted_and_what_to_do_is_said(monkeypatch: pytest.MonkeyPatch, linked: bool) -> None:
    """Also where no other region can be asked, which was a refusal of the whole request."""
    answer, wanted = repaired(monkeypatch, linked=linked)
    assert answer["missing_entries"] == 4 and answer["ledgers"]["7"]["missing"] == [[2, 4], [9, 9]]
    assert answer["asked_other_regions"] is linked and wanted == [TOPIC] * linked
    assert ("are asked for what is missing" if linked else "heliograph topics seek") in answer["do"]
