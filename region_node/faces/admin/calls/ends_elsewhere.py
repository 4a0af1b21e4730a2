"""Where a ledger of this region ended, as the other regions show that hold copies of what was published in it.

Is: a question to each region of the topic, for the one case that no bookie here knows any more. Isn't: what follows
(`storage.ledger.recovery`).
Invariants: what another region holds was confirmed here before; one that does not answer soon is named in the log,
since then there may be more. So is one that names an entry which no ledger here can have: it is not believed, and
takes nothing from what the others say.
Source: docs/protocols/ledger.md, "Fencing and recovery".
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from global_config.view import ConfigView
from heliograph.model.admin_paths import OWN_TOPIC, path_of
from heliograph.model.coordinates import parse_coordinate
from heliograph.model.errors import HeliographError
from heliograph.model.ledger_metadata import LedgerMetadata
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from region_node.faces.admin.calls.other_regions import Caller, elsewhere
from region_node.security.allowed_urls import UrlList

log = logging.getLogger("region_node.admin")


@dataclass(frozen=True, slots=True)
class EndsElsewhere:
    """How this broker asks other regions of its own accord: a `RegionsPort`, and for so long it waits for each."""

    region: str
    view: ConfigView
    urls: UrlList
    outward: Callable[[], ssl.SSLContext] | None
    caller: Caller
    region_patience_s: float
    audiences: Mapping[str, str]

    async def end_of(self, metadata: LedgerMetadata, last_entry_max: int) -> int:
        """Asks as `storage.managed_ledger.cursors.acknowledged.Elsewhere` wants it."""
        return await end_elsewhere(self, metadata, last_entry_max)


async def end_elsewhere(asked: EndsElsewhere, metadata: LedgerMetadata, last_entry_max: int) -> int:
    """The last entry of the ledger that a region holds a copy of; -1: none, as far as regions have answered within
    `region_patience_s`. last_entry_max: the highest that a ledger of this region may have.
    """
    own = asked.view.region(asked.region)
    if own is None or not metadata.topic:
        return -1
    name = TopicName.parse(metadata.topic)
    policies = asked.view.namespace(name.namespace)
    regions = [region for region in (policies.regions if policies is not None else ()) if region != asked.region]

    path = f"{path_of(OWN_TOPIC, topic=metadata.topic)}/vectors"

    async def one(region: str) -> int:
        try:
            async with asyncio.timeout(asked.region_patience_s):
                told = await elsewhere(asked, asked.caller, region, "GET", path)
                end = await _end(told["regions"][region]["origins"], own.number, metadata.ledger)
                if end > last_entry_max:
                    raise ValueError(
                        f"entry {end} is beyond the {last_entry_max + 1} that ledger_entries_max lets a ledger hold: "
                        f"what region {region} says of it is left out. Find out why it says so, or whether "
                        "ledger_entries_max was lowered since"
                    )
                return end
        except (HeliographError, TimeoutError, LookupError, TypeError, ValueError, OverflowError) as error:
            log.warning(
                "ledger.end_not_told",
                extra={
                    "topic": metadata.topic,
                    "ledger": metadata.ledger,
                    "region": region,
                    "error": str(error) or "time-out",
                },
            )
            return -1

    return max(await asyncio.gather(*(one(region) for region in regions)), default=-1)


async def _end(origins: list[dict[str, Any]], number: int, ledger: int) -> int:
    """Where the ledger ends by the origins of region `number`: a ledger's number comes once, which is enough."""
    ends, pace = [-1], RowPace()
    for row in origins:
        await pace.row()
        if row["through"] is None:
            continue
        (region, _, _), _ = parse_coordinate(f"{row['origin']}:0:0")
        through, entry = (int(part) for part in row["through"])
        if region == number and through == ledger:
            ends.append(entry)
    return max(ends)
