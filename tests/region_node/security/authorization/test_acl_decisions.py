"""What ACLs say: the index against a look at every record, for records and questions by chance, and what one costs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from heliograph.model.configuration.acl_records import (
    ALLOWED_BY,
    ANYBODY,
    ANYWHERE,
    REFUSED_BY,
    AclOperation,
    AclRecord,
    Pattern,
    Resource,
)
from heliograph.model.topic_names import TopicName
from region_node.security.authorization.acl_decisions import AclAnswer, AclDecisions
from region_node.security.authorization.acl_index import AclIndex

ROLES, HOSTS = ("a", "b", "c"), ("10.0.0.1", "10.0.0.2", "::1")
OPERATIONS = tuple(AclOperation)


class Records(tuple[AclRecord, ...]):
    """They count how often somebody goes through them."""

    read = 0

    def __iter__(self) -> Iterator[AclRecord]:
        Records.read += 1
        return super().__iter__()


class View:
    def __init__(self, *records: AclRecord) -> None:
        self.records: tuple[AclRecord, ...] = Records(records)

    def acls(self, tenant: str) -> tuple[AclRecord, ...]:
        return self.records if tenant == "t" else ()


def record(name: str = "persistent://t/n/x", pattern: Pattern = Pattern.LITERAL, **fields: Any) -> AclRecord:
    of = {"resource": Resource.TOPIC, "role": "a", "host": "*", "operation": AclOperation.READ, "allow": True}
    return AclRecord(**{"name": name, "pattern": pattern, **of, **fields})


def topic(local: str, namespace: str = "t/n", domain: str = "persistent") -> TopicName:
    return TopicName.parse(f"{domain}://{namespace}/{local}")


def scanned(
    records: tuple[AclRecord, ...],
    resource: Resource,
    names: tuple[str, ...],
    namespace: str,
    role: str,
    host: str,
    operation: AclOperation,
) -> AclAnswer:
    """The model: Kafka's authorizer in few words, by each record."""
    found = AclAnswer.SILENT
    for each in records:
        if (
            each.resource != resource
            or not any(each.names(name, namespace) for name in names)
            or each.role not in (ANYBODY, role)
            or each.host not in (ANYWHERE, host)
        ):
            continue
        if not each.allow and each.operation in REFUSED_BY[operation]:
            return AclAnswer.REFUSED
        if each.allow and each.operation in ALLOWED_BY[operation]:
            found = AclAnswer.ALLOWED
    return found


def text(rng: random.Random) -> str:
    """Few characters, so that names begin alike, and the last that there is."""
    return "".join(rng.choices(["x", "y", "z", "\U0010ffff"], (8, 4, 2, 1), k=rng.randrange(1, 6)))


def drawn(rng: random.Random) -> AclRecord:
    resource, pattern = rng.choice(list(Resource)), rng.choice(list(Pattern))
    name = text(rng)
    if resource is Resource.TOPIC:
        name = str(topic(name + ("-partition-1" if rng.random() < 0.2 else ""), rng.choice(("t/n", "t/m"))))
    if pattern is Pattern.ALL:
        name = rng.choice(("t/n", "t/m")) if resource is Resource.TOPIC else ""
    return AclRecord(
        resource=resource,
        pattern=pattern,
        name=name,
        role=rng.choice((*ROLES, ANYBODY)),
        host=rng.choice((*HOSTS[:2], ANYWHERE, ANYWHERE)),
        operation=rng.choice(OPERATIONS),
        allow=rng.random() < 0.7,
    )


