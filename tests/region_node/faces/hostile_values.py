"""What a number, a length, a count, or a name of a request may say and should not, whatever the protocol.

Is: the values.
Isn't: where they go (`tests.region_node.faces.pulsar.hostile`, `tests.region_node.faces.kafka.hostile`).
"""

from __future__ import annotations

from heliograph.wire.kafka.message_codec import encode_varint

VICTIM = "persistent://house/main/quiet"
"""The bystander's topic, in another tenant."""
NAMES: tuple[bytes, ...] = tuple(
    text if isinstance(text, bytes) else text.encode()
    for text in (
        "",
        "\0",
        "orders\0",
        ".",
        "..",
        "../../house/main/quiet",
        "/",
        "//",
        "a/b",
        "://",
        "persistent://",
        "persistent:///live/orders",
        "persistent://shop/live/",
        "persistent://shop/live/..",
        "persistent://shop/live/../../house/main/quiet",
        "persistent://shop/live/%2e%2e%2fhouse",
        "non-persistent://shop/live/n",
        VICTIM,
        "house/main/quiet",
        "persistent://other/live/orders",
        "persistent://no/such/topic",
        "persistent://shop/live/orders-partition-0",
        "persistent://shop/live/orders-partition-2147483647",
        "orders-partition--1",
        "__consumer_offsets",
        "pulsar.repl.eu",
        "root",
        "(((((a*)*)*)*)*)*x",
        ".*",
        "\r\nlevel=info admin.change role=root",
        "é" * 50,
        "\u202e\ufeff\u0000",
        "\U0001f4a5",
        b"\xff\xfe",
        b"\xed\xa0\x80",
        "x" * 255,
        "x" * 256,
        "x" * 5000,
        "x" * 70_000,
    )
)
VARINTS: tuple[bytes, ...] = (
    b"\x80" * 9 + b"\0",
    b"\xff" * 9 + b"\x01",
    b"\xff" * 10 + b"\x01",
    b"\xff" * 20,
    b"\xff",
    b"\xff\xff\xff\xff\x0f",
    b"\xff\xff\xff\xff\x07",
    b"\x80\x80\x80\x80\x10",
    b"\x80\x00",
)
"""Huge, longer than need be, and without an end."""


def integers(bits: int, real: int = 1) -> list[int]:
    """Of that width, signed or not: its bounds, those of narrower ones, and what lies beside the real value."""
    found = {0, 1, -1, real - 1, real + 1}
    for width in (8, 16, 31, 32, 63, 64):
        if width <= bits:
            found |= {(1 << width) - 1, (1 << width - 1) - 1, -(1 << width - 1)}
    return sorted(found)


def packed(bits: int, real: int = 1) -> list[bytes]:
    """The same as big-endian bytes."""
    mask = (1 << bits) - 1
    return sorted({(value & mask).to_bytes(bits // 8, "big") for value in integers(bits, real)})


def varint(value: int) -> bytes:
    """As Protobuf writes it: a negative one has ten bytes."""
    return encode_varint(value & (1 << 64) - 1)


def lengths(real: int) -> list[int]:
    """What stands in front of something of `real` bytes, or elements, and is not true."""
    found = {0, real - 1, real + 1, 2 * real, 255, 65_535, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 63) - 1}
    return sorted(one for one in found if one >= 0 and one != real)
