"""Pulsar's code for each error: the one table. What clients do with a code: docs/protocols/pulsar.md, "Errors"."""

from __future__ import annotations

from heliograph.model import errors
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.schemas.compatibility import IncompatibleSchema
from region_node.schemas.schema_definition import InvalidSchema
from region_node.transactions.participants.transaction_errors import (
    NoCoordinator,
    NoSuchTransaction,
    TransactionConflict,
    TransactionState,
)

_CODES: tuple[tuple[type[errors.HeliographError], pb.ServerError.ValueType], ...] = (
    (NoCoordinator, pb.TransactionCoordinatorNotFound),
    (NoSuchTransaction, pb.TransactionNotFound),
    (TransactionState, pb.InvalidTxnStatus),
    (TransactionConflict, pb.TransactionConflict),
    (errors.SubscriptionNotFound, pb.SubscriptionNotFound),
    (errors.NotFound, pb.TopicNotFound),
    (errors.NotOwner, pb.ServiceNotReady),
    (errors.TopicClosed, pb.ServiceNotReady),
    (errors.RegionPassive, pb.ServiceNotReady),
    (errors.LedgerFenced, pb.ServiceNotReady),
    (errors.TopicTerminated, pb.TopicTerminatedError),
    (errors.ProducerBusy, pb.ProducerBusy),
    (errors.BacklogQuotaHold, pb.ProducerBlockedQuotaExceededError),
    (errors.BacklogQuotaExceeded, pb.ProducerBlockedQuotaExceededException),
    (errors.EncryptionRequired, pb.MetadataError),
    (errors.ProducerFenced, pb.ProducerFenced),
    (errors.ConsumerBusy, pb.ConsumerBusy),
    (errors.ConsumerAssignError, pb.ConsumerAssignError),
    (errors.Unauthenticated, pb.AuthenticationError),
    (errors.Unauthorized, pb.AuthorizationError),
    (IncompatibleSchema, pb.IncompatibleSchema),
    (InvalidSchema, pb.IncompatibleSchema),
    (errors.NotAllowed, pb.NotAllowedError),
    (errors.MetadataUnavailable, pb.ServiceNotReady),
    (errors.MetadataError, pb.MetadataError),
    (errors.EntriesLost, pb.NotAllowedError),  # clients try all others again until their own time is over
    (errors.StorageError, pb.PersistenceError),
)
"""The first that fits; leaves before their roots."""


def code_of(error: errors.HeliographError) -> pb.ServerError.ValueType:
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return pb.UnknownError


MOVED = (errors.NotOwner, errors.TopicClosed, errors.LedgerFenced, errors.RegionPassive)
"""The topic is not here any more, or not to be published to: producers are closed, and look it up again."""
