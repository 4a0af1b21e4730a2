"""SchemaWorker: the process that parses and compares schemas which would take an event loop too long.

Is: questions on its standard input, answers on its standard output, one at a time. Isn't: who asks, or for how long it
is waited for (`schema_checks`).

    READY, once; then
    u32 size | msgpack     question: [check, schema, [schema that is there, ...], strategy]
                           schema: [type, name, data, {properties}]
                           answer: [what is wrong, why]: "" (nothing), "invalid", "incompatible"
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence

import msgpack

from region_node.schemas.compatibility import IncompatibleSchema, check_consumer, check_new
from region_node.schemas.schema_definition import InvalidSchema, Schema, check_definition, parse_avro

CHECKS: dict[str, Callable[[Schema, Sequence[Schema], str], None]] = {
    "definition": lambda schema, existing, strategy: check_definition(schema),
    "new": check_new,
    "consumer": check_consumer,
}
FINE, INVALID, INCOMPATIBLE = "", "invalid", "incompatible"
READY = b"R"
"""The process could import what it needs: what it dies of from now on is what it was asked, or was done to it."""
_MEMORY_BYTES_MAX = 2 << 30
_TEXT_MAX = 1000
_NICENESS = 5
_SECONDS_MAX = 60


def question(check: str, schema: Schema, existing: Sequence[Schema], strategy: str) -> bytes:
    """A question as it is sent."""
    rows = [[each.type, each.name, each.data, each.properties] for each in (schema, *existing)]
    packed: bytes = msgpack.packb([check, rows[0], rows[1:], strategy])
    return len(packed).to_bytes(4, "big") + packed


def answered(asked: bytes) -> bytes:
    """The answer to what was asked, both without their sizes."""
    check, schema, existing, strategy = msgpack.unpackb(asked)
    found = FINE, ""
    try:
        CHECKS[check](Schema(*schema), [Schema(*each) for each in existing], strategy)
    except InvalidSchema as error:
        found = INVALID, str(error)[:_TEXT_MAX]
    except IncompatibleSchema as error:
        found = INCOMPATIBLE, str(error)[:_TEXT_MAX]
    except (MemoryError, RecursionError):
        found = INVALID, "the schema takes too much memory to be checked, or is nested too deep: make it smaller"
    parse_avro.cache_clear()  # what was parsed may take a hundred times its size
    packed: bytes = msgpack.packb(found)
    return packed


def main() -> None:
    """Ends with whoever asks: its input is closed then."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES_MAX, _MEMORY_BYTES_MAX))
    os.nice(_NICENESS)
    given, taken = sys.stdin.buffer, sys.stdout.buffer
    taken.write(READY)
    taken.flush()
    while len(head := given.read(4)) == 4:
        asked = given.read(int.from_bytes(head, "big"))
        signal.alarm(_SECONDS_MAX)  # it ends by itself, too, where whoever asked was killed meanwhile
        packed = answered(asked)
        signal.alarm(0)
        taken.write(len(packed).to_bytes(4, "big") + packed)
        taken.flush()


if __name__ == "__main__":
    main()
