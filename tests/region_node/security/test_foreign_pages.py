"""What another site's page may have a browser send is refused; what the console and admin clients send is not."""

from __future__ import annotations

import pytest

from region_node.security.foreign_pages import is_foreign_name, refusal

OURS = {"Host": "broker:8080"}


@pytest.mark.parametrize("method", ["PUT", "POST", "DELETE", "PATCH"])
@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 0),
        ({"Content-Type": "application/json", "Content-Length": "2"}, 0),
        ({"Content-Type": "application/json; charset=utf-8", "Transfer-Encoding": "chunked"}, 0),
        ({"Content-Type": "Application/JSON", "Content-Length": "2"}, 0),
        ({"Content-Type": "application/vnd.partitioned-topic-metadata+json", "Content-Length": "2"}, 0),
        ({"Content-Length": "0"}, 0),
        ({"Origin": "http://broker:8080"}, 0),
        ({"Origin": "https://broker", "Host": "broker:443"}, 0),
        ({"Origin": "http://BROKER", "Host": "broker"}, 0),
        ({"Content-Type": "text/plain", "Content-Length": "0"}, 0),
        ({"Content-Type": "text/plain"}, 0),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "http://broker:9090"}, 403),
        ({"Origin": "http://broker.evil.example:8080"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": ""}, 403),
        ({"Content-Type": "text/plain", "Content-Length": "2"}, 415),
        ({"Content-Type": "Text/Plain; x=application/json", "Content-Length": "2"}, 415),
        ({"Content-Type": "text/x+json", "Content-Length": "2"}, 415),
        ({"Content-Type": "application/x-www-form-urlencoded", "Transfer-Encoding": "chunked"}, 415),
        ({"Content-Type": "multipart/form-data; boundary=x", "Content-Length": "9"}, 415),
        ({"Content-Length": "2"}, 415),
        ({"Transfer-Encoding": "chunked"}, 415),
        ({"Content-Type": "", "Content-Length": "2"}, 415),
        ({"Content-Type": "application/xml", "Content-Length": "2"}, 415),
        ({"Content-Type": "application/json+evil", "Content-Length": "2"}, 415),
        ({"Content-Type": "text/plain, application/json", "Content-Length": "2"}, 415),
    ],
)
def test_changes(method: str, headers: dict[str, str], status: int) -> None:
    found = refusal(method, {**OURS, **headers})
    assert (0 if found is None else found[0]) == status


@pytest.mark.parametrize("method", ["GET", "HEAD", "OPTIONS"])
def test_a_read_changes_nothing_and_its_answer_is_kept_from_the_page_by_the_browser(method: str) -> None:
    assert refusal(method, {**OURS, "Origin": "http://evil.example"}) is None


@pytest.mark.parametrize(
    ("host", "foreign"),
    [
        ("127.0.0.1:8080", False),
        ("10.1.2.3", False),
        ("[::1]:8080", False),
        ("[fe80::1]", False),
        ("localhost:8080", False),
        ("broker", False),
        ("us-broker-0.us.svc.cluster.local:8080", False),
        ("pulsar.internal", False),
        ("Ours.Example.com:8080", False),
        ("ours.example.com.", False),
        ("evil.example.com:8080", True),
        ("ours.example.com.evil.net", True),
        ("127.0.0.1.evil.net", True),
        ("localhost.evil.net", True),
        ("svc.evil.net", True),
        ("a.svc.evil.net:8080", True),
        ("a.svc.cluster.local.evil.net", True),
        ("a.local.evil.net", True),
        ("a.internal.evil.net", True),
        ("evilsvc.net", True),
        ("notlocal", False),
        ("a.notlocal", True),
        ("a.svc", False),
        ("1.2.3.4.5", True),
    ],
)
def test_names(host: str, foreign: bool) -> None:
    assert is_foreign_name(host, lambda name: name == "ours.example.com") is foreign
