"""Data keys: which ledgers may hold something that an older key sealed, and how many keys a tenant has."""

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
from region_node.compaction.compacted_view import OPEN as IN_THE_CLEAR
from region_node.faces.admin.calls.auth_middleware import PRINCIPAL
from region_node.faces.admin.tenancy.data_keys import (
    KEYS_MAX,
    compacted_holds,
    holds_key,
    may_hold,
    of_tenant,
    remove,
    rotate,
)
from storage.sealing.keyring import SETTLED_MS, DataKey

DAY = SETTLED_MS
MADE, REPLACED = 100 * DAY, 200 * DAY
OPEN = 0


def holds(*closed_ms: int, trimmed_ms: int = 0) -> bool:
    infos = tuple(LedgerInfo(number, 5, 50, closed, 5 * number) for number, closed in enumerate(closed_ms, 1))
    properties = {TRIMMED_MS: str(trimmed_ms)} if trimmed_ms else {}
    return may_hold(ManagedLedgerMetadata(infos, properties=properties).spans(), MADE, REPLACED)


def test_a_ledger_counts_where_the_key_sealed_while_it_was_open() -> None:
    assert holds(150 * DAY, 300 * DAY, OPEN), "closed between"
    assert holds(50 * DAY, 300 * DAY, OPEN), "open all the time"
    assert holds(50 * DAY, OPEN), "and still"
    assert holds(99 * DAY, OPEN), "a broker that heard late of the older key's end"
    assert not holds(50 * DAY, 98 * DAY), "closed before it"
    assert not holds(), "there is none"


def test_a_topic_that_is_written_to_all_the_time_lets_go_of_a_key_once_its_ledgers_were_trimmed() -> None:
    assert holds(300 * DAY, 301 * DAY, OPEN), (
        "nothing was trimmed, or by an earlier version: the first one is of any age"
    )
    assert holds(300 * DAY, OPEN, trimmed_ms=REPLACED + DAY - 1), (
        "begun while a broker may not have heard of the next key"
    )
    assert not holds(300 * DAY, 301 * DAY, OPEN, trimmed_ms=REPLACED + DAY)
    assert not holds(OPEN, trimmed_ms=REPLACED + DAY)


def test_ledgers_in_pages_count_as_the_others() -> None:
    old = tuple(LedgerInfo(number, 5, 50, (148 + number) * DAY, 5 * number) for number in (1, 2))
    infos, pages = (LedgerInfo(3, 5, 50, 300 * DAY, 15), LedgerInfo(4)), (LedgerPage.of(1, 0, old),)
    paged = ManagedLedgerMetadata(infos, properties={TRIMMED_MS: str(140 * DAY)}, pages=pages)
    assert may_hold(paged.spans(), MADE, REPLACED)
    assert may_hold(paged.spans(), 145 * DAY, 146 * DAY), "of a page"
    assert not may_hold(paged.spans(), 10 * DAY, 139 * DAY) and not may_hold(paged.spans(), 1 * DAY, 20 * DAY)


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


def test_a_ledger_that_was_sealed_anew_holds_that_key_and_no_older_one() -> None:
    """Of keys 1 to 4, where 2 sealed while the ledger was written."""
    order = {number: number - 1 for number in (1, 2, 3, 4)}
    times = {1: (0, 100 * DAY), 2: (100 * DAY, 200 * DAY), 3: (200 * DAY, 300 * DAY), 4: (300 * DAY, 400 * DAY)}
    span = 150 * DAY, 160 * DAY
    closed = LedgerInfo(7, 5, 50, span[1])

    def holding(place: LocatedLedger | None, info: LedgerInfo = closed) -> list[int]:
        return [number for number in order if holds_key(info, span, place, number, *times[number], order)]

    anew = LocatedLedger(7, "t", 70, 4)
    assert holding(None) == [2]
    assert holding(LocatedLedger(7, "t", next=70, next_key=4)) == [2, 4], "the copy is there, and so is the other one"
    assert holding(anew) == [4], "though it was closed before that key was made"
    assert holding(LocatedLedger(7, "t", 70, 3, 71, 4)) == [3, 4]
    assert holding(LocatedLedger(7, "t", data_key=2)) == [2] and holding(LocatedLedger(7, "t", data_key=3)) == [3]
    stored = OffloadRecord("a", "h", OffloadState.STORED)
    assert holding(anew, replace(closed, offload=stored)) == [2, 4], "the object is of before"
    stored = replace(stored, data_key=3)
    assert holding(anew, replace(closed, offload=stored)) == [3, 4]
    assert holding(anew, replace(closed, offload=replace(stored, also="b"))) == [1, 2, 3, 4], "two objects are there"
    gone = replace(closed, offload=replace(stored, state=OffloadState.LOCAL_GONE))
    assert holding(None, gone) == [3] == holding(anew, gone)
    looked_at = replace(gone, offload=replace(stored, state=OffloadState.LOCAL_GONE, data_key=1))
    assert holding(None, looked_at) == [1, 2] == holding(anew, looked_at), "the newer keys of its time are in it, too"


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


def test_what_is_compacted_holds_the_key_that_is_written_down_and_any_where_none_is() -> None:
    """Of keys 1 to 3."""
    times = {1: (0, 100 * DAY), 2: (100 * DAY, 200 * DAY), 3: (200 * DAY, 300 * DAY)}

    def holding(data_key: int, ledger: int = 5, now_ms: int = 400 * DAY, **more: Any) -> list[int]:
        one = Compacted(ledger, 3, 30, (1, 2), data_key=data_key, **more)
        return [number for number in times if compacted_holds(one, number, *times[number], now_ms)]

    assert holding(2) == [2] and holding(4) == [] == holding(IN_THE_CLEAR)
    assert holding(UNKNOWN) == [1, 2, 3] == holding(UNKNOWN, -1), "an earlier version wrote it"
    assert holding(4, now_ms=201 * DAY - 1) == [2, 3], "a broker that compacts may not have heard of the third"
    assert holding(IN_THE_CLEAR, -1) == []
    stored = OffloadRecord("ab", "us", OffloadState.STORED)
    assert holding(2, offload=stored) == [2]
    assert holding(IN_THE_CLEAR, offload=stored, made_ms=150 * DAY) == [2], "sealed as it was offloaded"
    assert holding(IN_THE_CLEAR, offload=stored) == [1, 2, 3], "nobody knows when it was made"


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
