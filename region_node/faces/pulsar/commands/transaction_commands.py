"""TC_CLIENT_CONNECT, NEW_TXN, ADD_PARTITION_TO_TXN, ADD_SUBSCRIPTION_TO_TXN, END_TXN, END_TXN_ON_PARTITION,
END_TXN_ON_SUBSCRIPTION; ACK in a transaction.

Is: commands to calls, and their answers. Isn't: a rule of transactions (`region_node.transactions`).
Invariants: every request is answered, by its own kind of answer also where it failed; a transaction is only its
client's role's, and only what that role may write to joins it; the commands between brokers are taken from brokers and
super users.
Source: docs/protocols/transactions.md, "Commands".
"""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from heliograph.model.errors import HeliographError, NotAllowed, Unauthorized
from heliograph.model.topic_names import TopicName
from heliograph.runtime.throttle import RowPace
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.run import TxnId
from region_node.faces.pulsar.server_errors import code_of
from region_node.faces.pulsar.session.publishing import NO_TRANSACTIONS
from region_node.faces.pulsar.session.pulsar_session import PulsarSession
from region_node.security.authorization.authorization_service import Action
from region_node.transactions.coordinators.transaction_service import Transactions
from region_node.transactions.participants.transaction_errors import NoCoordinator

Kind = pb.BaseCommand

# command -> (its field, the answer, the answer's field)
_ANSWERS = {
    Kind.TC_CLIENT_CONNECT_REQUEST: (
        "tcClientConnectRequest",
        Kind.TC_CLIENT_CONNECT_RESPONSE,
        "tcClientConnectResponse",
    ),
    Kind.NEW_TXN: ("newTxn", Kind.NEW_TXN_RESPONSE, "newTxnResponse"),
    Kind.ADD_PARTITION_TO_TXN: ("addPartitionToTxn", Kind.ADD_PARTITION_TO_TXN_RESPONSE, "addPartitionToTxnResponse"),
    Kind.ADD_SUBSCRIPTION_TO_TXN: (
        "addSubscriptionToTxn",
        Kind.ADD_SUBSCRIPTION_TO_TXN_RESPONSE,
        "addSubscriptionToTxnResponse",
    ),
    Kind.END_TXN: ("endTxn", Kind.END_TXN_RESPONSE, "endTxnResponse"),
    Kind.END_TXN_ON_PARTITION: ("endTxnOnPartition", Kind.END_TXN_ON_PARTITION_RESPONSE, "endTxnOnPartitionResponse"),
    Kind.END_TXN_ON_SUBSCRIPTION: (
        "endTxnOnSubscription",
        Kind.END_TXN_ON_SUBSCRIPTION_RESPONSE,
        "endTxnOnSubscriptionResponse",
    ),
}
_JOINS = {Kind.ADD_PARTITION_TO_TXN: "partitions", Kind.ADD_SUBSCRIPTION_TO_TXN: "subscription"}


def on_transaction(session: PulsarSession, command: pb.BaseCommand) -> None:
    asked = getattr(command, _ANSWERS[command.type][0])
    session.answer(asked, _answer(session, command.type, asked))


async def _answer(session: PulsarSession, kind: Any, asked: Any) -> None:
    _, answer_kind, field = _ANSWERS[kind]
    response = pb.BaseCommand(type=answer_kind)
    part = getattr(response, field)
    part.request_id = asked.request_id
    if "txnid_least_bits" in asked.DESCRIPTOR.fields_by_name:
        part.txnid_least_bits, part.txnid_most_bits = asked.txnid_least_bits, asked.txnid_most_bits
    try:
        transactions = session.broker.transactions
        if transactions is not None and kind in _JOINS:
            transactions.check_participants(len(getattr(asked, _JOINS[kind])))
        await _check_rights(session, kind, asked)
        if transactions is None:
            raise NoCoordinator(NO_TRANSACTIONS)
        await _act(session, transactions, kind, asked, part)
    except HeliographError as error:
        part.error, part.message = code_of(error), str(error)
        session.refused(asked.request_id, part.error, part.message)
    session.send(response)


async def _check_rights(session: PulsarSession, kind: Any, asked: Any) -> None:
    """What joins a transaction is written to when it ends. Raises Unauthorized."""
    pace = RowPace()
    if kind == Kind.NEW_TXN:
        session.identity.check_transactions()
    elif kind == Kind.ADD_PARTITION_TO_TXN:
        for topic in asked.partitions:
            await pace.row()
            session.identity.check(Action.PRODUCE, TopicName.parse(topic))
    elif kind == Kind.ADD_SUBSCRIPTION_TO_TXN:
        for one in asked.subscription:
            await pace.row()
            session.identity.check_subscribe(TopicName.parse(one.topic), one.subscription)
    elif kind in (Kind.END_TXN_ON_PARTITION, Kind.END_TXN_ON_SUBSCRIPTION):
        security, principal = session.broker.security, session.identity.principal
        if not security.authentication.open and (
            principal is None or not (principal.internal or security.rights.is_super(principal))
        ):
            raise Unauthorized("only brokers end transactions in a topic: ask the transaction's coordinator")


def _act(
    session: PulsarSession, transactions: Transactions, kind: Any, asked: Any, part: Any
) -> Coroutine[Any, Any, None]:
    match kind:
        case Kind.TC_CLIENT_CONNECT_REQUEST:
            return _connect(transactions, asked)
        case Kind.NEW_TXN:
            return _begin(session, transactions, asked, part)
        case Kind.ADD_PARTITION_TO_TXN:
            return transactions.add_partitions(_txn(asked), list(asked.partitions), session.identity.role)
        case Kind.ADD_SUBSCRIPTION_TO_TXN:
            pairs = [(s.topic, s.subscription) for s in asked.subscription]
            return transactions.add_subscriptions(_txn(asked), pairs, session.identity.role)
        case Kind.END_TXN:
            return transactions.end(_txn(asked), commit=asked.txn_action == pb.COMMIT, owner=session.identity.role)
        case _:
            return _end_here(transactions, asked)


def _txn(asked: Any) -> TxnId:
    return asked.txnid_most_bits, asked.txnid_least_bits


async def _connect(transactions: Transactions, asked: pb.CommandTcClientConnectRequest) -> None:
    await transactions.coordinator(asked.tc_id)


async def _begin(
    session: PulsarSession, transactions: Transactions, asked: pb.CommandNewTxn, part: pb.CommandNewTxnResponse
) -> None:
    most, least = await transactions.begin(asked.tc_id, asked.txn_ttl_millis, session.identity.role)
    part.txnid_most_bits, part.txnid_least_bits = most, least


async def _end_here(transactions: Transactions, asked: Any) -> None:
    """Ends a transaction in a topic or a subscription of this broker, as its coordinator's broker asks."""
    commit, low = asked.txn_action == pb.COMMIT, asked.txnid_least_bits_of_low_watermark
    if isinstance(asked, pb.CommandEndTxnOnPartition):
        topic, subscription = asked.topic, None
    else:
        topic, subscription = asked.subscription.topic, asked.subscription.subscription
    await transactions.end_here(str(TopicName.parse(topic)), subscription, _txn(asked), commit=commit, low=low)


def check_available(session: PulsarSession) -> None:
    """Raises NotAllowed where transactions are off at this broker."""
    if session.broker.transactions is None:
        raise NotAllowed(NO_TRANSACTIONS)
