"""The table of the admin interface's rights: every route has the one that it should, and a new one is closed."""

from __future__ import annotations

import re

import pytest

from region_node.faces.admin.calls.call_rights import ROWS, Access, access_of
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
        ("GET", "/status.html", Access.PUBLIC),
        ("GET", "/metrics", Access.METRICS),
        ("GET", "/admin/v2/clusters", Access.ANY),
        ("PUT", "/admin/v2/clusters/{cluster}", Access.SUPER),
        ("POST", "/admin/v2/clusters/{cluster}/peers", Access.SUPER),
        ("POST", "/admin/v2/clusters/{cluster}/migrate", Access.SUPER),
        ("POST", "/admin/v2/namespaces/{tenant}/{namespace}/migration", Access.SUPER),
        ("POST", "/admin/v2/bookies/racks-info/{bookie}", Access.SUPER),
        ("POST", "/admin/v2/brokers/shutdown", Access.SUPER),
        ("GET", "/admin/v2/broker-stats/broker-resource-availability/{tenant}/{namespace}", Access.SUPER),
        ("GET", "/admin/v2/tenants", Access.SUPER),
        ("GET", "/admin/v2/tenants/{tenant}", Access.TENANT),
        ("PUT", "/admin/v2/tenants/{tenant}", Access.SUPER),
        ("POST", "/admin/v2/tenants/{tenant}", Access.SUPER),
        ("DELETE", "/admin/v2/tenants/{tenant}", Access.SUPER),
        ("PUT", NS, Access.TENANT),
        ("GET", f"{NS}/permissions", Access.TENANT),
        ("POST", f"{NS}/permissions/{{role}}", Access.TENANT),
        ("GET", f"{NS}/topics", Access.LIST),
        ("GET", f"{NS}/deduplication", Access.LIST),
        ("POST", f"{NS}/deduplication", Access.TENANT),
        ("GET", f"{TOPIC}/deduplicationEnabled", Access.LOOK_UP),
        ("POST", f"{TOPIC}/deduplicationEnabled", Access.TENANT),
        ("POST", f"{NS}/persistence/bookieAffinity", Access.SUPER),
        ("PUT", TOPIC, Access.TENANT),
        ("DELETE", TOPIC, Access.TENANT),
        ("GET", f"{TOPIC}/stats", Access.LOOK_UP),
        ("HEAD", f"{TOPIC}/stats", Access.LOOK_UP),
        ("GET", f"{TOPIC}/permissions", Access.TENANT),
        ("POST", f"{TOPIC}/terminate", Access.TENANT),
        ("POST", f"{TOPIC}/subscription/{{subscription}}/skip_all", Access.CONSUME),
        ("DELETE", f"{TOPIC}/subscription/{{subscription}}", Access.CONSUME),
        ("POST", f"{TOPIC}/all_subscription/expireMessages/{{seconds}}", Access.TENANT),
        ("GET", "/lookup/v2/topic/{domain}/{tenant}/{namespace}/{topic}", Access.LOOK_UP),
        ("GET", "/heliograph/v1/topics/{tenant}/{namespace}/{topic}/blocks", Access.CONSUME),
        ("GET", "/heliograph/v1/topics/{tenant}/{namespace}/{topic}/links", Access.CONSUME),
        ("POST", "/heliograph/v1/topics/{tenant}/{namespace}/{topic}/links/{region}/resolve", Access.TENANT),
        ("POST", "/heliograph/v1/reading/blocks", Access.EACH),
        ("POST", "/heliograph/v1/reading/tomorrow", Access.SUPER),
        ("POST", "/heliograph/v1/bookies/{id}/decommission", Access.SUPER),
        ("GET", "/heliograph/v1/status", Access.SUPER),
        ("GET", "/heliograph/v1/health", Access.PUBLIC),
        ("GET", "/console/", Access.PUBLIC),
        ("GET", "/console/at/{region}/{path}", Access.PASSED_ON),
        ("POST", "/console/at/{region}/{path}", Access.PASSED_ON),
        ("POST", "/console/{file}", Access.SUPER),
        ("GET", "/heliograph/v1/dr", Access.SUPER),
        ("GET", "/heliograph/v1/dr/{tenant}/{namespace}", Access.TENANT),
        ("PUT", "/heliograph/v1/dr/{tenant}/{namespace}", Access.SUPER),
        ("POST", "/heliograph/v1/dr/{tenant}/{namespace}/operations/advance", Access.SUPER),
        ("DELETE", "/heliograph/v1/dr/{tenant}/{namespace}/deletions/{topic}", Access.SUPER),
        ("GET", "/a/path/of/tomorrow", Access.SUPER),
        ("POST", f"{NS}/a/policy/of/tomorrow", Access.TENANT),
    ],
)
def test_rows(method: str, path: str, access: Access) -> None:
    assert access_of(method, path) is access


def test_what_is_open_to_everybody_is_this_and_no_more() -> None:
    free = {
        (method, path)
        for method, path, _ in ROUTES
        if access_of(method, template(path)) in (Access.PUBLIC, Access.METRICS, Access.ANY)
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
        if access in (Access.PRODUCE, Access.CONSUME, Access.LOOK_UP):
            assert {"tenant", "namespace", "topic"} <= names, path
        if access is Access.CONSUME and "/subscription/" in path:
            assert names & {"subscription", "sub"}, path
        if access in (Access.TENANT, Access.LIST):
            assert "tenant" in names, path
        if method != "GET" and access in (Access.LOOK_UP, Access.LIST, Access.ANY, Access.PUBLIC):
            pytest.fail(f"{method} {path} changes something for who may only look")


def test_the_schema_calls_that_change_nothing_are_for_producers_and_consumers() -> None:
    assert access_of("DELETE", "/admin/v2/schemas/{tenant}/{namespace}/{topic}/schema") is Access.TENANT
    assert len({row[:2] for row in ROWS}) == len(ROWS)


def test_where_a_body_names_topics_the_handler_checks_each() -> None:
    """`region_node.faces.admin.topics.bulk_reads`, all of it: its calls go by `_each`, or check before they answer (tests/region_node/security/test_secured_region.py)."""
    assert {path for method, path, _ in ROUTES if access_of(method, template(path)) is Access.EACH} == {
        path for _, path, _ in bulk_reads.ROUTES
    }
