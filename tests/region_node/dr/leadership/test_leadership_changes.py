"""How the leadership of a namespace begins, ends, and begins again."""

from __future__ import annotations

import pytest

from geo_tests.sim.loop import run_alone
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import Put
from heliograph.model.configuration.leadership import DRAINING, ENDED, leadership
from heliograph.model.errors import NotAllowed
from region_node.dr.leadership.leadership_changes import Switching, closing, flipped
from region_node.dr.leadership.write_gates import Writing

NAME = "t/n"


def test_no_epoch_of_a_namespace_comes_twice() -> None:
    """Sequences of producers are compared within one leadership, which the epoch tells in which it began."""

    async def main() -> None:
        store = EmbeddedStore()
        switching = Switching(store, lambda: 5)
        seen = []
        for active in ("us", "eu", "us"):
            record = await switching.begin(NAME, active, {})
            assert record.began == record.epoch
            seen.append(record.epoch)
            await switching.change(NAME, lambda old: closing(old, "ap", DRAINING, 0))
            moved, waits = await switching.flip(NAME, "ap", regions=())
            assert moved is not None and not waits and moved.began == record.began
            seen.append(moved.epoch)
            assert (await switching.begin(NAME, "ap", {"rpo_s": 5.0})).began == record.began, (
                "a promise is no beginning"
            )
            await switching.end(NAME)
        assert seen == [1, 2, 3, 4, 5, 6]
        await switching.forget(NAME)
        assert await store.get(ENDED + NAME) is None
        assert (await switching.begin(NAME, "us", {})).epoch == 1, "its topics are others"

    run_alone(main())


def test_who_begins_while_another_one_begins_and_ends_takes_none_of_its_epochs() -> None:
    class Between(EmbeddedStore):
        """Somebody else sets, and unsets, right before a transaction."""

        waiting = 1

        async def txn(self, ops):  # type: ignore[no-untyped-def]
            if self.waiting and any(isinstance(op, Put) and op.key == leadership(NAME) for op in ops):
                self.waiting = 0
                await Switching(self, lambda: 5).begin(NAME, "eu", {})
                await Switching(self, lambda: 5).end(NAME)
            return await super().txn(ops)

    async def main() -> None:
        record = await Switching(Between(), lambda: 5).begin(NAME, "us", {})
        assert (record.active, record.epoch, record.began) == ("us", 2, 2)

    run_alone(main())


def test_a_gate_tells_the_leadership_as_it_is_heard() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        switching, writing = Switching(store, lambda: 5), Writing("us", ttl_s=6.0, drift=0.1, now=lambda: 0.0)
        told = []
        for version, begins in enumerate((True, False, True), 1):
            record = await switching.begin(NAME, "us", {}) if begins else await switching.end(NAME)
            writing.on_record(NAME, record, version)
            told.append(writing._gates[NAME].leadership)
        assert told == [1, 0, 2]
        record = await switching.begin(NAME, "us", {})
        with pytest.raises(NotAllowed):
            flipped(record, 0)

    run_alone(main())
