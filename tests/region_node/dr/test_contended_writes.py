"""Many write the same leadership, or the same policies, at once: whoever loses tries again, until its patience ends."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from global_config.write_retries import PATIENCE_S
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import MetadataUnavailable, VersionConflict
from region_node.dr.leadership.leadership_changes import Switching
from region_node.faces.admin.calls.other_regions import TIMEOUT
from region_node.topics.policies.policy_book import PolicyBook
from tests.region_node.topics.fake_storage import FakeView


class Contended(EmbeddedStore):
    """Somebody else is faster, so many times."""

    losses = 0

    async def put(self, *args: Any, **given: Any) -> Any:
        if self.losses:
            self.losses -= 1
            raise VersionConflict("/some/key", 1, 2)
        return await super().put(*args, **given)

    async def txn(self, *args: Any, **given: Any) -> Any:
        if self.losses:
            self.losses -= 1
            raise VersionConflict("/some/key", 1, 2)
        return await super().txn(*args, **given)


def test_a_write_that_loses_thirty_times_is_done_all_the_same() -> None:
    async def main() -> None:
        store = Contended()
        store.losses = 30
        await Switching(store, lambda: 0).begin("t/n", "us", {})
        store.losses = 30
        book = PolicyBook(store, FakeView(), {})
        await book.ready()
        await book.change_brokers(lambda found: replace(found, policies={"maxProducers": 7}))
        assert not store.losses

    run_alone(main())


def test_one_that_always_loses_ends_before_another_region_gives_up_on_the_answer() -> None:
    async def main() -> None:
        store, now = Contended(), asyncio.get_running_loop().time
        store.losses = 1 << 30
        began = now()
        with pytest.raises(MetadataUnavailable, match="try again"):
            await Switching(store, lambda: 0).begin("t/n", "us", {})
        assert TIMEOUT.total is not None and PATIENCE_S <= now() - began < TIMEOUT.total - 1
        book = PolicyBook(store, FakeView(), {})
        await book.ready()
        with pytest.raises(VersionConflict):
            await book.change_brokers(lambda found: replace(found, policies={"maxProducers": 7}))

    run_alone(main())
