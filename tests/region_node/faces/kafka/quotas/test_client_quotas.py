"""Quotas of users and clients: which one holds, what a client above it is told, and Kafka's requests to see and set
them.
"""

from __future__ import annotations

import asyncio
import itertools
from dataclasses import replace
from typing import Any

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import MetadataUnavailable
from heliograph.wire.kafka.record_batches import build_batch
from region_node.faces.kafka.connection.request_table import SERVED
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.quotas.client_quotas import ANONYMOUS, ClientQuotas, canonical
from region_node.faces.kafka.quotas.quota_table import (
    CONNECTIONS,
    DEFAULT,
    FETCH,
    MUTATION,
    NONE,
    PRODUCE,
    QUOTAS,
    REQUEST,
    name_of,
    named,
)
from region_node.faces.kafka.quotas.request_time import Worked
from region_node.faces.kafka.shared_rows import RowStores
from region_node.security.authentication.principal import Principal
from region_node.security.authorization.authorization_service import Authorization
from region_node.security.settings import SecuritySettings
from tests.region_node.faces.kafka.harness import Client, Face, request, with_face
from tests.region_node.faces.pulsar.harness import settle
from tests.region_node.topics.fake_storage import FakeClock

USER, CLIENT, IP = "user", "client-id", "ip"


def entity(*parts: tuple[str, str | None]) -> list[dict[str, Any]]:
    return [{"entity_type": kind, "entity_name": name} for kind, name in parts]


async def alter(
    client: Client, parts: list[dict[str, Any]], *ops: tuple[str, float | None], validate_only: bool = False
) -> tuple[int, str | None]:
    rows = [{"key": key, "value": 0.0 if value is None else value, "remove": value is None} for key, value in ops]
    answer = await client.ask(
        "alter_client_quotas", 1, {"entries": [{"entity": parts, "ops": rows}], "validate_only": validate_only}
    )
    await settle(20)
    return answer["entries"][0]["error_code"], answer["entries"][0]["error_message"]


async def described(
    client: Client, *components: tuple[str, int, str | None], strict: bool = False
) -> list[tuple[list[Any], dict[str, float]]]:
    wanted = [{"entity_type": kind, "match_type": how, "match": match} for kind, how, match in components]
    answer = await client.ask("describe_client_quotas", 1, {"components": wanted, "strict": strict})
    assert answer["error_code"] == 0, answer
    return [
        (
            [(part["entity_type"], part["entity_name"]) for part in row["entity"]],
            {value["key"]: value["value"] for value in row["values"]},
        )
        for row in answer["entries"]
    ]


def test_the_most_particular_quota_holds() -> None:
    """Each of the eight, from the last to the first: what is set later here is nearer, and takes over."""

    async def run() -> None:
        store = EmbeddedStore()
        quotas = ClientQuotas(RowStores(store, EmbeddedStore(), lambda: True, lambda: True), FakeClock())
        ann, tool = named("ann"), named("tool")
        order = [
            (NONE, DEFAULT),
            (NONE, tool),
            (DEFAULT, NONE),
            (DEFAULT, DEFAULT),
            (DEFAULT, tool),
            (ann, NONE),
            (ann, DEFAULT),
            (ann, tool),
        ]
        shared = [
            (NONE, tool),
            (NONE, tool),
            (ann, NONE),
            (ann, tool),
            (ann, tool),
            (ann, NONE),
            (ann, tool),
            (ann, tool),
        ]
        for number, (entry, who) in enumerate(zip(order, shared, strict=True), 1):
            await quotas.table.change(entry, {PRODUCE: float(number)})
            await settle(20)
            assert quotas.table.rate(PRODUCE, (ann, tool)) == (float(number), who)
            assert quotas.table.rate(FETCH, (ann, tool)) is None
        assert quotas.table.rate(PRODUCE, (named("bob"), named("other"))) == (4.0, (named("bob"), named("other")))
        before = quotas.limits("ann", "tool").produce
        assert before is not None and quotas.limits("ann", "tool").produce is before, (
            "one bucket for all connections of both"
        )
        before.spend(0, 1000)
        await quotas.table.change((ann, tool), {PRODUCE: 20.0})
        await settle(20)
        after = quotas.limits("ann", "tool").produce
        assert after is before and after.wait_s > 40, "what was taken stays taken"
        quotas.close()

    asyncio.run(run())


