"""Which schemas are checked at once, and what becomes of those that a process beside the broker checks."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import msgpack
import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import MetadataUnavailable
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import SystemClock
from region_node.schemas import schema_checks, schema_worker
from region_node.schemas.compatibility import IncompatibleSchema
from region_node.schemas.schema_checks import AT_ONCE_BYTES, NESTING_AT_ONCE, SchemaCheckLimits, SchemaChecks
from region_node.schemas.schema_definition import InvalidSchema, Schema
from region_node.schemas.schema_registry import SchemaRegistry
from region_node.schemas.schema_worker import READY
from tests.region_node.faces.pulsar.harness import settle
from tests.region_node.schemas.definitions import INT, LONG, OPTIONAL, REQUIRED, avro, plain

PADDING = {"name": "p", "type": "int", "doc": "x" * AT_ONCE_BYTES, "default": 0}
LARGE, WIDER, OTHER = (avro(PADDING, *fields) for fields in ((INT,), (INT, OPTIONAL), (INT, REQUIRED)))


def script(text: str) -> tuple[str, ...]:
    return (sys.executable, "-S", "-c", f"import os, signal, time; {text}")


SAYS_READY = f"os.write(1, {READY!r}); "
SLEEPS = script(SAYS_READY + "time.sleep(600)")
NEVER = ("/nowhere/to/be/found",)
TOPIC = TopicName.parse("persistent://public/default/t")


def with_checks(
    command: Sequence[str],
    test: Callable[[SchemaChecks], Coroutine[Any, Any, None]],
    limits: SchemaCheckLimits | None = None,
) -> None:
    async def main() -> None:
        checks = SchemaChecks(command, limits)
        try:
            await test(checks)
        finally:
            await checks.close()

    asyncio.run(main())


def test_small_schemas_and_those_that_are_not_parsed_are_checked_at_once() -> None:
    async def test(checks: SchemaChecks) -> None:
        for schema in (avro(INT), plain("STRING"), Schema(1, "t", bytes(100_000))):
            await checks.definition("t", schema)
        with pytest.raises(InvalidSchema, match="at most"):
            await checks.definition("t", Schema(4, "t", bytes(600 << 10)))
        await checks.new("t", avro(INT), [LARGE, avro(INT)], "FULL")
        await checks.consumer("t", avro(INT, OPTIONAL), [avro(INT)], "FULL")
        await checks.new("t", LARGE, [WIDER], "ALWAYS_COMPATIBLE")
        await checks.new("t", LARGE, [], "FULL")
        with pytest.raises(IncompatibleSchema):
            await checks.new("t", avro(LONG), [avro(INT)], "FORWARD")
        for check in (checks.definition("t", LARGE), checks.new("t", avro(INT), [LARGE], "FULL")):
            with pytest.raises(MetadataUnavailable, match="no process can be started"):
                await check

    with_checks(NEVER, test)


def test_properties_and_native_protobuf_definitions_count_too() -> None:
    async def test(checks: SchemaChecks) -> None:
        properties = {"key.schema.properties": '{"a":"' + "x" * AT_ONCE_BYTES + '"}'}
        native = Schema(20, "t", bytes(AT_ONCE_BYTES // 2))
        asked = (
            checks.definition("t", Schema(15, "t", bytes(8), properties)),
            checks.definition("t", Schema(20, "t", bytes(AT_ONCE_BYTES))),
            checks.new("t", native, [native, native], "FULL_TRANSITIVE"),
        )
        for check in asked:
            with pytest.raises(MetadataUnavailable, match="no process can be started"):
                await check
        with pytest.raises(InvalidSchema, match="bytes of properties"):
            await checks.definition("t", Schema(15, "t", bytes(8), {"x": "x" * (100 << 10)}))

    with_checks(NEVER, test)


def nested(count: int) -> Schema:
    """So many records in one another."""
    kind: Any = "int"
    for number in range(count):
        kind = {"type": "record", "name": f"R{number}", "fields": [{"name": "f", "type": kind}]}
    return Schema(4, "t", json.dumps(kind).encode())


def test_what_is_nested_deep_is_not_parsed_at_once() -> None:
    async def test(checks: SchemaChecks) -> None:
        await checks.definition("t", nested(NESTING_AT_ONCE // 3))
        half = nested(100).data
        key_value = Schema(15, "t", bytes(4) + len(half).to_bytes(4, "big") + half, {"value.schema.type": "AVRO"})
        hidden = Schema(4, "t", half.replace(b'"fields"', b'"x": "]]}}\\"]", "fields"'))
        for schema in (nested(NESTING_AT_ONCE // 3 + 1), nested(100), key_value, hidden):
            assert len(schema.data) < AT_ONCE_BYTES
            with pytest.raises(MetadataUnavailable, match="no process can be started"):
                await checks.definition("t", schema)

    with_checks(NEVER, test)


def test_large_ones_are_checked_in_one_process_and_each_question_once() -> None:
    async def test(checks: SchemaChecks) -> None:
        await checks.definition("t", LARGE)
        process = checks._process
        assert process is not None
        await checks.new("t", WIDER, [avro(LONG), LARGE], "FULL")
        with pytest.raises(IncompatibleSchema, match="cannot read what an earlier one wrote"):
            await checks.new("t", OTHER, [LARGE], "FULL")
        with pytest.raises(IncompatibleSchema, match="no schema"):
            await checks.consumer("t", LARGE, [], "FULL")
        with pytest.raises(InvalidSchema, match="no Avro schema"):
            await checks.definition("t", Schema(4, "t", LARGE.data[:-1]))
        assert checks._process is process and process.returncode is None
        checks._command = NEVER
        await checks.close()
        await checks.new("t", WIDER, [avro(INT), LARGE], "FULL")
        with pytest.raises(IncompatibleSchema, match="cannot read what an earlier one wrote"):
            await checks.new("t", OTHER, [LARGE], "FULL")

    with_checks(schema_checks._COMMAND, test)


def test_who_takes_too_long_is_refused_and_the_process_is_made_anew() -> None:
    made: list[int] = []

    async def test(checks: SchemaChecks) -> None:
        started = checks._started

        async def noted() -> asyncio.subprocess.Process:
            process = await started()
            made.append(process.pid)
            return process

        checks._started = noted  # type: ignore[method-assign]
        for schema in (LARGE, WIDER, LARGE):
            with pytest.raises(InvalidSchema, match=r"took longer than .*: make it smaller"):
                await checks.definition("t", schema)
            assert checks._process is None

    with_checks(SLEEPS, test, SchemaCheckLimits(timeout_s=0.05))
    assert len(set(made)) == len(made) == 2, "the same one again is not tried again"


@pytest.mark.parametrize(("kept_s", "count"), ((60.0, 1), (0.0, 2)))
def test_what_took_too_long_is_asked_again_after_a_while(kept_s: float, count: int) -> None:
    async def test(checks: SchemaChecks) -> None:
        asked = list[int]()

        async def stands_still() -> asyncio.subprocess.Process:
            asked.append(1)
            raise TimeoutError

        checks._started = stands_still  # type: ignore[method-assign]
        for _ in range(2):
            with pytest.raises(InvalidSchema, match="took longer than"):
                await checks.definition("t", LARGE)
            await settle()
        assert len(asked) == count

    with_checks(NEVER, test, SchemaCheckLimits(unanswered_kept_s=kept_s))


@pytest.mark.parametrize("text", (SAYS_READY + "os.read(0, 9)", SAYS_READY + "os.abort()"))
def test_a_process_that_dies_of_what_it_was_asked_refuses_it(text: str) -> None:
    async def test(checks: SchemaChecks) -> None:
        for command in (script(text), NEVER):
            checks._command = command
            with pytest.raises(InvalidSchema, match="could not be checked"):
                await checks.definition("t", LARGE)
            assert checks._process is None

    with_checks(NEVER, test)


@pytest.mark.parametrize("text", ("", "raise ImportError", SAYS_READY + "os.kill(os.getpid(), signal.SIGKILL)"))
def test_a_process_that_cannot_start_or_is_killed_says_nothing_of_the_schema(text: str) -> None:
    async def test(checks: SchemaChecks) -> None:
        with pytest.raises(MetadataUnavailable, match="try again"):
            await checks.definition("t", LARGE)
        assert checks._process is None and not checks._answers and not checks._waiting

    with_checks(script(text), test)


def test_what_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def check(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setitem(schema_worker.CHECKS, "definition", check)
    found = schema_worker.answered(schema_worker.question("definition", LARGE, (), "")[4:])
    assert msgpack.unpackb(found)[0] == schema_worker.INVALID


def test_who_gives_up_leaves_no_process_behind_and_only_so_many_wait() -> None:
    async def test(checks: SchemaChecks) -> None:
        began, started = asyncio.Event(), checks._started

        async def noted() -> asyncio.subprocess.Process:
            process = await started()
            began.set()
            return process

        checks._started = noted  # type: ignore[method-assign]
        asking = [asyncio.ensure_future(checks.definition("t", each)) for each in (LARGE, WIDER)]
        await began.wait()
        with pytest.raises(MetadataUnavailable, match="2 large schemas of t wait"):
            await checks.definition("t", OTHER)
        process = checks._process
        for one in reversed(asking):
            one.cancel()
        await asyncio.gather(*asking, return_exceptions=True)
        assert process.returncode is not None and checks._process is None and not checks._waiting

    with_checks(SLEEPS, test, SchemaCheckLimits(waiting_max=2))


def test_what_a_topic_has_already_is_not_checked_again() -> None:
    async def main() -> None:
        store = EmbeddedStore()
        schemas = SchemaRegistry(store, lambda: 1, SystemClock())
        assert await schemas.get_or_create(TOPIC, LARGE, "FULL") == 0
        await schemas.checks.close()
        schemas = SchemaRegistry(store, lambda: 1, SystemClock())
        schemas.checks._command = NEVER
        assert await schemas.get_or_create(TOPIC, LARGE, "FULL") == 0
        await schemas.check_consumer(TOPIC, LARGE, "FULL")
        with pytest.raises(MetadataUnavailable):
            await schemas.check_consumer(TOPIC, WIDER, "FULL")

    asyncio.run(main())


def test_only_different_questions_count() -> None:
    async def test(checks: SchemaChecks) -> None:
        asked, go_on = list[bytes](), asyncio.Event()

        async def answer(given: bytes) -> tuple[str, str]:
            asked.append(given)
            await go_on.wait()
            return "", ""

        checks._answer = answer  # type: ignore[method-assign]
        asking = [asyncio.ensure_future(checks.definition("t", LARGE)) for _ in range(50)]
        await settle()
        with pytest.raises(MetadataUnavailable, match="50 large schemas of t wait"):
            await checks.definition("t", LARGE)
        asking[0].cancel()
        await settle()
        assert len(asked) == 2, "the next one asks in its place"
        go_on.set()
        await asyncio.gather(*asking[1:])
        assert len(asked) == 2 and not checks._waiting

    with_checks(NEVER, test, SchemaCheckLimits(waiting_bytes_max=50 * LARGE.size_bytes))


def test_tenants_take_turns() -> None:
    async def test(checks: SchemaChecks) -> None:
        asked, go_on = list[bytes](), asyncio.Event()

        async def answer(given: bytes) -> tuple[str, str]:
            await go_on.wait()
            asked.append(given)
            return "", ""

        checks._answer = answer  # type: ignore[method-assign]
        schemas = [avro(PADDING, name=f"R{number}") for number in range(6)]
        asking = [checks.definition("one", each) for each in schemas[:4]]
        asking += [checks.definition("two", each) for each in schemas[4:]]
        together = asyncio.gather(*asking)
        await settle()
        go_on.set()
        await together
        order = [next(n for n, schema in enumerate(schemas) if schema.data in given) for given in asked]
        assert order == [0, 4, 1, 5, 2, 3] and not checks._waiting

    with_checks(NEVER, test)


def test_a_broker_that_stops_says_so() -> None:
    async def test(checks: SchemaChecks) -> None:
        began, started = asyncio.Event(), checks._started

        async def noted() -> asyncio.subprocess.Process:
            process = await started()
            began.set()
            return process

        checks._started = noted  # type: ignore[method-assign]
        asking = asyncio.ensure_future(checks.definition("t", LARGE))
        await began.wait()
        await checks.close()
        with pytest.raises(MetadataUnavailable, match="stopping"):
            await asking

    with_checks(SLEEPS, test)
