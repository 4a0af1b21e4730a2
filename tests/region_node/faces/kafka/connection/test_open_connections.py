"""What the connections of one listener share."""

from __future__ import annotations

from tests.region_node.faces.kafka.harness import Client, Face, with_face


def test_each_connection_has_a_number_of_its_own_and_leaves_when_it_is_lost() -> None:
    async def run(face: Face) -> None:
        opened = face.listener.opened
        first, second = Client(face.listener).protocol, Client(face.listener).protocol
        assert list(opened.all) == [first, second] and first._opened.staging is second._opened.staging
        first.connection_lost(None)
        assert list(opened.all) == [second]
        numbers = [each.session.number for each in (first, second, Client(face.listener).protocol)]
        assert numbers == [1, 2, 3], "none is given again"

    with_face(run)
