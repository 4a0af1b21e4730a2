"""What is wrong with a transaction: leaves of the error tree, each with a code of Pulsar's own."""

from __future__ import annotations

from heliograph.model.errors import NotAllowed, TopicError


class TransactionError(TopicError):
    """The root of these errors; each leaf is answered with a code of Pulsar's own."""


class NoCoordinator(TransactionError):
    """This broker does not have that coordinator, or transactions are off: look it up again."""

    retryable = True


class NoSuchTransaction(TransactionError):
    """It was never begun, or ended long ago."""


class TransactionState(TransactionError):
    """It has ended, or is ending, the other way."""


class TransactionConflict(TransactionError):
    """Another transaction has acknowledged the same, or it is acknowledged already."""


class TransactionFull(NotAllowed):
    """It has as many topics and subscriptions, or as long names, as one may have; asking again changes nothing."""
