"""Link traffic of real processes over a slow way: text becomes smaller on it, and arrives as it was."""

from __future__ import annotations

import json
import random

import pulsar

from geo_tests.wan.instance import Instance, eventually


def test_text_goes_compressed_and_what_clients_compressed_goes_as_it_is(pair: Instance) -> None:
    rng = random.Random(1)
    bodies = [
        json.dumps({"id": n, "user": f"user-{rng.randrange(5000)}", "amount": rng.random(), "city": "Berlin"})
        for n in range(3000)
    ]
    shares = {}
    for kind, compression in (("text", pulsar.CompressionType.NONE), ("zipped", pulsar.CompressionType.ZSTD)):
        topic = f"persistent://public/geo/compressed-{kind}"
        producer = pair.client("us").create_producer(
            topic,
            batching_enabled=True,
            batching_max_publish_delay_ms=50,
            compression_type=compression,
            block_if_queue_full=True,
        )
        producer.send(b"{}")
        eventually(
            lambda topic=topic: pair.links(topic).get(("us", "eu"), {}).get("rtt_ms", 0) > 5,
            "a heartbeat has measured the way",
        )
        for body in bodies:
            producer.send_async(body.encode(), lambda *_: None)
        producer.flush()
        eventually(lambda topic=topic: len(pair.read_all("eu", topic)) == 1 + len(bodies), "all of it is there")
        assert pair.read_all("eu", topic)[1:] == bodies
        link = pair.links(topic)[("us", "eu")]
        assert not {event["cause"] for event in link["history"]} & {"protocol", "connection-lost"}, (
            "the target could read every frame"
        )
        shares[kind] = link["wire_bytes"] / link["run_bytes"]
        producer.close()
    assert shares["text"] < 0.5 < 0.8 < shares["zipped"] <= 1.0, shares
