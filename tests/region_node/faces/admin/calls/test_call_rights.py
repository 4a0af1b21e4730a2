"""The table of the admin interface's rights: every route has the one that it should, and a new one is closed."""

from __future__ import annotations

import re

import pytest

from heliograph.model.configuration.policy_table import POLICIES
from region_node.faces.admin.calls.call_rights import ROWS, CallAccess, access_of
from region_node.faces.admin.server.admin_server import ROUTES
from region_node.faces.admin.topics import bulk_reads

NS = "/admin/v2/namespaces/{tenant}/{namespace}"
TOPIC = "/admin/v2/{domain}/{tenant}/{namespace}/{topic}"


def template(path: str) -> str:
    """As aiohttp shows a route: without the patterns of its names."""
    return re.sub(r"\{(\w+):[^{}]*\}", r"{\1}", path)


@pytest.mark.parametrize(
    ("method", "path", "access"),
    [
        ("GET", "/status.html", CallAccess.PUBLIC),
        ("GET", "/metrics", CallAccess.METRICS),
        ("GET", "/admin/v2/clusters", CallAccess.ANY),
        ("PUT", "/admin/v2/clusters/{cluster}", CallAccess.SUPER),
        ("POST", "/admin/v2/clusters/{cluster}/peers", CallAccess.SUPER),
        ("POST", "/admin/v2/clusters/{cluster}/migrate", CallAccess.SUPER),
        ("POST", "/admin/v2/namespaces/{tenant}/{namespace}/migration", CallAccess.SUPER),
        ("POST", "/admin/v2/bookies/racks-info/{bookie}", CallAccess.SUPER),
        ("POST", "/admin/v2/brokers/shutdown", CallAccess.SUPER),
        ("GET", "/admin/v2/broker-stats/broker-resource-availability/{tenant}/{namespace}", CallAccess.SUPER),
        ("GET", "/admin/v2/tenants", CallAccess.SUPER),
        ("GET", "/admin/v2/tenants/{tenant}", CallAccess.TENANT),
        ("PUT", "/admin/v2/tenants/{tenant}", CallAccess.SUPER),
        ("POST", "/admin/v2/tenants/{tenant}", CallAccess.SUPER),
        ("DELETE", "/admin/v2/tenants/{tenant}", CallAccess.SUPER),
        ("PUT", NS, CallAccess.TENANT),
        ("GET", f"{NS}/permissions", CallAccess.TENANT),
        ("POST", f"{NS}/permissions/{{role}}", CallAccess.TENANT),
        ("GET", f"{NS}/topics", CallAccess.LIST),
        ("GET", f"{NS}/deduplication", CallAccess.LIST),
        ("POST", f"{NS}/deduplication", CallAccess.TENANT),
        ("GET", f"{TOPIC}/deduplicationEnabled", CallAccess.LOOK_UP),
        ("POST", f"{TOPIC}/deduplicationEnabled", CallAccess.TENANT),
        ("POST", f"{NS}/persistence/bookieAffinity", CallAccess.SUPER),
        ("PUT", TOPIC, CallAccess.TENANT),
        ("DELETE", TOPIC, CallAccess.TENANT),
        ("GET", f"{TOPIC}/stats", CallAccess.LOOK_UP),
        ("HEAD", f"{TOPIC}/stats", CallAccess.LOOK_UP),
        ("GET", f"{TOPIC}/permissions", CallAccess.TENANT),
        ("POST", f"{TOPIC}/terminate", CallAccess.TENANT),
        ("POST", f"{TOPIC}/subscription/{{subscription}}/skip_all", CallAccess.CONSUME),
        ("DELETE", f"{TOPIC}/subscription/{{subscription}}", CallAccess.CONSUME),
        ("POST", f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", CallAccess.TENANT),
        ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", CallAccess.LOOK_UP),
        ("GET", "/heliograph/v1/topics/{tenant}/{namespace}/{topic}/blocks", CallAccess.CONSUME),
        ("GET", "/heliograph/v1/topics/{tenant}/{namespace}/{topic}/links", CallAccess.CONSUME),
        ("POST", "/heliograph/v1/topics/{tenant}/{namespace}/{topic}/links/{region}/resolve", CallAccess.TENANT),
        ("POST", "/heliograph/v1/reading/blocks", CallAccess.EACH),
        ("POST", "/heliograph/v1/reading/tomorrow", CallAccess.SUPER),
        ("POST", "/heliograph/v1/bookies/{id}/decommission", CallAccess.SUPER),
        ("POST", "/heliograph/v1/bookies/{id}/new-life", CallAccess.SUPER),
        ("GET", "/heliograph/v1/status", CallAccess.SUPER),
        ("GET", "/heliograph/v1/health", CallAccess.PUBLIC),
        ("GET", "/console/", CallAccess.PUBLIC),
        ("GET", "/console/at/{region}/{path}", CallAccess.PASSED_ON),
        ("POST", "/console/at/{region}/{path}", CallAccess.PASSED_ON),
        ("POST", "/console/{file}", CallAccess.SUPER),
        ("GET", "/heliograph/v1/dr", CallAccess.SUPER),
        ("GET", "/heliograph/v1/dr/{tenant}/{namespace}", CallAccess.TENANT),
        ("PUT", "/heliograph/v1/dr/{tenant}/{namespace}", CallAccess.SUPER),
        ("POST", "/heliograph/v1/dr/{tenant}/{namespace}/operations/advance", CallAccess.SUPER),
        ("DELETE", "/heliograph/v1/dr/{tenant}/{namespace}/deletions/{topic}", CallAccess.SUPER),
        ("GET", "/a/path/of/tomorrow", CallAccess.SUPER),
        ("POST", f"{NS}/a/policy/of/tomorrow", CallAccess.TENANT),
    ],
)
def test_rows(method: str, path: str, access: CallAccess) -> None:
    assert access_of(method, path) is access


def test_what_is_open_to_everybody_is_this_and_no_more() -> None:
    free = {
        (method, path)
        for method, path, _ in ROUTES
        if access_of(method, template(path)) in (CallAccess.PUBLIC, CallAccess.METRICS, CallAccess.ANY)
    }
    assert {path for _, path in free} <= {
        "/status.html",
        "/metrics",
        "/metrics/",
        "/admin/v2/clusters",
        "/admin/v2/brokers/health",
        "/admin/v2/brokers/ready",
        "/admin/v2/brokers/version",
        "/openapi.json",
        "/openapi",
        "/heliograph/v1/health",
        "/console",
        "/console/",
        "/console/{file}",
    }
    assert {method for method, _ in free} == {"GET"}


def test_every_right_on_a_topic_can_be_checked_by_the_names_in_its_path() -> None:
    for method, path, _ in ROUTES:
        access, names = access_of(method, template(path)), set(re.findall(r"\{(\w+)", path))
        if access in (CallAccess.PRODUCE, CallAccess.CONSUME, CallAccess.LOOK_UP):
            assert {"tenant", "namespace", "topic"} <= names, path
        if access is CallAccess.CONSUME and "/subscription/" in path:
            assert names & {"subscription", "sub"}, path
        if access in (CallAccess.TENANT, CallAccess.LIST):
            assert "tenant" in names, path
        if method != "GET" and access in (CallAccess.LOOK_UP, CallAccess.LIST, CallAccess.ANY, CallAccess.PUBLIC):
            pytest.fail(f"{method} {path} changes something for who may only look")


def test_the_schema_calls_that_change_nothing_are_for_producers_and_consumers() -> None:
    assert access_of("DELETE", "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema") is CallAccess.TENANT
    assert len({row[:2] for row in ROWS}) == len(ROWS)


def test_where_a_body_names_topics_the_handler_checks_each() -> None:
    """`region_node.faces.admin.topics.bulk_reads`, all of it: its calls go by `_each`, or check before they answer
    (tests/region_node/security/test_secured_region.py).
    """
    assert {path for method, path, _ in ROUTES if access_of(method, template(path)) is CallAccess.EACH} == {
        path for _, path, _ in bulk_reads.ROUTES
    }


def test_a_policy_that_wants_a_super_user_says_so_wherever_it_is_set() -> None:
    """By a path of its own, or in the body of a new namespace, which goes by the row."""
    for policy in POLICIES:
        if policy.namespace:
            wanted = access_of("PUT" if policy.put else "POST", f"{NS}/{policy.namespace}")
            assert (wanted is CallAccess.SUPER) == policy.by_super, policy.name
    assert access_of("POST", f"{NS}/resourcegroup/{{group}}") is CallAccess.SUPER
    assert {policy.name for policy in POLICIES if policy.by_super} == {
        "antiAffinity",
        "bookieAffinity",
        "resourceGroup",
    }
