"""ScramUser: what was written is read, and nothing else."""

from __future__ import annotations

import msgpack
import pytest

from heliograph.model.configuration.kafka_users import ScramUser, key_of, named
from heliograph.model.errors import CorruptData

KEPT = ScramUser(4096, b"salt", b"stored", b"server")


def test_what_was_written_is_read() -> None:
    assert msgpack.unpackb(KEPT.encode()) == [1, 4096, b"salt", b"stored", b"server"]
    assert ScramUser.decode(KEPT.encode()) == KEPT
    assert named(key_of("a/b%c", "SCRAM-SHA-512")) == ("a/b%c", "SCRAM-SHA-512")


@pytest.mark.parametrize(
    "blob",
    (
        b"",
        msgpack.packb(7),
        msgpack.packb([]),
        msgpack.packb([2, 4096, b"", b"", b""]),
        msgpack.packb([1, 4096, b"", b""]),
        msgpack.packb([1, "4096", b"", b"", b""]),
        msgpack.packb([1, 4096, b"", b"", "x"]),
    ),
)
def test_anything_else_is_refused(blob: bytes) -> None:
    with pytest.raises(CorruptData, match="SCRAM user"):
        ScramUser.decode(blob)
