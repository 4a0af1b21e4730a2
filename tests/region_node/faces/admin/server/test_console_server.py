"""The console: its files are served with a strict policy, name nothing outside, never write markup, and ask only what
brokers answer; passing on is narrow.
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from region_node.faces.admin.calls.call_rights import CallAccess
from region_node.faces.admin.server import console_server
from region_node.faces.admin.server.admin_server import ROUTES
from tests.region_node.live import provisioned
from tests.region_node.rest_client import Rest

MODULES = sorted(console_server.FILES.glob("*.js"))
_MARKUP = (
    "innerHTML",
    "outerHTML",
    "insertAdjacentHTML",
    "document.write",
    "eval(",
    "new Function",
    "DOMParser",
    "srcdoc",
)


def test_the_page_has_a_name_for_each_call_that_it_makes() -> None:
    named = json.loads(console_server.paths(ROUTES).removeprefix("export const PATHS = ").removesuffix(";\n"))
    assert len(named) == sum(bool(row.console) for row in ROUTES) >= 25, "no name is there twice"
    assert named["stats"] == "GET /admin/v2/{domain}/{tenant}/{namespace}/{topic}/stats"
    assert not [path for path in named.values() if re.search(r"{\w+:", path)]
    texts = [path.read_text() for path in MODULES]
    assert {name for text in texts for name in re.findall(r'\bcall\("(\w+)"', text)} == named.keys()
    assert not [text for text in texts if "/admin/v2" in text or "/heliograph/v1" in text]


def test_nothing_comes_from_elsewhere_and_no_data_becomes_markup() -> None:
    names = {"paths.js", *(path.name for path in console_server.FILES.iterdir())}
    for path in sorted(console_server.FILES.iterdir()):
        text = path.read_text()
        found = re.findall(r"(?:https?:)?//[\w.-]+\.\w+", re.sub(r"^\s*//.*$", "", text, flags=re.MULTILINE))
        assert set(found) <= {"http://www.w3.org"}, path.name  # the name of SVG, which nobody fetches
        assert not [word for word in _MARKUP if word in text], path.name
        assert set(re.findall(r'from "\./([^"]+)"', text)) <= names, path.name
    page = (console_server.FILES / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|\sstyle=", page), "the policy lets nothing inline run"
    assert sum(path.stat().st_size for path in console_server.FILES.iterdir()) < 100_000


def test_who_may() -> None:
    public = {row.path for row in console_server.ROUTES if row.access is CallAccess.PUBLIC}
    signing_in = {"/console/sign-in", "/console/signed-in", "/console/sign-out"}
    assert public == {"/console", "/console/", "/console/{file}", *signing_in}
    passed_on = [row for row in ROUTES if row.access is CallAccess.PASSED_ON]
    assert {row.method for row in passed_on} == {"GET", "PUT", "POST", "DELETE"}
    assert all("/at/" in row.path for row in passed_on)


def test_the_files_go_into_the_servers_wheel() -> None:
    """The build takes every file of a server package; this one is in one."""
    hook = (Path(__file__).resolve().parents[5] / "packaging" / "server" / "hatch_build.py").read_text()
    assert '"region_node"' in hook
    assert 'rglob("*")' in hook


# -- a real region -----------------------------------------------------------------------------------------------------


def _get(url: str) -> tuple[int, dict[str, str], bytes]:
    try:
        with urllib.request.urlopen(url, timeout=60) as answer:
            return answer.status, dict(answer.headers), answer.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


@pytest.fixture(scope="module")
def two(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with provisioned(tmp_path_factory.mktemp("console"), brokers=2) as made:
        yield made


@pytest.mark.wan
@pytest.mark.slow
def test_the_page_is_served_with_a_policy(two: Any) -> None:
    status, headers, text = _get(f"{two.admin_url()}/console/")
    assert status == 200
    assert b'data-region="us"' in text
    for name, kind in [
        ("", "text/html"),
        *((name, "text/javascript") for name in ("paths.js", *(path.name for path in MODULES))),
        ("console.css", "text/css"),
    ]:
        status, headers, text = _get(f"{two.admin_url()}/console/{name}")
        assert (status, headers["Content-Type"].partition(";")[0]) == (200, kind)
        assert headers["Content-Security-Policy"] == console_server.POLICY
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert "unsafe" not in console_server.POLICY
    assert {"default-src 'none'", "script-src 'self'", "connect-src 'self'", "frame-ancestors 'none'"} <= set(
        console_server.POLICY.split("; ")
    )
    assert _get(f"{two.admin_url()}/console")[0] == 200
    assert _get(f"{two.admin_url()}/console/..%2f..%2f__init__.py")[0] == 412
    assert _get(f"{two.admin_url()}/console/tomorrow.js")[0] == 404


@pytest.mark.wan
@pytest.mark.slow
def test_another_brokers_topic_is_asked_and_changed_through_this_one(two: Any) -> None:
    topic = "persistent/public/default/away"
    assert Rest(two.admin_url())("PUT", f"/admin/v2/{topic}")[0] == 204
    owner = Rest(two.admin_url())("GET", f"/admin/v2/{topic}/stats")[1]["ownerBroker"]
    other = Rest(two.admin_url(1 if owner == "us-broker-0" else 0))
    assert other("GET", f"/admin/v2/{topic}/stats", hops=0)[0] == 307
    assert other("GET", f"/console/at/us/admin/v2/{topic}/stats", hops=0)[1]["ownerBroker"] == owner
    assert other("PUT", f"/console/at/us/admin/v2/{topic}/unload", hops=0)[0] == 204
    rows = [
        row["path"]
        for row in other("GET", "/heliograph/v1/audit?all=true")[1]["changes"]
        if row["path"].endswith("/unload")
    ]
    assert rows == [f"/admin/v2/{topic}/unload"], "written down once, where it was done"


@pytest.mark.wan
@pytest.mark.slow
def test_what_is_not_passed_on(two: Any) -> None:
    first = Rest(two.admin_url())
    assert first("GET", "/console/at/us/metrics")[0] == 412
    assert first("GET", "/console/at/us/admin/v2/%2e%2e/%2e%2e/metrics")[0] in (404, 412)
    assert first("GET", "/console/at/nowhere/admin/v2/clusters")[0] == 503
    assert first("POST", "/console/at/nowhere/admin/v2/clusters")[0] == 412
    assert first("PUT", "/admin/v2/clusters/far", {"serviceUrl": "http://127.0.0.1:9"})[0] == 204
    assert first("PUT", "/console/at/far/admin/v2/tenants/x", {})[0] == 412
    status, told = first("GET", "/console/at/far/admin/v2/clusters")
    assert (status, "does not answer" in json.dumps(told)) == (503, True)


@pytest.mark.wan
@pytest.mark.slow
def test_what_is_passed_on_has_the_callers_rights_and_no_others(tmp_path: Path) -> None:
    from geo_tests.wan.kafka_support import secure_region, token

    with secure_region(tmp_path) as region:

        def asked(path: str, role: str) -> int:
            headers = {"Authorization": f"Bearer {token(role)}"} if role else {}
            try:
                with urllib.request.urlopen(
                    urllib.request.Request(region.admin_url() + path, headers=headers), timeout=60
                ) as answer:
                    return int(answer.status)
            except urllib.error.HTTPError as error:
                return error.code

        away = "/console/at/us/heliograph/v1/status"
        assert [asked(away, role) for role in ("root", "bob", "")] == [200, 403, 401]
        assert asked("/console/", "") == 200
        assert asked("/heliograph/v1/status", "bob") == 403


@pytest.mark.parametrize(
    ("given", "passed"),
    [
        (b'{"a": [1, null]}', '{"a": [1, null]}'),
        (b"", ""),
        (b"<html>", '{"reason": "<html>"}'),
        (b"[" * 5000, json.dumps({"reason": "[" * 300})),
    ],
)
def test_what_is_passed_on_is_json_and_nothing_is_made_of_it(
    given: bytes, passed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(json, "loads", lambda *_: pytest.fail("it is not parsed into values"))
    assert console_server._json(given) == passed
