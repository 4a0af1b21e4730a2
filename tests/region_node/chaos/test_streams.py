"""A stream knows what was acknowledged; what a copy lacks of it, or has too often, is said."""

from __future__ import annotations

import pytest

from region_node.chaos.streams import MessageForm, NumberedStream, RegionCopies, missing, numbered
from tests.region_node.chaos.memory_regions import Faulty, MemoryRegions

TOPIC = "persistent://public/chaos/t"


def copy_of(regions: MemoryRegions, region: str) -> list[str]:
    return [body.decode() for body, _, _ in regions.logs[region]]


def test_what_arrived_everywhere_is_whole() -> None:
    regions = MemoryRegions(["us", "eu"], deduplication=True)
    stream = NumberedStream(regions, "us", TOPIC, form=MessageForm(keys=3, size_bytes=50))
    stream.publish(20)
    stream.finish()
    assert (stream.sent, stream.acked, stream.failed) == (20, 20, 0)
    assert missing(stream, copy_of(regions, "eu")) == "" and len(regions.logs["eu"][0][0]) == 50
    assert RegionCopies(regions, TOPIC).of("eu") == {"us": 20}


@pytest.mark.parametrize(
    ("faulty", "said"),
    [
        (Faulty(lost=b"-3"), "1 lost (3 to 3), 0 of them answered as repeats, 0 twice, in order: True"),
        (Faulty(doubled=b"-3"), "none lost, 1 twice, in order: True"),
        (Faulty(swapped=b"-3"), "none lost, 0 twice, in order: False"),
    ],
)
def test_what_is_wrong_with_a_copy_is_said(faulty: Faulty, said: str) -> None:
    regions = MemoryRegions(["us", "eu"], faulty, deduplication=True)
    stream = NumberedStream(regions, "us", TOPIC)
    stream.publish(10)
    assert missing(stream, copy_of(regions, "eu")) == said and missing(stream, copy_of(regions, "us")) == ""


@pytest.mark.parametrize("deduplication", [True, False])
def test_a_producer_that_repeats_is_stored_once_by_deduplication_alone(deduplication: bool) -> None:
    regions = MemoryRegions(["us"], deduplication=deduplication)
    stream = NumberedStream(regions, "us", TOPIC, form=MessageForm(repeat_every=5))
    stream.publish(20)
    assert stream.acked == 20 and stream.published.acked == list(range(20))
    found = missing(stream, copy_of(regions, "us"))
    assert found == ("" if deduplication else "none lost, 4 twice, in order: True")


def test_what_was_read_once_is_not_read_again() -> None:
    regions = MemoryRegions(["us"], deduplication=True)
    stream, arrivals = NumberedStream(regions, "us", TOPIC), RegionCopies(regions, TOPIC)
    stream.publish(5)
    assert arrivals.of("us")["us"] == 5 and arrivals.of("us")["eu"] == 0
    regions.logs["us"][0] = (b"us-99", "p-us", "us")
    stream.publish(5)
    assert list(arrivals.numbers("us")["us"]) == list(range(10))


def test_a_message_is_numbered_by_its_end() -> None:
    assert numbered(b"6b0d-us-17   ") == ("6b0d-us", 17)
    assert numbered(b"another one's") == ("another one's", -1)
