"""Edits that a region made while it was cut off are merged once: by two of its brokers that merge, or make, them at the
same time; with its metadata made anew.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from geo_tests.sim.leadership import DriftingClock
from geo_tests.sim.loop import run_alone
from global_config.admin import ConfigAdmin
from global_config.deferred_edits import CONFLICTS, EDITS, LAST, MERGED, TAKEN, DeferredEdits
from global_config.view import ConfigView
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.metadata_store import WatchCallback, rows_under
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo, TopicPolicies

TOPIC = "persistent://t/n/x"
NEVER_S = 1e6


class Halting:
    """A store for a broker that stands still after its first question for a key that begins so."""

    def __init__(self, inner: EmbeddedStore, key: str = MERGED) -> None:
        self._inner, self._key = inner, key
        self.halted, self.goes_on = asyncio.Event(), asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def get(self, key: str) -> tuple[bytes, int] | None:
        answer = await self._inner.get(key)
        if key.startswith(self._key) and not self.halted.is_set():
            self.halted.set()
            await self.goes_on.wait()
        return answer


class Without:
    """The copy of a region that is cut off: it does not tell what begins so."""

    def __init__(self, inner: EmbeddedStore, prefix: str) -> None:
        self._inner, self._prefix = inner, prefix

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def watch(self, prefix: str, callback: WatchCallback) -> Callable[[], None]:
        return (lambda: None) if prefix.startswith(self._prefix) else self._inner.watch(prefix, callback)


async def configured() -> EmbeddedStore:
    """A configuration with the topic's time to live at 1."""
    config = EmbeddedStore()
    admin = ConfigAdmin(config)
    await admin.create_region("us")
    await admin.create_tenant("t", TenantInfo(allowed_regions=("us",)))
    await admin.create_namespace("t/n", NamespacePolicies(regions=("us",)))
    await admin.change_topic_policies(TOPIC, lambda _: lives(1))
    return config


def lives(seconds: int) -> TopicPolicies:
    return TopicPolicies(policies={"messageTTL": seconds})


async def a_broker(config: Any, meta: Any) -> tuple[ConfigView, DeferredEdits]:
    view = ConfigView(config)
    await view.ready()
    edits = DeferredEdits(config, meta, view, region="us", clock=DriftingClock(1.0), every_s=NEVER_S)
    await edits.start()
    return view, edits


async def edit(edits: DeferredEdits, policies: TopicPolicies) -> None:
    await edits.topic(TOPIC, lambda _: policies)
    await asyncio.sleep(0.1)


def ttl(view: ConfigView) -> int:
    policies = view.topic_policies(TOPIC)
    assert policies is not None
    return int(policies.policies["messageTTL"])


def test_an_edit_that_is_merged_is_never_merged_again() -> None:
    """A broker looked how far the region is merged, stood still, and goes on when the other one has merged all. Where
    the value has come back to what the edit began with, only the number that it compares says that it is late.
    """

    async def main() -> None:
        config, meta = await configured(), EmbeddedStore()
        halting = Halting(config)
        _, slow = await a_broker(halting, meta)
        view, quick = await a_broker(config, meta)
        await edit(quick, lives(2))
        await edit(quick, lives(1))
        late = asyncio.ensure_future(slow.merge())
        await asyncio.sleep(0.1)
        await quick.merge()
        await asyncio.sleep(0.1)
        assert ttl(view) == 1, "the newest edit has won"
        halting.goes_on.set()
        await late
        await asyncio.sleep(0.1)
        assert ttl(view) == 1, "and goes on to"
        assert not quick.conflicts and quick.merged == 2 and not slow.merged
        await slow.stop()
        await quick.stop()

    run_alone(main(), limit_s=60)


def test_what_is_told_to_be_made_is_merged_also_when_its_maker_was_slow() -> None:
    """The slow one's edit is durable only after the region is merged beyond the number that it was about to take."""

    async def main() -> None:
        config, meta = await configured(), EmbeddedStore()
        halting = Halting(meta, LAST)
        _, slow = await a_broker(config, halting)
        view, quick = await a_broker(config, meta)
        late = asyncio.ensure_future(edit(slow, TopicPolicies(policies={"messageTTL": 1}, properties={"slow": "yes"})))
        await halting.halted.wait()
        await edit(quick, lives(2))
        await quick.merge()
        halting.goes_on.set()
        await late
        await quick.merge()
        await asyncio.sleep(0.1)
        policies = view.topic_policies(TOPIC)
        assert policies is not None and policies.properties == {"slow": "yes"} and ttl(view) == 2
        await slow.stop()
        await quick.stop()

    run_alone(main(), limit_s=60)


def test_a_region_whose_metadata_is_made_anew_goes_on_above_what_is_merged() -> None:
    async def main() -> None:
        config = await configured()
        for metadata in range(3):
            view, edits = await a_broker(config, EmbeddedStore())
            for seconds in range(2 + metadata):
                await edit(edits, lives(10 * metadata + seconds + 2))
            await edits.merge()
            await asyncio.sleep(0.1)
            assert ttl(view) == 10 * metadata + metadata + 3 and not edits.conflicts
            await edits.stop()
        found = await config.get(f"{MERGED}us")
        assert found is not None and found[0] == b"9", "2 + 3 + 4 of them, each with a number of its own"

    run_alone(main(), limit_s=60)


@pytest.mark.parametrize("more", (0, 1))
def test_an_edit_whose_number_is_taken_is_a_conflict(more: int) -> None:
    """The region is cut off before its copy hears that the edit is merged, and its metadata is restored to before it:
    the next edit gets its number again. more: so many are merged behind the first, under later numbers.
    """

    async def main() -> None:
        config, restored = await configured(), EmbeddedStore()
        _, first = await a_broker(config, EmbeddedStore())
        for seconds in range(2, 3 + more):
            await edit(first, lives(seconds))
        await first.merge()
        await first.stop()
        _, cut = await a_broker(Without(config, MERGED), restored)
        await edit(cut, TopicPolicies(policies={"messageTTL": 9}, properties={"late": "yes"}))
        await cut.stop()
        view, quick = await a_broker(config, restored)
        await asyncio.gather(quick.merge(), quick.merge())
        await asyncio.sleep(0.1)
        found = sorted(quick.conflicts.values(), key=lambda one: one.path)
        assert [(one.path[0], one.mine, one.theirs) for one in found] == [
            ("messageTTL", (9,), (2 + more,)),
            ("properties", ({"late": "yes"},), ()),
        ]
        assert {one.because for one in found} == {TAKEN} and ttl(view) == 2 + more and not quick.status()["pending"]
        for key in list(quick.conflicts):
            await quick.resolve(key.removeprefix(CONFLICTS), "mine")
        await asyncio.sleep(0.1)
        assert ttl(view) == 9 and not quick.conflicts
        await quick.stop()

    run_alone(main(), limit_s=60)


def test_one_that_was_merged_and_not_taken_away_yet_is_no_conflict() -> None:
    """Its broker died between the two stores."""

    async def main() -> None:
        config, meta = await configured(), EmbeddedStore()
        _, edits = await a_broker(config, meta)
        await edit(edits, lives(2))
        ((key, blob, _),) = await rows_under(meta, EDITS)
        await edits.merge()
        await meta.put(key, blob)
        await asyncio.sleep(0.1)
        await edits.merge()
        await asyncio.sleep(0.1)
        assert not edits.conflicts and edits.merged == 1 and not edits.status()["pending"]
        await edits.stop()

    run_alone(main(), limit_s=60)
