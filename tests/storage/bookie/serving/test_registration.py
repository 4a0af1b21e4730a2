"""Registration: the key is there while the bookie lives, says whether it takes adds, and comes back after a lost
lease.
"""

from __future__ import annotations

import asyncio

import msgpack
import pytest

from geo_tests.sim.simulation import Simulation
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine
from heliograph.model.errors import NotAllowed
from heliograph.model.feature_levels import LEVEL
from local_meta.keys import bookie
from storage.bookie.serving.registration import Registration


def test_the_life_of_a_registration() -> None:
    with Simulation(9) as sim:

        async def main() -> None:
            store = EmbeddedStore(KvMachine())
            writable, free = [True], [1000]
            one = Registration(
                store,
                bookie_id="b0",
                host="127.0.0.1",
                port=3181,
                http_port=0,
                writable=lambda: writable[0],
                clock=sim.clock(),
                rng=sim.rng("registration"),
                rack="x",
                free_bytes=lambda: free[0],
            )

            async def said() -> object:
                found = await store.get(bookie("b0"))
                return None if found is None else msgpack.unpackb(found[0])

            await one.start()
            expected = {
                "host": "127.0.0.1",
                "port": 3181,
                "http_port": 0,
                "writable": True,
                "rack": "x",
                "free_bytes": 1000,
                "level": LEVEL,
            }
            expected |= {"dropped_dirs": [], "lost_dirs": [1, []]}
            assert await said() == expected
            await asyncio.sleep(20)
            assert await said() == expected, "the lease is renewed"
            free[0] = 950
            await asyncio.sleep(5)
            assert await said() == expected, "too little to speak of"
            free[0] = expected["free_bytes"] = 800
            await asyncio.sleep(5)
            assert await said() == expected
            writable[0] = False
            one.changed()
            await asyncio.sleep(0.1)
            assert await said() == {**expected, "writable": False}
            for lease in range(1, 5):
                store.expire(lease)
            assert await said() is None
            await asyncio.sleep(3)
            assert await said() == {**expected, "writable": False}, "put again under another lease"
            await one.stop()
            assert await said() is None

        sim.run(main())


class Refusing(EmbeddedStore):
    """`refused`: names of calls that are not for a bookie."""

    refused: tuple[str, ...] = ()

    async def renew(self, lease: int) -> None:
        self._may("renew")
        await super().renew(lease)

    async def revoke(self, lease: int) -> None:
        self._may("revoke")
        await super().revoke(lease)

    async def put(self, key: str, value: bytes, *, expected: int | None = None, lease: int = 0) -> int:
        self._may("put")
        return await super().put(key, value, expected=expected, lease=lease)

    def _may(self, call: str) -> None:
        if call in self.refused:
            raise NotAllowed(f"a bookie may not {call} that")


@pytest.mark.parametrize("refused", [("put",), ("renew",), ("put", "renew", "revoke")])
def test_one_that_was_refused_comes_back_by_itself(refused: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    with Simulation(9) as sim:

        async def main() -> None:
            store = Refusing(KvMachine())
            one = Registration(
                store,
                bookie_id="b0",
                host="127.0.0.1",
                port=3181,
                http_port=0,
                writable=lambda: True,
                clock=sim.clock(),
                rng=sim.rng("registration"),
            )
            store.refused = refused
            await one.start()
            await asyncio.sleep(5)
            said = [record for record in caplog.records if record.getMessage() == "bookie.registration_refused"]
            assert len(said) == 1
            store.refused = ()
            await asyncio.sleep(3)
            assert await store.get(bookie("b0")) is not None
            await asyncio.sleep(60)
            assert await store.get(bookie("b0")) is not None, "under a lease that is renewed"
            store.refused = ("revoke",)
            await one.stop()

        sim.run(main())
