"""Client and server over the simulator's network: repeated writes, bounded time, watches that resume, leases over a
change of leader.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.metadata_client import LARGE_AT_ONCE
from heliograph.kv.metadata_store import Check, Delete, Put, prefix_end
from heliograph.kv.server.metadata_server import ServerSettings
from heliograph.kv.state_machine import MachineSettings
from heliograph.model.errors import LeaseLost, MetadataUnavailable, NotAllowed, OutcomeUnknown, VersionConflict
from heliograph.wire.metadata_frames import Frame, body, frame
from tests.heliograph.kv.group import HELLO, PORT, Group, Mirror, Raw, simulate, watches_while_all_breaks


def test_every_call() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        assert await client.get("/a") is None
        version = await client.put("/a", b"1", expected=-1)
        assert await client.get("/a") == (b"1", version)
        with pytest.raises(VersionConflict) as conflict:
            await client.put("/a", b"2", expected=-1)
        assert conflict.value.actual == version
        later = await client.txn([Check("/a", version), Put("/b", b"2"), Put("/c", b"3")])
        assert await client.range("/", "0") == [("/a", b"1", version), ("/b", b"2", later), ("/c", b"3", later)]
        assert [key for key, _, _ in await client.range("/", "0", limit=2)] == ["/a", "/b"]
        assert await client.delete("/c") is True
        assert await client.delete("/c") is False
        assert await client.next_ids("n", 5, at_least=10) == 10
        assert await client.next_ids("n") == 15
        lease = await client.grant(3000)
        await client.put("/l", b"", lease=lease)
        await client.renew(lease)
        await client.revoke(lease)
        assert await client.get("/l") is None
        with pytest.raises(LeaseLost):
            await client.renew(lease)
        with pytest.raises(NotAllowed):
            await client.put("/a", bytes(2 << 20))
        assert await client.status() == {
            "leader": "m0",
            "leads": True,
            "term": 1,
            "index": group.replica().machine.index,
            "stale_s": 0.0,
        }
        client.close()
        with pytest.raises(MetadataUnavailable):
            await client.get("/a")

    simulate(main)


def test_a_large_range_comes_in_pages() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        for number in range(12):
            await client.put(f"/{number:02}", bytes([number]) * 900_000)
        rows = await client.range("/", prefix_end("/"), limit=100)
        assert [(key, value[0]) for key, value, _ in rows] == [(f"/{number:02}", number) for number in range(12)]
        assert len(await client.range("/", prefix_end("/"), limit=7)) == 7

    simulate(main)


@pytest.mark.parametrize("seed", range(20))
def test_a_repeated_compare_and_set_returns_its_first_answer(seed: int) -> None:
    """Connections die at any moment: each increment happens exactly once, and says so."""

    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        rng = sim.rng("faults")
        group.replica().lose_answers = 0

        async def break_connections() -> None:
            while True:
                await asyncio.sleep(rng.uniform(0.001, 0.05))
                if rng.random() < 0.3:
                    group.replica().lose_answers = 1
                else:
                    sim.network.reset("c", "m0")

        breaking = asyncio.create_task(break_connections())
        version = -1
        for number in range(30):
            version = await client.put("/n", str(number).encode(), expected=version)
            await client.next_ids("ids")
        breaking.cancel()
        assert await client.get("/n") == (b"29", version)
        assert await client.next_ids("ids") == 30

    simulate(main, seed=seed)


def test_many_writes_at_once_are_each_made_once() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        ids = await asyncio.gather(*(client.next_ids("n") for _ in range(300)))
        assert sorted(ids) == list(range(300))
        assert len(client._unanswered) == 0 and len(client._pending) == 0

    simulate(main)


def test_time_is_bounded_and_the_answer_says_what_is_known() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client(timeout_s=4.0)
        await client.put("/a", b"1")
        sim.network.cut("c", "m0")
        before = sim.now()
        with pytest.raises(OutcomeUnknown):
            await client.put("/a", b"2")
        with pytest.raises(MetadataUnavailable):
            await client.get("/a")
        with pytest.raises(MetadataUnavailable, match=r"m0:7001 within 4 s"):
            await client.put("/a", b"3")  # nothing was sent: there is no connection
        assert 11 < sim.now() - before < 13
        assert client.stale_s() > 6
        sim.network.heal("c", "m0")
        await client.put("/a", b"4")
        assert await client.get("/a") == (b"4", group.replica().machine.index)
        assert client.stale_s() == 0

    simulate(main)


def test_no_leader_is_unavailable_not_unknown() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client(timeout_s=3.0)
        group.log.elect(None)
        with pytest.raises(MetadataUnavailable):
            await client.put("/a", b"1")

    simulate(main)


def test_a_forgotten_session_is_opened_again_or_unknown() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        one, two = group.client("c1"), group.client("c2")
        for number in range(5):
            await one.put("/a", str(number).encode())
            await two.put("/b", str(number).encode())
        group.replica().lose_answers = 1
        slow = asyncio.create_task(one.put("/a", b"last", expected=(await one.get("/a") or (b"", 0))[1]))
        await asyncio.sleep(0.02)
        await two.put("/b", b"last")  # takes the only session before the write of `one` is repeated
        with pytest.raises(OutcomeUnknown):
            await slow

    simulate(main, machine=MachineSettings(sessions_max=1))


def test_two_clients_under_one_session_get_no_answers_of_each_other() -> None:
    """As where a group was put back to an older copy, and gives the number of a session out again."""

    async def main(sim: Simulation, group: Group) -> None:
        client = group.client("c")
        await client.put("/c", b"")
        await asyncio.sleep(1)
        other = group.client("d")
        await other.put("/d", b"")
        other._session = client._session
        for number in range(3):
            for writer, key in ((other, f"/d/{number}"), (client, f"/c/{number}")):
                await writer.put(key, b"", expected=-1)
        assert len(await client.range("/d/", "/d0")) == len(await client.range("/c/", "/c0")) == 3

    simulate(main)


def test_the_client_follows_the_leader() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        await client.put("/a", b"1")
        for leader in ("m2", "m1", "m0"):
            group.elect(leader)
            before = sim.now()
            version = await client.put("/a", leader.encode())
            assert await client.get("/a") == (leader.encode(), version)
            assert sim.now() - before < 1

    simulate(main, ("m0", "m1", "m2"))


# -- watches ----------------------------------------------------------------------------------------------------------


def test_a_watch_tells_what_is_there_and_then_each_change() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        await client.put("/a/2", b"2")
        await client.put("/a/1", b"1")
        await client.put("/b", b"not under the prefix")
        mirror = Mirror(client, "/a/")
        assert mirror.told == []
        await client.synced("/a/")
        assert mirror.told == [("/a/1", b"1"), ("/a/2", b"2")]
        await client.txn([Put("/a/3", b"3"), Delete("/a/1"), Put("/b", b"")])
        await client.put("/a/3", b"4")
        assert mirror.told[2:] == [("/a/3", b"3"), ("/a/1", None), ("/a/3", b"4")]
        mirror.stop()
        await client.put("/a/5", b"")
        assert len(mirror.told) == 5 and "/a/" not in group.servers["m0"]._watches

    simulate(main)


def test_after_a_reconnect_a_watch_tells_only_what_changed_deletions_included() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client, other = group.client("c"), group.client("d")
        for key in ("/keep", "/delete", "/change", "/again"):
            await other.put(key, b"1")
        mirror = Mirror(client, "/")
        await client.synced("/")
        mirror.told.clear()
        sim.network.cut("c", "m0")
        await asyncio.sleep(10)
        await other.put("/new", b"2")
        await other.delete("/delete")
        await other.put("/change", b"2")
        await other.delete("/again")
        await other.put("/again", b"2")
        await other.put("/short", b"")
        await other.delete("/short")
        assert mirror.told == []
        sim.network.heal("c", "m0")
        await asyncio.sleep(5)
        assert mirror.told == [("/delete", None), ("/new", b"2"), ("/change", b"2"), ("/again", b"2")]
        await other.put("/after", b"3")
        await asyncio.sleep(1)
        assert mirror.told[4:] == [("/after", b"3")]

    simulate(main)


@pytest.mark.parametrize("seed", range(25))
def test_watches_end_with_the_table_whatever_breaks(seed: int) -> None:
    """Writers go on while connections break and the watch moves between nodes that lag."""
    watches_while_all_breaks(seed)


def test_a_watch_never_goes_back_in_time() -> None:
    """A node that is behind what the client has seen waits with its listing."""

    async def main(sim: Simulation, group: Group) -> None:
        client = group.client("c")
        await client.put("/a", b"1")
        mirror = Mirror(client, "/")
        await client.synced("/")
        behind = group.replica("m1")
        behind.lag = True
        await client.put("/a", b"2")
        sim.machine("m0").kill()
        await asyncio.sleep(3)
        assert mirror.told == [("/a", b"1"), ("/a", b"2")]
        behind.lag = False
        sim.machine("m1").run(behind.catch_up)
        await asyncio.sleep(3)
        assert mirror.told == [("/a", b"1"), ("/a", b"2")] and mirror.table["/a"][0] == b"2"

    simulate(main, ("m0", "m1"))


def test_an_event_that_was_cut_in_two_is_made_whole() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client("c")
        mirror = Mirror(client, "/")
        await client.synced("/")
        watch = client._watches()[0]
        await group.client("d").txn([Put("/a", b"1"), Put("/b", b"1")])
        await asyncio.sleep(0.5)
        del watch._known["/b"], mirror.table["/b"]  # as if only half of the event had come
        sim.network.reset("c", "m0")
        await asyncio.sleep(3)
        assert {key: value for key, (value, _) in mirror.table.items()} == {"/a": b"1", "/b": b"1"}

    simulate(main)


def test_a_copy_is_stale_until_its_node_has_caught_up() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client("c")
        mirror = Mirror(client, "/")
        await client.put("/a", b"1")
        await asyncio.sleep(1)
        assert client.stale_s() == 0
        behind = group.replica("m1")
        behind.lag = True
        await client.put("/a", b"2")
        sim.machine("m0").kill()
        await asyncio.sleep(6)
        assert (await client.status())["index"] < behind.log.replicas["m0"].machine.index
        assert 5 < client.stale_s() < 7  # connected, and the node hears a leader, but its listing has not come
        behind.lag = False
        sim.machine("m1").run(behind.catch_up)
        await group.client("d").status()
        assert client.stale_s() == 0 and mirror.table["/a"][0] == b"2"

    simulate(main, ("m0", "m1"))


def test_stale_seconds_grow_while_the_node_hears_no_leader() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        await client.get("/a")
        await asyncio.sleep(2)
        assert client.stale_s() == 0
        group.replica().deaf = True
        await asyncio.sleep(11.5)
        assert 9 < client.stale_s() < 13
        group.replica().deaf = False
        await asyncio.sleep(1.5)
        assert client.stale_s() == 0

    simulate(main)


# -- leases -----------------------------------------------------------------------------------------------------------


def test_a_lease_ends_when_it_is_not_renewed_and_not_before() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        lease = await client.grant(3000)
        await client.put("/mine", b"", lease=lease)
        for _ in range(8):
            await asyncio.sleep(1)
            await client.renew(lease)
        await asyncio.sleep(2.9)
        assert await client.get("/mine") is not None
        await asyncio.sleep(0.5)
        assert await client.get("/mine") is None
        with pytest.raises(LeaseLost):
            await client.renew(lease)
        with pytest.raises(LeaseLost):
            await client.put("/mine", b"", lease=lease)

    simulate(main)


def test_a_new_leader_waits_one_full_ttl() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        lease = await client.grant(3000)
        await client.put("/mine", b"", lease=lease)
        await asyncio.sleep(2.5)
        group.elect("m1")
        await asyncio.sleep(2.5)  # 5 s without a renewal, but this leader has waited 2.5 s only
        await client.renew(lease)
        await asyncio.sleep(2.8)
        assert await client.get("/mine") is not None
        group.elect("m0")  # led before: what it remembers of that time is void
        await asyncio.sleep(2.8)
        assert await client.get("/mine") is not None
        await asyncio.sleep(0.6)
        assert await client.get("/mine") is None

    simulate(main, ("m0", "m1"))


def test_the_end_of_a_lease_is_repeated_until_the_log_has_it() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        lease = await client.grant(1000)
        await client.put("/mine", b"", lease=lease)

        async def refuse(command: bytes, *, timeout_s: float) -> bytes:
            await asyncio.sleep(0.1)
            raise OutcomeUnknown("nobody answered")

        replica, propose = group.replica(), group.replica().propose
        replica.propose = refuse  # type: ignore[method-assign]
        await asyncio.sleep(2)
        with pytest.raises(LeaseLost):  # its end is on the way: no renewal may succeed any more
            await client.renew(lease)
        assert await client.get("/mine") is not None
        replica.propose = propose  # type: ignore[method-assign]
        await asyncio.sleep(1)
        assert await client.get("/mine") is None

    simulate(main)


def test_a_leader_without_a_majority_confirms_no_renewal_and_no_read() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        lease = await client.grant(3000)
        group.replica().deposed = True
        with pytest.raises(MetadataUnavailable):
            await client.renew(lease)
        with pytest.raises(MetadataUnavailable):
            await client.get("/a")
        with pytest.raises(MetadataUnavailable):
            await client.range("/", "0")

    simulate(main)


# -- connections that do wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        frame(Frame.GET, 1, body("/a")),
        frame(Frame.HELLO, 0, body("other", 1, "x")),
        frame(Frame.HELLO, 0, bytes(5000)),
        HELLO + frame(99, 1, b""),
        HELLO + frame(Frame.RAFT, 1, body("m9", b"")),
        HELLO + frame(Frame.GET, 1, body(5)),
        HELLO + frame(Frame.GET, 1, b"\xc1"),
        HELLO + frame(Frame.WATCH, 1, body("/", -1)) * 2,
        HELLO + b"\x00\x00\x00\x0a\x02" + bytes(9),
        HELLO + b"\x7f\xff\xff\xff\x01",
        HELLO + b"\x00\x00\x00\x01\x01",
        b"",
    ],
)
def test_a_connection_that_says_something_wrong_is_closed_and_nothing_else(wrong: bytes) -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        await client.put("/a", b"1")
        raw: Raw
        _, raw = await asyncio.get_running_loop().create_connection(Raw, "m0", PORT)
        if wrong:
            raw.transport.write(wrong)
        async with asyncio.timeout(ServerSettings().handshake_timeout_s + 1):
            await raw.lost.wait()
        assert await client.get("/a") is not None

    simulate(main)


def test_a_malformed_command_is_refused_in_its_answer() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        raw: Raw
        _, raw = await asyncio.get_running_loop().create_connection(Raw, "m0", PORT)
        raw.transport.write(HELLO + frame(Frame.COMMAND, 7, b"\x09nonsense"))
        await asyncio.sleep(0.5)
        assert b"version 9 is not known here" in raw.data
        assert group.log.entries == []

    simulate(main)


@pytest.mark.slow
def test_a_watcher_that_does_not_read_is_closed() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        raw: Raw
        _, raw = await asyncio.get_running_loop().create_connection(Raw, "m0", PORT)
        raw.transport.write(HELLO + frame(Frame.WATCH, 1, body("/", -1)))
        await asyncio.sleep(0.1)
        raw.transport.pause_reading()
        client = group.client()
        for _ in range(70):
            await client.put("/a", bytes(1 << 20))
        assert len(group.servers["m0"].connections) == 1

    simulate(main)


@pytest.mark.slow
def test_too_many_requests_stop_the_reading_not_the_answers() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        raw: Raw
        _, raw = await asyncio.get_running_loop().create_connection(Raw, "m0", PORT)
        raw.transport.write(HELLO + b"".join(frame(Frame.GET, number, body("/a")) for number in range(5000)))
        await asyncio.sleep(2)
        answer = len(frame(Frame.ANSWER, 0, b"\x01\x91\x00"))
        assert len(raw.data) >= 5000 * answer

    simulate(main)


def test_pending_requests_are_bounded() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client(
            timeout_s=2.0, reads_at_once=3, reads_waiting_max=2, writes_at_once=3, writes_waiting_max=2
        )
        await client.put("/a", b"")
        sim.network.cut("c", "m0")
        answers = await asyncio.gather(
            *(client.put("/a", b"") for _ in range(8)), *(client.get("/a") for _ in range(8)), return_exceptions=True
        )
        assert all(isinstance(a, MetadataUnavailable | OutcomeUnknown) for a in answers)
        assert sum("wait" in str(a) for a in answers) >= 6
        assert not client._pending

    simulate(main)


@pytest.mark.parametrize(
    ("flood", "other"),
    [
        ("/kafka/offsets/a/t/00000", "/kafka/offsets/b/t/00000"),
        ("/kafka/offsets/a/t/00000", "/ml/a/n/t"),
        ("/ledgers/{}", "/ml/a/n/t"),
        ("/ledgers/1", "/ledgers/2"),
        ("/located/{}", "/ledgers/2"),
        ("/kafka/groups/{}", "/kafka/offsets/g/t/00000"),
    ],
)
def test_keys_that_name_no_tenant_leave_places_to_others(flood: str, other: str) -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client(reads_at_once=1, reads_waiting_max=4)
        asked = [asyncio.ensure_future(client.get(flood.format(number))) for number in range(5)]
        await asyncio.sleep(0)
        assert await client.get(other) is None
        refused = [answer for answer in await asyncio.gather(*asked, return_exceptions=True) if answer is not None]
        assert [type(each) for each in refused] == [MetadataUnavailable]

    simulate(main)


def test_one_tenants_requests_keep_neither_renewals_nor_another_tenants_waiting() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        client = group.client(reads_at_once=2, reads_waiting_max=20, writes_at_once=2, writes_waiting_max=20)
        lease, machine = await client.grant(3000), group.replica().machine
        await client.put("/schemas/a/n/t", b"")
        done: list[str] = []

        async def ask(what: str, call: Awaitable[object]) -> None:
            try:
                await call
                done.append(what)
            except MetadataUnavailable as error:
                assert "try again" in str(error)
                done.append("refused")

        flood = [ask("a", client.get(f"/schemas/a/n/{each}")) for each in range(60)]
        flood += [ask("w", client.put(f"/schemas/a/n/{each}", b"")) for each in range(60)]
        tasks = [asyncio.ensure_future(each) for each in flood]
        await asyncio.sleep(0)
        assert len(client._pending) == 4
        others = [ask("b", client.get("/schemas/b/n/t")), ask("b", client.put("/ml/b/n/t", b""))]
        tasks += [asyncio.ensure_future(each) for each in [*others, ask("renewed", client.renew(lease))]]
        await asyncio.gather(*tasks)
        assert lease in machine.held and done.count("renewed") == 1 and done.count("b") == 2
        assert done.count("refused") == 2 * (60 - 22) + 2  # two gave their places to the other tenant
        ends = [what for what in done if what != "refused"]
        tasks = [asyncio.ensure_future(client.put(f"/schemas/a/n/{each}", bytes(500_000))) for each in range(28)]
        await asyncio.sleep(0)
        assert len(client._pending) == LARGE_AT_ONCE
        await client.put("/cursors/a/n/t", b"")
        assert not tasks[-1].done()
        await asyncio.gather(*tasks)
        assert ends.index("renewed") <= 4 and [at for at, what in enumerate(ends) if what == "b"][-1] <= 10

    simulate(main)
