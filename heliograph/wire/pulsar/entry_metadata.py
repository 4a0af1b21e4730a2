"""What stands in an entry's metadata. Only off the data path: seeking by time, last message id, statistics.

Is: a look into one entry as the client wrote it. Isn't: needed to store, dispatch, or replicate anything.
Source: docs/protocols/pulsar.md, "Payload".
"""

from __future__ import annotations

from google.protobuf.message import DecodeError

from heliograph.model.errors import CorruptData
from heliograph.wire.pulsar.pulsar_pb2 import MessageMetadata
from heliograph.wire.run import Buffer


def entry_metadata(entry: Buffer) -> tuple[MessageMetadata, memoryview]:
    """(metadata, payload) of an entry as it is stored. Raises CorruptData."""
    view = memoryview(entry)
    at = 6 if bytes(view[:2]) == b"\x0e\x01" else 0
    size = int.from_bytes(view[at : at + 4], "big")
    if at + 4 + size > len(view):
        raise CorruptData("an entry whose metadata is larger than itself")
    metadata = MessageMetadata()
    try:
        metadata.ParseFromString(bytes(view[at + 4 : at + 4 + size]))
    except DecodeError as error:
        raise CorruptData("an entry whose metadata cannot be decoded") from error
    return metadata, view[at + 4 + size :]


def as_bytes(text: str) -> bytes:
    """The bytes of a text that a client wrote into metadata: the decoder gives bytes for what is no UTF-8."""
    return text if isinstance(text, bytes) else text.encode()


def last_batch_index(entry: Buffer) -> int:
    """Index of the last message of a batch, or -1 where the entry is none."""
    metadata, _ = entry_metadata(entry)
    return metadata.num_messages_in_batch - 1 if metadata.HasField("num_messages_in_batch") else -1
