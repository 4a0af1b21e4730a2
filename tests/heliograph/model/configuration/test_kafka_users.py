"""ScramUser: both formats are read, and nothing else."""

from __future__ import annotations

import msgpack
import pytest

from heliograph.model.configuration.kafka_users import ScramUser, key_of, named
from heliograph.model.errors import CorruptData

KEPT = ScramUser(4096, b"salt", b"stored", b"server", by="us")


def test_what_a_region_kept_and_what_regions_share_are_read() -> None:
    assert ScramUser.decode(KEPT.encode()) == KEPT
    old = KEPT._replace(by="")
    assert msgpack.unpackb(old.encode()) == [1, 4096, b"salt", b"stored", b"server"]
    assert ScramUser.decode(old.encode()) == old
    assert named(key_of("a/b%c", "SCRAM-SHA-512")) == ("a/b%c", "SCRAM-SHA-512")


@pytest.mark.parametrize(
    "blob",
    (
        b"",
        msgpack.packb(7),
        msgpack.packb([]),
        msgpack.packb([3, 4096, b"", b"", b"", "us", 1]),
        msgpack.packb([2, 4096, b"", b"", b""]),
        msgpack.packb([2, "4096", b"", b"", b"", "us"]),
        msgpack.packb([2, 4096, b"", b"", b"", b"us"]),
    ),
)
def test_anything_else_is_refused(blob: bytes) -> None:
    with pytest.raises(CorruptData, match="SCRAM user"):
        ScramUser.decode(blob)
