"""Metrics of topics: their numbers, their bound, and that a scrape never holds the loop for long."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from heliograph.wire.run import Run
from region_node.metrics import topic_metrics
from region_node.metrics.topic_metrics import SLICE, TopicMetrics
from region_node.metrics.topic_series import TopicSeries
from region_node.usage.usage_days import stored_by_tenant
from replicator.health.incoming_stats import Heard, IncomingLink, IncomingRegion
from tests.region_node.faces.pulsar.codec import entry, send
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, Client, settle, with_broker
from tests.region_node.topics.fake_storage import FIRST_LEDGER


class Link:
    def __init__(self, topic: str, target: str, backlog: int) -> None:
        self.topic, self.target, self.backlog_entries, self.backlog_bytes = topic, target, backlog, 10 * backlog
        self.rate_out = self.throughput_out = self.age_s = 0.5
        self.connected, self.silent_s = True, 0.5
        self.state = self.cause = ""


def of(broker: Broker, topics_max: int, links: list[Any] | None = None, **series: Any) -> TopicMetrics:
    chosen = TopicSeries(topics_max=topics_max, **series)
    return TopicMetrics(
        lambda: broker.topics.loaded.values(), lambda: links or [], region="us", clock=broker.clock, series=chosen
    )


def values(text: bytes, name: str) -> dict[str, float]:
    found = [line.rpartition(" ") for line in text.decode().splitlines() if line.startswith(f"{name}{{")]
    return {labels.removeprefix(name): float(value) for labels, _, value in found}


def test_numbers_by_topic_and_by_namespace() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1, TOPIC)
        await client.subscribe(1, TOPIC, 's"1', kind=1, initialPosition=1)
        await client.do(*(send(1, n, entry(b"x", sequence=n)) for n in range(5)))
        await client.flow(3)
        other = await broker.topics.get(TOPIC + "-2", create=True)
        await other.subscription("s", initial=(-1, -1))
        other.publish(Run([b"y"] * 4, [1] * 4), lambda _: None, lambda _: None)
        await settle()
        text, totals = await of(broker, 10, [Link(TOPIC, "eu", 7), Link(TOPIC + "-2", "eu", 2)]).text()
        one = f'{{cluster="us",namespace="public/default",topic="{TOPIC}"'
        assert values(text, "pulsar_in_messages_total") == {f"{one}}}": 5, f'{one[:-1]}-2"}}': 4}
        assert values(text, "pulsar_subscription_unacked_messages")[f'{one},subscription="s\\"1"}}'] == 3
        assert values(text, "pulsar_msg_backlog") == {f"{one}}}": 5, f'{one[:-1]}-2"}}': 4}
        assert values(text, "pulsar_out_messages_total")[f"{one}}}"] == 3
        assert values(text, "pulsar_replication_backlog")[f'{one},remote_cluster="eu"}}'] == 7
        assert (
            totals["topics_count"],
            totals["msg_backlog"],
            totals["consumers_count"],
            totals["producers_count"],
        ) == (2, 9, 1, 1)
        assert values(text, "pulsar_storage_logical_size").keys() == values(
            text, "pulsar_storage_size"
        ).keys() and "pulsar_consumer_available" not in str(text)
        every = TopicMetrics(
            lambda: broker.topics.loaded.values(),
            list,
            region="us",
            clock=broker.clock,
            series=TopicSeries(),
            consumers=True,
        )
        text, _ = await every.text()
        ((labels, permits),) = values(text, "pulsar_consumer_available_permits").items()
        assert permits == 0 and 'consumer_id="1"' in labels and len(values(text, "pulsar_consumer_msg_ack_rate")) == 3
        pieces = "# TYPE more gauge\n", "more 1\n"
        every = TopicMetrics(
            lambda: broker.topics.loaded.values(),
            list,
            region="us",
            clock=broker.clock,
            series=TopicSeries(),
            more=lambda: pieces,
            bundle=lambda name: 'bundle="b"',
        )
        with_bundles, _ = await every.text()
        assert values(with_bundles, "pulsar_bundle_topics_count") == {'{bundle="b"}': 2}
        assert [values(with_bundles, f"pulsar_bundle_{who}_count") for who in ("producer", "consumer")] == [
            {'{bundle="b"}': 1}
        ] * 2
        assert with_bundles.decode().endswith("".join(pieces)) and "pulsar_bundle" not in str(text)
        assert values(text, "pulsar_ml_NumberOfMessagesInBacklog") == {'{cluster="us",namespace="public/default"}': 9}
        families = [line for line in text.decode().splitlines() if line.startswith("# TYPE")]
        assert len(families) == len(set(families))
        late = Link(TOPIC + "-2", "eu", 2)
        late.connected, late.age_s = False, 60.0
        text, again = await of(broker, 1, [Link(TOPIC, "eu", 7), late]).text()
        whole = '{cluster="us",namespace="public/default"}'
        assert (
            values(text, "pulsar_topics_count") == {whole: 2}
            and values(text, "pulsar_msg_backlog") == {whole: 9}
            and again == totals
        )
        links = f'{whole[:-1]},remote_cluster="eu"}}'
        assert values(text, "pulsar_replication_backlog") == {links: 9}
        assert values(text, "pulsar_replication_connected_count") == {links: 0}, (
            "one link that is down is not outweighed by others"
        )
        assert values(text, "pulsar_replication_delay_in_seconds") == {links: 60}
        assert values(text, "pulsar_subscription_back_log") == {}

    with_broker(test)


def test_what_links_bring_from_other_regions_is_shown_as_rates() -> None:
    async def test(broker: Broker) -> None:
        broker.topics._timer.cancel()
        topic = await broker.topics.get(TOPIC, create=True)
        link = Link(TOPIC, "eu", 0)

        async def shown(elapsed_s: float) -> list[float]:
            broker.clock.now += elapsed_s
            broker.topics._visit(broker.clock.now)
            told = topic.stats([link])["replication"]["eu"]
            for topics_max in (10, 0):
                text, _ = await of(broker, topics_max, [link]).text()
                found = [
                    next(iter(values(text, f"pulsar_replication_{name}_in").values()))
                    for name in ("rate", "throughput")
                ]
                assert found == [told["msgRateIn"], told["msgThroughputIn"]]
            return found

        assert await shown(1.0) == [0, 0]
        coming = IncomingLink(IncomingRegion(), Heard(lambda: 0.0))
        topic.log.incoming = {"eu": coming}  # type: ignore[attr-defined]
        topic.touch()
        assert await shown(1.0) == [0, 0] and topic.incoming_rates is None
        coming.messages, coming.size_bytes = 10, 1000
        topic.touch()  # as what is appended does
        assert await shown(2.0) == [5, 500]
        assert await shown(1.0) == [0, 0] and topic not in broker.topics.activity.busy

    with_broker(test)


def test_the_heaviest_topics_are_named_and_no_sum_counts_them_twice() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        whole = '{cluster="us",namespace="public/default"}'
        for number in range(12):
            topic = await broker.topics.get(f"{TOPIC}-{number}", create=True)
            if number:
                topic.publish(Run([entry(b"x").ljust(100)] * number, [100] * number), lambda _: None, lambda _: None)
        await client.subscribe(1, f"{TOPIC}-3", "s", initialPosition=1)
        await client.flow(1000)
        await settle()
        lag = await broker.topics.get(f"{TOPIC}-lag", create=True)
        await lag.subscription("s", initial=(-1, -1))
        brought = await broker.topics.get(f"{TOPIC}-brought", create=True)
        link = IncomingLink(IncomingRegion(), Heard(lambda: 0.0))
        link.messages, link.size_bytes = 7, 5000
        brought.log.incoming = {"eu": link}  # type: ignore[attr-defined]
        brought.touch()
        broker.topics._timer.cancel()
        broker.clock.now += 2
        broker.topics._visit(broker.clock.now)

        def named(text: bytes, what: str) -> dict[str, float]:
            return {
                labels.partition(f'topic="{TOPIC}-')[2].rstrip('"}'): value
                for labels, value in values(text, f"heliograph_top_topic_{what}").items()
            }

        text, totals = await of(broker, 3, top=3).text()
        assert list(named(text, "in_bytes_total")) == ["brought", "11", "10"]
        assert named(text, "in_bytes_total") == {"brought": 0, "11": 1100, "10": 1000}
        assert named(text, "replication_throughput_in") == {"brought": 2500, "11": 0, "10": 0}
        out = named((await of(broker, 3, top=10).text())[0], "out_bytes_total")
        assert list(out)[-5:] == ["7", "3", "6", "5", "4"] and out["3"] == 300, (
            "what goes out counts, too; of equals, who has a backlog is first"
        )
        assert values(text, "pulsar_in_bytes_total") == {whole: 6600} and values(text, "pulsar_topics_count") == {
            whole: 14
        }
        families = text.decode().split("# TYPE ")
        assert {
            family.split()[0].startswith("heliograph_top_topic_") for family in families if 'topic="' in family
        } == {True}
        assert sum(family.startswith("heliograph_top_topic_") for family in families) == len(topic_metrics.TOP_TOPIC)
        without, same = await of(broker, 3, top=0).text()
        assert same == totals and without.decode() == "# TYPE ".join(
            family for family in families if not family.startswith("heliograph_top_topic_")
        )

        single = values((await of(broker, 20).text())[0], "pulsar_in_bytes_total")
        for by, topics_max in (("all", 3), ("auto", 14)):
            text, _ = await of(broker, topics_max, topics=by, top=1).text()
            assert (
                values(text, "pulsar_in_bytes_total") == single
                and len(single) == 14
                and list(named(text, "rate_in")) == ["brought"]
            )
        text, _ = await of(broker, 20, topics="namespaces", top=1).text()
        assert values(text, "pulsar_in_bytes_total") == {whole: 6600} and list(named(text, "rate_in")) == ["brought"]

    with_broker(test)


def test_topics_that_nobody_uses_are_summed_up_as_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        await client.producer(1, TOPIC)
        await client.do(*(send(1, n, entry(b"x", sequence=n)) for n in range(5)))
        for number in range(20):
            quiet = await broker.topics.get(f"{TOPIC}-{number}", create=True)
            broker.ledger(quiet.text).runs.append((FIRST_LEDGER, 0, Run([b"y" * number], [number])))
            if number % 4 == 0:
                await quiet.subscription("s", initial=(-1, -1))
        metrics = of(broker, 3)
        fast = await metrics.text()
        assert (
            metrics.stored == await stored_by_tenant(broker.topics.loaded.values()) and metrics.stored["public"] > 190
        )
        monkeypatch.setattr(topic_metrics, "_is_unused", lambda topic: False)
        assert fast == await of(broker, 3).text() and values(fast[0], "pulsar_topics_count") == {
            '{cluster="us",namespace="public/default"}': 21
        }

    with_broker(test)


def test_a_scrape_gives_way_and_those_that_come_together_are_one() -> None:
    async def test(broker: Broker) -> None:
        topic = await broker.topics.get(TOPIC, create=True)
        reads = 0

        def many() -> list[Any]:
            nonlocal reads
            reads += 1
            return [topic] * (40 * SLICE)

        metrics = TopicMetrics(many, list, region="us", clock=broker.clock, series=TopicSeries())
        scrapes = [asyncio.ensure_future(metrics.text()) for _ in range(3)]
        turns = 0
        while not all(scrape.done() for scrape in scrapes):
            await asyncio.sleep(0)
            turns += 1
        assert turns >= 40 and reads == 1 and scrapes[0].result() == scrapes[2].result()
        broker.clock.now += 2
        await metrics.text()
        assert reads == 2

    with_broker(test)


def test_what_takes_long_is_made_ahead_while_somebody_asks() -> None:
    async def test(broker: Broker) -> None:
        await broker.topics.get(TOPIC, create=True)
        reads, took_s = 0, 0.1
        pauses: list[tuple[float, asyncio.Future[None]]] = []

        def slow() -> Any:
            nonlocal reads
            reads += 1
            broker.clock.now += took_s
            return broker.topics.loaded.values()

        async def sleep(seconds: float) -> None:
            pauses.append((seconds, asyncio.get_running_loop().create_future()))
            await pauses[-1][1]

        async def wake() -> None:
            pauses[-1][1].set_result(None)
            await settle(400)

        metrics = TopicMetrics(slow, list, region="us", clock=broker.clock, series=TopicSeries(), sleep=sleep)
        await metrics.text()
        await settle()
        assert reads == 1 and not pauses, "it is quick: who asks waits"
        took_s = 0.5
        broker.clock.now += 2
        await metrics.text()
        await settle()
        assert reads == 2 and [seconds for seconds, _ in pauses] == [5.0]
        broker.clock.now += 60
        before = await metrics.text()
        assert reads == 2, "what is there is given at once"
        await (await broker.topics.get(TOPIC, create=False)).subscription("s", initial=(-1, -1))
        await wake()
        assert reads == 3 and len(pauses) == 2 and (await metrics.text()) != before
        took_s = 3.0
        await wake()
        assert reads == 4 and pauses[-1][0] == 10.0
        broker.clock.now += 200
        await wake()
        assert reads == 4, "nobody asked: nothing is made"
        took_s = 0.1
        await metrics.text()
        assert reads == 5 and values((await metrics.text())[0], "pulsar_subscriptions_count")
        metrics.close()

    with_broker(test)


def test_connections_are_counted() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        stranger = Client(broker.listener)
        stranger.raw(b"\0\0\0\x05nonsense")
        await settle()
        assert broker.listener.counts() == (1, 2, 1, 1, 0, 0)
        client.protocol.hold_reading(True, "a rate")
        assert broker.listener.counts() == (1, 2, 1, 1, 1, 0)
        broker.listener.broker.budget.take(client.protocol, broker.listener.settings.inflight_bytes_max + 1)
        assert broker.listener.counts() == (1, 2, 1, 1, 1, 1)
        broker.listener.broker.budget.give(broker.listener.settings.inflight_bytes_max + 1)
        client.protocol.close()
        await settle()
        assert broker.listener.counts() == (0, 2, 1, 2, 0, 0)

    with_broker(test)
