"""Each rule of the checkers refuses what breaks it, and nothing else."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from geo_tests.sim.checkers import History, Violation
from geo_tests.sim.pulsar_client import Delivered

Regions = dict[str, list[Delivered]]


def healed() -> tuple[History, Regions]:
    """Two regions, two producers each with three messages, all acknowledged and everywhere; the order of arrival
    differs.
    """
    history = History("topic")
    regions: Regions = {"us": [], "eu": []}
    for sequence in range(3):
        for region in ("us", "eu"):
            for producer in (f"{region}-p", f"{region}-q"):
                payload = f"{producer}:{sequence}".encode()
                history.submit(region, producer, sequence, payload)
                history.acknowledge(producer, sequence, 5, len(regions[region]))
                for target in ("us", "eu") if region == "us" else ("eu", "us"):
                    found = regions[target]
                    found.append(
                        Delivered(5, len(found), producer, sequence, "" if target == region else region, payload)
                    )
    return history, regions


def test_what_is_right_passes() -> None:
    history, regions = healed()
    history.check(regions)
    for region, found in regions.items():
        for item in found:
            history.consume(region, item)
    history.check_consumed(regions)


def drop_everywhere(history: History, regions: Regions) -> None:
    for found in regions.values():
        found.pop()


def drop_in_one(history: History, regions: Regions) -> None:
    regions["us"].pop(3)


def drop_unacknowledged_in_one(history: History, regions: Regions) -> None:
    del history.acknowledged[(regions["us"][-1].producer, regions["us"][-1].sequence)]
    regions["us"].pop()


def repeat(history: History, regions: Regions) -> None:
    regions["us"].append(regions["us"][-1]._replace(entry=99))


def invent(history: History, regions: Regions) -> None:
    regions["us"].append(Delivered(5, 99, "nobody", 0, "", b""))


def change_payload(history: History, regions: Regions) -> None:
    regions["us"][2] = regions["us"][2]._replace(payload=b"other")


def wrong_origin(history: History, regions: Regions) -> None:
    regions["us"][0] = regions["us"][0]._replace(replicated_from="eu")


def swap_one_producer(history: History, regions: Regions) -> None:
    found = regions["us"]
    mine = [i for i, item in enumerate(found) if item.producer == "eu-p"]
    found[mine[0]], found[mine[1]] = found[mine[1]], found[mine[0]]


def swap_producers_of_one_origin(history: History, regions: Regions) -> None:
    found = regions["us"]
    at = next(i for i, item in enumerate(found) if item.producer == "eu-p")
    assert found[at + 1].producer == "eu-q"
    found[at], found[at + 1] = found[at + 1], found[at]


def move(history: History, regions: Regions) -> None:
    regions["us"][-1] = regions["us"][-1]._replace(entry=99)
    history.acknowledged[("us-q", 2)] = (5, 98)


@pytest.mark.parametrize(
    "fault",
    [
        drop_everywhere,
        drop_in_one,
        drop_unacknowledged_in_one,
        repeat,
        invent,
        change_payload,
        wrong_origin,
        swap_one_producer,
        swap_producers_of_one_origin,
        move,
    ],
)
def test_each_fault_is_found(fault: Callable[[History, Regions], None]) -> None:
    history, regions = healed()
    fault(history, regions)
    with pytest.raises(Violation):
        history.check(regions)


def test_a_message_that_the_subscription_skipped_is_found() -> None:
    history, regions = healed()
    for item in regions["us"][1:]:
        history.consume("us", item)
    with pytest.raises(Violation, match="never delivered"):
        history.check_consumed({"us": regions["us"]})


def test_what_was_never_acknowledged_may_be_nowhere() -> None:
    history, regions = healed()
    history.submit("us", "us-p", 3, b"x")
    history.check(regions)
