"""What a role may do: each rule alone, and all of them against every grant that was drawn."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from heliograph.model.configuration.acl_records import AclOperation, AclRecord, Pattern, Resource
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.model.errors import Unauthorized
from heliograph.model.topic_names import TopicName
from region_node.security.authentication.principal import Principal
from region_node.security.authorization.acl_decisions import AclAnswer
from region_node.security.authorization.authorization_service import Action, Authorization
from region_node.security.settings import SecuritySettings

NAMESPACE = "t/n"
TOPIC = TopicName.parse("persistent://t/n/x")
OTHER = TopicName.parse("persistent://t/n/y")
PARTITION = TOPIC.with_partition(3)
ROLES = ("a", "b", "boss", "root", "stranger", "")
PRODUCE, CONSUME = Action.PRODUCE, Action.CONSUME


class View:
    """The global configuration, as of now."""

    def __init__(self, policies: NamespacePolicies | None = None, admins: tuple[str, ...] | None = ("boss",)) -> None:
        self.policies, self.admins = policies, admins
        self.callbacks: list[Callable[[str], None]] = []
        self.records: tuple[AclRecord, ...] | None = ()

    def namespace(self, name: str) -> NamespacePolicies | None:
        return self.policies if name == NAMESPACE else None

    def tenant(self, name: str) -> TenantInfo | None:
        return TenantInfo(admin_roles=self.admins) if name == "t" and self.admins is not None else None

    def tenants(self) -> list[str]:
        return [] if self.admins is None else ["t"]

    def namespaces(self, tenant: str) -> list[str]:
        return [NAMESPACE] if tenant == "t" and self.policies is not None else []

    def acls(self, tenant: str) -> tuple[AclRecord, ...] | None:
        return self.records if tenant == "t" else ()

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]:
        self.callbacks.append(callback)
        return lambda: None


def authorization(view: View | None = None, **grants: Any) -> Authorization:
    settings = SecuritySettings(authentication=("tls",), authorization=True, super_users=("root",))
    return Authorization(settings, view or View(NamespacePolicies(**grants)))


def role(name: str, proxy: str = "") -> Principal:
    return Principal(role=name, proxy=proxy)


def rights(found: Authorization, who: Principal) -> set[str]:
    """All that it may do in the namespace."""
    asked = {
        "produce": found.may(who, PRODUCE, TOPIC),
        "consume": found.may(who, CONSUME, TOPIC),
        "subscribe": found.may_subscribe(who, TOPIC, "s"),
        "look up": found.may_look_up(who, TOPIC),
        "list": found.may_list(who, NAMESPACE),
        "administer": found.administers(who, "t"),
        "super": found.is_super(who),
    }
    return {name for name, allowed in asked.items() if allowed}


ALL = {"produce", "consume", "subscribe", "look up", "list", "administer", "super"}


@pytest.mark.parametrize("name", ROLES)
def test_what_no_rule_allows_is_refused(name: str) -> None:
    expected = {"root": ALL, "boss": ALL - {"super"}}.get(name, set())
    assert rights(authorization(), role(name)) == expected
    assert rights(authorization(View(None)), role(name)) == expected, "no such namespace"
    nobody = authorization(View(None, None))
    assert rights(nobody, role(name)) == (ALL if name == "root" else set()), "no such tenant"


def test_an_action_opens_itself_and_no_other() -> None:
    granted = {action: authorization(permissions={"a": [action]}) for action in Action}
    for action, found in granted.items():
        assert {asked for asked in Action if found.may(role("a"), asked, TOPIC)} == {action}
        assert rights(found, role("b")) == set()
    assert rights(granted[PRODUCE], role("a")) == {"produce", "look up", "list"}
    assert rights(granted[CONSUME], role("a")) == {"consume", "subscribe", "look up", "list"}
    assert rights(granted[Action.FUNCTIONS], role("a")) == set()


def test_a_grant_at_a_topic_is_of_it_and_its_partitions_alone() -> None:
    found = authorization(topic_permissions={str(TOPIC): {"a": ["produce"]}})
    assert found.may(role("a"), PRODUCE, TOPIC) and found.may(role("a"), PRODUCE, PARTITION)
    assert not found.may(role("a"), PRODUCE, OTHER) and not found.may(role("a"), CONSUME, TOPIC)
    assert not found.may_list(role("a"), NAMESPACE), "the others are none of its business"
    found = authorization(topic_permissions={str(PARTITION): {"a": ["consume"]}})
    assert found.may(role("a"), CONSUME, PARTITION)
    assert not found.may(role("a"), CONSUME, TOPIC) and not found.may(role("a"), CONSUME, TOPIC.with_partition(4))


def test_a_subscription_is_for_the_roles_that_it_names_and_otherwise_for_all() -> None:
    both = {"a": ["consume"], "b": ["consume"]}
    found = authorization(permissions=both, subscription_permissions={"s": ["b"], "empty": []})
    assert not found.may_subscribe(role("a"), TOPIC, "s") and found.may_subscribe(role("b"), TOPIC, "s")
    assert found.may_subscribe(role("a"), TOPIC, "t") and found.may_subscribe(role("a"), TOPIC, "empty")
    assert found.may_subscribe(role("boss"), TOPIC, "s") and found.may(role("a"), CONSUME, TOPIC)
    without = authorization(subscription_permissions={"s": ["b"]})
    assert not without.may_subscribe(role("b"), TOPIC, "s"), "to be named is no grant to consume"


def test_where_names_begin_with_the_role_no_others_are_used() -> None:
    found = authorization(
        permissions={"a": ["consume"]},
        policies={"subscriptionAuthMode": "Prefix"},
        subscription_permissions={"a-taken": ["b"]},
    )
    assert found.may_subscribe(role("a"), TOPIC, "a-1") and found.may_subscribe(role("a"), TOPIC, "a")
    assert not found.may_subscribe(role("a"), TOPIC, "b-a") and not found.may_subscribe(role("a"), TOPIC, "a-taken")
    assert found.may_subscribe(role("boss"), TOPIC, "s")


@pytest.mark.parametrize("seed", range(100))
def test_a_proxy_gets_what_both_are_allowed_and_neither_more_nor_less(seed: int) -> None:
    rng = random.Random(seed)

    def grants() -> dict[str, list[str]]:
        return {name: rng.sample(list(Action), rng.randrange(4)) for name in ROLES if rng.random() < 0.6}

    found = authorization(
        permissions=grants(),
        topic_permissions={str(topic): grants() for topic in (TOPIC, OTHER) if rng.random() < 0.7},
        subscription_permissions={"s": rng.sample(ROLES, 2)} if rng.random() < 0.5 else {},
        policies={"subscriptionAuthMode": "Prefix"} if rng.random() < 0.3 else {},
    )
    for name in ROLES:
        alone = rights(found, role(name))
        assert ("look up" in alone) is bool(alone & {"produce", "consume"})
        assert "consume" in alone or "subscribe" not in alone
        for proxy in filter(None, ROLES):
            behind = rights(found, role(name, proxy))
            both = alone & rights(found, role(proxy))
            assert behind - {"look up"} == both - {"look up"}
            assert ("look up" in behind) is bool(behind & {"produce", "consume"})


def test_what_is_asked_again_after_the_rules_have_changed_is_answered_by_the_new_ones() -> None:
    view = View(NamespacePolicies(permissions={"a": ["produce"]}))
    found = authorization(view)
    found.check(role("a"), PRODUCE, TOPIC)
    view.policies = NamespacePolicies()
    with pytest.raises(Unauthorized):
        found.check(role("a"), PRODUCE, TOPIC)
    view.admins = ("a",)
    found.check(role("a"), PRODUCE, TOPIC)
    assert not found.administers(role("boss"), "t") and not found.administers(role("a"), "u")


def test_processes_of_the_instance_and_everybody_where_nothing_is_authorised_may_everything() -> None:
    assert rights(authorization(), Principal(role="b", internal=True)) == ALL
    off = Authorization(SecuritySettings(), View())
    assert not off.enabled and rights(off, role("stranger", "a")) == ALL
    on = SecuritySettings(authentication=("tls",), authorization=True, super_users=("root",))
    assert Authorization(on, View()).enabled and not Authorization(on, None).enabled


def test_each_refusal_names_the_role_and_what_it_wanted() -> None:
    found, who = authorization(permissions={"a": ["functions"]}), role("a", "b")
    refusals: dict[str, Callable[[], None]] = {
        "the role 'a' through the proxy 'b' may not produce persistent://t/n/x": lambda: found.check(
            who, PRODUCE, TOPIC
        ),
        "consume persistent://t/n/x by the subscription 's'": lambda: found.check_subscribe(who, TOPIC, "s"),
        "produce to or consume persistent://t/n/x": lambda: found.check_look_up(who, TOPIC),
        "the role 'a' may not list the topics of t/n": lambda: found.check_list(role("a"), NAMESPACE),
    }
    for text, refused in refusals.items():
        with pytest.raises(Unauthorized, match=text):
            refused()
    every = role("root")
    found.check(every, PRODUCE, TOPIC)
    found.check_subscribe(every, TOPIC, "s")
    found.check_look_up(every, TOPIC)
    found.check_list(every, NAMESPACE)


def test_a_role_has_a_grant_where_any_rule_lets_it_do_something() -> None:
    view = View(
        NamespacePolicies(
            permissions={"a": ["produce"], "stranger": ["functions"]},
            topic_permissions={str(TOPIC): {"b": ["consume"]}},
        )
    )
    found = authorization(view)
    assert [name for name in ROLES if found.has_a_grant(role(name))] == ["a", "b", "boss", "root"]
    assert [name for name in ROLES if found.has_a_grant(role(name), Action.PRODUCE)] == ["a", "boss", "root"]
    assert [name for name in ROLES if found.has_a_grant(role(name), Action.CONSUME)] == ["b", "boss", "root"]
    assert not found.has_a_grant(role("a", proxy="stranger")) and found.has_a_grant(role("a", proxy="b"))
    view.policies, before = NamespacePolicies(permissions={"stranger": ["consume"]}), found.changes
    for callback in view.callbacks:
        callback("/namespaces/t/n")
    assert [name for name in ROLES if found.has_a_grant(role(name))] == ["boss", "root", "stranger"]
    assert found.changes > before


def acl(role: str, operation: AclOperation = AclOperation.ALL, *, allow: bool = False, **fields: Any) -> AclRecord:
    of_topic = {"resource": Resource.TOPIC, "pattern": Pattern.LITERAL, "name": str(TOPIC), "host": "*"}
    return AclRecord(**{**of_topic, "role": role, "operation": operation, "allow": allow, **fields})


def told(view: View, *records: AclRecord) -> None:
    view.records = records
    for callback in view.callbacks:
        callback("/acls/t")


def test_an_acl_that_refuses_wins_over_grants_and_other_acls_and_not_over_admins() -> None:
    view = View(NamespacePolicies(permissions={"a": ["produce", "consume"]}))
    found = authorization(view)
    told(view, acl("a", AclOperation.WRITE), acl("a", AclOperation.WRITE, allow=True))
    assert rights(found, role("a")) == {"consume", "subscribe", "look up", "list"}
    assert not found.may(role("a"), PRODUCE, PARTITION) and found.may(role("a"), PRODUCE, OTHER)
    told(view, acl("*"))
    assert rights(found, role("a")) == {"list"}
    told(view, acl("*", pattern=Pattern.ALL, name=NAMESPACE))
    assert rights(found, role("a")) == set()
    assert rights(found, role("boss")) == ALL - {"super"} and rights(found, role("root")) == ALL
    assert rights(found, Principal(role="a", internal=True)) == ALL
    told(view)
    assert rights(found, role("a")) == {"produce", "consume", "subscribe", "look up", "list"}


def test_an_acl_allows_what_it_names_and_no_more() -> None:
    view = View(NamespacePolicies())
    found = authorization(view)
    told(view, acl("b", AclOperation.READ, allow=True))
    assert rights(found, role("b")) == {"consume", "subscribe", "look up"} and rights(found, role("a")) == set()
    assert not found.may(role("b"), CONSUME, OTHER) and found.may(role("b"), CONSUME, PARTITION)
    assert not found.may(role("b"), CONSUME, TopicName.parse("persistent://u/n/x")), "of another tenant"
    told(view, acl("*", allow=True, pattern=Pattern.ALL, name=NAMESPACE))
    assert rights(found, role("b")) == {"produce", "consume", "subscribe", "look up", "list"}
    told(view, acl("b", allow=True, pattern=Pattern.PREFIXED, name="persistent://t/n/"))
    assert found.may(role("b"), CONSUME, OTHER)
    assert not found.may(role("b"), CONSUME, TopicName.parse("non-persistent://t/n/x"))
    told(view, acl("b", AclOperation.DESCRIBE, allow=True))
    assert rights(found, role("b")) == {"look up"}
    told(view, acl("b", AclOperation.DESCRIBE, allow=True), acl("b", AclOperation.DESCRIBE))
    assert rights(found, role("b")) == set()


def test_an_acl_of_an_address_is_for_that_one() -> None:
    view = View(NamespacePolicies())
    found = authorization(view)
    told(view, acl("b", allow=True, host="10.0.0.1"), acl("*", host="10.0.0.2"))
    near, far = (Principal(role="b").at(f"::ffff:10.0.0.{n}") for n in (1, 2))
    assert found.may(near, PRODUCE, TOPIC) and not found.may(far, PRODUCE, TOPIC)
    assert not found.may(role("b"), PRODUCE, TOPIC), "from nowhere"
    told(view, acl("b", allow=True), acl("*", host="10.0.0.2"))
    assert found.may(near, PRODUCE, TOPIC) and not found.may(far, PRODUCE, TOPIC)


def test_a_proxy_is_refused_where_either_is() -> None:
    view = View(NamespacePolicies(permissions={"a": ["produce"], "b": ["produce"]}))
    found = authorization(view)
    assert found.may(role("a", proxy="b"), PRODUCE, TOPIC)
    for name in ("a", "b", "*"):
        told(view, acl(name))
        assert not found.may(role("a", proxy="b"), PRODUCE, TOPIC)
        assert not found.may_look_up(role("a", proxy="b"), TOPIC)
    told(view, acl("a", AclOperation.CREATE, allow=True))
    assert found.may_do(role("a"), AclOperation.CREATE, TOPIC)
    assert not found.may_do(role("a", proxy="b"), AclOperation.CREATE, TOPIC)


def test_an_acl_that_allows_is_a_grant_somewhere() -> None:
    view = View(NamespacePolicies())
    found = authorization(view)
    told(view, acl("a", AclOperation.WRITE, allow=True), acl("b"))
    assert [name for name in ROLES if found.has_a_grant(role(name))] == ["a", "boss", "root"]
    assert [name for name in ROLES if found.has_a_grant(role(name), Action.CONSUME)] == ["boss", "root"]
    told(view, acl("*", AclOperation.READ, allow=True))
    assert all(found.has_a_grant(role(name)) for name in ROLES)
    assert not found.has_a_grant(role("stranger"), Action.PRODUCE)


def test_an_acl_for_every_role_is_a_grant_in_its_own_tenant_and_begins_no_transactions() -> None:
    view = View(NamespacePolicies())
    found = authorization(view)
    told(view, acl("*", allow=True), acl("a", AclOperation.WRITE, allow=True))
    assert all(found.has_a_grant(role(name), at="t") for name in ROLES)
    for at in ("u", ""):
        assert [name for name in ROLES if found.has_a_grant(role(name), at=at)] == ["a", "boss", "root"]
    found.check_transactions(role("a"))
    for name in ("b", "stranger", ""):
        with pytest.raises(Unauthorized, match="by its name"):
            found.check_transactions(role(name))


def test_an_acl_of_a_group_is_a_grant_to_consume_and_not_to_produce() -> None:
    view = View(NamespacePolicies())
    found = authorization(view)
    told(view, acl("a", allow=True, resource=Resource.GROUP, name="g"))
    assert found.has_a_grant(role("a"), Action.CONSUME) and not found.has_a_grant(role("a"), Action.PRODUCE)
    told(view, acl("a", allow=True, resource=Resource.TRANSACTIONAL_ID, name="i"))
    assert not found.has_a_grant(role("a"))


def test_an_acl_says_nothing_to_a_proxy_that_administers_and_all_to_whom_it_speaks_for() -> None:
    view = View(NamespacePolicies(permissions={"a": ["produce"]}))
    found = authorization(view)
    asked = AclOperation.READ, "t", Resource.GROUP, "g"
    for proxy in ("root", "boss"):
        who = role("a", proxy=proxy)
        for refused in (proxy, "*", "a"):
            of_group = acl(refused, resource=Resource.GROUP, name="g")
            told(view, acl(refused), of_group, acl("a", AclOperation.CREATE, allow=True, name=str(OTHER)))
            allowed = refused == proxy
            assert found.may_look_up(who, TOPIC) is found.may(who, PRODUCE, TOPIC) is allowed
            assert found.says(who, *asked) is (AclAnswer.SILENT if allowed else AclAnswer.REFUSED)
            assert found.may_do(who, AclOperation.CREATE, OTHER), "the role has it from the ACL, the proxy as it is"
        assert found.says(role(proxy, proxy="root"), *asked) is AclAnswer.SILENT
    assert found.says(role("a", proxy="b"), *asked) is AclAnswer.REFUSED
    assert not found.may_do(role("a", proxy="b"), AclOperation.CREATE, OTHER)


def test_acls_that_cannot_be_read_refuse_everything_but_to_admins() -> None:
    view = View(NamespacePolicies(permissions={"a": ["produce", "consume"]}))
    found = authorization(view)
    assert rights(found, role("a")) == {"produce", "consume", "subscribe", "look up", "list"}
    view.records = None
    for callback in view.callbacks:
        callback("/acls/t")
    assert rights(found, role("a")) == set() and rights(found, role("boss")) == ALL - {"super"}
    for name, said in (("a", AclAnswer.REFUSED), ("boss", AclAnswer.SILENT)):
        for operation in AclOperation:
            assert found.says_of_topic(role(name), operation, TOPIC) is said
            assert {found.says(role(name), operation, "t", each, "g") for each in Resource} == {said}
            assert found.says(role(name), operation, "u", Resource.GROUP, "g") is AclAnswer.SILENT
    assert all(found.acls_are_about("t", each) for each in Resource)
    told(view)
    assert rights(found, role("a")) == {"produce", "consume", "subscribe", "look up", "list"}
