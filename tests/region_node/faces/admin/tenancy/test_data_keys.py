"""Data keys: which topics each of them is counted with, and how many keys a tenant has."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.model.errors import NotAllowed
from heliograph.model.ledger_metadata import (
    TRIMMED_MS,
    LedgerInfo,
    LedgerPage,
    ManagedLedgerMetadata,
    OffloadRecord,
    OffloadState,
    encode_page,
    pack,
)
from local_meta import keys
from local_meta.located_ledger import LocatedLedger
from region_node.compaction.compacted_view import CURSOR, UNKNOWN, Compacted, properties_of
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL
from region_node.faces.admin.tenancy.data_keys import (
    KEYS_MAX,
    of_tenant,
    remove,
    rotate,
)
from storage.sealing.keyring import SETTLED_MS, DataKey

DAY = SETTLED_MS
OPEN = 0


class Tenant(dict[str, Any]):
    """A tenant with so many data keys, and a request about them by a super user, or by its admin."""

    def __init__(self, count: int, *, super_user: bool = False) -> None:
        super().__init__({PRINCIPAL: super_user})
        self.keys, self.match_info = [DataKey(number, "one", b"", number) for number in range(count)], {"tenant": "t"}
        self.meta = EmbeddedStore()
        sealing = SimpleNamespace(
            look=self._nothing, listing=lambda: {"t": tuple(self.keys)}, rotate=self._rotate, master="one"
        )
        self.now_ms = 10_000 * DAY
        self.admin: Any = SimpleNamespace(
            region="us",
            links=SimpleNamespace(expiry=SimpleNamespace(wall_ms=lambda: self.now_ms)),
            sealing=sealing,
            usage_store=self.meta,
            view=SimpleNamespace(
                tenant=lambda name: SimpleNamespace(encryption_at_rest=True), namespaces=lambda tenant: ["t/n"]
            ),
            topics=SimpleNamespace(stored=self._stored),
            security=SimpleNamespace(rights=SimpleNamespace(is_super=bool)),
        )

    async def _nothing(self) -> None: ...

    async def _rotate(self, tenant: str) -> DataKey:
        self.keys.append(DataKey(len(self.keys), "one", b"", 0))
        return self.keys[-1]

    async def _stored(self, namespace: str) -> list[str]:
        return [f"persistent://t/n/{number}" for number in range(20)]


def test_a_tenant_rotates_until_it_has_very_many_keys() -> None:
    async def main() -> None:
        tenant = Tenant(KEYS_MAX - 1)
        await rotate(tenant.admin, tenant)  # type: ignore[arg-type]
        with pytest.raises(NotAllowed, match="ask an operator to remove those"):
            await rotate(tenant.admin, tenant)  # type: ignore[arg-type]
        assert len(tenant.keys) == KEYS_MAX
        tenant = Tenant(KEYS_MAX, super_user=True)
        await rotate(tenant.admin, tenant)  # type: ignore[arg-type]
        assert len(tenant.keys) == KEYS_MAX + 1

    asyncio.run(main())


def test_the_topics_of_each_key_are_counted_and_some_are_named() -> None:
    async def main() -> None:
        tenant, turns = Tenant(100), 0
        stored = ManagedLedgerMetadata((LedgerInfo(1, 5, 50, OPEN),)).encode()
        for name in await tenant._stored("t/n"):
            await tenant.meta.put(keys.managed_ledger(name), stored)
        asking = asyncio.ensure_future(of_tenant(tenant.admin, tenant))  # type: ignore[arg-type]
        while not asking.done():
            await asyncio.sleep(0)
            turns += 1
        rows = asking.result()["keys"]
        assert [row["topics"] for row in rows] == [20] * 99 + [0]
        assert {len(row["for_example"]) for row in rows} == {5, 0}
        assert turns > 5, "others go on meanwhile"

    asyncio.run(main())


def test_a_key_is_let_go_once_what_it_sealed_was_sealed_anew_and_the_next_one_is_not() -> None:
    async def main() -> None:
        tenant, topic = Tenant(3), "persistent://t/n/0"
        tenant.keys = [DataKey(number, "one", b"", number * 10 * DAY) for number in (1, 2, 3)]
        infos = tuple(LedgerInfo(number, 5, 50, (10 + number) * DAY, 0) for number in (1, 2))
        await tenant.meta.put(keys.managed_ledger(topic), ManagedLedgerMetadata(infos).encode())

        async def counts() -> list[int]:
            return [row["topics"] for row in (await of_tenant(tenant.admin, tenant))["keys"]]  # type: ignore[arg-type]

        assert await counts() == [1, 0, 0]
        for number in (1, 2):
            await tenant.meta.put(keys.located(number), LocatedLedger(number, topic, 70 + number, 2).encode())
        assert await counts() == [0, 1, 0], "the newer of the two"
        await tenant.meta.put(keys.located(2), LocatedLedger(2, topic).encode())
        assert await counts() == [1, 1, 0]
        for number in (1, 2):
            await tenant.meta.delete(keys.located(number))
        only = OffloadRecord("a", "h", OffloadState.LOCAL_GONE, data_key=2)
        gone = tuple(replace(info, offload=only) for info in infos)
        await tenant.meta.put(keys.managed_ledger(topic), ManagedLedgerMetadata(gone).encode())
        assert await counts() == [0, 1, 0], "no place is kept of what an object store alone has"
        form = ManagedLedgerMetadata(pages=(LedgerPage.of(1, 0, gone),))
        await tenant.meta.put(keys.managed_ledger(topic), form.encode())
        await tenant.meta.put(keys.ledger_page(topic, 1), encode_page(gone))
        assert await counts() == [0, 1, 0], "nor of those in pages"

    asyncio.run(main())


def test_a_key_goes_once_neither_log_nor_what_is_compacted_needs_it() -> None:
    async def main() -> None:
        tenant, topic = Tenant(3), "persistent://t/n/0"
        tenant.keys = [DataKey(number, "one", b"", number * 10 * DAY) for number in (1, 2, 3)]
        gone = list[int]()

        async def removed(_: str, number: int) -> None:
            gone.append(number)

        tenant.admin.sealing.remove = removed
        infos = (LedgerInfo(1, 5, 50, 500 * DAY, 0),)
        form = ManagedLedgerMetadata(infos, properties={TRIMMED_MS: str(400 * DAY)})
        await tenant.meta.put(keys.managed_ledger(topic), form.encode())

        async def compacted_with(data_key: int) -> list[int]:
            one = properties_of(Compacted(5, 3, 30, (1, 2), 1, data_key=data_key), [])
            blob = pack([1, 2, [], one])
            await tenant.meta.put(keys.cursor(topic, CURSOR), blob)
            return [row["topics"] for row in (await of_tenant(tenant.admin, tenant))["keys"]]  # type: ignore[arg-type]

        assert await compacted_with(UNKNOWN) == [1, 1, 0] and await compacted_with(1) == [1, 0, 0]
        tenant.match_info["number"] = f"{1:016x}"
        request: Any = SimpleNamespace(match_info=tenant.match_info, query={})
        with pytest.raises(NotAllowed, match="may hold entries that are sealed with data key"):
            await remove(tenant.admin, request)
        assert await compacted_with(3) == [0, 0, 0]
        await remove(tenant.admin, request)
        assert gone == [1]

    asyncio.run(main())
