"""Coordinates lead to copies and back, in both regions, whatever became of the ledgers: unloaded, compacted, offloaded,
a bookie lost, trimmed, deleted.

What is asked is compared with what readers of either region found: the ids under which each message lies there. Each
stage asks for entries drawn anew.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import pulsar

from geo_tests.wan.instance import Instance, eventually, rest
from geo_tests.wan.streams import cut
from region_node.instance.control import call
from region_node.instance.plan.layout import data_of

NAMESPACE, TOPIC = "public/lookups", "persistent://public/lookups/orders"
REGIONS = ("us", "eu")
PARTS, EACH = 3, 170
"""Of each region and producer. Each part ends with an unload, so it lies in ledgers of its own."""
DRAWN = 150
"""Messages a stage asks for, in each region: about three requests for each of them."""
AT_ONCE = 8
Position = tuple[int, int]
Asked = tuple[str, Position | str | None]
"""A status, and where the answer leads."""


class Orders:
    """The topic, where each message lies in each region, and under which coordinate."""

    def __init__(self, instance: Instance) -> None:
        self.instance, self.rng = instance, random.Random(20)
        self.at: dict[str, dict[str, Position]] = {region: {} for region in REGIONS}
        """By region, then by body."""
        self.coordinates: dict[str, str] = {}

    def url(self, region: str, path: str, *, ours: bool = False) -> str:
        return f"{self.instance.admin(region)}/{'heliograph/v1/topics' if ours else 'admin/v2/persistent'}/{NAMESPACE}/orders/{path}"  # noqa: E501

    def publish(self, region: str, part: str, count: int) -> None:
        """`count` messages one by one, and as many in batches of seven. Each key comes often."""
        client, receipts = self.instance.client(region), list[str]()
        made = [
            client.create_producer(
                TOPIC,
                f"{region}-{kind}",
                batching_enabled=kind == "batch",
                batching_max_messages=7,
                batching_max_publish_delay_ms=20,
            )
            for kind in ("one", "batch")
        ]
        for n in range(count):
            for producer, kind in zip(made, ("one", "batch"), strict=True):
                producer.send_async(
                    f"{part}-{region}-{kind}-{n}".encode(),
                    lambda result, _: receipts.append(str(result)),
                    partition_key=f"{region}-{n % 10}",
                )
        for producer in made:
            producer.flush()
        eventually(lambda: len(receipts) == 2 * count, "all receipts")
        assert all("Ok" in receipt for receipt in receipts)
        client.close()
        self.instance.clients.remove(client)

    def read(self, region: str, *, compacted: bool = False) -> dict[str, Position]:
        reader = self.instance.client(region).create_reader(
            TOPIC, pulsar.MessageId.earliest, is_read_compacted=compacted
        )
        found = {}
        while reader.has_message_available():
            message = reader.read_next(timeout_millis=60_000)
            if not message.data():  # went out of a batch by compaction: this client shows that as an empty message
                continue
            found[message.data().decode()] = (message.message_id().ledger_id(), message.message_id().entry_id())
        reader.close()
        return found

    def learn(self, count: int) -> None:
        """Reads `count` messages in each region, and asks where each was first published."""
        for region in REGIONS:
            self.at[region] |= eventually(
                lambda region=region: len(found := self.read(region)) >= count and found,
                f"{count} messages in {region}",
            )
        for region in REGIONS:
            mine = [body for body in self.at[region] if f"-{region}-" in body and body not in self.coordinates]
            entries = sorted({self.at[region][body] for body in mine})
            told = dict(zip(entries, self.ask(region, [("coordinates", at) for at in entries]), strict=True))
            for (ledger, entry), (status, coordinate) in told.items():
                assert status == "here" and str(coordinate).endswith(f":{ledger}:{entry}"), (
                    region,
                    ledger,
                    entry,
                    status,
                    coordinate,
                )
            self.coordinates |= {body: str(told[self.at[region][body]][1]) for body in mine}
        assert set(self.at["us"]) == set(self.at["eu"]) == set(self.coordinates)

    def ask(self, region: str, questions: list[tuple[str, Position | str]]) -> list[Asked]:
        """questions: ("coordinates", position there) or ("positions", coordinate)."""
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(session: aiohttp.ClientSession, kind: str, which: Position | str) -> Asked:
            text = which if isinstance(which, str) else f"{which[0]}:{which[1]}"
            async with turns, session.get(self.url(region, f"{kind}/{text}", ours=True)) as answer:
                told = await answer.json(content_type=None)
                assert answer.status == 200, (region, kind, which, told)
            led = told["coordinate"] if kind == "coordinates" else told["position"] and tuple(told["position"])
            return told["status"], led

        async def every() -> list[Asked]:
            async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(120)) as session:
                return await asyncio.gather(*(one(session, *question) for question in questions))

        return asyncio.run(every())

    def check(
        self, expected: Callable[[str, Position], str] = lambda *_: "here", only: Callable[[str], bool] = bool
    ) -> Counter[str]:
        """Both ways, of messages drawn by chance among those that are `only`. expected: the status, by region and
        position; returns how often each was.
        """
        seen: Counter[str] = Counter()
        among = sorted(filter(only, self.coordinates))
        bodies = self.rng.sample(among, min(DRAWN, len(among)))
        for region in REGIONS:
            places = [self.at[region][body] for body in bodies]
            wanted = [expected(region, place) for place in places]
            there = self.ask(region, [("positions", self.coordinates[body]) for body in bodies])
            back = self.ask(region, [("coordinates", place) for place in places])
            for body, place, status, found, returned in zip(bodies, places, wanted, there, back, strict=True):
                here = status == "here"
                assert found == (status, place if here else None), (region, body, place, found)
                assert returned == (status, self.coordinates[body] if here else None), (region, body, place, returned)
                seen[f"{region} {status}"] += 1
        return seen

    def ledgers(self, region: str) -> list[dict[str, Any]]:
        """Those that have entries."""
        return [row for row in rest("GET", self.url(region, "internalStats"))["ledgers"] if row["entries"]]

    def unload(self) -> None:
        """The next owner has nothing in memory, and goes on in another ledger."""
        for region in REGIONS:
            rest("PUT", self.url(region, "unload"))

    def ended(self, path: str, region: str) -> bool:
        told = rest("GET", self.url(region, path))
        assert told["status"] != "ERROR", told
        return bool(told["status"] == "SUCCESS")

    @contextmanager
    def without_a_bookie(self, word: str, since_s: float) -> Iterator[None]:
        """In each region one that has written `word` since then (wall clock) is killed."""
        killed, data = [], self.instance.data
        for region in REGIONS:
            bookies = [
                row["name"] for row in self.instance.status()["regions"][region]["processes"] if "bookie" in row["name"]
            ]
            killed.append(next(name for name in bookies if wrote(data_of(data, region, name), word.encode(), since_s)))
        for name in killed:
            call(data, "kill", process=name)
        try:
            yield
        finally:
            for name in killed:
                call(data, "start", process=name)


def wrote(folder: Path, word: bytes, since_s: float) -> bool:
    def has(path: Path) -> bool:
        try:
            return path.is_file() and path.stat().st_mtime >= since_s - 1 and word in path.read_bytes()
        except FileNotFoundError:  # the bookie goes on: it has renamed or deleted the file meanwhile
            return False

    return any(has(path) for path in folder.rglob("*"))


def test_coordinates_lead_there_and_back_whatever_became_of_the_ledgers(pair: Instance) -> None:
    pair.namespace(NAMESPACE, list(REGIONS))
    us = f"{pair.admin('us')}/admin/v2/namespaces/{NAMESPACE}"
    rest("PUT", f"{us}/offloadDeletionLagMs", 0)
    orders, all_here = Orders(pair), {f"{region} here": DRAWN for region in REGIONS}
    for part in range(PARTS):
        for region in REGIONS:
            orders.publish(region, f"part{part}", EACH)
        orders.unload()
    orders.learn(PARTS * 2 * len(REGIONS) * EACH)
    assert orders.check() == all_here

    for region in REGIONS:
        rest("PUT", orders.url(region, "compaction"))
    for region in REGIONS:
        eventually(partial(orders.ended, "compaction", region), f"{region} has compacted its copy")
        kept = orders.read(region, compacted=True)
        assert len(kept) == 10 * len(REGIONS) and kept.items() <= orders.at[region].items(), (
            "the newest of each key, under the ids that it had"
        )
        last = {body: orders.coordinates[body] for body in kept}
        assert orders.ask(region, [("positions", at) for at in last.values()]) == [
            ("here", kept[body]) for body in last
        ]
    orders.unload()
    assert orders.check() == all_here

    for region in REGIONS:
        rest("PUT", orders.url(region, "offload?rollOver=true"))
    for region in REGIONS:
        eventually(partial(orders.ended, "offload", region), f"{region} has offloaded")
        eventually(
            lambda region=region: not any(row["onBookies"] for row in orders.ledgers(region)),
            f"{region}'s bookies are rid of it",
        )
        assert len(orders.ledgers(region)) >= PARTS and all(row["offloaded"] for row in orders.ledgers(region))
    orders.unload()
    assert orders.check() == all_here

    since_s = time.time()
    for region in REGIONS:
        orders.publish(region, "tail", EACH)
    orders.learn((PARTS + 1) * 2 * len(REGIONS) * EACH)
    with orders.without_a_bookie("tail-us-one-1", since_s):
        orders.unload()
        assert orders.check(only=lambda body: body.startswith("tail")) == all_here
        assert orders.check() == all_here

    held = {region: [row["ledgerId"] for row in orders.ledgers(region)] for region in REGIONS}
    middle = {region: held[region][len(held[region]) // 2] for region in REGIONS}
    for region in REGIONS:
        rest("PUT", orders.url(region, "subscription/keeper"), {"ledgerId": middle[region], "entryId": 0})
    rest("POST", f"{us}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})

    def trimmed(region: str) -> bool:
        rest("POST", orders.url(region, "trim"))
        return orders.ledgers(region)[0]["ledgerId"] == middle[region]

    for region in REGIONS:
        eventually(partial(trimmed, region), f"{region} keeps what its subscription has not had")
    seen = orders.check(lambda region, place: "here" if place[0] >= middle[region] else "trimmed")
    assert len(seen) == 4 and min(seen.values()) > DRAWN / 10, seen
    orders.unload()
    assert len(orders.check(lambda region, place: "here" if place[0] >= middle[region] else "trimmed")) == 4

    last_of_us = max(place for body, place in orders.at["us"].items() if "-us-" in body)
    heal = cut(pair)
    try:
        orders.publish("us", "gone", 10)
        lost = {body: place for body, place in orders.read("us").items() if body.startswith("gone")}
        assert len(lost) == 20 and min(lost.values()) > last_of_us
        rest("DELETE", orders.url("us", "truncate"))
    finally:
        heal()
    prefix = next(at for body, at in orders.coordinates.items() if "-us-" in body).partition(":")[0]
    gone = [f"{prefix}:{ledger}:{entry}" for ledger, entry in lost.values()]
    orders.publish("us", "since", 1)
    eventually(lambda: "since-us-one-0" in orders.read("eu"), "eu has what came since")
    for region in REGIONS:
        assert orders.ask(region, [("positions", at) for at in gone]) == [("deleted", None)] * len(gone), region
    assert orders.ask("us", [("coordinates", place) for place in lost.values()]) == [("deleted", None)] * len(lost)
    tail = [body for body in orders.at["eu"] if body.startswith("tail")]
    assert orders.ask("eu", [("positions", orders.coordinates[body]) for body in tail]) == [
        ("here", orders.at["eu"][body]) for body in tail
    ]
