"""A watch that the server refuses holds up nothing else, and is asked for again; one of a group that was put back to an
older copy is told what is there now.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from geo_tests.sim.simulation import Simulation
from geo_tests.sim.transport import SimTransport
from heliograph.kv.server.metadata_server import ServerSettings
from heliograph.model.errors import NotAllowed
from heliograph.model.roles.call_roles import BOOKIE
from heliograph.model.roles.key_roles import KeyRoles, KeyRow
from tests.heliograph.kv.group import Group, Mirror, simulate

SHOWN = {
    "ssl_object": True,
    "peercert": {"subject": ((("organizationalUnitName", BOOKIE),), (("commonName", f"{BOOKIE}.us"),))},
}


def test_a_refused_watch_is_said_and_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    rows = [KeyRow("/seen/", watch=(BOOKIE,))]

    def shown(self: SimTransport, name: str, default: Any = None) -> Any:
        return SHOWN.get(name) or self._extra_info.get(name, default)

    monkeypatch.setattr(SimTransport, "get_extra_info", shown)

    class Rows(KeyRoles):
        """Those of now."""

        def of(self, role: str) -> Any:
            return KeyRoles(rows).of(role)

    async def main(sim: Simulation, group: Group) -> None:
        client = group.client()
        seen, unknown = Mirror(client, "/seen/"), Mirror(client, "/new/")
        await client.synced("/seen/")
        with pytest.raises(NotAllowed, match="may not watch /new/"):
            await client.synced("/new/")
        await asyncio.sleep(5)
        assert client.stale_s() == 0, "the other one has caught up"
        sim.network.reset("c", "m0")
        await asyncio.sleep(2)
        with pytest.raises(NotAllowed):
            await client.synced("/new/")
        assert [record.getMessage() for record in caplog.records].count("metadata.watch_refused") == 1
        rows.append(KeyRow("/new/", watch=(BOOKIE,)))
        sim.network.reset("c", "m0")
        await asyncio.sleep(2)
        await client.synced("/new/")
        unknown.stop()
        seen.stop()
        assert client.stale_s() == 0

    caplog.set_level(logging.WARNING)
    simulate(main, server=ServerSettings(keys=Rows(())))


def test_watches_are_told_what_a_group_that_was_put_back_has() -> None:
    """Also what has the same version as something else that it had before."""

    async def main(sim: Simulation, group: Group) -> None:
        client, other, told = group.client("c"), group.client("d"), list[tuple[str, bytes | None]]()
        for key in ("/keep", "/change"):
            await other.put(key, b"1")
        kept = group.replica().machine.index
        client.watch("/", lambda key, value, _: told.append((key, value)))
        await client.synced("/")
        version = await other.put("/change", b"lost")
        for _ in range(20):
            await other.put("/lost", b"")
        await asyncio.sleep(1)
        told.clear()
        sim.machine("m0").kill()
        del group.log.entries[kept:]
        group.start("m0")
        await asyncio.sleep(0.1)
        assert await other.put("/change", b"2") == version
        await asyncio.sleep(10)
        assert sorted(told) == [("/change", b"2"), ("/keep", b"1"), ("/lost", None)] and client.stale_s() == 0
        await other.put("/after", b"3")
        await asyncio.sleep(1)
        assert told[3:] == [("/after", b"3")]

    simulate(main)


def test_a_node_that_is_behind_its_group_tells_nothing_older() -> None:
    async def main(sim: Simulation, group: Group) -> None:
        group.pass_on("m1")
        client, behind = group.client("c"), group.replica("m1")
        await client.put("/a", b"1")
        await asyncio.sleep(1)
        behind.lag = True
        mirror = Mirror(client, "/")
        await client.put("/a", b"2")
        sim.network.cut("c", "m0")
        before = len(group.log.entries)
        await asyncio.sleep(15)
        assert mirror.told == [("/a", b"1"), ("/a", b"2")] and client.stale_s() > 0
        assert group.servers["m1"]._early and len(group.log.entries) > before, "it asks the leader"
        behind.lag = False
        sim.machine("m1").run(behind.catch_up)
        await asyncio.sleep(1)
        assert mirror.told == [("/a", b"1"), ("/a", b"2")] and client.stale_s() == 0

    simulate(main, ("m0", "m1"))
