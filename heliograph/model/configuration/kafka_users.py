"""Kafka's SCRAM users: what proves their passwords, as the global configuration keeps it.

Is: the value, and its key, there and in a region's metadata. Isn't: the proof
(`region_node.faces.kafka.security.scram`).
Key: /kafka/scram/{user, quoted}/{mechanism}  ->  msgpack [1, iterations, salt, stored key, server key].
Source: RFC 5802; docs/protocols/kafka.md, "Security".
"""

from __future__ import annotations

from typing import NamedTuple, Self
from urllib.parse import quote, unquote

import msgpack

from heliograph.model.errors import CorruptData

KAFKA_USERS = "/kafka/scram/"
_FORMAT = 1


class ScramUser(NamedTuple):
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes

    def encode(self) -> bytes:
        packed: bytes = msgpack.packb([_FORMAT, *self])
        return packed

    @classmethod
    def decode(cls, blob: bytes) -> Self:
        """Raises CorruptData, also for what a later version has written."""
        try:
            number, *fields = msgpack.unpackb(blob)
            if (number, len(fields)) != (_FORMAT, 4):
                raise CorruptData(f"SCRAM user: format {number}; this version reads up to {_FORMAT}")
            found = cls(*fields)
        except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
            raise CorruptData(f"SCRAM user: {error}") from error
        if not all(map(isinstance, found, (int, bytes, bytes, bytes))):
            raise CorruptData("SCRAM user: a field of another kind")
        return found


def key_of(user: str, mechanism: str) -> str:
    return f"{KAFKA_USERS}{quote(user, safe='')}/{mechanism}"


def named(key: str) -> tuple[str, str]:
    """Returns the user and the mechanism of a key of `key_of`."""
    user, _, mechanism = key.removeprefix(KAFKA_USERS).partition("/")
    return unquote(user), mechanism