def test_quotas_are_seen_as_they_were_set() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        assert await described(client) == []
        ann, default = [(USER, "a/n*n")], [(USER, None), (CLIENT, None)]
        assert (await alter(client, entity(*ann), (PRODUCE, 1000.0), (FETCH, 2000.0)))[0] == 0
        assert (await alter(client, entity(*default), (FETCH, 10.0)))[0] == 0
        assert (await alter(client, entity((CLIENT, "")), (PRODUCE, 5.0)))[0] == 0
        assert (await alter(client, entity(*ann), (PRODUCE, 1.0), validate_only=True))[0] == 0
        of_ann, of_all, of_nameless = (
            (ann, {PRODUCE: 1000.0, FETCH: 2000.0}),
            (default, {FETCH: 10.0}),
            ([(CLIENT, "")], {PRODUCE: 5.0}),
        )
        key = str
        assert sorted(await described(client), key=key) == sorted([of_ann, of_all, of_nameless], key=key)
        assert await described(client, (USER, 0, "a/n*n")) == [of_ann]
        assert sorted(await described(client, (USER, 2, None)), key=key) == sorted([of_ann, of_all], key=key)
        assert await described(client, (USER, 2, None), strict=True) == [of_ann]
        assert await described(client, (USER, 1, None), (CLIENT, 1, None), strict=True) == [of_all]
        assert await described(client, ("ip", 2, None)) == []
        assert (await alter(client, entity(*ann), (PRODUCE, None)))[0] == 0
        assert await described(client, (USER, 0, "a/n*n")) == [(ann, {FETCH: 2000.0})]
        assert (await alter(client, entity(*ann), (FETCH, None)))[0] == 0
        assert (
            await described(client, (USER, 0, "a/n*n")) == []
            and len(await face.config.range(QUOTAS, QUOTAS + "\x7f")) == 2
        )

    with_face(run)


@pytest.mark.parametrize(
    ("parts", "op"),
    [
        ([], (PRODUCE, 1.0)),
        ([("ip", "10.0.0.1")], (PRODUCE, 1.0)),
        ([("group", "g")], (PRODUCE, 1.0)),
        ([(USER, "a"), (USER, "b")], (PRODUCE, 1.0)),
        ([(IP, "10.0.0.1"), (USER, "a")], (CONNECTIONS, 1.0)),
        ([(IP, "no address")], (CONNECTIONS, 1.0)),
        ([(IP, None)], (CONNECTIONS, 0.5)),
        ([(USER, "a")], (CONNECTIONS, 1.0)),
        ([(USER, "a")], (REQUEST, 0.0)),
        ([(USER, "a")], ("no_such_rate", 1.0)),
        ([(USER, "a")], (PRODUCE, 0.0)),
        ([(USER, "a")], (PRODUCE, -5.0)),
        ([(USER, "a")], (PRODUCE, 1.5)),
        ([(USER, "a")], (PRODUCE, float("nan"))),
        ([(USER, "a")], (PRODUCE, float("inf"))),
    ],
)
def test_what_has_no_meaning_is_refused(parts: list[tuple[str, str | None]], op: tuple[str, float]) -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        code, reason = await alter(client, entity(*parts), op)
        assert code == Code.INVALID_REQUEST and reason
        assert await described(client) == []

    with_face(run)


