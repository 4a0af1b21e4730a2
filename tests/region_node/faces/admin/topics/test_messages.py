"""What a message over HTTP says of itself."""

from __future__ import annotations

from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.admin.topics import messages


def test_what_a_message_says_of_itself_breaks_no_line_of_the_answers_head() -> None:
    metadata = pb.MessageMetadata(producer_name="p\r\nX: y", sequence_id=0, publish_time=0, partition_key="é\0\n")
    metadata.properties.add(key="a\n", value="\r")
    head = messages._headers((1, 2), 100, metadata)
    assert head["X-Pulsar-producer-name"] == "p  X: y" and head["X-Pulsar-partition-key"] == "é  "
    assert head["X-Pulsar-PROPERTY"] == '{"a\\n": "\\r"}'
