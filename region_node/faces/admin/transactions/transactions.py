"""Transactions over HTTP: Pulsar's calls, and our own between the brokers of a region.

Is: what coordinators, topics, and subscriptions know of transactions; aborting one. Isn't: a rule of theirs
(`region_node.transactions`).
Invariants: a call about a coordinator is answered by the broker that has it, a call about a topic by that topic's
owner; any other asks or redirects there.
Source: docs/protocols/transactions.md, "REST"; Pulsar's TransactionMetadata, TransactionCoordinatorStats,
TransactionBufferStats.
"""

from __future__ import annotations

from contextlib import suppress
from functools import wraps
from typing import Annotated, Any
from urllib.parse import quote

from aiohttp import web

from heliograph.model.errors import NotAllowed, NotFound
from heliograph.model.positions import position_text
from heliograph.model.topic_names import TopicName
from heliograph.wire.run import TxnId
from region_node.faces.admin.calls.admin_context import Admin, OwnedElsewhere, number
from region_node.faces.admin.calls.call_bodies import Given
from region_node.faces.admin.calls.call_parameters import Loaded, Read
from region_node.faces.admin.calls.call_rights import CallAccess, Handler, Route
from region_node.faces.admin.calls.existing import existing, subscription_of
from region_node.transactions.coordinators.coordinator import Txn
from region_node.transactions.coordinators.replicated_transactions import Abroad
from region_node.transactions.coordinators.stored_coordinator import StoredCoordinator
from region_node.transactions.coordinators.transaction_calls import ARRIVED, END
from region_node.transactions.coordinators.transaction_service import Transactions
from region_node.transactions.participants.transaction_errors import NoSuchTransaction, TransactionState

_V3 = "/admin/v3/transactions"
_TOPIC = "{tenant}/{namespace}/{topic}"


def _transactions(admin: Admin) -> Transactions:
    """Raises 503 as Pulsar does."""
    reason = "This Broker is not configured with transactionCoordinatorEnabled=true."
    return existing(admin.transactions, web.HTTPServiceUnavailable(reason=reason))


def _txn(request: web.Request) -> TxnId:
    return number(request.match_info["mostBits"], "mostBits"), number(request.match_info["leastBits"], "leastBits")


NamedTxn = Annotated[TxnId, Read(lambda _, request: _txn(request))]


def _named(txn: TxnId) -> str:
    return f"({txn[0]},{txn[1]})"


# -- coordinators -----------------------------------------------------------------------------------------------------


async def coordinators(admin: Admin) -> list[dict[str, Any]]:
    """Each with the broker that has it."""
    transactions, rows = _transactions(admin), []
    for index in range(transactions.count):
        owner = await admin.ownership.owner(transactions.topic_of(index))
        rows.append({"id": index, "brokerServiceUrl": owner.listeners.get("", "") or owner.listeners.get("tls", "")})
    return rows


async def _here(admin: Admin, index: int) -> StoredCoordinator:
    """Returns a coordinator that runs here. Raises OwnedElsewhere with its broker, NotFound where there is none."""
    transactions = _transactions(admin)
    if not 0 <= index < transactions.count:
        raise NotFound(f"Transaction coordinator {index} not found: there are {transactions.count}")
    owner = await admin.ownership.owner(transactions.topic_of(index))
    if owner is not admin.ownership.record:
        raise OwnedElsewhere(owner)
    return await transactions.coordinator(index)


def _stats(found: StoredCoordinator) -> dict[str, Any]:
    core = found.core
    return {
        "state": "Ready" if found.failed is None else "Closed",
        "leastSigBits": core.next_number - 1,
        "lowWaterMark": core.low_watermark,
        "ongoingTxnSize": len(core.open),
        "recoverStartTime": found.loaded_ms[0],
        "recoverEndTime": found.loaded_ms[1],
        "epoch": found.epoch,
    }


