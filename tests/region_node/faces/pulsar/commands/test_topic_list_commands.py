"""The list of a namespace's topics, as a client asks for it once."""

from __future__ import annotations

from tests.region_node.faces.pulsar.codec import frame
from tests.region_node.faces.pulsar.harness import Broker, K, with_broker

PREFIX = "persistent://public/default/"


def test_a_list_is_filtered_where_the_pattern_may_be() -> None:
    async def test(broker: Broker) -> None:
        client = await broker.client()
        for i, name in enumerate(("a1", "b1")):
            await client.producer(i, PREFIX + name)
        for pattern, names in (("public/default/b.*", ["b1"]), ("(?!b)b", ["a1", "b1"])):
            ((answer, _),) = await client.do(
                frame(K.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=1, topics_pattern=pattern)
            )
            listed = answer.getTopicsOfNamespaceResponse
            assert [n.removeprefix(PREFIX) for n in listed.topics] == names and listed.filtered is (len(names) == 1)

    with_broker(test)
