"""What values a policy may have: one check a kind, named as Pulsar's JSON names its fields.

Is: pure checks; each returns the value as it is stored, or says what is wrong. Isn't: which policies there are
(`policy_table`).
Invariants: a value that passed is plain JSON; an unknown field of a record is dropped, a missing one gets its default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from heliograph.model.errors import NotAllowed

Check = Callable[[str, Any], Any]
"""(name for the sentence, value as given) -> the value as stored. Raises WrongKind, NotAllowed."""

INT_MAX = (1 << 31) - 1
LONG_MAX = (1 << 63) - 1
_TEXT_MAX = 4096


class WrongKind(NotAllowed):
    """The value is not of the kind that the policy has: a text for a number, a list for an object."""


def described(**schema: Any) -> Callable[[Check], Check]:
    """Says in JSON Schema which values a check lets pass, for those who read: nothing is checked by it."""

    def add(check: Check) -> Check:
        check.__dict__["schema"] = schema
        return check

    return add


def schema_of(check: Check) -> dict[str, Any]:
    """What `described` says of a check; nothing where that is not said."""
    found: dict[str, Any] = getattr(check, "schema", {})
    return found


def whole(minimum: int = 0, maximum: int = INT_MAX, wrong: str = "") -> Check:
    """wrong: the sentence where it is out of bounds, as Pulsar has it."""

    @described(type="integer", minimum=minimum, maximum=maximum)
    def check(name: str, value: Any) -> Any:
        if type(value) is not int:
            raise WrongKind(f"{name}: expected a whole number, not {value!r}")
        if not minimum <= value <= maximum:
            raise NotAllowed(wrong or f"{name} must be {minimum} to {maximum}, not {value}")
        return value

    return check


def number(minimum: float = 0.0) -> Check:
    @described(type="number", minimum=minimum)
    def check(name: str, value: Any) -> Any:
        if type(value) not in (int, float):
            raise WrongKind(f"{name}: expected a number, not {value!r}")
        if not value >= minimum:
            raise NotAllowed(f"{name} must be at least {minimum}, not {value}")
        return float(value)

    return check


@described(type="boolean")
def flag(name: str, value: Any) -> Any:
    if type(value) is not bool:
        raise WrongKind(f"{name}: expected true or false, not {value!r}")
    return value


@described(type="string", maxLength=_TEXT_MAX)
def text(name: str, value: Any) -> Any:
    if not isinstance(value, str):
        raise WrongKind(f"{name}: expected a text, not {value!r}")
    if len(value) > _TEXT_MAX:
        raise NotAllowed(f"{name} has at most {_TEXT_MAX} characters, not {len(value)}")
    return value


def choice(*allowed: str) -> Check:
    """One of these, in any case of its letters."""
    by_lower = {item.lower(): item for item in allowed}

    @described(type="string", enum=list(allowed))
    def check(name: str, value: Any) -> Any:
        found = by_lower.get(value.lower()) if isinstance(value, str) else None
        if found is None:
            raise WrongKind(f"{name} must be one of {', '.join(allowed)}, not {value!r}")
        return found

    return check


def listed(item: Check) -> Check:
    """Makes a check of lists: each element passes `item`, and repetitions are dropped."""

    @described(type="array", items=schema_of(item))
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, list | tuple):
            raise WrongKind(f"{name}: expected a list, not {value!r}")
        return list(dict.fromkeys(item(name, part) for part in value))

    return check


def mapped(item: Check) -> Check:
    """An object of any names."""

    @described(type="object", additionalProperties=schema_of(item))
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, dict):
            raise WrongKind(f"{name}: expected an object, not {value!r}")
        return {text(name, key): item(f"{name}.{key}", part) for key, part in value.items()}

    return check


def record(
    together: Callable[[dict[str, Any]], str] | None = None,
    wrong_as: type[NotAllowed] = NotAllowed,
    in_front: str = "",
    **fields: tuple[Check, Any],
) -> Check:
    """fields: name -> (check, default; None: may be left out). together: what is wrong with them as a whole, or "";
    in_front: before that, instead of the policy's name.
    """

    @described(type="object", properties={name: schema_of(one) for name, (one, _) in fields.items()})
    def check(name: str, value: Any) -> Any:
        if not isinstance(value, dict):
            raise WrongKind(f"{name}: expected an object with {', '.join(fields)}, not {value!r}")
        out: dict[str, Any] = {}
        for field, (one, default) in fields.items():
            given = value.get(field)
            if given is not None:
                out[field] = one(f"{name}.{field}", given)
            elif default is not None:
                out[field] = default
        wrong = together(out) if together is not None else ""
        if wrong:
            raise wrong_as(f"{in_front or f'{name}:'} {wrong}")
        return out

    return check


# -- our own -----------------------------------------------------------------------------------------------------------


def _promises(fields: dict[str, Any]) -> str:
    if fields.get("rpo_s") is None:
        return "expected rpo_s, seconds"
    return "" if fields["rpo_s"] > 0 else f"rpo_s must be above 0, not {fields['rpo_s']}"


SLO = record(_promises, rpo_s=(number(), None))
"""rpo_s: no message is to be at risk for longer."""


# -- the records of Pulsar ---------------------------------------------------------------------------------------------


def _quorums(fields: dict[str, Any]) -> str:
    ensemble, write, ack = fields["bookkeeperEnsemble"], fields["bookkeeperWriteQuorum"], fields["bookkeeperAckQuorum"]
    return "" if ack <= write <= ensemble else f"want ack quorum {ack} <= write quorum {write} <= ensemble {ensemble}"


def _created(fields: dict[str, Any]) -> str:
    count = fields.get("defaultNumPartitions")
    if fields.get("topicType") != "partitioned":
        return (
            "" if count is None else "[defaultNumPartitions] is not allowed to be set when the type is non-partition."
        )
    if count is None:
        return "[defaultNumPartitions] cannot be null when the type is partitioned."
    return "[defaultNumPartitions] cannot be less than 1 for partition type." if count < 1 else ""


RATE = record(
    dispatchThrottlingRateInMsg=(whole(-1), -1),
    dispatchThrottlingRateInByte=(whole(-1, LONG_MAX), -1),
    relativeToPublishRate=(flag, False),
    ratePeriodInSecond=(whole(1), 1),
)
REPLICATION_START = record(
    position=(choice("earliest", "latest", "time", "coordinate"), "earliest"),
    timeMs=(whole(0, LONG_MAX), 0),
    coordinate=(text, None),
)
DURABILITY = record(regions=(whole(0, 64), 1), degradeAfterMs=(whole(0, 86_400_000), 5000), perMessage=(flag, False))
PUBLISH_RATE = record(publishThrottlingRateInMsg=(whole(-1), -1), publishThrottlingRateInByte=(whole(-1, LONG_MAX), -1))
SUBSCRIBE_RATE = record(subscribeThrottlingRatePerConsumer=(whole(-1), -1), ratePeriodInSecond=(whole(1), 30))
RETENTION = record(retentionTimeInMinutes=(whole(-1), 0), retentionSizeInMB=(whole(-1, LONG_MAX >> 20), 0))
PERSISTENCE = record(
    _quorums,
    WrongKind,
    bookkeeperEnsemble=(whole(1, 64), 2),
    bookkeeperWriteQuorum=(whole(1, 64), 2),
    bookkeeperAckQuorum=(whole(1, 64), 2),
    managedLedgerMaxMarkDeleteRate=(number(), 0.0),
)
AFFINITY = record(bookkeeperAffinityGroupPrimary=(text, None), bookkeeperAffinityGroupSecondary=(text, None))


@described(type="string", enum=["non-partitioned", "partitioned"])
def _topic_type(name: str, value: Any) -> Any:
    return _TOPIC_TYPE(name, value or "non-partitioned")  # Go's client sends "" where it has none


_TOPIC_TYPE = choice("non-partitioned", "partitioned")
AUTO_TOPICS = record(
    _created,
    in_front="Invalid configuration for autoTopicCreationOverride. the detail is",
    allowAutoTopicCreation=(flag, True),
    topicType=(_topic_type, "non-partitioned"),
    defaultNumPartitions=(whole(-INT_MAX, 4096), None),
)
AUTO_SUBSCRIPTIONS = record(allowAutoSubscriptionCreation=(flag, True))
DELAYED = record(active=(flag, True), tickTime=(whole(1), 1000), maxDeliveryDelayInMillis=(whole(0, LONG_MAX), 0))
INACTIVE = record(
    inactiveTopicDeleteMode=(
        choice("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
        "delete_when_no_subscriptions",
    ),
    maxInactiveDurationSeconds=(whole(1), 60),
    deleteWhileInactive=(flag, False),
)
SUBSCRIPTION_TYPES = listed(choice("Exclusive", "Shared", "Failover", "Key_Shared"))
SCHEMA_STRATEGY = choice(
    "UNDEFINED",
    "ALWAYS_INCOMPATIBLE",
    "ALWAYS_COMPATIBLE",
    "BACKWARD",
    "FORWARD",
    "FULL",
    "BACKWARD_TRANSITIVE",
    "FORWARD_TRANSITIVE",
    "FULL_TRANSITIVE",
)
SCHEMA_AUTO_UPDATE = choice(
    "AutoUpdateDisabled",
    "Backward",
    "Forward",
    "Full",
    "AlwaysCompatible",
    "BackwardTransitive",
    "ForwardTransitive",
    "FullTransitive",
)

QUOTA_TYPES = ("destination_storage", "message_age")
_QUOTA = record(
    limitSize=(whole(-1, LONG_MAX), -1),
    limitTime=(whole(-1), 0),
    policy=(
        choice("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
        "producer_request_hold",
    ),
)


@described(**schema_of(_QUOTA))
def quota(name: str, value: Any) -> Any:
    """One backlog quota; `limit` is an older name of `limitSize`."""
    if isinstance(value, dict) and value.get("limitSize") is None and value.get("limit") is not None:
        value = value | {"limitSize": value["limit"]}
    return _QUOTA(name, value)


@described(type="object", additionalProperties=schema_of(_QUOTA))
def quotas(name: str, value: Any) -> Any:
    found = mapped(quota)(name, value)
    unknown = [kind for kind in found if kind not in QUOTA_TYPES]
    if unknown:
        raise NotAllowed(f"{name}: the type of a backlog quota is {' or '.join(QUOTA_TYPES)}, not {unknown[0]}")
    return found


_ENTRY_FILTERS = record(entryFilterNames=(text, ""))


@described(**schema_of(_ENTRY_FILTERS))
def entry_filters(name: str, value: Any) -> Any:
    """Names by commas, in their order; which there are is for brokers to say."""
    return _ENTRY_FILTERS(name, value)


@described(type="object")
def offload(name: str, value: Any) -> Any:
    """Where old ledgers go; its fields are read by the offloader. Numbers, texts, flags, and one level of names to
    texts.
    """
    if not isinstance(value, dict):
        raise WrongKind(f"{name}: expected OffloadPolicies, not {value!r}")
    out: dict[str, Any] = {}
    for field, given in value.items():
        if given is None:
            continue
        if isinstance(given, dict):
            out[field] = mapped(text)(f"{name}.{field}", given)
        elif isinstance(given, str | int | float):
            out[field] = given
        else:
            raise WrongKind(f"{name}.{field}: expected a text, a number, or true or false")
    return out