async def coordinator_stats(admin: Admin, *, coordinatorId: int | None = None) -> dict[str, Any]:
    """Shows one coordinator of the region (`coordinatorId`), or all of them, asked of their brokers."""
    if coordinatorId is not None:
        return _stats(await _here(admin, coordinatorId))
    found: dict[str, Any] = {}
    for index in range(_transactions(admin).count):
        try:
            found[str(index)] = _stats(await _here(admin, index))
        except OwnedElsewhere as where:
            found[str(index)] = await admin.call(where.record, "GET", f"{_V3}/coordinatorStats?coordinatorId={index}")
    return found


async def coordinator_internal_stats(admin: Admin, id: int) -> dict[str, Any]:
    """Where its state is, and what this owner wrote of it."""
    found = await _here(admin, id)
    name = f"/transactions/open/{found.number:04}"
    return {
        "transactionLogStats": {
            "managedLedgerName": name,
            "managedLedgerInternalStats": {"entriesAddedCounter": found.writes, "state": "metadata"},
        }
    }


async def replicas(admin: Admin, given: int) -> None:
    """There are as many as the settings say."""
    count = _transactions(admin).count
    if given != count:
        raise NotAllowed(
            f"Number of transaction coordinators is {count}: set broker.transactions.coordinators on all brokers, and "
            "start them again"
        )


# -- transactions -----------------------------------------------------------------------------------------------------


async def _metadata(admin: Admin, found: StoredCoordinator, txn: Txn, *, parts: bool) -> dict[str, Any]:
    """Pulsar's TransactionMetadata. parts: with what each participant says; those that cannot be asked are left
    empty.
    """
    key = (found.number, txn.number)
    produced: dict[str, Any] = {}
    acked: dict[str, dict[str, Any]] = {}
    for topic in list(txn.partitions):  # more may join while they are asked
        produced[topic] = await _asked(admin, topic, "transactionInBufferStats", key, "") if parts else {}
    for topic, name in list(txn.subscriptions):
        told = await _asked(admin, topic, "transactionInPendingAckStats", key, name) if parts else {}
        acked.setdefault(topic, {})[name] = told
    return {
        "txnId": _named(key),
        "openTimestamp": txn.opened_ms,
        "timeoutAt": txn.ttl_ms,
        "status": txn.status.name,
        "owner": txn.owner,
        "producedPartitions": produced,
        "ackedPartitions": acked,
    }


async def _asked(admin: Admin, topic: str, call: str, txn: TxnId, subscription: str) -> Any:
    """What a participant says of a transaction, wherever its topic is owned; {} where there is nothing."""
    name = TopicName.parse(topic)
    try:
        loaded = await admin.loaded(name)
        if subscription:
            return await in_pending_ack(admin, loaded, subscription, txn)
        return await in_buffer(admin, loaded, txn)
    except OwnedElsewhere as where:
        middle = f"{name.namespace}/{quote(name.local, safe='')}" + (
            f"/{quote(subscription, safe='')}" if subscription else ""
        )
        with suppress(NotFound):
            return await admin.call(where.record, "GET", f"{_V3}/{call}/{middle}/{txn[0]}/{txn[1]}")
    except NotFound:
        pass
    return {}


async def metadata(admin: Admin, txn: NamedTxn) -> dict[str, Any]:
    found = await _here(admin, txn[0])
    return await _metadata(admin, found, found.core.find(txn[1]), parts=True)


async def slow(admin: Admin, timeout: int, *, coordinatorId: int | None = None) -> dict[str, Any]:
    """Those that have been open for `timeout` ms and more, of one coordinator (`coordinatorId`) or of all."""
    numbers = range(_transactions(admin).count) if coordinatorId is None else [coordinatorId]
    rows: dict[str, Any] = {}
    for index in numbers:
        try:
            found = await _here(admin, index)
            for txn in found.core.slow(admin.clock.wall_ms(), timeout):
                rows[_named((index, txn.number))] = await _metadata(admin, found, txn, parts=False)
        except OwnedElsewhere as where:
            rows |= await admin.call(where.record, "GET", f"{_V3}/slowTransactions/{timeout}?coordinatorId={index}")
    return rows


