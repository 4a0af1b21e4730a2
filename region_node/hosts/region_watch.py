"""RegionWatch: a host's view of its region, by the region's own metadata: is all well, and whose turn is it.

Is: what is missing, as a sentence; the turn, a key under a lease, so that only one host at a time takes something away;
changes of voters.
Isn't: stopping or starting (`host_steps`).
Invariants: the turn ends with the process that has it, at the latest when its lease does; who has it has seen all of
the region well since.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import msgpack

from heliograph.kv.metadata_client import MetaClient
from heliograph.kv.metadata_store import ABSENT, prefix_end, rows_under
from heliograph.model.errors import ConfigError, HeliographError, NotAllowed, VersionConflict, reason_of
from heliograph.runtime.clock import SystemClock, system_rng
from heliograph.runtime.every import every
from local_meta import keys
from region_node.hosts.host_folders import HostManifest
from region_node.placement.balance.load_report import Pause
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.security.authentication.internal_tokens import KEY as SECRET
from region_node.security.authentication.internal_tokens import header
from region_node.security.tls import client_context

TURN = "/hosts/turn"
"""Whose processes are being stopped and started, under a lease."""
_LEASE_MS = 20_000
_PAUSE_MS = 120_000
_SILENT_S = 3.0
_POLL_S = 0.3
_COUNTED = 1000
"""Ledgers without all their copies are counted up to here."""


class RegionWatch:
    """Asks the region's metadata with this host's certificate; whoever makes it ends it by `close`."""

    def __init__(self, manifest: HostManifest, etc: Path) -> None:
        """etc: where the host's certificates lie."""
        self._manifest, self._clock = manifest, SystemClock()
        tls = certificate(manifest.region, etc, "broker")
        self.meta = MetaClient(list(manifest.meta), clock=self._clock, rng=system_rng(), ssl=tls)

    def close(self) -> None:
        self.meta.close()

    async def missing(self, *, copies: bool = False) -> str:
        """What the region lacks of what it should have; "": nothing. copies: a ledger that lacks one counts."""
        try:
            async with asyncio.timeout(5):
                report, _ = await self.meta.members()
                bookies = {
                    keys.id_of(key): msgpack.unpackb(value)
                    for key, value, _ in await rows_under(self.meta, keys.BOOKIES)
                }
                brokers = {keys.id_of(key) for key, _, _ in await rows_under(self.meta, keys.BROKERS)}
                marks = keys.UNDERREPLICATED
                lacking = await self.meta.range(marks, prefix_end(marks), limit=_COUNTED) if copies else []
        except (HeliographError, TimeoutError) as error:
            return f"the metadata of {self._manifest.region} does not answer: {reason_of(error, 'time-out')}"
        if report["leader"] is None:
            return "nobody leads the metadata"
        roles = {row["member"]: row for row in report["members"]}
        for name in self._manifest.voters:
            row = roles.get(name)
            if row is None or row["role"] != "voter":
                return f"metadata node {name} is no voter yet"
            if row["silent_s"] is not None and row["silent_s"] > _SILENT_S:
                return f"metadata node {name} has been silent for {row['silent_s']:.0f} s"
        for name in self._manifest.bookies:
            if name not in bookies:
                return f"bookie {name} is away"
            if not bookies[name].get("writable", True):
                return f"bookie {name} takes no writes"
        away = [name for name in self._manifest.brokers if name not in brokers]
        if away:
            return f"broker {', '.join(away)} is away"
        more = " or more" if len(lacking) == _COUNTED else ""
        return f"{len(lacking)}{more} ledgers lack a copy, and are being repaired" if lacking else ""

    async def until_well(self, wait_s: float, when: str, *, copies: bool = False) -> None:
        """copies: as of `missing`, for whoever takes a bookie away. Raises ConfigError with what is missing, where that
        does not end.
        """
        late = f"region {self._manifest.region} was not well within {wait_s:.0f} s {when}"
        await self._until(lambda: self.missing(copies=copies), wait_s, lambda what: f"{late}: {what}")

    async def _until(self, wrong: Callable[[], Awaitable[str]], wait_s: float, sentence: Callable[[str], str]) -> None:
        deadline = self._clock.monotonic() + wait_s
        while what := await wrong():
            if self._clock.monotonic() > deadline:
                raise ConfigError(sentence(what) + "; put that right, then apply again: it goes on here")
            await asyncio.sleep(_POLL_S)

    @contextlib.asynccontextmanager
    async def turn(self, wait_s: float) -> AsyncIterator[None]:
        """Waits until no other host of the region is changed, and holds them off; balancing is paused meanwhile. Raises
        ConfigError.
        """
        lease = 0

        async def taken() -> str:
            nonlocal lease
            try:
                lease = lease or await self.meta.grant(_LEASE_MS)
                await self.meta.renew(lease)
                await self.meta.put(TURN, self._manifest.host.encode(), expected=ABSENT, lease=lease)
            except VersionConflict:
                found = await self.meta.get(TURN)
                return f"it is the turn of {found[0].decode() if found else 'another host'}"
            except HeliographError as error:
                lease = 0
                return str(error)
            return ""

        await self._until(
            taken, wait_s, lambda what: f"{self._manifest.host} had no turn within {wait_s:.0f} s: {what}"
        )
        await self._hold(lease)
        keeping = asyncio.ensure_future(every(_LEASE_MS / 5000, lambda: self._hold(lease)))
        try:
            yield
        finally:
            keeping.cancel()
            with contextlib.suppress(HeliographError):  # else both end by themselves
                await self.meta.delete(keys.BALANCE_PAUSED)
                await self.meta.revoke(lease)

    async def _hold(self, lease: int) -> None:
        with contextlib.suppress(HeliographError):  # this host's own metadata node may be the one that is restarted
            await self.meta.put(keys.BALANCE_PAUSED, Pause("hosts", self._clock.wall_ms() + _PAUSE_MS).encode())
            await self.meta.renew(lease)

    # -- voters -------------------------------------------------------------------------------------------------------

    async def join(self, wait_s: float) -> None:
        """Makes this host's metadata node a voter, and the one that it replaces none. May be repeated. Raises
        ConfigError.
        """
        own, old = self._manifest.voter, self._manifest.replaces

        async def wrong() -> str:
            try:
                report, _ = await self.meta.members()
                roles = {row["member"]: row["role"] for row in report["members"]}
                if own not in roles:
                    await self.meta.members("add", own, self._manifest.voter_address)
                elif roles[own] != "voter":
                    await self.meta.members("promote", own)
                elif old in roles and report["leader"] == old:
                    await self.meta.members("transfer", own)
                elif old in roles:
                    await self.meta.members("remove", old)
                else:
                    return ""
            except HeliographError as error:
                return str(error)
            return "the voters are being changed"

        await self._until(wrong, wait_s, lambda what: f"{own} is no voter within {wait_s:.0f} s: {what}")

    async def leave(self, wait_s: float) -> None:
        """Takes this host's metadata node out of the voters. Raises ConfigError (the quorum would be lost)."""

        async def wrong() -> str:
            try:
                report, _ = await self.meta.members()
                if self._manifest.voter not in [row["member"] for row in report["members"]]:
                    return ""
                if report["leader"] == self._manifest.voter:
                    others = [
                        row["member"]
                        for row in report["members"]
                        if row["role"] == "voter" and row["member"] != self._manifest.voter
                    ]
                    if not others:
                        return (
                            f"{self._manifest.voter} is the only voter of the region's metadata: give another host "
                            "the role meta first"
                        )
                    await self.meta.members("transfer", others[0])
                else:
                    await self.meta.members("remove", self._manifest.voter)
            except (HeliographError, NotAllowed) as error:
                return str(error)
            return "the voters are being changed"

        await self._until(
            wrong, wait_s, lambda what: f"{self._manifest.voter} was not removed within {wait_s:.0f} s: {what}"
        )

    # -- bookies ------------------------------------------------------------------------------------------------------

    async def empty(self, bookie: str, wait_s: float) -> None:
        """Moves all copies of a bookie to others. Raises ConfigError where that does not end."""

        async def wrong() -> str:
            try:
                if await self.meta.get(keys.decommission(bookie)) is None:
                    await self._ask("POST", f"/heliograph/v1/bookies/{bookie}/decommission")
                answer = await self._ask("GET", f"/heliograph/v1/bookies/{bookie}/decommission")
                return "" if answer["done"] else f"{answer['ledgers_left']} ledgers are left"
            except (HeliographError, OSError, ValueError) as error:
                return str(error)

        await self._until(wrong, wait_s, lambda what: f"bookie {bookie} was not empty within {wait_s:.0f} s: {what}")

    async def forget(self, bookie: str) -> None:
        """Deletes the record of a decommission, once the emptied bookie has ended. Raises what the metadata raises."""
        await self.meta.delete(keys.decommission(bookie))

    async def _ask(self, method: str, path: str) -> Any:
        """Asks the first broker that answers, with a token of the region's brokers. Raises OSError where none does."""
        brokers = await rows_under(self.meta, keys.BROKERS)
        secret = await self.meta.get(SECRET)
        headers = (
            {}
            if secret is None
            else {"Authorization": header(secret[0], self._manifest.region, self._manifest.host, self._clock)}
        )
        trouble = "no broker is registered"
        for key, value, _ in brokers:
            url = BrokerRecord.decode(keys.id_of(key), value).admin_url.rstrip("/") + path
            try:
                return await asyncio.to_thread(_fetch, method, url, headers)
            except OSError as error:
                trouble = str(error)
        raise OSError(trouble)


def _fetch(method: str, url: str, headers: dict[str, str]) -> Any:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, method=method, headers=headers), timeout=30) as answer:
            text = answer.read()
    except urllib.error.HTTPError as error:
        raise OSError(f"{url}: {error.code} {error.read().decode(errors='replace')[:200]}") from None
    return json.loads(text) if text else None


def certificate(region: str, etc: Path, role: str) -> ssl.SSLContext:
    return client_context(
        str(etc / "tls" / "ca.pem"), *(str(etc / "tls" / f"{role}.{region}.{end}") for end in ("pem", "key"))
    )
