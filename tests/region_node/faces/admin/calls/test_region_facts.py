"""What other regions say of a namespace's topics, whatever they say."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.errors import MetadataUnavailable
from region_node.faces.admin.calls import region_facts

ANSWERS: dict[str, Any] = {
    "eu": {"stored": 3, "topics": {}, "missing": []},
    "older": {"topics": {"t": {}}, "missing": ["u"]},
    "empty": {},
    "list": [],
    "text": {"stored": "many"},
    "none": {"stored": None},
    "away": MetadataUnavailable("region away does not answer"),
}


def test_a_region_that_says_something_else_counts_as_one_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def elsewhere(admin: Any, request: Any, region: str, method: str, path: str) -> Any:
        if isinstance(found := ANSWERS[region], Exception):
            raise found
        return found

    monkeypatch.setattr(region_facts, "elsewhere", elsewhere)
    monkeypatch.setattr(region_facts, "where_copies_may_be", lambda view, namespace: ("us", *ANSWERS))
    asked: Any = region_facts.topics_elsewhere(SimpleNamespace(region="us", view=None), None, "t/n")  # type: ignore[arg-type]
    found = asyncio.run(asked)
    known = {region: count for region, count in found.items() if isinstance(count, int)}
    assert known == {"eu": 3, "older": 2} and set(found) == set(ANSWERS)
    assert all(isinstance(error, MetadataUnavailable) for region, error in found.items() if region not in known)
