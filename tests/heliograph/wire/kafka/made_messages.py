"""Messages of Kafka with random fields, of any version."""

from __future__ import annotations

import random
from typing import Any


def made(rng: random.Random, fields: Any, version: int, flexible: bool) -> dict[str, Any]:
    """Values for the fields that this version has."""
    out: dict[str, Any] = {}
    for field in fields:
        if not field.there(version) or (field.tag >= 0 and (not flexible or rng.random() < 0.5)):
            continue
        out[field.name] = value(rng, field, version, flexible, field.depth)
    return out


def value(rng: random.Random, field: Any, version: int, flexible: bool, depth: int) -> Any:
    if depth:
        if version >= field.nullable and rng.random() < 0.2:
            return None
        return [value(rng, field, version, flexible, depth - 1) for _ in range(rng.randrange(3))]
    nullable = version >= field.nullable and not field.depth
    if nullable and rng.random() < 0.2 and field.kind != "i64":
        return None
    match field.kind:
        case "struct":
            return made(rng, field.fields, version, flexible)
        case "str":
            return rng.choice(["", "x", "é" * 90, "topic"])
        case "bytes":
            return rng.randbytes(rng.randrange(200))
        case "records":
            return None
        case "bool":
            return rng.random() < 0.5
        case "uuid":
            return rng.randbytes(16)
        case "f64":
            return rng.choice([0.0, -1.5, 1e300, float("inf")])
    bits = int(field.kind[1:])
    return (
        rng.choice([0, 1, -1, (1 << bits - 1) - 1, -(1 << bits - 1)])
        if field.kind[0] == "i"
        else rng.randrange(1 << bits)
    )
