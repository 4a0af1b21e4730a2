"""What the connections of one listener share: numbers, and who is there."""

from __future__ import annotations

from region_node.faces.open_connections import OpenConnections


class Written:
    def __init__(self) -> None:
        self.flushed = 0

    def flush(self) -> None:
        self.flushed += 1


def test_who_is_lost_is_counted_and_its_number_is_not_given_again() -> None:
    opened: OpenConnections[Written] = OpenConnections(0, lambda *_: None)
    first, second = Written(), Written()
    assert [opened.next_number(), opened.next_number()] == [1, 2]
    opened.all.update({first: None, second: None})
    opened.lost(first, known=True)
    opened.lost(Written(), known=False)
    assert list(opened.all) == [second] and opened.next_number() == 3
    assert (opened.created, opened.refused, opened.ended) == (3, 1, 2), "one was refused before it was open"
