"""Which offsets from before a leadership moved a connection may go on with."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.session.client_epochs import JOINS_S, KEYS_MAX, ClientEpochs

N = "public/default"


@dataclass
class Epochs:
    heard_at: float = 100.0
    own: set[int] = field(default_factory=lambda: {2})

    def led(self, namespace: str, epoch: int) -> bool:
        return epoch in self.own

    def every_region(self, namespace: str, epoch: int) -> bool:
        return epoch == 0

    def began(self, namespace: str) -> float:
        return self.heard_at

    def check(self, namespace: str, epoch: int = -1) -> None:
        if 0 <= epoch != 4:
            raise Refused(Code.FENCED_LEADER_EPOCH)


@dataclass
class Connection:
    since: float = 0.0


def test_offsets_of_epochs_in_which_this_region_led_are_its_own() -> None:
    client = ClientEpochs(Connection())
    assert client.own(Epochs(), N, 2) and not client.own(Epochs(), N, 3)


def test_where_every_region_led_offsets_are_of_the_region_that_the_client_was_connected_to() -> None:
    assert ClientEpochs(Connection(99.0)).own(Epochs(), N, 0)
    assert not ClientEpochs(Connection(101.0)).own(Epochs(), N, 0)


def test_an_offset_of_another_region_is_not_committed() -> None:
    client = ClientEpochs(Connection())
    for epoch in (-1, 2, 4):
        client.check_committed(Epochs(), N, {"committed_leader_epoch": epoch})
    client.check_committed(Epochs(), N, {})
    with pytest.raises(Refused):
        client.check_committed(Epochs(), N, {"committed_leader_epoch": 3})


def test_who_asks_with_another_regions_epoch_is_told_to_ask_again_for_a_while_for_each_epoch() -> None:
    client, key = ClientEpochs(Connection()), ("t", 0)
    assert client.waits(key, 2, 10.0) and client.waits(key, 2, 10.0 + JOINS_S - 1)
    assert client.waits(("t", 1), 2, 10.0 + JOINS_S)
    assert not client.waits(key, 2, 10.0 + JOINS_S)
    assert client.waits(key, 2, 90.0) and client.waits(key, 4, 91.0 + JOINS_S) and not client.waits(key, 4, 200.0)


def test_a_bounded_number_of_partitions_is_waited_for() -> None:
    client = ClientEpochs(Connection())
    for index in range(KEYS_MAX + 5):
        assert client.waits(("t", index), 2, 1.0)
    assert len(client._waiting) <= KEYS_MAX
