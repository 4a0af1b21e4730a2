"""The messages of an entry that is a batch of Pulsar's: how many there can be, and where each lies.

Is: bounds of a batch's count, and the walk from message to message. Isn't: compression (`payload_compression`), or what
is done with a message.
Invariants: the count that a client wrote bounds nothing until it was held against the bytes that are there; the walk
ends within them, and raises nothing but CorruptData.
Source: docs/protocols/pulsar.md, "Payload".

    each message: u32 metadata size | SingleMessageMetadata | payload
"""

from __future__ import annotations

from collections.abc import Iterator

from google.protobuf.message import DecodeError

from heliograph.model.errors import CorruptData
from heliograph.wire.payload_compression import OUTPUT_BYTES_MAX
from heliograph.wire.pulsar.pulsar_pb2 import MessageMetadata, SingleMessageMetadata
from heliograph.wire.run import Buffer

MESSAGES_MAX = 1 << 18
"""An entry of more messages is not taken, nor converted: it would hold up everybody else."""
MESSAGE_BYTES_MIN = 6
"""The size of its metadata, and the payload's size in there, which must be given."""


def messages_max(metadata: MessageMetadata, payload_bytes: int) -> int:
    """How many messages an entry with such a payload can hold at most; a compressed one as it says itself."""
    room = min(metadata.uncompressed_size, OUTPUT_BYTES_MAX) if metadata.compression else payload_bytes
    return min(room // MESSAGE_BYTES_MIN, MESSAGES_MAX)


def untrue_count(metadata: MessageMetadata, payload_bytes: int, messages: int) -> str:
    """Why an entry cannot hold what its batch and its SEND say, or ""."""
    most = messages_max(metadata, payload_bytes)
    batch = metadata.num_messages_in_batch
    if messages <= max(1, most) and (1 <= batch <= most or not metadata.HasField("num_messages_in_batch")):
        return ""
    return (
        f"a batch of {batch} messages, {messages} by its SEND, where {most} fit: say how many there are, and send "
        f"at most {MESSAGES_MAX} in a batch"
    )


def batch_messages(body: Buffer, count: int) -> Iterator[tuple[SingleMessageMetadata, int, int]]:
    """(its metadata, where its payload begins, where it ends) of each of `count` messages of an open batch. Raises
    CorruptData.
    """
    size, at = len(body), 0
    if not 0 <= count <= min(size // MESSAGE_BYTES_MIN, MESSAGES_MAX):
        raise CorruptData(f"a batch that says {count} messages, in {size} bytes; at most {MESSAGES_MAX} are read")
    view = memoryview(body)
    for index in range(count):
        start = at + 4 + int.from_bytes(view[at : at + 4], "big")
        single = SingleMessageMetadata()
        if at + 4 > size or start > size:
            raise CorruptData(f"a batch of {count} messages that ends before message {index}")
        try:
            single.ParseFromString(bytes(view[at + 4 : start]))
        except DecodeError as error:
            raise CorruptData("a message of a batch whose metadata cannot be decoded") from error
        at = start + single.payload_size
        if not start <= at <= size:
            raise CorruptData(f"a batch whose message {index} of {single.payload_size} bytes does not fit into it")
        yield single, start, at
