"""The built-in object stores, through obstore: S3 and what speaks S3, Google Cloud Storage, Azure, and a local folder.

Is: the shell around obstore: URLs to its stores, its errors to ours, a local folder made durable. Isn't: what is put
there.
COS and OSS are S3 by another address: cos://bucket and oss://bucket need the option `region`, unless `endpoint` is
given.
Credentials come from the options, or from where the vendor's own tools look (AWS_ACCESS_KEY_ID, GOOGLE_SERVICE_ACCOUNT,
AZURE_STORAGE_ACCOUNT_KEY, a machine's role, ...); they never stand in a URL.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from importlib.metadata import entry_points
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote, urlsplit

from heliograph.model.errors import ConfigError, CorruptData, NoSuchObject, StoreRefused, StoreUnavailable
from heliograph.runtime.disk import Disk
from storage.tiered.store import ENTRY_POINTS, ObjectStore, StoreMaker

if TYPE_CHECKING:
    from collections.abc import Iterator

    from obstore.store import ObjectStore as ObstoreClient

_PART_BYTES = 8 << 20
_PARTS_AT_ONCE = 4
_RETRIES = 4
_SIGNED = timedelta(hours=1)
_S3_LIKE = {"cos": "https://{bucket}.cos.{region}.myqcloud.com", "oss": "https://{bucket}.oss-{region}.aliyuncs.com"}
_BUILT_IN = ("s3", "cos", "oss", "gs", "az", "file")


def maker(disk: Callable[[str], Disk]) -> StoreMaker:
    """The stores of this machine. disk: of `heliograph.runtime`, for a local folder."""

    def make(url: str, options: Mapping[str, str], timeout_s: float) -> ObjectStore:
        scheme = urlsplit(url).scheme
        if scheme in _BUILT_IN:
            return _obstore(url, options, timeout_s, disk)
        for point in entry_points(group=ENTRY_POINTS, name=scheme):
            plugged: StoreMaker = point.load()
            return plugged(url, options, timeout_s)
        raise ConfigError(
            f"the object store {url}: there is no store {scheme}://; there are "
            f"{', '.join(f'{s}://' for s in _BUILT_IN)}"
        )

    return make


def _obstore(url: str, options: Mapping[str, str], timeout_s: float, disk: Callable[[str], Disk]) -> ObjectStore:
    """Makes the store of a URL. Raises ConfigError where obstore is missing or refuses it, or where the URL or an
    option is wrong.
    """
    try:
        import obstore.store
        from obstore.exceptions import BaseError
    except ImportError as error:
        raise ConfigError(
            f"the object store {url} needs the package obstore: install heliograph-server with its dependencies"
        ) from error
    parts = urlsplit(url)
    if parts.username or parts.password or parts.query:
        raise ConfigError(
            f"the object store {parts.scheme}://{parts.hostname}: credentials and options belong to tiered.options, "
            "not into the URL"
        )
    if parts.scheme == "file":
        root = unquote(parts.path)
        if parts.netloc or not root.startswith("/"):
            raise ConfigError(f"the object store {url}: a folder is written file:///its/whole/path")
        try:
            local = obstore.store.LocalStore(root, mkdir=True)
        except BaseError as error:
            raise ConfigError(f"the object store {url}: the folder cannot be used: {_sentence(error)}") from error
        return LocalFolder(url, local, timeout_s, root, disk)
    if not parts.netloc:
        raise ConfigError(f"the object store {url}: the bucket is missing; expected {parts.scheme}://bucket/prefix")
    given = dict(options)
    if parts.scheme in _S3_LIKE:
        if "endpoint" not in given:
            if "region" not in given:
                raise ConfigError(f"the object store {url} needs the option region, or endpoint: set tiered.options")
            given["endpoint"] = _S3_LIKE[parts.scheme].format(bucket=parts.netloc, region=given["region"])
        given.setdefault("virtual_hosted_style_request", "true")
        url_given = f"s3://{parts.netloc}{parts.path}"
    else:
        url_given = url
    if parts.scheme == "gs" and "endpoint" in given:  # one word for all stores; theirs is base_url
        given["base_url"] = given.pop("endpoint")
    client: Any = {
        "timeout": timedelta(seconds=timeout_s / 2),
        "connect_timeout": timedelta(seconds=min(5.0, timeout_s)),
    }
    if given.get("endpoint", given.get("base_url", "")).startswith("http://"):
        client["allow_http"] = True
    retry: Any = {"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=timeout_s)}
    config: Any = given
    try:
        made = obstore.store.from_url(url_given, config=config, client_options=client, retry_config=retry)
    except BaseError as error:
        raise ConfigError(f"the object store {url}: {_sentence(error)}; see tiered.options") from error
    return ObstoreStore(url, made, timeout_s)


class ObstoreStore:
    """An `ObjectStore` over any store of obstore."""

    def __init__(self, url: str, client: ObstoreClient, timeout_s: float) -> None:
        self.url = url
        self._client, self._timeout_s = client, timeout_s

    async def put(self, key: str, body: AsyncIterator[bytes]) -> None:
        with self._told(key):
            await self._client.put_async(
                key, _pieces(body), use_multipart=True, chunk_size=_PART_BYTES, max_concurrency=_PARTS_AT_ONCE
            )

    async def read(self, key: str, start: int, stop: int) -> memoryview:
        try:
            with self._told(key):
                async with asyncio.timeout(self._timeout_s):
                    found = memoryview(await self._client.get_range_async(key, start=start, end=stop))
        except StoreUnavailable:
            size = await self.size_bytes(key)
            if size >= stop:
                raise
            raise CorruptData(f"object {key} in {self.url} ends at byte {size}, before {stop}") from None
        if len(found) != stop - start:
            raise CorruptData(f"object {key} in {self.url} ends at byte {start + len(found)}, before {stop}")
        return found

    async def size_bytes(self, key: str) -> int:
        with self._told(key):
            async with asyncio.timeout(self._timeout_s):
                return int((await self._client.head_async(key))["size"])

    async def signed(self, key: str) -> str:
        """A URL by which anybody may read that object for an hour; "" where the store, or its credentials, can make
        none.
        """
        import obstore
        from obstore.exceptions import BaseError

        try:
            client: Any = self._client
            return str(await obstore.sign_async(client, "GET", key, _SIGNED))
        except (BaseError, ValueError, TypeError):
            return ""

    async def list(self, prefix: str) -> AsyncIterator[Sequence[tuple[str, int]]]:
        with self._told(prefix):
            async for page in self._client.list_async(prefix.rstrip("/") or None, chunk_size=1000):
                yield [(meta["path"], int(meta["size"])) for meta in page]

    async def delete(self, keys: Sequence[str]) -> None:
        from obstore.exceptions import NotFoundError

        for key in keys:
            with self._told(key):
                try:
                    async with asyncio.timeout(self._timeout_s):
                        await self._client.delete_async(key)
                except (NotFoundError, FileNotFoundError):
                    continue

    @contextmanager
    def _told(self, key: str) -> Iterator[None]:
        """What obstore raises, as what a caller can act on."""
        from obstore import exceptions as theirs

        try:
            yield
        except (theirs.NotFoundError, FileNotFoundError) as error:
            if "NoSuchBucket" in str(error):
                raise _judged(self.url, error) from error
            raise NoSuchObject(f"object {key} is not in {self.url}") from error
        except (theirs.PermissionDeniedError, theirs.UnauthenticatedError) as error:
            raise StoreRefused(
                f"{self.url} refuses the credentials, or they may not do this ({_sentence(error)}): {_LOOK_AT}"
            ) from error
        except TimeoutError as error:
            raise StoreUnavailable(f"{self.url} has not answered for {self._timeout_s:g} s") from error
        except (theirs.BaseError, OSError) as error:
            raise _judged(self.url, error) from error


class LocalFolder(ObstoreStore):
    """Objects as files; what was put is synced, with the folders above it, before `put` returns."""

    def __init__(
        self, url: str, client: ObstoreClient, timeout_s: float, root: str, disk: Callable[[str], Disk]
    ) -> None:
        super().__init__(url, client, timeout_s)
        self._root, self._disk, self._own = root, disk, disk(root)

    async def signed(self, key: str) -> str:
        return f"file://{quote(self._root)}/{quote(key)}"

    async def put(self, key: str, body: AsyncIterator[bytes]) -> None:
        await super().put(key, body)
        loop = asyncio.get_running_loop()
        synced: asyncio.Future[None] = loop.create_future()

        def done(_: None, error: BaseException | None) -> None:
            if synced.done():
                return
            if error is None:
                synced.set_result(None)
            else:
                synced.set_exception(StoreUnavailable(f"{self.url}: {key} could not be synced: {error}"))

        self._own.submit(lambda: self._sync(key), done)
        await synced

    def _sync(self, key: str) -> None:
        folder, _, name = key.rpartition("/")
        file = self._disk(str(PurePosixPath(self._root, folder))).open(name)
        try:
            file.datasync()
        finally:
            file.close()
        for above in (folder, *map(str, PurePosixPath(folder).parents)):
            self._disk(str(PurePosixPath(self._root, above))).sync_directory()


async def _pieces(body: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """obstore wants an iterator that is not empty."""
    async for piece in body:
        if piece:
            yield piece


_LOOK_AT = (
    "look at its address, its options (tiered.options of brokers, or the environment), and what the credentials may do"
)
_REFUSALS = (
    "NoSuchBucket",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AccessDenied",
    "InvalidBucketName",
    "403 Forbidden",
    "401 Unauthorized",
    "missing credential",
)
_CODE = re.compile(r"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")


def _judged(url: str, error: BaseException) -> StoreRefused | StoreUnavailable:
    """obstore tells some refusals by their text alone."""
    text = _sentence(error)
    if any(word in str(error) for word in _REFUSALS):
        return StoreRefused(f"{url} refuses what is asked of it ({text}): {_LOOK_AT}")
    return StoreUnavailable(f"{url} does not do what is asked of it: {text}")


def _sentence(error: BaseException) -> str:
    """What the store itself says, where it does; else the first line, without the debug output behind it."""
    text = str(error)
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code is not None:
        return f"{code[1]}: {message[1]}".rstrip(". ") if message is not None and message[1] else code[1]
    first = next((line.strip() for line in text.splitlines() if line.strip()), type(error).__name__)
    for marker in ("error: ", " - "):
        first = first.rpartition(marker)[2] or first
    if first == "error sending request":
        return "nobody listens there, or the connection broke"
    return first[:300].rstrip(".: ")
