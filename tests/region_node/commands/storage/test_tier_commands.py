"""What `heliograph tier offload` makes of its options, before any region is asked."""

from __future__ import annotations

from typing import Any, cast

import pytest

from heliograph.model.errors import ConfigError
from region_node.commands.storage import tier_commands


class Region:
    def __init__(self) -> None:
        self.asked: list[tuple[str, object, object]] = []

    def put(self, path: str, body: object, **query: object) -> None:
        self.asked.append((path, body, query))


@pytest.mark.parametrize("before", ["12", "12:", ":0", "a:0", "12:b", "12:-1", "-1:0", "12:0:1", ":"])
def test_a_position_that_is_none_is_refused_with_what_is_expected(before: str) -> None:
    with pytest.raises(ConfigError, match="expected ledger:entry, such as 12:0"):
        tier_commands.offload(cast(Any, Region()), "persistent://public/default/t", before)


def test_a_position_goes_to_the_region_as_it_was_given() -> None:
    region = Region()
    tier_commands.offload(cast(Any, region), "persistent://public/default/t", "12:7", now=True)
    ((path, body, query),) = region.asked
    assert path.endswith("/persistent/public/default/t/offload") and query == {"rollOver": True}
    assert body == {"ledgerId": 12, "entryId": 7, "partitionIndex": -1}