def test_who_is_above_the_quota_is_told_and_waits_and_others_do_not() -> None:
    async def run(face: Face) -> None:
        client, other = Client(face.listener), Client(face.listener)
        await settle(20)
        assert (await alter(other, entity((USER, ANONYMOUS)), (PRODUCE, 1000.0)))[0] == 0
        batch = build_batch([(1, b"k", b"x" * 2000, ())])
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": 1000,
            "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}],
        }
        await client.ask("metadata", 4, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
        answer = await client.ask("produce", 7, fields)
        row = answer["responses"][0]["partition_responses"][0]
        assert (row["error_code"], row["base_offset"]) == (0, 0), "what came is stored"
        assert 1000 <= answer["throttle_time"] <= 2000
        client.raw(request("produce", 7, fields))
        await settle(100)
        assert not client.answers() and not client.transport.reading, "nothing more of it is begun"
        again = await other.ask("produce", 7, fields)
        assert again["throttle_time"] > answer["throttle_time"], "the user has one rate, over whichever connection"
        assert (await Client(face.listener).ask("metadata", 4, {"topics": [], "allow_auto_topic_creation": False}))[
            "topics"
        ] == []

    with_face(run)


def test_without_a_quota_of_theirs_clients_are_free() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await alter(client, entity((USER, "somebody"), (CLIENT, "else")), (PRODUCE, 1.0), (FETCH, 1.0))
        await client.ask("metadata", 4, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
        batch = build_batch([(1, b"k", b"x" * 2000, ())])
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": 1000,
            "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}],
        }
        for offset in range(3):
            answer = await client.ask("produce", 7, fields)
            assert (answer["responses"][0]["partition_responses"][0]["base_offset"], answer["throttle_time"]) == (
                offset,
                0,
            )

    with_face(run)


def test_a_fetch_brings_a_second_of_its_quota_and_says_how_long_to_wait() -> None:
    async def run(face: Face) -> None:
        client = Client(face.listener)
        await client.ask("metadata", 4, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})
        batch = build_batch([(1, b"k", b"x" * 400, ())])
        fields = {
            "transactional_id": None,
            "acks": -1,
            "timeout": 1000,
            "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}],
        }
        for _ in range(10):
            await client.ask("produce", 7, fields)
        assert (await alter(client, entity((CLIENT, None)), (FETCH, 1000.0)))[0] == 0
        part = {
            "partition": 0,
            "fetch_offset": 0,
            "log_start_offset": 0,
            "partition_max_bytes": 1 << 20,
            "current_leader_epoch": -1,
        }
        wanted = {
            "max_wait": 0,
            "min_bytes": 1,
            "max_bytes": 1 << 20,
            "isolation_level": 0,
            "session_id": 0,
            "session_epoch": -1,
        }
        fetch = {**wanted, "topics": [{"topic": "t", "partitions": [part]}], "forgotten_topics_data": [], "rack_id": ""}
        sizes, waits = list[int](), list[int]()
        for _ in range(3):
            reader = Client(face.listener)
            answer = await reader.ask("fetch", 11, fetch)
            (row,) = answer["responses"][0]["partitions"]
            sizes.append(row["records"][1])
            waits.append(answer["throttle_time"])
        assert all(len(batch) <= size <= 1000 for size in sizes)
        assert waits[0] == 0 and 0 < waits[1] < waits[2]

    with_face(run)


def test_users_are_described_where_nobody_authenticates() -> None:
    """Kafka's tool asks for the SCRAM users beside the quotas of users, and shows nothing where that fails."""

    async def run(face: Face) -> None:
        client = Client(face.listener)
        answer = await client.ask("describe_user_scram_credentials", 0, {"users": None})
        assert (answer["error_code"], answer["results"]) == (0, [])
        answer = await client.ask("describe_user_scram_credentials", 0, {"users": [{"name": "ann"}]})
        assert [row["error_code"] for row in answer["results"]] == [Code.RESOURCE_NOT_FOUND]

    with_face(run)


def test_only_a_super_user_sees_and_sets_quotas() -> None:
    async def run(face: Face) -> None:
        settings = SecuritySettings(anonymous_role="nobody", authorization=True, super_users=("root",))
        face.broker.security = replace(face.broker.security, rights=Authorization(settings, face.view))
        bob, root = Client(face.listener), Client(face.listener)
        for client, role in ((bob, "bob"), (root, "root")):
            client.protocol.session.login.principal = Principal(role=role)
        assert (await alter(root, entity((USER, "bob")), (PRODUCE, 1000.0)))[0] == 0
        assert (await alter(bob, entity((USER, "bob")), (PRODUCE, None)))[0] == Code.CLUSTER_AUTHORIZATION_FAILED
        answer = await bob.ask("describe_client_quotas", 1, {"components": [], "strict": False})
        assert (answer["error_code"], answer["entries"]) == (Code.CLUSTER_AUTHORIZATION_FAILED, None)
        assert await described(root) == [([(USER, "bob")], {PRODUCE: 1000.0})]

    with_face(run)


def test_bad_bytes_in_the_store_change_nothing() -> None:
    async def run() -> None:
        store = EmbeddedStore()
        quotas = ClientQuotas(RowStores(store, EmbeddedStore(), lambda: True, lambda: True), FakeClock())
        await quotas.table.change((named("a"), NONE), {PRODUCE: 5.0})
        await settle(20)
        for bad in (b"", b"\x09", b"\x01\x91\x01", b"\x01\x91\x81\xa1a\xff"):
            await store.put(f"{QUOTAS}{named('a')}/{NONE}", bad)
            await settle(20)
            assert quotas.table.rate(PRODUCE, (named("a"), NONE)) == (5.0, (named("a"), NONE))
        quotas.close()

    asyncio.run(run())


def test_names_go_into_keys_and_back() -> None:
    names = ["", "-", "*", "=", "/", "a/b", "%2F", "é"]
    assert [name_of(named(name)) for name in names] == names
    assert not any("/" in named(name) for name in names) and len({*map(named, names), NONE, DEFAULT}) == len(names) + 2
    assert all(named(a) != named(b) for a, b in itertools.combinations(names, 2)) and name_of(DEFAULT) is None


