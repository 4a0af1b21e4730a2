"""Resource groups are changed over what is stored."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from geo_tests.sim.loop import run_alone
from global_config import keys
from heliograph.model.configuration.configuration_records import ResourceGroup
from region_node.faces.admin.tenancy import resource_groups
from region_node.faces.admin.tenancy.resource_groups import Rates
from tests.region_node.faces.admin.old_view import OldView


def test_rates_are_changed_over_what_is_stored_whatever_this_broker_knows_yet() -> None:
    async def main() -> None:
        asked: Any = None
        old = await OldView().start()
        await resource_groups.put(old.admin, asked, "small", Rates(publish_messages=5))
        await resource_groups.put(old.admin, asked, "small", Rates(dispatch_bytes=7))
        one, two = ResourceGroup(publish_messages=5), ResourceGroup(publish_messages=5, dispatch_bytes=7)
        assert await old.stored(keys.resource_group("small"), ResourceGroup) == two
        shown = [None, resource_groups._shown(one), resource_groups._shown(two)]
        assert old.audited == [*pairwise(shown)], "what stood there is told"

    run_alone(main())
