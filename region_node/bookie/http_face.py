"""The HTTP face of a bookie: health, readiness, state, metrics, and the levers of its background work.

Is: a few small pages over plain asyncio, so that a bookie carries no HTTP server. Isn't: a decision about a ledger; it
listens where the bookie does.
Invariants: one request a connection, at most 8 KiB, at most 30 s; a bad request ends its connection and nothing else; a
request that a web page of another site sent (it has an Origin) changes nothing; who may ask for what, `http_access`
says.

    GET  /health    200 while the process stores or could store again; 503 once nothing can be stored or it is in limbo,
                    and why; a directory that was dropped is named in `dropped`
    GET  /ready     200 while it takes adds; 503 and why
    GET  /state     all of it, JSON
    GET  /metrics   Prometheus text
    GET  /gc        garbage collection, compaction, and scrub, JSON
    POST /gc  /gc/confirm
    POST /compaction[?major=true]  /compaction/suspend  /compaction/resume
    POST /scrub  /scrub/suspend  /scrub/resume
    GET  /entries   a range of a ledger, to whoever has a broker's permit for it (`entry_ranges`); such an answer takes
                    as long as it takes
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, cast

from heliograph.model.errors import DiskFailed, StorageError
from region_node.bookie.entry_ranges import REASONS
from region_node.runtime.prometheus_text import CONTENT_TYPE, Sample, process_samples, render, summary

if TYPE_CHECKING:
    from region_node.bookie.entry_ranges import RangeAnswer, RangeReads
    from region_node.bookie.http_access import BookieAccess
    from storage.bookie.directories.ledger_dir import LedgerDir
    from storage.bookie.maintenance.block_refill import Refill
    from storage.bookie.maintenance.garbage_collector import GarbageCollector
    from storage.bookie.serving.bookie import Bookie

_REQUEST_BYTES_MAX = 8192
_IDLE_S = 30.0
_BAD_SHOWN = 100
_SENT_BYTES_MAX = 1 << 20
"""A range of entries is sent until so many bytes wait in the socket's buffer; then its reading pauses."""
_REASONS = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    503: "Service Unavailable",
}

Answer = tuple[int, str, bytes]
"""An answer is (HTTP status, content type, body)."""


