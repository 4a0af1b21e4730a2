"""One suite over every store that runs here: the fake of the simulator, obstore's memory, and a local folder."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import obstore.exceptions
import obstore.store
import pytest

from heliograph.model.errors import ConfigError, NoSuchObject, StoreRefused, StoreUnavailable
from heliograph.runtime.system_disk import SystemDisk
from storage.tiered.objects.builtin_stores import ObstoreStore, maker
from storage.tiered.store import ObjectStore, Stores
from tests.storage.tiered.objects.store_cases import (
    MAKE,
    check_names_and_small_objects,
    check_whole_or_not_at_all,
    pieces,
)
from tests.storage.tiered.world import FakeStore


def store_of(kind: str, tmp_path: Path) -> ObjectStore:
    if kind == "fake":
        return FakeStore({})
    if kind == "memory":
        return ObstoreStore("memory:///", obstore.store.MemoryStore(), 5.0)
    return MAKE(f"file://{tmp_path}/objects", {}, 5.0)


@pytest.mark.parametrize("kind", ["fake", "memory", "folder"])
def test_objects_appear_whole_or_not_at_all(kind: str, tmp_path: Path) -> None:
    asyncio.run(check_whole_or_not_at_all(store_of(kind, tmp_path)))


@pytest.mark.parametrize("kind", ["fake", "memory", "folder"])
def test_names_and_small_objects(kind: str, tmp_path: Path) -> None:
    asyncio.run(check_names_and_small_objects(store_of(kind, tmp_path)))


def test_a_folder_syncs_what_it_keeps(tmp_path: Path) -> None:
    synced: list[str] = []

    class Watched(SystemDisk):
        def sync_directory(self) -> None:
            synced.append(str(self.path))
            super().sync_directory()

        def __init__(self, path: Path) -> None:
            self.path = path
            super().__init__(path)

    async def work() -> None:
        store = maker(lambda path: Watched(Path(path)))(f"file://{tmp_path}", {}, 5.0)
        await store.put("a/b/c", pieces(3))
        assert [path.rstrip("/.") for path in synced] == [f"{tmp_path}/a/b", f"{tmp_path}/a", str(tmp_path)]

    asyncio.run(work())


@pytest.mark.parametrize(
    ("url", "options", "said"),
    [
        ("ftp://x/y", {}, "there is no store ftp://"),
        ("s3:///", {}, "bucket is missing"),
        ("s3://key:secret@bucket", {}, r"belong to tiered\.options"),
        ("cos://bucket", {}, "option region"),
        ("oss://bucket", {}, "option region"),
        ("file://host/x", {}, "file:///its/whole/path"),
        ("s3://bucket", {"colour": "red"}, "colour"),
    ],
)
def test_a_wrong_address_says_what_is_wrong(url: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        MAKE(url, options, 5.0)


AZURE = {"account_name": "a", "account_key": "c2VjcmV0"}


@pytest.mark.parametrize(
    ("url", "options", "client", "prefix", "wanted"),
    [
        ("s3://b/p", {"region": "us-east-1"}, "S3Store", "p", {"bucket": "b", "region": "us-east-1"}),
        (
            "cos://b/p/q",
            {"region": "ap-guangzhou"},
            "S3Store",
            "p/q",
            {"bucket": "b", "endpoint": "https://b.cos.ap-guangzhou.myqcloud.com"},
        ),
        (
            "oss://b",
            {"region": "cn-hangzhou"},
            "S3Store",
            "",
            {"bucket": "b", "endpoint": "https://b.oss-cn-hangzhou.aliyuncs.com"},
        ),
        (
            "cos://b",
            {"endpoint": "https://inside:1"},
            "S3Store",
            "",
            {"endpoint": "https://inside:1", "virtual_hosted_style_request": "true"},
        ),
        ("gs://b/x", {"skip_signature": "true"}, "GCSStore", "x", {"bucket": "b"}),
        (
            "gs://b/x",
            {"endpoint": "http://127.0.0.1:1", "bearer_token": "t"},
            "GCSStore",
            "x",
            {"bucket": "b", "base_url": "http://127.0.0.1:1"},
        ),
        ("az://c/x", AZURE, "AzureStore", "x", {"container_name": "c", "account_name": "a"}),
    ],
)
def test_every_kind_of_store_is_made_of_its_address(
    url: str, options: dict[str, str], client: str, prefix: str, wanted: dict[str, str]
) -> None:
    store = MAKE(url, options, 5.0)
    assert isinstance(store, ObstoreStore) and store.url == url
    made: Any = store._client
    assert type(made).__name__ == client and str(made.prefix or "") == prefix
    assert {name: made.config[name] for name in wanted} == wanted


@pytest.mark.parametrize(
    ("url", "options", "path"),
    [
        ("s3://b/p", {"region": "r"}, "/b/p/us-1/no"),
        ("cos://b/p", {"region": "r"}, "/p/us-1/no"),
        ("oss://b/p", {"region": "r"}, "/p/us-1/no"),
        ("az://c/p", AZURE, "/c/p/us-1/no"),
    ],
)
def test_requests_go_to_the_place_that_the_address_names(url: str, options: dict[str, str], path: str) -> None:
    """Against a server on loopback that has nothing. COS and OSS name the bucket in the host, and here the host is
    given.
    """
    asked: list[str] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        asked.append(head)
        writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async def work() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        given = {**options, "endpoint": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"}
        if "region" in given:
            given |= {"access_key_id": "someone", "secret_access_key": "secret"}
        with pytest.raises(NoSuchObject):
            await MAKE(url, given, 5.0).read("us-1/no", 0, 10)
        server.close()

    asyncio.run(work())
    method, target, _ = asked[0].split(" ", 2)
    assert (method, target.partition("?")[0]) == ("GET", path), asked
    assert "range: bytes=0-9" in asked[0].lower() and "\r\nauthorization: " in asked[0].lower()


def test_a_store_of_another_kind_is_plugged_in_by_an_entry_point(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder = tmp_path / "mine-1.0.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: mine\nVersion: 1.0\n")
    (folder / "entry_points.txt").write_text("[heliograph.object_stores]\nmine = mine_store:make\n")
    (tmp_path / "mine_store.py").write_text(
        "from tests.storage.tiered.world import FakeStore\ndef make(url, options, timeout_s):\n    return "
        "FakeStore({}, url=url + options['x'])\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    stores = Stores("mine://somewhere/", {"x": "y"}, 1.0, MAKE)
    assert stores.get().url == "mine://somewhere/y" and stores.get() is stores.get("mine://somewhere/")


_GET = "Generic S3 error: Error performing GET http://h/b/k in 1.7ms - Server returned non-2xx status code: "
_WRONG = "403 Forbidden: <?xml ?>\n<Error><Code>SignatureDoesNotMatch</Code><Message>No.</Message></Error>"


@pytest.mark.parametrize(
    ("error", "wanted", "said"),
    [
        (obstore.exceptions.PermissionDeniedError("403"), StoreRefused, "refuses the credentials"),
        (obstore.exceptions.GenericError(_GET + _WRONG), StoreRefused, "SignatureDoesNotMatch: No)"),
        (obstore.exceptions.NotFoundError("<Error><Code>NoSuchBucket</Code></Error>"), StoreRefused, "NoSuchBucket"),
        (obstore.exceptions.NotFoundError("<Error><Code>NoSuchKey</Code></Error>"), NoSuchObject, "is not in s3://b"),
        (
            obstore.exceptions.GenericError(
                "Generic S3 error: GET http://h, after 4 retries - HTTP error: error sending request"
            ),
            StoreUnavailable,
            "nobody",
        ),
        (
            obstore.exceptions.GenericError(_GET + "503 Slow Down: <Error><Code>SlowDown</Code></Error>"),
            StoreUnavailable,
            "SlowDown",
        ),
        (TimeoutError(), StoreUnavailable, "has not answered"),
    ],
)
def test_what_a_store_says_is_told_as_what_can_be_done_about_it(
    error: Exception, wanted: type[Exception], said: str
) -> None:
    class Saying:
        async def head_async(self, key: str) -> None:
            raise error

    store = ObstoreStore("s3://b", Saying(), 1.0)  # type: ignore[arg-type]
    with pytest.raises(wanted) as caught:
        asyncio.run(store.size_bytes("x"))
    assert said in str(caught.value) and "<" not in str(caught.value) and type(caught.value) is wanted
