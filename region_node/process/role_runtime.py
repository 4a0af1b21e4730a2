"""Runtime: what the composition of every role is given, and the small things that all roles do alike.

Is: the machine as a value (clock, chance, disks), the shape of a role, and how a role reaches its metadata. Isn't: any
role.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Protocol, TypeVar

from heliograph.model.errors import ConfigError
from heliograph.model.feature_levels import LEVEL
from heliograph.runtime import process_usage
from heliograph.runtime.clock import Clock, Rng
from heliograph.runtime.disk import Disk
from heliograph.runtime.every import every
from heliograph.runtime.process_usage import ProcessUsage
from heliograph.runtime.standstill import stood_still_s
from region_node.process.settings import ProcessSettings
from region_node.security.settings import TlsSettings

if TYPE_CHECKING:
    from global_config.transport.config_transport import ConfigTransport
    from heliograph.kv.client_history import AnotherHistory
    from heliograph.kv.engine.table_store import TableStore
    from heliograph.kv.metadata_client import MetaClient
    from heliograph.kv.metadata_store import MetadataStore
    from region_node.placement.ownership.broker_calls import BrokerCalls
    from region_node.security.authentication.revocations import Revocations
    from region_node.security.tls import Certificates

log = logging.getLogger("region_node.process")

AWAY_S = 5.0
"""So long a role that ends waits for metadata that is away: more than a group takes to elect another leader."""
_LOOK_S = 0.5

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Runtime:
    """The machine: all that a simulator replaces, with the event loop. `disk`: path -> that directory, with a thread of
    its own.
    """

    clock: Clock
    rng: Rng
    disk: Callable[[str], Disk]
    pid: int = 0
    """The id of this process; 0 in a simulator."""
    table: Callable[[str], TableStore | None] = lambda path: None
    """Path -> what keeps the table of a metadata node there durably; None: it is in memory, and made again from
    snapshots and the log.
    """
    config_transport: Callable[[ProcessSettings], ConfigTransport] | None = None
    """Between the regions' configuration nodes; None: gRPC."""
    broker_calls: Callable[[], BrokerCalls] | None = None
    """Between the brokers of a region; None: HTTP."""
    tuned: Mapping[type, object] = field(default_factory=dict)
    """Settings of parts that are not in the file, by their class; absent: the part's defaults."""
    usage: ProcessUsage = process_usage
    feature_level: int = LEVEL
    """What the process speaks, and says so; less in a simulator, whose processes may be older ones."""

    def of(self, kind: type[T]) -> T:
        found = self.tuned.get(kind)
        return found if isinstance(found, kind) else kind()


class Role(Protocol):
    """What one role of a process can be told. Each method is called once, `stop` also after a start that failed half
    way.
    """

    async def start(self) -> dict[str, int]:
        """Returns the ports that it listens on, by name, once it is ready. Raises ConfigError, OSError."""
        ...

    async def stop(self) -> None:
        """Drains, within a bounded time."""
        ...

    async def failed(self) -> None:
        """Raises when the role cannot go on; else never ends."""
        ...


class Announcement:
    """Whether somebody has said a word that others wait for."""

    def __init__(self) -> None:
        self._event = asyncio.Event()

    def tell(self) -> None:
        self._event.set()

    async def before(self, *faults: Awaitable[None]) -> None:
        """Returns once it is said; raises what one of `faults` raises before that."""
        waiting = [asyncio.ensure_future(one) for one in (*faults, self._event.wait())]
        try:
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for one in done:
                one.result()
        finally:
            for one in waiting:
                one.cancel()


async def for_ever() -> None:
    await asyncio.get_running_loop().create_future()


def data_path(settings: ProcessSettings, *parts: str) -> str:
    return str(PurePosixPath(settings.data_dir, *parts))


def another_history() -> asyncio.Future[AnotherHistory]:
    """What `meta_client` is told to say by that the metadata was put back."""
    return asyncio.get_running_loop().create_future()


def meta_client(
    addresses: Sequence[str],
    runtime: Runtime,
    tls: ssl.SSLContext | None = None,
    put_back: asyncio.Future[AnotherHistory] | None = None,
) -> MetaClient:
    """put_back: comes once the metadata is found to lack what the client was told of it."""
    from heliograph.kv.metadata_client import ClientSettings, MetaClient

    def on_another_history(found: AnotherHistory) -> None:
        if put_back is not None and not put_back.done():
            put_back.set_result(found)

    return MetaClient(
        addresses,
        clock=runtime.clock,
        rng=runtime.rng,
        ssl=tls,
        settings=runtime.of(ClientSettings),
        on_another_history=on_another_history,
    )


@asynccontextmanager
async def without_absent(stores: Sequence[MetaClient], clock: Clock) -> AsyncIterator[None]:
    """What is done meanwhile, to end a role, waits for none of these that has been away for AWAY_S of that: it is
    closed, so that all that is asked of it fails at once.

    What was silent before counts for nothing: the process may have stood still itself, and what was said lies unread.
    The same of a standstill meanwhile.
    """
    left, since = list(stores), clock.monotonic()
    due = since

    async def look() -> None:
        nonlocal since, due
        now = clock.monotonic()
        since += stood_still_s(due, now)
        due = now + _LOOK_S
        for store in [each for each in left if min(each.stale_s(), now - since) > AWAY_S]:
            log.warning("process.metadata_away", extra={"at": store.where})
            store.close()
            left.remove(store)

    looking = asyncio.ensure_future(every(_LOOK_S, look, first_s=0))
    try:
        yield
    finally:
        looking.cancel()


def replicator_tls(tls: TlsSettings | None, make: Callable[[str, str, str], ssl.SSLContext]) -> ssl.SSLContext | None:
    if tls is None or not (tls.replicator_cert or tls.replicator_key):
        return None
    if not tls.replicator_cert or not tls.replicator_key:
        raise ConfigError("tls: replicator_cert and replicator_key are not set; links between regions need both")
    return make(tls.ca, tls.replicator_cert, tls.replicator_key)


def obey_revocations(
    revocations: Revocations, certificates: Certificates, *lists: tuple[MetadataStore, str]
) -> Callable[[], Awaitable[None]]:
    """From now on what `lists` (a store, and where in it) revoke is believed no more, on connections that stand either.
    Returns "stop".
    """
    revocations.on_change(lambda: certificates.revoke(revocations.certificates()))
    stops = [revocations.follow(store, prefix) for store, prefix in lists]

    async def stop() -> None:
        for each in stops:
            each()

    return stop


def closing(close: Callable[[], None], *, blocks: bool = False) -> Callable[[], Awaitable[None]]:
    """blocks: it waits for somebody, so it is called in a thread."""

    async def stop() -> None:
        if blocks:
            await asyncio.to_thread(close)
        else:
            close()

    return stop
