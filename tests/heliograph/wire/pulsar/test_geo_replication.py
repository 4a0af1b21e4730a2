"""Pulsar's geo-replication on the wire: markers there and back, against protobuf's own idea of them; bad bytes; the
frames of a replicator.
"""

from __future__ import annotations

import random

import pytest

from heliograph.model.errors import CorruptData
from heliograph.wire.pulsar import geo_replication as wire
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.pulsar.frame_cutter import BadSend, FrameCutter, ReplicatedSend, SendRun
from heliograph.wire.pulsar.pulsar_pb2 import KeyValue, MessageMetadata
from tests.region_node.faces.pulsar.codec import Reader, entry, send


def test_names_of_replicators_old_and_new() -> None:
    assert wire.source_of(wire.producer_name("us", "cloud")) == "us"
    assert wire.source_of("pulsar.repl.cloud") == "cloud"
    assert wire.source_of("cloud-0-1") == "" == wire.source_of("")


def test_markers_there_and_back() -> None:
    big = (1 << 40, (1 << 50) + 3)
    assert wire.read_request(wire.request("id-1", "us")) == ("id-1", "us", None)
    assert wire.read_response(wire.response("id-1", "clöud", big)) == ("id-1", "clöud", big)
    assert wire.read_update(wire.update("sub", {"us": (0, 0), "cloud": big})) == ("sub", {"us": (0, 0), "cloud": big})
    assert wire.read_update(wire.update("sub", {})) == ("sub", {})


def test_markers_are_protobuf() -> None:
    """Strings and nested messages as the library writes them: KeyValue has the shape of a request."""
    assert wire.request("id", "us") == KeyValue(key="id", value="us").SerializeToString()


def test_any_bytes_are_a_marker_or_corrupt() -> None:
    rng = random.Random(7)
    whole = wire.update("sub", {"us": (5, 6), "cloud": (1 << 33, 9)})
    for _ in range(3000):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        for read in (wire.read_request, wire.read_response, wire.read_update):
            try:
                read(bytes(damaged[: rng.randint(0, len(damaged))]))
            except CorruptData:
                pass


def test_what_a_replicator_sends_is_one_frame_that_any_broker_takes() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=4, publish_time=1, replicated_from="us")
    frame = wire.send_frame(3, 17, 1, metadata, b"payload")
    ((command, stored),) = Reader().feed(frame)
    assert (command.send.producer_id, command.send.sequence_id, command.send.num_messages) == (3, 17, 1)
    found, payload = entry_metadata(stored)
    assert found == metadata and bytes(payload) == b"payload"


def test_the_position_at_the_source() -> None:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    assert wire.source_position(metadata) is None
    metadata.properties.add(key=wire.SOURCE_POSITION, value="12:345")
    assert wire.source_position(metadata) == (12, 345)
    for bad in ("12", "12:", ":3", "-1:3", "1:2:3", "٣:1", ""):
        metadata.properties[0].value = bad
        with pytest.raises(CorruptData):
            wire.source_position(metadata)


def test_every_hop_of_an_entry_is_known() -> None:
    """Each link appends a field; protobuf shows only the last one."""
    part = entry(b"x", replicated_from="cloud")
    metadata, payload = entry_metadata(part)
    grown = metadata.SerializeToString() + b"\x2a\x02us"
    again = len(grown).to_bytes(4, "big") + grown + bytes(payload)
    assert wire.sources_of(part) == ["cloud"] and wire.sources_of(again) == ["cloud", "us"]
    assert entry_metadata(again)[0].replicated_from == "us"


def cutter() -> FrameCutter:
    made = FrameCutter()
    made.producers[1] = ("topic", "mine")
    made.replicators[2] = "cloud"
    return made


def test_entries_of_a_replicator_come_one_by_one_and_others_stay_runs() -> None:
    mine, theirs = entry(b"m"), entry(b"t" * 12, replicated_from="cloud")
    events = list(
        cutter().feed(
            send(1, 0, mine)
            + send(1, 1, mine)
            + send(2, 0, theirs)
            + send(2, 1, theirs, num_messages=2)
            + send(1, 2, mine)
        )
    )
    assert [type(event) for event in events] == [SendRun, ReplicatedSend, ReplicatedSend, SendRun]
    assert isinstance(events[2], ReplicatedSend) and (
        events[2].sequence,
        events[2].messages,
        bytes(events[2].part),
    ) == (1, 2, theirs)


def test_a_replicator_sends_only_what_its_own_cluster_published() -> None:
    for part in (entry(b"t"), entry(b"t", replicated_from="other")):
        (event,) = cutter().feed(send(2, 0, part))
        assert isinstance(event, BadSend) and "may not send" in event.reason
    damaged = bytearray(entry(b"t", replicated_from="cloud"))
    damaged[-1] ^= 1
    (event,) = cutter().feed(send(2, 0, bytes(damaged)))
    assert isinstance(event, BadSend) and event.checksum


def test_nobody_else_may_say_where_a_message_comes_from() -> None:
    (event,) = cutter().feed(send(1, 0, entry(b"t", replicated_from="cloud")))
    assert isinstance(event, BadSend) and not event.checksum