class BookieHttp:
    """Answers for one bookie. `collector`, `refill`: asked at each request, None where there is no garbage collection,
    or nothing is brought.

    ranges: None where it gives no entries over HTTP.
    """

    def __init__(
        self,
        bookie: Bookie,
        collector: Callable[[], GarbageCollector | None],
        refill: Callable[[], Refill | None] = lambda: None,
        ranges: RangeReads | None = None,
    ) -> None:
        self._bookie, self._collector, self._refill, self._ranges = bookie, collector, refill, ranges
        self._pages: dict[str, Callable[[], Answer]] = {
            "/health": lambda: _said(bookie.failure or bookie.limbo, bookie.dropped),
            "/ready": lambda: _said(bookie.failure or bookie.limbo or bookie.read_only, bookie.dropped),
            "/state": lambda: _json(200, self.state()),
            "/gc": lambda: _json(200, self.background()),
            "/metrics": lambda: (200, CONTENT_TYPE, render([*self.samples(), *process_samples()])),
        }
        self._levers: dict[str, Callable[[LedgerDir], None]] = {
            "/compaction": lambda one: one.compactor.run(),
            "/compaction?major=true": lambda one: one.compactor.run(major=True),
            "/compaction/suspend": lambda one: one.compactor.suspend(),
            "/compaction/resume": lambda one: one.compactor.resume(),
            "/scrub": lambda one: one.scrubber.run(),
            "/scrub/suspend": lambda one: one.scrubber.suspend(),
            "/scrub/resume": lambda one: one.scrubber.resume(),
        }

    async def answer(self, method: str, target: str) -> Answer:
        path = target.rstrip("/")
        if method == "GET":
            page = self._pages.get(path.partition("?")[0])
            return (
                page()
                if page is not None
                else _json(404, {"reason": f"there is no page {path}; there are {', '.join(self._pages)}"})
            )
        if method != "POST":
            return _json(405, {"reason": "only GET and POST are answered here"})
        if path in ("/gc", "/gc/confirm"):
            return await self._collect(path == "/gc/confirm")
        lever = self._levers.get(path)
        if lever is None:
            return _json(
                404, {"reason": f"nothing to do at {path}; there are /gc, /gc/confirm, {', '.join(self._levers)}"}
            )
        for one in self._bookie.dirs:
            lever(one)
        return _json(200, self.background())

    async def _collect(self, confirm: bool) -> Answer:
        collector = self._collector()
        if collector is None:
            return _json(409, {"reason": "garbage collection is off: set bookie.gc_interval_s above 0"})
        if confirm and not collector.rules.refusal:
            return _json(409, {"reason": "there is nothing to confirm"})
        try:
            await (collector.confirm() if confirm else collector.once())
        except DiskFailed as error:
            return _json(503, {"reason": str(error)})
        return _json(200, self.background())

    def state(self) -> dict[str, Any]:
        bookie = self._bookie
        return {
            "bookie": bookie.bookie_id,
            "writable": bookie.writable,
            "failure": bookie.failure,
            "limbo": bookie.limbo,
            "readOnly": bookie.read_only,
            "ledgers": bookie.ledger_count,
            "entryLogs": sum(len(one.table.logs) for one in bookie.dirs),
            "entryLogBytes": sum(one.log_bytes for one in bookie.dirs),
            "liveBytes": sum(one.live_bytes for one in bookie.dirs),
            "writeCacheBytes": bookie.cached_bytes,
            "journalSegments": sum(one.journal.segments for one in bookie.journals if one.journal is not None),
            "badReads": bookie.counts.failed_reads,
            "journals": [
                {"directory": one.place.name, "failure": one.failure, "full": one.full} for one in bookie.journals
            ],
            "ledgerDirectories": [
                {
                    "directory": one.place.name,
                    "journal": bookie.journals.index(one.journal),
                    "failure": one.failure,
                    "full": one.full,
                    "freeBytes": _free(one),
                    "ledgers": len(one.table.last),
                    "entryLogs": len(one.table.logs),
                    "entryLogBytes": one.log_bytes,
                }
                for one in bookie.dirs
            ],
            **self.background(),
        }

    def background(self) -> dict[str, Any]:
        """Returns what GET /gc shows, added up over all ledger directories; a finding names its directory."""
        dirs, collector, refill = self._bookie.dirs, self._collector(), self._refill()
        bad = sorted((at, *place, text) for at, one in enumerate(dirs) for place, text in one.scrubber.bad.items())
        garbage: dict[str, Any] = {"on": False}
        if collector is not None:
            rules = collector.rules
            garbage = {
                "on": True,
                "metadataInstance": rules.instance,
                "passes": collector.passes,
                "deletedLedgers": collector.deleted,
            }
            garbage |= {
                "givenUpCopies": collector.given_up,
                "surplusSuspects": len(collector.surplus.since),
                "suspects": len(rules.suspects),
            }
            garbage |= {"refusal": rules.refusal, "trouble": collector.trouble}
        return {
            "garbageCollection": garbage,
            "compaction": {
                "running": any(one.compactor.running for one in dirs),
                "suspended": any(one.compactor.suspended for one in dirs),
                "compactedLogs": sum(one.compactor.compacted_logs for one in dirs),
                "reclaimedBytes": sum(one.compactor.reclaimed_bytes for one in dirs),
                "badLogs": [
                    {"directory": at, "log": number, "reason": text}
                    for at, one in enumerate(dirs)
                    for number, text in sorted(one.compactor.bad.items())
                ],
            },
            "scrub": {
                "running": any(one.scrubber.running for one in dirs),
                "suspended": any(one.scrubber.suspended for one in dirs),
                "rounds": min(one.scrubber.rounds for one in dirs),
                "checkedBytes": sum(one.scrubber.checked_bytes for one in dirs),
                "badBlocks": len(bad),
                "refilledBlocks": refill.refilled_blocks if refill is not None else 0,
                "refilledBytes": refill.refilled_bytes if refill is not None else 0,
                "refillTrouble": refill.trouble if refill is not None else "",
                "bad": [
                    {"directory": at, "log": log, "ledger": ledger, "entry": entry, "reason": text}
                    for at, log, ledger, entry, text in bad[:_BAD_SHOWN]
                ],
            },
        }

    def samples(self) -> list[Sample]:
        bookie, collector = self._bookie, self._collector()
        dirs = bookie.dirs
        values: list[tuple[str, str, float]] = [
            ("bookie_SERVER_STATUS", "gauge", int(bookie.writable)),
            ("bookie_write_cache_size", "gauge", bookie.cached_bytes),
            ("bookie_ledger_dirs", "gauge", len(dirs)),
            (
                "bookie_ledger_writable_dirs",
                "gauge",
                sum(not (bookie.limbo or one.gone or one.full or one.journal.full) for one in dirs),
            ),
            ("bookie_dropped_dirs", "gauge", len(bookie.dropped)),
            ("bookie_ledgers_count", "gauge", bookie.ledger_count),
            ("bookie_entries_count", "gauge", sum(one.entries for one in dirs)),
            ("bookie_flush", "gauge", sum(one.flushing is not None for one in dirs)),
            ("bookie_throttled_write_requests", "counter", bookie.counts.throttled),
            (
                "bookie_journal_JOURNAL_QUEUE_SIZE",
                "gauge",
                sum(one.journal.pending_records for one in bookie.journals if one.journal is not None),
            ),
            ("bookie_entry_logs_count", "gauge", sum(len(one.table.logs) for one in dirs)),
            ("bookie_entry_log_bytes", "gauge", sum(one.log_bytes for one in dirs)),
            ("bookie_live_bytes", "gauge", sum(one.live_bytes for one in dirs)),
            ("bookie_index_bytes", "gauge", sum(one.pages.held_bytes for one in bookie.dirs)),
            ("bookie_index_page_reads_total", "counter", sum(one.pages.loads for one in bookie.dirs)),
            (
                "bookie_journal_segments",
                "gauge",
                sum(one.journal.segments for one in bookie.journals if one.journal is not None),
            ),
            ("bookie_bad_reads_total", "counter", bookie.counts.failed_reads),
            ("bookie_WRITE_BYTES", "counter", bookie.counts.added_bytes),
            ("bookie_READ_BYTES", "counter", bookie.counts.read_bytes),
            ("bookie_DELETED_LEDGER_COUNT", "counter", bookie.counts.deleted),
            ("bookie_catch_up_yields_total", "counter", sum(one.catch_up.yields for one in bookie.dirs)),
            ("bookie_compacted_logs_total", "counter", sum(one.compactor.compacted_logs for one in dirs)),
            ("bookie_compaction_reclaimed_bytes_total", "counter", sum(one.compactor.reclaimed_bytes for one in dirs)),
            ("bookie_scrub_rounds_total", "counter", min(one.scrubber.rounds for one in dirs)),
            ("bookie_scrub_checked_bytes_total", "counter", sum(one.scrubber.checked_bytes for one in dirs)),
            ("bookie_scrub_bad_blocks", "gauge", sum(len(one.scrubber.bad) for one in dirs)),
        ]
        if (refill := self._refill()) is not None:
            values.append(("bookie_refilled_blocks_total", "counter", refill.refilled_blocks))
            values.append(("bookie_refilled_bytes_total", "counter", refill.refilled_bytes))
        by_reason: list[Sample] = []
        if (ranges := self._ranges) is not None:
            values.append(("bookie_direct_reads_open", "gauge", ranges.open))
            values.append(("bookie_direct_reads_total", "counter", ranges.answers))
            values.append(("bookie_direct_read_bytes_total", "counter", ranges.sent_bytes))
            by_reason = [
                ("bookie_direct_reads_refused_total", "counter", {"reason": reason}, ranges.refused[reason])
                for reason in REASONS
            ]
        if collector is not None:
            values.append(("bookie_gc_passes_total", "counter", collector.passes))
            values.append(("bookie_gc_deleted_ledgers_total", "counter", collector.deleted))
            values.append(("bookie_gc_surplus_copies_total", "counter", collector.given_up))
            values.append(("bookie_gc_refused", "gauge", int(bool(collector.rules.refusal))))
            values.append(("bookie_metadata_went_back", "gauge", int(bool(collector.went_back))))
        counts = bookie.counts
        outcomes = {
            "bookkeeper_server_ADD_ENTRY_count": (counts.added, counts.refused),
            "bookkeeper_server_READ_ENTRY_count": (counts.reads, counts.failed_reads),
            "bookie_journal_JOURNAL_SYNC_count": (counts.records, counts.failed_records),
        }
        by_success: list[Sample] = [
            (name, "counter", {"success": success}, value)
            for name, pair in outcomes.items()
            for success, value in zip(("true", "false"), pair, strict=True)
        ]
        waits = [
            *summary("bookkeeper_server_ADD_ENTRY_REQUEST", {"success": "true"}, counts.adds_ms),
            *summary(
                "bookie_journal_JOURNAL_ADD_ENTRY", {"success": "true"}, counts.adds_ms
            ),  # the same: an add waits for its record, and for nothing else
            *summary("bookkeeper_server_READ_ENTRY_REQUEST", {"success": "true"}, counts.reads_ms),
            *summary("bookkeeper_server_READ_ENTRY_REQUEST", {"success": "false"}, counts.failed_reads_ms),
        ]
        return [*((name, kind, {}, value) for name, kind, value in values), *by_reason, *by_success, *waits]


