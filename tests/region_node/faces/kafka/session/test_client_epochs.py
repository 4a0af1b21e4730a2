"""Which offsets from before a leadership moved a connection may go on with."""

from __future__ import annotations

from dataclasses import dataclass, field

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

    def since(self, namespace: str) -> float:
        return self.heard_at

    def active_passive(self, namespace: str) -> bool:
        return True

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
    for part in ({"committed_leader_epoch": epoch} for epoch in (-1, 2, 4)):
        assert committed(part) == Code.NONE
    assert committed({}) == Code.NONE and committed({"committed_leader_epoch": 3}) == Code.FENCED_LEADER_EPOCH


def committed(part: dict[str, int], *, now: float = 100.0 + JOINS_S, joined: bool = False, end: int = 7) -> Code:
    try:
        part = {"committed_offset": 7, **part}
        ClientEpochs(Connection()).check_committed(Epochs(), N, part, now=now, joined=joined, end=end)
    except Refused as refused:
        return refused.code
    return Code.NONE


def test_a_number_without_an_epoch_is_not_committed_right_behind_a_move_but_by_who_has_joined_since() -> None:
    early = 99.0 + JOINS_S
    assert committed({}, now=early) == Code.COORDINATOR_LOAD_IN_PROGRESS
    assert committed({}, now=early, joined=True) == committed({"committed_leader_epoch": 4}, now=early) == Code.NONE


def test_a_number_without_an_epoch_that_this_region_cannot_have_given_is_not_committed() -> None:
    assert committed({}, end=6, joined=True) == Code.OFFSET_OUT_OF_RANGE
    assert committed({}, end=-1) == Code.NONE, "another broker knows the end"


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
