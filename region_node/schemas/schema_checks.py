"""SchemaChecks: whether a schema makes sense, and may follow others, without holding up the event loop.

Is: small schemas at once; larger ones in a process beside this one, which is made when it is first needed, one for the
broker. Isn't: a rule (`schema_definition`, `compatibility`).
Invariants: no schema takes the event loop more than some tens of milliseconds; one that takes the process longer than
`timeout_s` is refused for `unanswered_kept_s`, and the process is killed, and made anew for the next one; the same
question is asked there once; tenants take turns.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import re
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import accumulate

import msgpack

from heliograph.model.errors import MetadataUnavailable
from region_node.runtime.module_command import module_command
from region_node.schemas.compatibility import ALWAYS, IncompatibleSchema
from region_node.schemas.schema_definition import (
    AVRO_DEFINED,
    DEFINITION_BYTES_MAX,
    KEY_VALUE,
    PROTOBUF_NATIVE,
    SCHEMA_PROPERTIES_BYTES_MAX,
    InvalidSchema,
    Schema,
    halves,
)
from region_node.schemas.schema_worker import CHECKS, FINE, INCOMPATIBLE, READY, question

log = logging.getLogger("region_node.schemas")

AT_ONCE_BYTES = 16 << 10
"""A definition that is not larger, nor nested deeper than NESTING_AT_ONCE, is parsed at once: up to some 20 ms."""
NESTING_AT_ONCE = 100
"""Objects and lists in one another, of which a record takes three: an error is told of anew at each level, which for
hundreds takes up to a second.
"""
AT_ONCE_PRODUCT = 4 << 20
"""Two definitions are compared at once where the product of their sizes is not larger: two of 2 KiB each. Unions of
records are compared branch by branch.
"""
_ANSWERS_MAX = 1024
_UNANSWERED = "unanswered"
_COMMAND = module_command(sys.executable, "region_node.schemas.schema_worker")
_STARTS_S = 10.0
"""So long the process may take to be ready for its first question."""
_ENDS_S = 1.0
"""So long it is waited for how a process ended that says nothing any more."""
_PARSED = AVRO_DEFINED | {KEY_VALUE, PROTOBUF_NATIVE}

_BRACKETS, _STEPS = re.compile(rb'"(?:[^"\\]|\\.)*"?|[][{}]', re.S), {b"{": 1, b"[": 1, b"}": -1, b"]": -1}


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaCheckLimits:
    """What the process may take for one question, and tenants of it. They are no operator's settings."""

    timeout_s: float = 10.0
    """Of one question."""
    unanswered_kept_s: float = 60.0
    """So long a question that the process did not answer, as it took too long or died, is refused without being asked
    again. It may be that the machine stood still: then nothing is wrong with the schema.
    """
    waiting_max: int = 8
    """So many different questions of one tenant wait for the process."""
    waiting_bytes_max: int = 64 << 20
    """Of all that wait of one tenant, those with the same question too: each holds up to 8 MiB."""


