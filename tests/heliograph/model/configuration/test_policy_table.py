"""The policy table: what is refused, and what is inherited from where."""

from __future__ import annotations

from typing import Any

import pytest

from heliograph.model.configuration.policy_table import BY_NAME, POLICIES, applied, checked
from heliograph.model.configuration.policy_values import WrongKind
from heliograph.model.errors import NotAllowed


def test_names_and_paths_are_there_once() -> None:
    for part in ("name", "namespace", "topic", "field", "broker"):
        found = [getattr(policy, part) for policy in POLICIES if getattr(policy, part)]
        assert len(found) == len(set(found)), part


def test_every_default_is_a_value_that_could_be_set() -> None:
    for policy in POLICIES:
        if policy.default is not None:
            assert policy.check(policy.name, policy.default) == policy.default


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("maxProducers", "3", WrongKind),
        ("maxProducers", True, WrongKind),
        ("maxProducers", -1, NotAllowed),
        ("deduplication", 1, WrongKind),
        ("messageTTL", 1 << 31, NotAllowed),
        ("retention", {"retentionSizeInMB": -2}, NotAllowed),
        ("retention", [], WrongKind),
        ("persistence", {"bookkeeperEnsemble": 2, "bookkeeperWriteQuorum": 3}, WrongKind),
        ("persistence", {"bookkeeperAckQuorum": 0}, NotAllowed),
        ("backlogQuota", {"disk": {}}, NotAllowed),
        ("backlogQuota", {"message_age": {"policy": "drop"}}, WrongKind),
        ("autoTopicCreation", {"topicType": "partitioned"}, NotAllowed),
        ("subscriptionTypes", ["Fanout"], WrongKind),
        ("properties", {"a": 1}, WrongKind),
        ("dispatchRate", {"ratePeriodInSecond": 0}, NotAllowed),
        ("schemaCompatibilityStrategy", "SOMEHOW", WrongKind),
        ("offloadPolicies", {"a": [1]}, WrongKind),
        ("noSuchPolicy", 1, NotAllowed),
    ],
)
def test_what_is_refused(name: str, value: Any, error: type[Exception]) -> None:
    with pytest.raises(error) as refused:
        checked({name: value})
    assert name in str(refused.value)


def test_records_get_their_defaults_and_lose_what_nobody_knows() -> None:
    assert BY_NAME["subscribeRate"].check("", {"later": 1}) == {
        "subscribeThrottlingRatePerConsumer": -1,
        "ratePeriodInSecond": 30,
    }
    assert checked({"subscriptionTypes": ["shared", "Shared"]}) == {"subscriptionTypes": ["Shared"]}
    assert (
        checked({"backlogQuota": {"destination_storage": {"limit": 7}}})["backlogQuota"]["destination_storage"][
            "limitSize"
        ]
        == 7
    )


def test_a_backlog_quota_stays_below_the_retention() -> None:
    kept = {"retentionTimeInMinutes": 10, "retentionSizeInMB": 1}
    quota: dict[str, Any] = {"destination_storage": {"limitSize": 1 << 19, "limitTime": 599}}
    checked({"retention": kept, "backlogQuota": quota})
    for wrong in ({"limitSize": 1 << 20}, {"limitTime": 600}):
        with pytest.raises(NotAllowed, match="below the retention"):
            checked({"retention": kept, "backlogQuota": {"destination_storage": quota["destination_storage"] | wrong}})
    checked(
        {"retention": kept | {"retentionSizeInMB": -1}, "backlogQuota": {"destination_storage": {"limitSize": 1 << 40}}}
    )


def test_the_nearest_level_counts_and_quotas_by_type() -> None:
    size, age = (
        {"limitSize": 1, "limitTime": -1, "policy": "producer_exception"},
        {"limitSize": -1, "limitTime": 9, "policy": "producer_request_hold"},
    )
    topic = {"maxProducers": 0, "backlogQuota": {"message_age": age}}
    namespace = {
        "maxProducers": 5,
        "maxConsumers": 6,
        "backlogQuota": {"message_age": size, "destination_storage": size},
    }
    found = applied(topic, namespace, {"maxConsumers": 7, "messageTTL": 8})
    assert [found.limit(name) for name in ("maxProducers", "maxConsumers", "messageTTL", "maxSubscriptions")] == [
        0,
        6,
        8,
        0,
    ]
    assert found.quota("message_age") == (9, "producer_request_hold") and found.quota("destination_storage") == (
        1,
        "producer_exception",
    )
    assert applied().quota("message_age") is None and "publishRate" not in applied().values
    assert namespace["backlogQuota"] == {
        "message_age": size,
        "destination_storage": size,
    }  # nothing was changed on the way


def test_the_policies_of_one_level_have_a_bound_of_bytes() -> None:
    rate = dict.fromkeys(("dispatchThrottlingRateInMsg", "dispatchThrottlingRateInByte", "ratePeriodInSecond"), 1)
    some, many = ({f"subscription-{n}": rate for n in range(count)} for count in (300, 3000))
    checked({"dispatchRateOfSubscriptions": some})
    for level in (
        {"dispatchRateOfSubscriptions": many},
        {"properties": dict.fromkeys("abcdefghijklmnopq", "x" * 4096)},
    ):
        with pytest.raises(NotAllowed, match="65,536 are allowed"):
            checked(level)
