"""What all connections of a broker share of what their clients name."""

from __future__ import annotations

from region_node.faces.kafka.session.kafka_broker import NAME_KEPT_MAX
from tests.region_node.faces.kafka.harness import Face, with_face


def test_names_are_kept_parsed_and_long_ones_are_not() -> None:
    """Anybody may name a hundred thousand topics, before a right is asked for."""

    async def run(face: Face) -> None:
        name = face.broker.name
        for kafka in ("orders", "persistent://public/default/" + "o" * 249):
            assert name(kafka) is name(kafka)
        kept = len(face.broker._names)
        for tenant in ("t" * NAME_KEPT_MAX, "\u00e9" * 100, "t" * 4_000):
            assert name(f"{tenant}/ns/orders") == name(f"{tenant}/ns/orders")
        assert len(face.broker._names) == kept == 2

    with_face(run)