@pytest.mark.parametrize("seed", range(40))
def test_the_index_says_what_the_records_say(seed: int) -> None:
    rng = random.Random(seed)
    view = View(*{drawn(rng) for _ in range(rng.choice((1, 5, 30, 150)))})
    decisions, counts = AclDecisions(view), dict.fromkeys(AclAnswer, 0)
    for _ in range(400):
        role, host, operation = rng.choice((*ROLES, "d")), rng.choice((*HOSTS, "")), rng.choice(OPERATIONS)
        about, namespace, name = rng.choice(list(Resource)), rng.choice(("t/n", "t/m", "t/none")), text(rng)
        if about is not Resource.TOPIC:
            found = decisions.of_name(role, host, operation, "t", about, name)
            names, namespace = (name,), ""
        elif rng.random() < 0.1:
            found, names = decisions.of_namespace(role, host, operation, namespace), ("",)
        else:
            asked = topic(name, namespace, rng.choice(("persistent", "persistent", "non-persistent")))
            asked = asked.with_partition(rng.randrange(3)) if rng.random() < 0.5 else asked
            found = decisions.of_topic(role, host, operation, asked)
            names = (str(asked), str(asked.partitioned))
        assert found is scanned(view.records, about, names, namespace, role, host, operation), (names, role, host)
        counts[found] += 1
    if len(view.records) > 50:
        assert all(counts.values()), "of each answer some"
    for resource in Resource:
        assert decisions.are_about("t", resource) is any(each.resource == resource for each in view.records)
        for operation in OPERATIONS:
            allowing = [each for each in view.records if each.allow and each.operation in ALLOWED_BY[operation]]
            assert set(decisions.roles("t", resource, operation)) == {
                each.role for each in allowing if each.resource == resource
            }


@pytest.mark.parametrize("last", ["x", "\U0010ffff"])
def test_beginnings_within_each_other_are_found_from_any_depth(last: str) -> None:
    view = View(*(record(str(topic(last * n)), Pattern.PREFIXED, role=f"r{n % 3}") for n in range(1, 300)))
    decisions = AclDecisions(view)
    for n in (1, 2, 3, 150, 299, 400):
        for end in ("", "a", "\U0010ffff"):
            name = last * n + end
            answers = {r: decisions.of_topic(f"r{r}", "", AclOperation.READ, topic(name)) for r in range(3)}
            begun = len(name) - len(name.lstrip(last))
            assert {r for r, found in answers.items() if found is AclAnswer.ALLOWED} == {
                depth % 3 for depth in range(1, min(begun, 299) + 1)
            }


def test_a_thousand_acls_are_read_once_however_much_is_asked() -> None:
    view = View(*(record(f"persistent://t/n/x{n}", (Pattern.LITERAL, Pattern.PREFIXED)[n % 2]) for n in range(1000)))
    decisions = AclDecisions(view)
    Records.read = 0
    for n in range(5000):
        said = decisions.of_topic("a", f"10.0.{n >> 8}.{n & 255}", AclOperation.READ, topic(f"x{n}"))
        assert n >= 1000 or said is AclAnswer.ALLOWED
        assert decisions.of_name("a", "", AclOperation.READ, "t", Resource.GROUP, f"g{n}") is AclAnswer.SILENT
        decisions.changed("/namespaces/t/n")
    assert Records.read <= 3


def test_other_records_are_another_index_and_what_is_gone_is_not_kept() -> None:
    view = View(record())
    decisions = AclDecisions(view)
    asked = "a", "10.0.0.1", AclOperation.READ, topic("x")
    assert decisions.of_topic(*asked) is AclAnswer.ALLOWED and not decisions.name_hosts("t")
    view.records = (record(host="10.0.0.1"), record(allow=False, host="10.0.0.2"))
    assert decisions.of_topic(*asked) is AclAnswer.ALLOWED and decisions.name_hosts("t")
    assert decisions.of_topic("a", "10.0.0.2", *asked[2:]) is AclAnswer.REFUSED
    assert decisions.of_topic("a", "", *asked[2:]) is AclAnswer.SILENT
    view.records = ()
    decisions.changed("/acls/t")
    assert decisions.of_topic(*asked) is AclAnswer.SILENT and not decisions._made and not decisions.name_hosts("t")


def test_a_host_that_no_acl_names_is_not_asked_for() -> None:
    index = AclIndex((record(), record(host="10.0.0.1", allow=False)))
    near, far, nowhere = (
        index.said(Resource.TOPIC, "a", host, (str(topic("x")),), "t/n") for host in ("10.0.0.1", "10.0.0.2", "")
    )
    assert near != far == nowhere
