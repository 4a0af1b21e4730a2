"""Kafka's error codes, and which of them says what went wrong here.

Is: the numbers, and one table from the error tree. Isn't: texts: most answers have no room for one.
Source: Kafka protocol guide, "Error codes".
"""

from __future__ import annotations

from enum import IntEnum

from heliograph.model.errors import (
    AlreadyExists,
    BacklogQuotaExceeded,
    BacklogQuotaHold,
    BookieUnavailable,
    CorruptData,
    EncryptionRequired,
    EntriesLost,
    HeliographError,
    LedgerFenced,
    MetadataError,
    NotAllowed,
    NotEnoughBookies,
    NotFound,
    NotOwner,
    RegionPassive,
    StorageError,
    TopicClosed,
    TopicTerminated,
    Unauthenticated,
    Unauthorized,
)


class Code(IntEnum):
    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    MESSAGE_TOO_LARGE = 10
    OFFSET_METADATA_TOO_LARGE = 12
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    NOT_ENOUGH_REPLICAS = 19
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_CONFIG = 40
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    SASL_AUTHENTICATION_FAILED = 58
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    MEMBER_ID_REQUIRED = 79
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    UNACCEPTABLE_CREDENTIAL = 93
    UNKNOWN_TOPIC_ID = 100
    FETCH_SESSION_TOPIC_ID_ERROR = 106


_CODES: tuple[tuple[type[HeliographError], Code], ...] = (
    (NotOwner, Code.NOT_LEADER_OR_FOLLOWER),
    (RegionPassive, Code.NOT_LEADER_OR_FOLLOWER),
    (TopicClosed, Code.NOT_LEADER_OR_FOLLOWER),
    (LedgerFenced, Code.NOT_LEADER_OR_FOLLOWER),
    (NotFound, Code.UNKNOWN_TOPIC_OR_PARTITION),
    (AlreadyExists, Code.TOPIC_ALREADY_EXISTS),
    (Unauthorized, Code.TOPIC_AUTHORIZATION_FAILED),
    (Unauthenticated, Code.SASL_AUTHENTICATION_FAILED),
    (NotEnoughBookies, Code.NOT_ENOUGH_REPLICAS),
    (BookieUnavailable, Code.KAFKA_STORAGE_ERROR),
    (CorruptData, Code.CORRUPT_MESSAGE),
    (EntriesLost, Code.CORRUPT_MESSAGE),  # of all codes the one that a consumer's `poll` raises
    (BacklogQuotaHold, Code.REQUEST_TIMED_OUT),
    (BacklogQuotaExceeded, Code.POLICY_VIOLATION),
    (EncryptionRequired, Code.POLICY_VIOLATION),
    (TopicTerminated, Code.POLICY_VIOLATION),
    (NotAllowed, Code.POLICY_VIOLATION),
    (StorageError, Code.KAFKA_STORAGE_ERROR),
    (MetadataError, Code.REQUEST_TIMED_OUT),
)


class Refused(HeliographError):
    """What a request asks for is answered with `code`."""

    def __init__(self, code: Code, text: str = "") -> None:
        super().__init__(text or code.name)
        self.code = code


def code_of(error: HeliographError) -> Code:
    if isinstance(error, Refused):
        return error.code
    for kind, code in _CODES:
        if isinstance(error, kind):
            return code
    return Code.UNKNOWN_SERVER_ERROR
