"""Traces of messages: every region chooses the same ones, names their spans alike, and hangs them below each other."""

from __future__ import annotations

import random

import pytest

from heliograph.model.errors import ConfigError
from heliograph.wire.pulsar.pulsar_pb2 import MessageMetadata
from heliograph.wire.run import Run
from region_node.process.tracing_settings import TracingSettings
from replicator.health.tracing import Span, Tracing

ORIGIN, TOPIC = (1, 1, 77), "persistent://public/default/t"
PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-"


def entry(payload: bytes, **properties: str) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    for name, value in properties.items():
        metadata.properties.add(key=name, value=value)
    head = metadata.SerializeToString()
    return len(head).to_bytes(4, "big") + head + payload


def run_of(*entries: bytes) -> Run:
    return Run(list(entries), [len(one) for one in entries])


class Region:
    def __init__(self, name: str, one_in: int) -> None:
        self.spans: list[Span] = []
        self.now = 1000
        self.tracing = Tracing(name, one_in, self._tick, self.spans.append)

    def _tick(self) -> int:
        self.now += 1
        return self.now


@pytest.mark.parametrize("seed", range(30))
def test_two_regions_choose_the_same_messages_however_their_runs_are_cut(seed: int) -> None:
    rng = random.Random(seed)
    one_in, ledger, count = rng.randrange(1, 40), rng.randrange(100), rng.randrange(1, 300)
    whole = run_of(*[entry(b"x") for _ in range(count)])
    chosen: list[set[tuple[tuple[int, int], int]]] = []
    for name in ("us", "eu"):
        tracing, at, found = Region(name, one_in).tracing, 0, set()
        while at < count:
            stop = rng.randrange(at + 1, count + 1)
            found |= {
                (one.at, one.trace) for one in tracing.chosen(whole.cut(at, stop), ((ledger, at, stop - at),), ORIGIN)
            }
            at = stop
        chosen.append(found)
    assert chosen[0] == chosen[1] and count // one_in <= len(chosen[0]) <= count // one_in + 1
    assert len({trace for _, trace in chosen[0]}) == len(chosen[0])


def test_a_message_is_followed_from_its_publisher_to_a_consumer_in_another_region() -> None:
    us, eu = Region("us", 1), Region("eu", 1)
    run = run_of(entry(b"x"))
    us.tracing.published(TOPIC, ORIGIN, run, [(1, 7, 3)], 900)
    us.tracing.dispatched(TOPIC, "here", ORIGIN, 7, 3, run)
    out = run.as_replicated(ORIGIN, 7, 3, [0])
    us.tracing.sent(TOPIC, "eu", out)
    us.tracing.sent(TOPIC, "eu", out)  # again, after the connection broke
    eu.tracing.arrived(TOPIC, "us", out, 950)
    us.tracing.receipted(TOPIC, "ap", [(ORIGIN, (9, 9))])
    us.tracing.receipted(TOPIC, "eu", [(ORIGIN, (7, 2))])
    assert [span.name for span in us.spans] == ["publish", "store", "dispatch"], "what is not receipted has not arrived"
    us.tracing.receipted(TOPIC, "eu", [(ORIGIN, (7, 5))])
    us.tracing.receipted(TOPIC, "eu", [(ORIGIN, (7, 5))])
    eu.tracing.dispatched(TOPIC, "there", (2, 1, 5), 70, 0, out)
    spans = {(span.name, str(span.attributes["heliograph.region"])): span for span in us.spans + eu.spans}
    assert len(us.spans) + len(eu.spans) == len(spans) == 7 and len({span.trace for span in spans.values()}) == 1
    below = {
        ("store", "us"): ("publish", "us"),
        ("dispatch", "us"): ("store", "us"),
        ("link.out", "us"): ("store", "us"),
        ("link.in", "eu"): ("link.out", "us"),
        ("store", "eu"): ("link.in", "eu"),
        ("dispatch", "eu"): ("store", "eu"),
    }
    assert {child: spans[parent].span for child, parent in below.items()} == {
        name: span.parent for name, span in spans.items() if span.parent
    }
    assert spans["publish", "us"].parent == 0 and len({span.span for span in spans.values()}) == 7
    assert all(0 < span.begin_ns <= span.end_ns for span in spans.values())
    assert {span.attributes["heliograph.coordinate"] for span in spans.values()} == {"1.1.77:7:3"}


def test_a_clients_trace_is_gone_on_with_where_it_is_sampled() -> None:
    us = Region("us", 1 << 40)
    given = [
        {},
        {"traceparent": PARENT + "01"},
        {"traceparent": PARENT + "00"},
        {"traceparent": "rubbish"},
        {"other": "traceparent"},
    ]
    entries = [entry(b"x", **properties) for properties in given]
    us.tracing.published(TOPIC, ORIGIN, run_of(*entries), [(5, 7, 0)], 900)
    publish, store = us.spans
    assert (f"{publish.trace:032x}", f"{publish.parent:016x}", publish.remote) == (PARENT[3:35], PARENT[36:52], True)
    assert store.trace == publish.trace and publish.attributes["heliograph.coordinate"] == "1.1.77:7:1"


def test_what_is_no_text_is_no_trace() -> None:
    us = Region("us", 1 << 40)
    us.tracing.published(
        TOPIC, ORIGIN, run_of(entry(b"x", traceparent="~~~").replace(b"~~~", b"\xff\xfe\xfd")), [(1, 7, 0)], 900
    )
    assert not us.spans, "Pulsar's clients may write any bytes"


def test_duplicates_are_not_published_and_what_is_never_receipted_is_forgotten() -> None:
    us = Region("us", 1)
    us.tracing.published(TOPIC, ORIGIN, run_of(entry(b"x"), entry(b"y")), [(1, -1, -1), (1, 7, 0)], 900)
    assert {span.attributes["heliograph.coordinate"] for span in us.spans} == {"1.1.77:7:0"}
    out = run_of(*[entry(b"x")] * 500)
    for at in range(10):
        us.tracing.sent(TOPIC, "eu", out.as_replicated(ORIGIN, 7, at * 500, [0] * 500))
    assert us.tracing.dropped == 5000 - 4096
    us.tracing.receipted(TOPIC, "eu", [(ORIGIN, (7, 4998))])
    us.tracing.receipted(TOPIC, "eu", [(ORIGIN, (8, 0))])
    assert len(us.spans) == 2 + 4096 and not us.tracing._sent and not us.tracing._links


def test_settings_say_what_is_wrong(tmp_path: object) -> None:
    assert TracingSettings().endpoint == "" and TracingSettings().headers() == {}
    for wrong in ({"endpoint": "collector:4318"}, {"one_in": 0}, {"delay_s": 0.0}, {"headers_file": "/nowhere"}):
        with pytest.raises(ConfigError, match=r"broker\.tracing\."):
            TracingSettings(**wrong)