class SchemaChecks:
    """`close` ends the process; it ends with this one, too."""

    def __init__(self, command: Sequence[str] = _COMMAND, limits: SchemaCheckLimits | None = None) -> None:
        self._command, self._limits = command, limits or SchemaCheckLimits()
        self._process: asyncio.subprocess.Process | None = None
        self._lock = asyncio.Lock()
        self._waiting: dict[str, _Waiting] = {}
        self._answers: dict[bytes, tuple[str, str]] = {}
        """Digest of a question -> what was answered, or _UNANSWERED and why; the newest."""

    async def definition(self, tenant: str, schema: Schema) -> None:
        """Raises InvalidSchema, MetadataUnavailable (too many of the tenant wait)."""
        await self._check(tenant, "definition", schema, (), "")

    async def new(self, tenant: str, schema: Schema, existing: Sequence[Schema], strategy: str) -> None:
        """existing: in their order. Raises IncompatibleSchema, InvalidSchema, MetadataUnavailable."""
        await self._check(tenant, "new", schema, existing, strategy)

    async def consumer(self, tenant: str, schema: Schema, existing: Sequence[Schema], strategy: str) -> None:
        """Whether a consumer with `schema` may read the topic. Raises as `new`."""
        await self._check(tenant, "consumer", schema, existing, strategy)

    async def close(self) -> None:
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()

    async def _check(self, tenant: str, check: str, schema: Schema, existing: Sequence[Schema], strategy: str) -> None:
        compared = existing if strategy.endswith("_TRANSITIVE") else existing[-1:]
        trivial = check != "definition" and (strategy == ALWAYS or not existing)
        if trivial or _is_small(schema, compared):
            CHECKS[check](schema, compared, strategy)
            return
        key = _digest(check, schema, compared, strategy)
        if (found := self._answers.pop(key, None)) is None:
            size = schema.size_bytes + sum(each.size_bytes for each in compared)
            async with self._beside_others(tenant, key, size):
                found = self._answers.pop(key, None) or await self._answer(question(check, schema, compared, strategy))
                if found[0] == _UNANSWERED:
                    asyncio.get_running_loop().call_later(self._limits.unanswered_kept_s, self._answers.pop, key, None)
        self._answers[key] = found
        if len(self._answers) > _ANSWERS_MAX:
            del self._answers[next(iter(self._answers))]
        wrong, why = found
        if wrong != FINE:
            raise (IncompatibleSchema if wrong == INCOMPATIBLE else InvalidSchema)(why)

    @asynccontextmanager
    async def _beside_others(self, tenant: str, key: bytes, size: int) -> AsyncIterator[None]:
        """One question of each tenant at a time waits with those of the others, and of those that are the same one;
        who has waited for that looks for its answer. Raises MetadataUnavailable.
        """
        own, limits = self._waiting.setdefault(tenant, _Waiting()), self._limits
        same, count = own.questions.get(key, (asyncio.Lock(), 0))
        too_large = own.size and own.size + size > limits.waiting_bytes_max
        if len(own.questions) + (not count) > limits.waiting_max or too_large:
            waiting = sum(each for _, each in own.questions.values())
            raise MetadataUnavailable(
                f"{waiting} large schemas of {tenant} wait to be checked at this broker: try again"
            )
        own.questions[key], own.size = (same, count + 1), own.size + size
        try:
            async with same:
                if key in self._answers:
                    yield
                else:
                    async with own.lock, self._lock:
                        yield
        finally:
            _, count = own.questions[key]
            own.size -= size
            if count > 1:
                own.questions[key] = same, count - 1
            else:
                del own.questions[key]
            if not own.questions:
                del self._waiting[tenant]

    async def _answer(self, asked: bytes) -> tuple[str, str]:
        """What the process answers, or _UNANSWERED and why. Raises MetadataUnavailable (it cannot be started, or was
        killed).
        """
        whole = False
        try:
            process = await self._started()
            async with asyncio.timeout(self._limits.timeout_s):
                assert process.stdin is not None and process.stdout is not None
                process.stdin.write(asked)
                await process.stdin.drain()
                size = int.from_bytes(await process.stdout.readexactly(4), "big")
                wrong, why = msgpack.unpackb(await process.stdout.readexactly(size))
                whole = True
                return wrong, why
        except TimeoutError:
            log.warning("schema.too_costly", extra={"bytes": len(asked)})
            return (
                _UNANSWERED,
                f"the schema took longer than {self._limits.timeout_s:g} s to be checked: make it smaller, or split it",
            )
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            if self._process is not process:
                raise MetadataUnavailable("the broker is stopping: look the topic up again") from error
            with suppress(TimeoutError):
                async with asyncio.timeout(_ENDS_S):
                    await process.wait()
            log.warning("schema.check_failed", extra={"bytes": len(asked), "ended": process.returncode})
            if process.returncode == -signal.SIGKILL:  # as where the machine has no memory left
                raise MetadataUnavailable("the process that checks large schemas was killed: try again") from error
            return _UNANSWERED, "the schema could not be checked: make it smaller, or split it"
        finally:
            if not whole:  # also where nobody waits any more: what it would answer next is of this one
                await self.close()

    async def _started(self) -> asyncio.subprocess.Process:
        if self._process is None or self._process.returncode is not None:
            pipe = asyncio.subprocess.PIPE
            starting = asyncio.ensure_future(
                asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe, start_new_session=True)
            )
            try:
                self._process = await asyncio.shield(starting)
            except asyncio.CancelledError:  # never in the middle of it: the process would be nobody's
                self._process = await starting
                raise
            except OSError as error:
                raise _not_started(error) from error
            assert self._process.stdout is not None
            try:
                async with asyncio.timeout(_STARTS_S):
                    await self._process.stdout.readexactly(len(READY))
            except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
                raise _not_started(error) from error
        return self._process


def _not_started(error: Exception) -> MetadataUnavailable:
    return MetadataUnavailable(f"no process can be started to check large schemas ({error!r}): try again")


class _Waiting:
    """What waits of one tenant."""

    __slots__ = ("lock", "questions", "size")

    def __init__(self) -> None:
        self.lock, self.size = asyncio.Lock(), 0
        self.questions: dict[bytes, tuple[asyncio.Lock, int]] = {}
        """Digest -> the turn of those that ask the same, and how many they are."""


def _is_small(schema: Schema, compared: Sequence[Schema]) -> bool:
    if (
        schema.type not in _PARSED
        or len(schema.data) > DEFINITION_BYTES_MAX
        or schema.properties_bytes > SCHEMA_PROPERTIES_BYTES_MAX
    ):
        return True  # it is not parsed, or refused before
    size, sizes = schema.size_bytes, [each.size_bytes for each in compared if each.type in _PARSED]
    if schema.type == PROTOBUF_NATIVE:
        return size + sum(sizes) <= AT_ONCE_BYTES
    if not (max(size, *sizes, 0) <= AT_ONCE_BYTES and size * sum(sizes) <= AT_ONCE_PRODUCT):
        return False
    try:
        return all(is_parsed_at_once(data) for each in (schema, *compared) for data in _definitions(each))
    except InvalidSchema:
        return True  # it has no halves: that is all that is found


def _definitions(schema: Schema) -> list[bytes]:
    return [half.data for half in halves(schema)] if schema.type == KEY_VALUE else [schema.data]


def is_parsed_at_once(data: bytes) -> bool:
    """Whether it takes the event loop no more than some 20 ms to parse an Avro schema."""
    return len(data) <= AT_ONCE_BYTES and _nesting(data) <= NESTING_AT_ONCE


def _nesting(data: bytes) -> int:
    """How deep objects and lists of a JSON text lie in one another."""
    return max(accumulate(_STEPS.get(each, 0) for each in _BRACKETS.findall(data)), default=0)


def _digest(check: str, schema: Schema, compared: Sequence[Schema], strategy: str) -> bytes:
    found = hashlib.sha256(f"{check} {strategy}".encode())
    for each in (schema, *compared):
        properties = msgpack.packb(sorted(each.properties.items()))
        found.update(b"%d %d %d " % (each.type, len(properties), len(each.data)))
        found.update(properties)
        found.update(each.data)
    return found.digest()