def _said(trouble: str, dropped: list[str]) -> Answer:
    also = {"dropped": dropped} if dropped else {}
    return (
        _json(503, {"status": "trouble", "reason": trouble} | also) if trouble else _json(200, {"status": "ok"} | also)
    )


def _free(one: LedgerDir) -> int | None:
    """None: its disk cannot be asked."""
    try:
        return None if one.gone else one.place.disk.free_bytes()
    except (OSError, StorageError):
        return None


def _json(status: int, value: Any) -> Answer:
    return status, "application/json", json.dumps(value).encode() + b"\n"


class HttpConnection(asyncio.Protocol):
    """One request, one answer, then it closes."""

    def __init__(
        self,
        answer: Callable[[str, str], Awaitable[Answer]],
        access: BookieAccess | None = None,
        ranges: RangeReads | None = None,
    ) -> None:
        """access: None: everybody may do everything. ranges: None: it gives no entries."""
        self._answer, self._access, self._ranges, self._received = answer, access, ranges, b""
        self._entries: RangeAnswer | None = None
        self._transport: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._task: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._timer = asyncio.get_running_loop().call_later(_IDLE_S, self._transport.abort)

    def data_received(self, data: bytes) -> None:
        if self._task is not None:
            return  # a body, or a second request
        self._received += data
        if self._ranges is not None and self._received.startswith(b"GET /entries?") and b"\r\n\r\n" in self._received:
            self._give(self._ranges)
        elif b"\r\n\r\n" in self._received:
            self._task = asyncio.get_running_loop().create_task(self._respond(self._received.partition(b"\r\n\r\n")[0]))
        elif len(self._received) > _REQUEST_BYTES_MAX:
            self._transport.abort()

    def _give(self, ranges: RangeReads) -> None:
        """The permit is the right: nobody is asked who he is."""
        loop = asyncio.get_running_loop()
        self._task = loop.create_future()  # nothing else is read from this connection
        self._transport.set_write_buffer_limits(_SENT_BYTES_MAX)
        self._entries = ranges.begin(
            self._received[len(b"GET /entries?") :].partition(b" ")[0].decode("latin-1"), self._transport, loop
        )
        if self._entries is not None:
            if self._timer is not None:
                self._timer.cancel()
            self._entries.start()  # not before it is known here: the first bytes may be more than the socket takes

    def pause_writing(self) -> None:
        if self._entries is not None:
            self._entries.pause()

    def resume_writing(self) -> None:
        if self._entries is not None:
            self._entries.resume()

    async def _respond(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        request = lines[0].split(" ")
        foreign = any(line.lower().startswith("origin:") for line in lines[1:])
        if len(request) != 3 or not request[2].startswith("HTTP/1."):
            answer = _json(400, {"reason": "this is no HTTP/1.1 request"})
        elif foreign and request[0] != "GET":
            answer = _json(403, {"reason": "requests from web pages change nothing here"})
        elif (refused := await self._refusal(request[0], request[1], lines[1:])) is not None:
            answer = _json(refused[0], {"reason": refused[1]})
        else:
            answer = await self._answer(request[0], request[1])
        status, kind, body = answer
        lines = [
            f"HTTP/1.1 {status} {_REASONS[status]}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "Connection: close",
            "",
            "",
        ]
        self._transport.writelines(["\r\n".join(lines).encode(), body])
        self._transport.close()

    async def _refusal(self, method: str, target: str, headers: list[str]) -> tuple[int, str] | None:
        if self._access is None:
            return None
        given = [
            value.strip()
            for name, _, value in (line.partition(":") for line in headers)
            if name.lower() == "authorization"
        ]
        path = target.partition("?")[0].rstrip("/")
        peer = self._transport.get_extra_info("peername")
        host = str(peer[0]) if isinstance(peer, tuple) else ""
        return await self._access.refusal(
            method, path, given[0] if given else "", self._transport.get_extra_info("peercert"), host
        )

    def connection_lost(self, exc: Exception | None) -> None:
        if self._entries is not None:
            self._entries.gone()
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None and not self._task.done():
            self._task.cancel()
