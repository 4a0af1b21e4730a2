"""What nobody expected of one link stops no other, is told, and is tried again."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any

from heliograph.model.configuration.configuration_records import PulsarCluster, RegionInfo
from heliograph.model.errors import NotFound
from heliograph.runtime.clock import SystemClock
from replicator.dedup.producer_dedup import DedupSettings
from replicator.health.link_causes import Cause
from replicator.log.replicated_log import ReplicatedLog
from replicator.log.topic_state import TopicState
from replicator.manager.link_manager import LinkManager, LinkSettings
from tests.replicator.fake_ledger import FakeLedger, Store
from tests.replicator.link_instance import View


class _Regions(View):
    def cluster(self, name: str) -> Any:
        return PulsarCluster(name=name, gateway="us", service_url="pulsar://a:1") if name == "cloud" else None


class _Ledger(FakeLedger):
    """One of which `fails` are the next cursors that cannot be made, for a reason that nobody thought of."""

    fails = 0

    async def open_cursor(self, *given: Any, **named: Any) -> Any:
        if self.fails:
            self.fails -= 1
            raise KeyError("nobody expected this")
        return await super().open_cursor(*given, **named)


def with_manager(test: Callable[[LinkManager, list[str]], Coroutine[Any, Any, None]]) -> None:
    """Runs it with what the loop's handler was told."""

    async def main() -> None:
        told: list[str] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(repr(context["exception"])))
        view = _Regions({name: RegionInfo(name=name, number=at + 1) for at, name in enumerate(("us", "eu"))})
        settings = LinkSettings(backoff_min_s=0.001, backoff_max_s=0.002, reads_max=1, heartbeat_s=0.01)
        links = LinkManager(region="us", view=view, clock=SystemClock(), rng=random.Random(1), settings=settings)
        async with asyncio.timeout(20):
            await test(links, told)
            await links.close()

    asyncio.run(main())


def test_a_cursor_that_fails_for_an_unknown_reason_is_opened_again() -> None:
    async def test(links: LinkManager, told: list[str]) -> None:
        state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=False, settings=DedupSettings())
        ledger = _Ledger(Store(), state)
        ledger.fails = 2
        links.attach(ReplicatedLog(ledger, state), ["eu"])  # type: ignore[arg-type]
        link: Any = links.links(ledger.store.topic)["eu"]
        while link.cause is not Cause.NO_ADDRESS:
            assert link.cause in (Cause.NONE, Cause.METADATA)
            await asyncio.sleep(0.001)
        assert told == ["KeyError('nobody expected this')"] * 2

    with_manager(test)


def test_a_link_to_a_pulsar_cluster_that_fails_for_an_unknown_reason_comes_again() -> None:
    class Clusters:
        def __init__(self) -> None:
            self.asked, self.again = 0, asyncio.Event()

        async def prepare(self, *_: Any) -> None:
            self.asked += 1
            if self.asked == 3:
                self.again.set()
            raise KeyError("nobody expected this")

    async def test(links: LinkManager, told: list[str]) -> None:
        state = TopicState(region=1, epoch=1, rng=random.Random(1), deduplication=False, settings=DedupSettings())
        ledger = _Ledger(Store(), state)
        clusters = Clusters()
        links.clusters = clusters  # type: ignore[assignment]
        links.attach(ReplicatedLog(ledger, state), ["cloud"])  # type: ignore[arg-type]
        link: Any = links.links(ledger.store.topic)["cloud"]
        await clusters.again.wait()
        assert link.state in ("waiting", "connecting") and "nobody expected this" in link.cause_text
        assert set(told) == {"KeyError('nobody expected this')"}

    with_manager(test)


def test_who_reads_goes_on_with_the_next_link() -> None:
    async def test(links: LinkManager, told: list[str]) -> None:
        read = asyncio.Event()

        class Link:
            def __init__(self, number: int) -> None:
                self.number = number

            async def read(self) -> None:
                if not self.number:
                    raise NotFound("nobody expected this")
                read.set()

        given: Any = [Link(0), Link(1)]
        for link in given:
            links.read(link)
        await read.wait()
        assert told == ["NotFound('nobody expected this')"]

    with_manager(test)


def test_a_link_that_fails_each_second_keeps_no_other_from_its_own() -> None:
    async def test(links: LinkManager, told: list[str]) -> None:
        looked = asyncio.Event()

        class Link:
            ended = False

            def __init__(self, number: int) -> None:
                self.number = number

            def tick(self, _: float) -> bool:
                if not self.number:
                    raise NotFound("nobody expected this")
                looked.set()
                return False

            def oldest_ms(self) -> int:
                return 0

        given: Any = [Link(0), Link(1)]
        for link in given:
            links.keep_looking(link)
        await looked.wait()
        assert told and set(told) == {"NotFound('nobody expected this')"}

    with_manager(test)
