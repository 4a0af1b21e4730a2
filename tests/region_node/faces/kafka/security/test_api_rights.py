"""A row says its rights, or the broker does not start; handlers get what their row says, whatever they ask for."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from heliograph.model.configuration.acl_records import AclOperation, AclRecord
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.wire.kafka.message_codec import BY_NAME, Fields, Request
from region_node.faces.kafka.connection.request_table import BEFORE_LOGIN, SERVED
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.security.api_rights import ApiRight, ApiRow, RequestGate, checked
from region_node.security.authentication.principal import Principal
from region_node.security.settings import SecuritySettings
from tests.region_node.faces.kafka.harness import Client, Face, with_face
from tests.region_node.faces.pulsar.harness import settle

SECURITY = SecuritySettings(authorization=True, anonymous_role="ann", super_users=("root",))
R = ApiRight


async def _handler(connection: Any, request: Request) -> Fields | None:
    return None


@pytest.mark.parametrize(
    ("row", "error"),
    [
        (("fetch", (R.READ_TOPIC,), _handler), TypeError),
        (ApiRow("fetch", (), _handler), TypeError),
        (ApiRow("fetch", ("READ_TOPIC",), _handler), TypeError),  # type: ignore[arg-type]
        (ApiRow("fetsch", (R.READ_TOPIC,), _handler), ValueError),
        (ApiRow("fetch", (R.NONE, R.READ_TOPIC), _handler), ValueError),
        (ApiRow("fetch", (R.ANY_ROLE, R.READ_TOPIC), _handler), ValueError),
        (ApiRow("fetch", (R.ANY_GRANT, R.READ_TOPIC), _handler), ValueError),
        (ApiRow("fetch", (R.READ_TOPIC, R.WRITE_TOPIC), _handler), ValueError),
        (ApiRow("fetch", (R.TENANT, R.SUPER), _handler), ValueError),
        (ApiRow("fetch", (R.READ_TOPIC,), _handler, changes=True, reads=True), ValueError),
    ],
)
def test_a_row_by_which_nobody_can_be_checked_ends_the_start(row: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        checked([row])


def test_two_rows_of_one_request_end_the_start() -> None:
    row = ApiRow("fetch", (R.READ_TOPIC,), _handler)
    assert checked([row]) == {"fetch": row}
    with pytest.raises(ValueError, match="two rows"):
        checked([row, row])


def test_nothing_but_what_signs_in_is_for_everybody() -> None:
    assert {"api_versions", "sasl_handshake", "sasl_authenticate"} == BEFORE_LOGIN


def test_the_audit_log_has_what_changes() -> None:
    of_admins = {R.CREATE_TOPIC, R.ALTER_TOPIC, R.ALTER_TOPIC_CONFIGS, R.DELETE_TOPIC, R.DELETE_GROUP}
    changing = {name for name, row in SERVED.items() if of_admins & set(row.rights)}
    changing |= {name for name in SERVED if name.startswith(("alter_", "create_", "delete_", "incremental_alter_"))}
    assert {name for name, row in SERVED.items() if row.changes} == changing | {"offset_delete"}


def test_the_gate_goes_by_the_row_and_by_the_topics_own_tenant() -> None:
    async def test(face: Face) -> None:
        await face.admin.update_tenant("public", TenantInfo(allowed_regions=("us",), admin_roles=("keeper",)))
        await face.admin.create_tenant("shop", TenantInfo(allowed_regions=("us",), admin_roles=("boss",)))
        grants = {"reader": ["consume"], "writer": ["produce"]}
        await face.admin.create_namespace("shop/live", NamespacePolicies(regions=("us",), permissions=grants))
        await settle()
        expected = {
            R.READ_TOPIC: {"reader", "boss", "root"},
            R.WRITE_TOPIC: {"writer", "boss", "root"},
            R.DESCRIBE_TOPIC: {"reader", "writer", "boss", "root"},
            R.CREATE_TOPIC: {"boss", "root"},
            R.ALTER_TOPIC: {"boss", "root"},
            R.ALTER_TOPIC_CONFIGS: {"boss", "root"},
            R.DESCRIBE_TOPIC_CONFIGS: {"reader", "writer", "boss", "root"},
            R.DELETE_TOPIC: {"boss", "root"},
            R.TENANT: {"keeper", "root"},
            R.SUPER: {"root"},
            R.ANY_GRANT: {"reader", "writer", "boss", "keeper", "root"},
            R.IDEMPOTENT_WRITE: {"writer", "boss", "keeper", "root"},
        }
        request = Request(BY_NAME["fetch"], 0, 1, "", {}, b"")
        login = Client(face.listener).protocol.session.login
        for right, allowed in expected.items():
            rows = checked([ApiRow("fetch", (right,), _handler)])
            gate = RequestGate(rows, login, face.broker.security.rights, "public/default", face.broker.name)
            of_all, somewhere = right in (R.TENANT, R.SUPER), right in (R.ANY_GRANT, R.IDEMPOTENT_WRITE)
            code = Code.CLUSTER_AUTHORIZATION_FAILED if of_all or somewhere else Code.TOPIC_AUTHORIZATION_FAILED

            def ask(gate: RequestGate = gate, of_all: bool = of_all, somewhere: bool = somewhere) -> None:
                if somewhere:
                    gate.somewhere(request, Code.CLUSTER_AUTHORIZATION_FAILED)
                elif of_all:
                    gate.of_all(request)
                else:
                    gate.topic(request, "shop/live/orders")

            found = set()
            for role in ("guest", "reader", "writer", "boss", "keeper", "root"):
                login.principal = Principal(role=role)
                try:
                    ask()
                    found.add(role)
                except Refused as error:
                    assert error.code == code
            assert found == allowed, right
            for other in ((True, False), (False, True), (False, False)):
                if other != (of_all, somewhere):
                    with pytest.raises(LookupError):
                        ask(gate, *other)

    with_face(test, security=SECURITY)


def test_a_role_that_may_produce_nowhere_is_given_no_producer_id() -> None:
    async def test(face: Face) -> None:
        client = Client(face.listener)
        client.protocol.session.login.principal = Principal(role="ann")
        asked = {"transactional_id": None, "transaction_timeout": 1000}
        for granted in ({}, {"ann": ["consume"]}, {"ann": ["produce"]}):
            await face.admin.update_namespace(
                "public/default", lambda before, granted=granted: replace(before, permissions=granted)
            )
            await settle()
            if "produce" not in granted.get("ann", ()):
                refused = await client.ask("init_producer_id", 4, asked)
                assert (refused["error_code"], refused["producer_id"]) == (Code.CLUSTER_AUTHORIZATION_FAILED, -1)
        given = await client.ask("init_producer_id", 4, asked)
        assert given["error_code"] == 0 and given["producer_id"] >= 0

    with_face(test, security=SECURITY)


SEES = ("read", "write", "alter", "delete")
OPERATIONS: dict[ApiRight, tuple[str, ...]] = {
    R.READ_TOPIC: ("read",),
    R.WRITE_TOPIC: ("write",),
    R.DESCRIBE_TOPIC: ("describe", *SEES),
    R.DESCRIBE_TOPIC_CONFIGS: ("describe-configs", "alter-configs", "describe", *SEES),
    R.CREATE_TOPIC: ("create",),
    R.ALTER_TOPIC: ("alter",),
    R.ALTER_TOPIC_CONFIGS: ("alter-configs",),
    R.DELETE_TOPIC: ("delete",),
}
"""Right -> its operation, and what else an ACL may allow for it; `all` does for each."""


def test_each_right_to_a_topic_is_an_operation_that_acls_allow_and_refuse() -> None:
    async def test(face: Face) -> None:
        request, login = Request(BY_NAME["fetch"], 0, 1, "", {}, b""), Client(face.listener).protocol.session.login
        assert set(OPERATIONS) == {right for right in R if right.name.endswith(("_TOPIC", "_TOPIC_CONFIGS"))}

        async def allowed(right: R, *records: tuple[str, bool]) -> bool:
            said = tuple(AclRecord("topic", "all", "public/default", "bob", "*", *record) for record in records)
            await face.admin.acls.change("public", lambda _: said)
            await settle()
            login.principal = Principal(role="bob")
            rows = checked([ApiRow("fetch", (right,), _handler)])
            gate = RequestGate(rows, login, face.broker.security.rights, "public/default", face.broker.name)
            try:
                gate.topic(request, "orders")
            except Refused:
                return False
            return True

        for right, operations in OPERATIONS.items():
            for operation in AclOperation:
                found = await allowed(right, (operation.value, True))
                assert found is (operation in operations or operation is AclOperation.ALL), (right, operation)
            for refused in (operations[0], "all"):
                assert not await allowed(right, ("all", True), (refused, False)), (right, refused)

    with_face(test, security=SECURITY)