async def abort(admin: Admin, request: web.Request, txn: NamedTxn) -> None:
    """Ends it, wherever it takes part; returns when that is durable."""
    found = await _here(admin, txn[0])
    before = found.core.find(txn[1]).status.name
    try:
        await found.end(txn[1], commit=False)
    except TransactionState as error:
        raise NotAllowed(str(error)) from error
    admin.changed(request, before, "ABORTED")


# -- participants -----------------------------------------------------------------------------------------------------


async def in_buffer(admin: Admin, topic: Loaded, txn: NamedTxn) -> dict[str, Any]:
    buffer, key = topic.transactions.buffer, (None, *txn)
    if buffer is None:
        return {}
    found = buffer.open.get(key)
    if found is not None:
        return {"startPosition": position_text(found.first), "aborted": False}
    return {"startPosition": None, "aborted": True} if key in buffer.aborted else {}


async def in_pending_ack(admin: Admin, topic: Loaded, sub: str, txn: NamedTxn) -> dict[str, Any]:
    found = subscription_of(topic, sub)
    held = None if found.transactional is None else found.transactional.pending.held.get(txn)
    if held is None:
        return {}
    return {
        "cumulativeAckPosition": None if held.cumulative is None else position_text(held.cumulative),
        "entries": len(held.whole) + len(held.partly),
    }


async def buffer_stats(admin: Admin, topic: Loaded, *, first: bool = False) -> dict[str, Any]:
    """Shows a topic's transaction buffer. `heliograph`: what only this service has, transactions of other regions among
    them; at most 100 a list.
    """
    buffer = topic.transactions.buffer
    opened = [] if buffer is None else list(buffer.open.items())
    return {
        "state": "Ready" if buffer is not None else "NoSnapshot",
        "maxReadPosition": position_text(topic.readable.last_confirmed),
        "ongoingTxnSize": len(opened),
        "lastSnapshotTimestamps": 0,
        "totalAbortedTransactions": 0 if buffer is None else len(buffer.aborted),
        "lowWaterMarks": {}
        if buffer is None
        else {str(tc): low for (origin, tc), low in buffer.low_watermarks.items() if origin is None},
        "recoverStartTime": topic.loaded_ms,
        "recoverEndTime": topic.loaded_ms,
        "heliograph": {
            "open": [
                {
                    "txnId": _named((tc, least)),
                    "origin": origin,
                    "startPosition": position_text(found.first),
                    "entries": found.entries,
                    "messages": found.messages,
                }
                for (origin, tc, least), found in opened[: 1 if first else 100]
            ],
            "held": [
                {
                    "txnId": _named((tc, least)),
                    "origin": origin,
                    "startPosition": position_text(held.first),
                    "waitsFor": list(held.waits)[:100],
                }
                for (origin, tc, least), held in ([] if buffer is None else list(buffer.held.items())[:100])
            ],
            "committed": 0 if buffer is None else buffer.commits,
            "aborted": 0 if buffer is None else buffer.aborts,
        },
    }


async def pending_ack_stats(admin: Admin, topic: Loaded, sub: str) -> dict[str, Any]:
    told = subscription_of(topic, sub).transactional
    return {
        "state": "Ready" if told is not None else "None",
        "lowWaterMarks": {} if told is None else {str(tc): low for tc, low in told.pending.low_watermarks.items()},
        "ongoingTxnSize": 0 if told is None else len(told.pending.held),
        "recoverStartTime": topic.loaded_ms,
        "recoverEndTime": topic.loaded_ms,
    }


