"""A watch that the server refuses holds up nothing else, and is asked for again."""

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
