"""A record that cannot be read, told to whoever watches: nothing behind it is kept back."""

from __future__ import annotations

import asyncio

import pytest

from heliograph.kv.client_watches import Watch
from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.unreadable_records import readable
from heliograph.model.errors import CorruptData

ERRORS = [CorruptData("no record"), ValueError("no number"), TypeError("no map"), KeyError("host")]


class Reader:
    """Reads every value but one."""

    def __init__(self, error: Exception) -> None:
        self.error = error
        self.heard: list[tuple[str, bytes | None]] = []

    def __call__(self, key: str, value: bytes | None, _version: int) -> None:
        if value == b"bad":
            raise self.error
        self.heard.append((key, value))


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.__dict__["key"] for record in caplog.records if record.message == "metadata.unreadable"]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_all_others_of_a_listing_and_of_an_event_are_told(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    reader = Reader(error)
    watch = Watch("/", reader)
    watch.on_listing(5, True, [("/a", 3, b"1"), ("/b", 4, b"bad"), ("/c", 5, b"2")])
    assert reader.heard == [("/a", b"1"), ("/c", b"2")] and watch.caught_up
    asyncio.run(watch.synced())
    watch.on_event(7, [("/d", 6, b"bad"), ("/e", 7, b"3"), ("/b", 7, b"4")])
    assert reader.heard[2:] == [("/e", b"3"), ("/b", b"4")] and told(caplog) == ["/b", "/d"]
    watch.on_disconnected()
    watch.on_listing(8, True, [(f"/{name}", at, None) for name, at in zip("abcde", (3, 7, 5, 6, 7), strict=True)])
    assert len(reader.heard) == 4 and len(told(caplog)) == 2, "what is known is not told again, readable or not"


def test_a_mistake_of_another_kind_is_not_taken_for_a_record() -> None:
    watch = Watch("/", Reader(AssertionError("a rule is broken")))
    with pytest.raises(AssertionError):
        watch.on_event(7, [("/d", 6, b"bad")])


def test_the_store_in_this_process_does_the_same(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        store, reader = EmbeddedStore(), Reader(ERRORS[0])
        await store.put("/a", b"bad")
        await store.put("/b", b"1")
        store.watch("/", reader)
        await store.synced("/")
        await store.put("/c", b"bad")
        await store.put("/d", b"2")
        await asyncio.sleep(0)
        assert reader.heard == [("/b", b"1"), ("/d", b"2")] and told(caplog) == ["/a", "/c"]

    asyncio.run(main())


def test_a_walk_gets_none_and_the_log_gets_the_key(caplog: pytest.LogCaptureFixture) -> None:
    def decode(blob: bytes) -> int:
        if not blob.isdigit():
            raise CorruptData("no number")
        return int(blob)

    assert [readable(decode, key, blob) for key, blob in (("/a", b"1"), ("/b", b"x"), ("/c", b"3"))] == [1, None, 3]
    assert told(caplog) == ["/b"]