def batch_of(size_bytes: int) -> dict[str, Any]:
    """A Produce request to `t`, which has one partition."""
    batch = build_batch([(1, b"k", b"x" * size_bytes, ())])
    return {
        "transactional_id": None,
        "acks": -1,
        "timeout": 1000,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": batch}]}],
    }


async def make_t(client: Client) -> None:
    await client.ask("metadata", 4, {"topics": [{"name": "t"}], "allow_auto_topic_creation": True})


def test_who_waits_goes_on_when_the_quota_goes() -> None:
    """A connection that is far above its quota would wait for hours: it is read from again as soon as nothing says so
    any more.
    """

    async def run(face: Face) -> None:
        admin, held, other = Client(face.listener), Client(face.listener), Client(face.listener)
        await make_t(admin)
        assert (await alter(admin, entity((CLIENT, "")), (PRODUCE, 1.0)))[0] == 0
        assert (await held.ask("produce", 7, batch_of(5000)))["throttle_time"] > 4_000_000
        held.raw(request("produce", 7, batch_of(1)))
        assert (await alter(other, entity((USER, "somebody")), (PRODUCE, 9.0)))[0] == 0
        await settle(50)
        assert not held.answers() and not held.transport.reading, "another quota does not free it"
        assert (await alter(Client(face.listener), entity((CLIENT, "")), (PRODUCE, None)))[0] == 0
        await settle(50)
        assert held.answers() and held.transport.reading, "what came meanwhile is answered"
        assert (await held.ask("produce", 7, batch_of(5000)))["throttle_time"] == 0

    with_face(run)


def test_a_quota_that_is_raised_shortens_the_wait() -> None:
    async def run(face: Face) -> None:
        admin, held = Client(face.listener), Client(face.listener)
        await make_t(admin)
        assert (await alter(admin, entity((USER, ANONYMOUS)), (PRODUCE, 1.0)))[0] == 0
        await held.ask("produce", 7, batch_of(5000))
        assert not held.transport.reading
        assert (await alter(Client(face.listener), entity((USER, ANONYMOUS)), (PRODUCE, 1e9)))[0] == 0
        face.clock.now += 1
        assert (await alter(Client(face.listener), entity((USER, ANONYMOUS)), (PRODUCE, 2e9)))[0] == 0
        assert held.transport.reading

    with_face(run)


def test_a_client_that_comes_again_finds_what_it_has_taken_however_many_there_are() -> None:
    async def run(face: Face) -> None:
        quotas = face.broker.quotas
        await quotas.table.change((NONE, DEFAULT), {PRODUCE: 1000.0})
        await settle(20)

        def takes(client: str) -> int:
            return quotas.produced(Client(face.listener).protocol.session, client, 900)

        assert takes("first") == 0
        for number in range(10_500):
            quotas.limits(ANONYMOUS, f"client-{number}")
        staying = quotas.limits(ANONYMOUS, "staying").produce
        quotas.tick()
        assert takes("first") > 0, "a second's bytes are used up, also over another connection"
        assert quotas.limits(ANONYMOUS, "staying").produce is staying, "who is connected shares it with who comes"
        face.clock.now += 2
        quotas.tick()
        assert not quotas._used and takes("first") == 0, "what is full again is not remembered"

    with_face(run)


def test_a_request_percentage_is_time_of_the_brokers_thread() -> None:
    async def run(face: Face) -> None:
        client, clock = Client(face.listener), face.clock
        await make_t(client)
        assert (await alter(client, entity((USER, ANONYMOUS)), (REQUEST, 10.0)))[0] == 0
        plain = clock.monotonic

        def slow() -> float:
            clock.now += 0.03
            return plain()

        clock.monotonic = slow  # type: ignore[method-assign]
        told = [
            (await Client(face.listener).ask("metadata", 4, {"topics": [], "allow_auto_topic_creation": False}))[
                "throttle_time"
            ]
            for _ in range(8)
        ]
        assert told[-1] > 0, "30 ms and more of each request, where a tenth of a second is allowed"
        assert max(told) <= 1000, "nobody waits longer than a second at once, as in Kafka"
        answer = await Client(face.listener).ask("produce", 7, batch_of(1))
        assert answer["responses"][0]["partition_responses"][0]["error_code"] == 0 and answer["throttle_time"] > 0

    with_face(run)