async def pending_ack_internal_stats(admin: Admin, topic: Loaded, sub: str) -> dict[str, Any]:
    """It is kept with the subscription's cursor: there is no log of its own."""
    name = subscription_of(topic, sub).name
    return {
        "pendingAckLogStats": {
            "managedLedgerName": f"{topic.text} {name}",
            "managedLedgerInternalStats": {"state": "cursor"},
        }
    }


# -- between brokers --------------------------------------------------------------------------------------------------


class Ending(Given):
    topic: str
    most: int
    least: int
    commit: bool
    low: int
    subscription: str | None = None
    others: list[str] | None = None
    again: bool | None = None


async def end_here(admin: Admin, request: web.Request, given: Ending) -> Any:
    """Ends a transaction in a topic, or in a subscription, of this broker."""
    try:
        part = await _transactions(admin).end_here(
            str(TopicName.parse(given.topic)),
            given.subscription,
            (given.most, given.least),
            commit=given.commit,
            low=given.low,
            others=[str(TopicName.parse(other)) for other in given.others or ()],
            again=bool(given.again),
        )
    except NotFound as error:
        return {"gone": str(error)}
    except TransactionState as error:
        return {"contradicted": str(error)}
    return {} if part else {"empty": True}


class Asked(Given):
    """transactions: region number, region epoch, coordinator, and number of each."""

    topic: str
    by: str
    transactions: list[Abroad]


async def arrived(admin: Admin, given: Asked) -> Any:
    """Whether transactions of other regions have ended in a topic of this broker; `by`, the topic that asks, has
    them.
    """
    topic, by = str(TopicName.parse(given.topic)), str(TopicName.parse(given.by))
    try:
        return {"ended": await _transactions(admin).arrivals.asked(topic, by, given.transactions)}
    except NotFound as error:
        return {"gone": str(error)}


def _of_transaction(call: Handler) -> Handler:
    """Where there is no such transaction, nothing is found."""

    @wraps(call)
    async def handle(admin: Admin, **given: Any) -> Any:
        try:
            return await call(admin, **given)
        except NoSuchTransaction as error:
            raise NotFound(str(error)) from error

    return handle


_ID = "{mostBits}/{leastBits}"
ROUTES: tuple[Route, ...] = (
    Route("GET", f"{_V3}/coordinators", CallAccess.SUPER, coordinators),
    Route("GET", f"{_V3}/coordinatorStats", CallAccess.SUPER, coordinator_stats),
    Route("GET", f"{_V3}/coordinatorStatus", CallAccess.SUPER, coordinator_stats),
    Route("GET", f"{_V3}/coordinatorInternalStats/{{id}}", CallAccess.SUPER, coordinator_internal_stats),
    Route("POST", f"{_V3}/transactionCoordinator/replicas", CallAccess.SUPER, replicas),
    Route("GET", f"{_V3}/transactionMetadata/{_ID}", CallAccess.SUPER, _of_transaction(metadata)),
    Route("GET", f"{_V3}/slowTransactions/{{timeout}}", CallAccess.SUPER, slow),
    Route("POST", f"{_V3}/abortTransaction/{_ID}", CallAccess.SUPER, _of_transaction(abort)),
    Route("GET", f"{_V3}/transactionInBufferStats/{_TOPIC}/{_ID}", CallAccess.TENANT, in_buffer),
    Route("GET", f"{_V3}/transactionInPendingAckStats/{_TOPIC}/{{sub}}/{_ID}", CallAccess.TENANT, in_pending_ack),
    Route("GET", f"{_V3}/transactionBufferStats/{_TOPIC}", CallAccess.TENANT, buffer_stats),
    Route("GET", f"{_V3}/pendingAckStats/{_TOPIC}/{{sub}}", CallAccess.TENANT, pending_ack_stats),
    Route("GET", f"{_V3}/pendingAckInternalStats/{_TOPIC}/{{sub}}", CallAccess.TENANT, pending_ack_internal_stats),
    Route("POST", END, CallAccess.SUPER, end_here),
    Route("POST", ARRIVED, CallAccess.SUPER, arrived),
)
