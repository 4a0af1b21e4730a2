"""The calls of reseal jobs: what is begun, refused, shown, and cancelled."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import AlreadyExists, KeyMissing, MalformedRequest, NotFound
from heliograph.model.feature_levels import RESEALED_LEDGERS
from region_node.commands.key_commands import reseal_text
from region_node.faces.admin.tenancy.reseals import ResealWanted, end, start, status
from storage.sealing.keyring import SETTLED_MS, DataKey


class Calls(dict[str, Any]):
    """An admin with tenant t and its data keys, and a request about it."""

    def __init__(self, *keys: DataKey) -> None:
        super().__init__()
        self.match_info, self.levels = {"tenant": "t"}, list[int]()
        sealing = SimpleNamespace(look=self._nothing, listing=lambda: {"t": keys} if keys else {})
        self.admin: Any = SimpleNamespace(
            sealing=sealing,
            usage_store=EmbeddedStore(),
            reach_level=self._reach,
            clock=SimpleNamespace(wall_ms=lambda: 5_000),
            view=SimpleNamespace(tenant=lambda name: object() if name == "t" else None),
            tenant=lambda request: "t",
            changed=lambda *_: None,
        )

    async def _nothing(self) -> None: ...

    async def _reach(self, level: int, why: str) -> None:
        self.levels.append(level)

    async def start(self, **given: int) -> dict[str, Any]:
        return await start(self.admin, self, ResealWanted(**given))  # type: ignore[arg-type]

    async def status(self) -> dict[str, Any]:
        return await status(self.admin, self)  # type: ignore[arg-type]

    async def end(self) -> dict[str, Any]:
        return await end(self.admin, self)  # type: ignore[arg-type]


def test_a_job_is_of_the_newest_key_and_one_at_a_time() -> None:
    async def main() -> None:
        calls = Calls(DataKey(1, "one", b"", 1_000), DataKey(2, "one", b"", 4_000))
        with pytest.raises(NotFound, match="were ever sealed anew"):
            await calls.status()
        job = await calls.start(keep_s=60, bytes_per_s=1 << 20)
        assert (job["key_ms"], job["settled_ms"], job["begun_ms"]) == (4_000, 4_000 + SETTLED_MS, 5_000)
        assert (job["bytes_per_s"], job["keep_ms"], job["state"]) == (1 << 20, 60_000, "running")
        assert calls.levels == [RESEALED_LEDGERS] and await calls.status() == job
        with pytest.raises(AlreadyExists, match="cancel it first"):
            await calls.start()
        assert (await calls.end())["state"] == "cancelling"

    asyncio.run(main())


def test_what_makes_no_sense_is_refused_and_begins_nothing() -> None:
    async def main() -> None:
        with pytest.raises(NotFound, match="has no data key in this region"):
            await Calls().start()
        calls = Calls(DataKey(1, "one", b"", 1_000))
        for given in ({"bytes_per_s": 100}, {"keep_s": -1}, {"keep_s": 1 << 40}):
            with pytest.raises(MalformedRequest):
                await calls.start(**given)
        calls.admin.sealing = None
        with pytest.raises(KeyMissing):
            await calls.start()
        with pytest.raises(NotFound):
            await calls.end()

    asyncio.run(main())


def test_what_a_person_reads_says_what_is_left_and_why() -> None:
    async def main() -> None:
        job = await Calls(DataKey(1, "one", b"", 1_000)).start()
        assert reseal_text(job) == "t: running; its ledgers are not counted yet"
        job |= {"counted": True, "ledgers_done": 3, "bytes_done": 2_500_000}
        assert reseal_text(job).splitlines() == [
            "t: running; 3 ledgers are done, 2.5 MB; 0 are left, 0.0 MB",
            "it looks for more until 1970-01-02T00:00:01+00:00, when every broker has heard of the newest key",
        ]
        job |= {
            "ledgers_left": 1,
            "ledgers_kept": 2,
            "ledgers_open": 4,
            "ledgers_offloaded": 5,
            "compacted_left": 6,
            "objects_left": 7,
        }
        job |= {"waits_for": ["a", "b"], "trouble": "ledger 7 of a: it is damaged"}
        assert reseal_text(job).splitlines()[1:] == [
            "2 of those that are done still have their older copy",
            "4 are open; they are written anew once they are closed",
            "5 lie in an object store, and are left as they are",
            "7 have objects in a store that are to be uploaded anew by their topics' owners",
            "of 6 topics what they were compacted to is left: their owners compact them",
            "it waits for a, b",
            "ledger 7 of a: it is damaged",
        ]
        assert "7 still have a second object" in reseal_text({**job, "state": "cancelled"})

    asyncio.run(main())
