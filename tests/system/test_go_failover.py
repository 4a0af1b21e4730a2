"""The official Go client, unmodified: its producers come to a region that is not the active one, and follow
switchovers.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from geo_tests.wan.disaster import active_passive
from geo_tests.wan.instance import Instance
from geo_tests.wan.user_program import UserProgram, check_once, switched_to_and_fro
from tests.system.go_suite import MODULE, VERSION
from tests.system.programs import go_program

pytestmark = pytest.mark.system


def publisher() -> str:
    return str(go_program(Path(__file__).with_name("go") / "publisher.go", f"{MODULE}/pulsar", VERSION))


@pytest.fixture(scope="module")
def regions(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    publisher()
    instance = Instance(
        tmp_path_factory.mktemp("go") / "data", regions=("us", "eu"), wan="none", brokers="us=2,eu=1", bookies=3
    )
    try:
        yield instance
    finally:
        instance.down()


@pytest.mark.parametrize(("name", "tries"), [("", 1), ("orders", 2)])
def test_it_publishes_from_a_passive_region_and_follows_switchovers(regions: Instance, name: str, tries: int) -> None:
    """A producer with a name of the user's is made when it is asked for again."""
    namespace = f"public/go{tries}"
    topic = f"persistent://{namespace}/orders"
    active_passive(regions, namespace, "eu")
    url = regions.state["regions"]["us"]["service_url"]
    said = switched_to_and_fro(regions, UserProgram(publisher(), url, topic, *filter(None, [name])), topic)
    sent = int(said[-1].removeprefix("sent "))
    assert said == [f"tries {tries}", f"sent {sent}"]
    check_once(regions, topic, sent)
