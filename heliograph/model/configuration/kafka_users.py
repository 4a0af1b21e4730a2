"""Kafka's SCRAM users: what proves their passwords, as the global configuration keeps it.

Is: the value, and its key. Isn't: the proof (`region_node.faces.kafka.security.scram`), or who may write
(`global_config.region_write_rights`).
Key: /kafka/scram/{user, quoted}/{mechanism}  ->  msgpack [2, iterations, salt, stored key, server key, region]. What
an earlier version kept in a region's metadata is [1, iterations, salt, stored key, server key].
Source: RFC 5802; docs/protocols/kafka.md, "Security".
"""

from __future__ import annotations

from typing import NamedTuple, Self
from urllib.parse import quote, unquote

import msgpack

from heliograph.model.errors import CorruptData

KAFKA_USERS = "/kafka/scram/"
_OF_A_REGION, _FORMAT = 1, 2


class ScramUser(NamedTuple):
    """by: the region that wrote it, and may; "": it is none of the global configuration's."""

    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes
    by: str = ""

    def encode(self) -> bytes:
        """As regions share it; without `by` as an earlier version keeps it."""
        packed: bytes = msgpack.packb([_FORMAT, *self] if self.by else [_OF_A_REGION, *self[:-1]])
        return packed

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        """Takes both formats. Raises CorruptData."""
        try:
            number, *fields = msgpack.unpackb(blob)
            if (number, len(fields)) not in ((_OF_A_REGION, 4), (_FORMAT, 5)):
                raise CorruptData(f"SCRAM user: format {number}; this version reads up to {_FORMAT}")
            found = cls(*fields)
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"SCRAM user: {error}") from error
        if not all(map(isinstance, found, (int, bytes, bytes, bytes, str))):
            raise CorruptData("SCRAM user: a field of another kind")
        return found


def key_of(user: str, mechanism: str) -> str:
    return f"{KAFKA_USERS}{quote(user, safe='')}/{mechanism}"


def named(key: str) -> tuple[str, str]:
    """Returns the user and the mechanism of a key of `key_of`."""
    user, _, mechanism = key.removeprefix(KAFKA_USERS).partition("/")
    return unquote(user), mechanism