def test_a_request_that_ends_its_connection_has_worked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def run(face: Face) -> None:
        assert (await alter(Client(face.listener), entity((USER, ANONYMOUS)), (REQUEST, 10.0)))[0] == 0
        bucket = face.broker.quotas.limits(ANONYMOUS, "").request
        assert bucket is not None and bucket.wait_s <= 0

        async def works_and_fails(*_: Any) -> None:
            face.clock.now += 0.5
            raise MetadataUnavailable("no answer")

        monkeypatch.setitem(SERVED, "list_groups", SERVED["list_groups"]._replace(handler=works_and_fails))
        client = Client(face.listener)
        client.raw(request("list_groups", 2, {}))
        await settle(20)
        assert client.protocol.closed and not client.answers()
        assert bucket.wait_s > 0, "half a second, where a tenth of one is allowed"

    with_face(run)


def test_waiting_is_no_work() -> None:
    async def run() -> None:
        now = 0.0
        gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        async def request() -> int:
            nonlocal now
            now += 1
            found = await gate
            now += 2
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                now += 4
                return found
            raise AssertionError("not cancelled")

        timed = Worked(request(), lambda: now)

        async def awaited() -> int:
            return await timed

        task = asyncio.create_task(awaited())
        await settle(5)
        now += 100
        gate.set_result(7)
        await settle(5)
        now += 100
        task.cancel()
        assert await task == 7 and timed.seconds == 7

        async def fails() -> None:
            raise ValueError("as it is")

        with pytest.raises(ValueError, match="as it is"):
            await Worked(fails(), lambda: now)

    asyncio.run(run())


def creation(*names: str, partitions: int = 1) -> dict[str, Any]:
    wanted = [
        {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
        for name in names
    ]
    return {"topics": wanted, "timeout": 1000}


def test_a_rate_of_changes_refuses_who_can_be_told_and_slows_who_cannot() -> None:
    async def run(face: Face) -> None:
        assert (await alter(Client(face.listener), entity((USER, None)), (MUTATION, 1.0)))[0] == 0
        first = await Client(face.listener).ask("create_topics", 7, creation("a", partitions=12))
        assert first["topics"][0]["error_code"] == 0 and first["throttle_time"] > 0, "a burst of eleven seconds"
        refused = await Client(face.listener).ask("create_topics", 7, creation("b"))
        assert refused["topics"][0]["error_code"] == Code.THROTTLING_QUOTA_EXCEEDED and refused["throttle_time"] > 0
        more = {"topics": [{"name": "a", "count": 13, "assignments": None}], "timeout": 1000, "validate_only": False}
        grown = await Client(face.listener).ask("create_partitions", 3, more)
        assert grown["results"][0]["error_code"] == Code.THROTTLING_QUOTA_EXCEEDED
        gone = await Client(face.listener).ask("delete_topics", 5, {"topic_names": ["a"], "timeout": 1000})
        assert gone["responses"][0]["error_code"] == Code.THROTTLING_QUOTA_EXCEEDED
        old = Client(face.listener)
        assert (await old.ask("create_topics", 4, creation("b")))["topics"][0]["error_code"] == 0
        assert not old.transport.reading, "it is not read from until the rate has recovered"
        face.clock.now += 60
        assert (await Client(face.listener).ask("create_topics", 7, creation("c")))["topics"][0]["error_code"] == 0

    with_face(run)


def test_connections_from_an_address_beyond_its_rate_are_closed_later() -> None:
    async def run(face: Face) -> None:
        admin = Client(face.listener, "10.0.0.9")
        assert (await alter(admin, entity((IP, "10.0.0.1")), (CONNECTIONS, 2.0)))[0] == 0
        assert (await alter(admin, entity((IP, None)), (CONNECTIONS, 1000.0)))[0] == 0
        ask = request("api_versions", 0, {})

        def answered(address: str) -> tuple[Client, bool]:
            client = Client(face.listener, address)
            client.raw(ask)
            return client, client.transport.reading

        assert [answered(address)[1] for address in ("10.0.0.1", "::ffff:10.0.0.1", "10.0.0.1", "10.0.0.2")] == [
            True,
            True,
            False,
            True,
        ]
        late, reading = answered("10.0.0.1")
        await settle(50)
        assert not reading and not late.answers(), "nothing of it is answered"
        face.clock.now += 1
        assert answered("10.0.0.1")[1], "refused ones count for nothing"
        shown = await described(admin, (IP, 2, None))
        assert sorted(shown, key=str) == sorted(
            [([(IP, "10.0.0.1")], {CONNECTIONS: 2.0}), ([(IP, None)], {CONNECTIONS: 1000.0})], key=str
        )
        assert await described(admin, (USER, 2, None)) == []

    with_face(run)


def test_addresses_have_one_form() -> None:
    assert canonical("::ffff:10.0.0.1") == canonical("10.0.0.1") and canonical("::0001") == "::1" == canonical("::1%lo")
    with pytest.raises(ValueError):
        canonical("localhost")
