"""Which roles may do something somewhere: the same as of everything, and no more of it is read than has changed."""

from __future__ import annotations

import random

import pytest

from global_config import keys
from heliograph.model.configuration.acl_records import ANYBODY, AclOperation, AclRecord, Pattern, Resource
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from region_node.security.authorization.acl_decisions import AclDecisions
from region_node.security.authorization.roles_anywhere import RolesAnywhere

WRITE, READ = AclOperation.WRITE, AclOperation.READ


class View:
    """The global configuration. `read`: the namespaces that were looked at."""

    def __init__(self) -> None:
        self.of_tenants: dict[str, TenantInfo] = {}
        self.of_namespaces: dict[str, NamespacePolicies] = {}
        self.of_acls: dict[str, tuple[AclRecord, ...]] = {}
        self.read: list[str] = []

    def tenant(self, name: str) -> TenantInfo | None:
        return self.of_tenants.get(name)

    def namespace(self, name: str) -> NamespacePolicies | None:
        self.read.append(name)
        return self.of_namespaces.get(name)

    def tenants(self) -> list[str]:
        return list(self.of_tenants)

    def namespaces(self, tenant: str) -> list[str]:
        return [name for name in self.of_namespaces if name.startswith(f"{tenant}/")]

    def acls(self, tenant: str) -> tuple[AclRecord, ...]:
        return self.of_acls.get(tenant, ())


def change(view: View, rng: random.Random) -> str:
    """Something, maybe away. Returns its key."""
    tenant, roles = rng.choice("tuv"), rng.sample(["a", "b", "c", ANYBODY], rng.randrange(4))
    match rng.randrange(3):
        case 0:
            view.of_tenants[tenant] = TenantInfo(admin_roles=tuple(role for role in roles if role != ANYBODY))
            if not roles:
                del view.of_tenants[tenant]
            return keys.tenant(tenant)
        case 1:
            operation = rng.choice([WRITE, READ, AclOperation.ALL])
            view.of_acls[tenant] = tuple(
                AclRecord(Resource.TOPIC, Pattern.PREFIXED, "", role, "*", operation, allow=rng.random() < 0.7)
                for role in roles
            )
            return keys.acls(tenant)
        case _:
            name = f"{tenant}/{rng.randrange(3)}"
            if not roles:
                view.of_namespaces.pop(name, None)
            else:
                grants = {role: [rng.choice(["produce", "consume", "sinks"])] for role in roles if role != ANYBODY}
                of_topic = {"persistent://t/n/x": grants} if rng.random() < 0.5 else {}
                view.of_namespaces[name] = NamespacePolicies(
                    permissions={} if of_topic else grants, topic_permissions=of_topic
                )
            return keys.namespace(name)


@pytest.mark.parametrize("seed", range(6))
def test_it_is_as_if_everything_were_read_anew(seed: int) -> None:
    rng, view = random.Random(seed), View()
    view.of_tenants = {name: TenantInfo() for name in "tuv"}
    acls = AclDecisions(view)
    kept = RolesAnywhere(view, acls)
    for _ in range(60):
        key = change(view, rng)
        acls.changed(key)
        kept.changed(key)
        if rng.random() < 0.5:
            new = RolesAnywhere(view, AclDecisions(view))
            for operation in (WRITE, READ):
                assert kept.of(operation) == new.of(operation)


def test_only_what_has_changed_is_read() -> None:
    view = View()
    view.of_tenants = {"t": TenantInfo(admin_roles=("boss",))}
    view.of_namespaces = {f"t/{number}": NamespacePolicies(permissions={"a": ["produce"]}) for number in range(50)}
    found = RolesAnywhere(view, AclDecisions(view))
    assert set(found.of(WRITE).roles) == {"a", "boss"} and set(found.of(READ).roles) == {"boss"}
    view.read.clear()
    for key in (keys.partitioned("persistent://t/7/x"), keys.topic_policies("persistent://t/7/x"), keys.tenant("t")):
        found.changed(key)
    assert set(found.of(WRITE).roles) == {"a", "boss"} and not view.read
    view.of_namespaces["t/7"] = NamespacePolicies(permissions={"b": ["consume"]})
    found.changed(keys.namespace("t/7"))
    assert set(found.of(READ).roles) == {"b", "boss"} and set(view.read) == {"t/7"}
