"""What other regions say of where a ledger of this one ended."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.model.configuration.configuration_records import NamespacePolicies
from heliograph.model.errors import MetadataUnavailable
from heliograph.model.ledger_metadata import LedgerMetadata
from region_node.faces.admin.calls import ends_elsewhere
from region_node.faces.admin.dr.drill_schedules import OwnCredentials
from region_node.security.allowed_urls import UrlList

LEDGER = 1_700_000_000_051
LAST_MAX = 1000


def told(region: str, *rows: tuple[str, list[int] | None]) -> dict[str, Any]:
    return {"regions": {region: {"origins": [{"origin": origin, "through": through} for origin, through in rows]}}}


ANSWERS: dict[str, Any] = {
    "eu": told("eu", ("1.1.a", [LEDGER, 41]), ("1.2.a", None), ("2.1.b", [LEDGER, 99]), ("1.1.c", [LEDGER - 1, 500])),
    "ap": told("ap", ("1.1.a", [LEDGER, 57])),
    "sa": MetadataUnavailable("region sa does not answer"),
    "af": told("somebody else"),
    "one too many": told("one too many", ("1.1.a", [LEDGER, LAST_MAX + 1])),
    "endless": told("endless", ("1.1.a", [LEDGER, 10**17]), ("1.1.a", [LEDGER, 40])),
    "boundless": {"regions": {"boundless": {"origins": [{"origin": "1.1.a", "through": [float("inf"), 0]}]}}},
    "last": told("last", ("1.1.a", [LEDGER, LAST_MAX])),
}


@pytest.mark.parametrize(
    ("regions", "end"),
    (
        (("us",), -1),
        (("us", "eu"), 41),
        (("us", "eu", "ap", "sa", "af"), 57),
        (("us", "sa", "silent"), -1),
        (("us", "endless"), -1),
        (("us", "boundless", "eu"), 41),
        (("us", "one too many", "eu", "endless"), 41),
        (("us", "eu", "last"), LAST_MAX),
    ),
)
def test_the_farthest_region_says_where_it_ended(
    regions: tuple[str, ...], end: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of its own origin alone; whoever does not answer, soon, or with sense, is no reason to wait. Whoever names an
    entry that no ledger here can have is not believed.
    """
    asked: list[str] = []

    async def elsewhere(admin: Any, caller: Any, region: str, method: str, path: str) -> Any:
        asked.append(path)
        if region == "silent":
            await asyncio.Event().wait()
        if isinstance(found := ANSWERS[region], Exception):
            raise found
        return found

    monkeypatch.setattr(ends_elsewhere, "elsewhere", elsewhere)
    view: Any = SimpleNamespace(
        region=lambda name: SimpleNamespace(number=1), namespace=lambda name: NamespacePolicies(regions=regions)
    )
    by = ends_elsewhere.EndsElsewhere("us", view, UrlList(()), None, OwnCredentials(""), 2.0, {})
    ledger: Any = SimpleNamespace(topic="persistent://t/n/a b", ledger=LEDGER)
    metadata: LedgerMetadata = ledger
    found: list[int] = []

    async def main() -> None:
        found.append(await by.end_of(metadata, LAST_MAX))

    run_alone(main())
    assert found == [end] and set(asked) <= {"/heliograph/v1/topics/t/n/a%20b/vectors"}
