"""A full mesh of five regions: every message everywhere, once and in order; topics share the connections of their
links.
"""

from __future__ import annotations

import pytest

from benchmarks.mesh import run


@pytest.mark.parametrize("topics", [1, 3])
def test_links_grow_with_topics_and_connections_with_pairs_of_regions_alone(topics: int) -> None:
    world = run(5, topics, 6, seed=3)
    assert world.verdict.messages == 5 * 6 * topics
    assert world.counted.links == topics * 5 * 4
    assert world.counted.connections == 5 * 4
