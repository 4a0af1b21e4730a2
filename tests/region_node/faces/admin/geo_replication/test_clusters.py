"""A Pulsar cluster's registration: what was read, changed in one place, and given back whole changes that place."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.configuration.configuration_records import PulsarCluster
from region_node.faces.admin.calls.admin_context import MalformedRequest
from region_node.faces.admin.geo_replication import clusters
from region_node.security.allowed_urls import UrlList

SECURED = PulsarCluster(
    name="cloud",
    gateway="us",
    service_url="pulsar+ssl://old:6651",
    admin_url="https://old:8443",
    role="replicator",
    token_file="/etc/token",
    trust_file="/etc/ca.pem",
)


def given_back(stored: PulsarCluster, **changes: Any) -> PulsarCluster:
    """As `update` stores it."""
    admin: Any = SimpleNamespace(urls=UrlList(()))
    return replace(stored, **clusters._cluster_fields(admin, {**clusters._shown(stored), **changes}, stored))


@pytest.mark.parametrize(
    ("changes", "stored"),
    (
        ({}, {}),
        ({"role": "other"}, {"role": "other"}),
        ({"gateway": "eu"}, {"gateway": "eu"}),
        ({"tokenFile": "/etc/new"}, {"token_file": "/etc/new"}),
        ({"tokenFile": ""}, {"token_file": ""}),
        ({"authenticationParameters": "file:///etc/new"}, {"token_file": "/etc/new"}),
        ({"authenticationParameters": "file:///etc/new", "tokenFile": "/etc/new"}, {"token_file": "/etc/new"}),
        ({"trustFile": "/etc/new"}, {"trust_file": "/etc/new"}),
        ({"certificateFile": "/etc/c", "keyFile": "/etc/k"}, {"certificate_file": "/etc/c", "key_file": "/etc/k"}),
        (
            {"brokerClientCertificateFilePath": "/etc/c", "brokerClientKeyFilePath": "/etc/k"},
            {"certificate_file": "/etc/c", "key_file": "/etc/k"},
        ),
        ({"oauthFile": "/etc/o", "tokenFile": ""}, {"oauth_file": "/etc/o", "token_file": ""}),
        ({"brokerClientTrustCertsFilePath": "/etc/new"}, {"trust_file": "/etc/new"}),
        ({"brokerServiceUrl": "pulsar+ssl://new:6651"}, {"service_url": "pulsar+ssl://new:6651"}),
        ({"brokerServiceUrlTls": "pulsar+ssl://new:6651"}, {"service_url": "pulsar+ssl://new:6651"}),
        ({"serviceUrl": "https://new:8443"}, {"admin_url": "https://new:8443"}),
        ({"serviceUrlTls": "https://new:8443"}, {"admin_url": "https://new:8443"}),
        ({"brokerServiceUrl": "pulsar://new:6650"}, {}),  # TLS is never left off by the way
        (
            {"brokerServiceUrl": "pulsar://new:6650", "brokerClientTlsEnabled": False},
            {"service_url": "pulsar://new:6650"},
        ),
    ),
)
def test_what_differs_from_what_is_stored_is_changed(changes: dict[str, Any], stored: dict[str, Any]) -> None:
    assert given_back(SECURED, **changes) == replace(SECURED, **stored)


def test_an_admin_address_without_tls_beside_clients_with_it_may_change() -> None:
    mixed = replace(SECURED, admin_url="http://old:8080")
    assert given_back(mixed, serviceUrl="http://new:8080") == replace(mixed, admin_url="http://new:8080")


def test_what_names_two_new_values_for_one_thing_is_refused() -> None:
    for changes in (
        {"tokenFile": "/etc/a", "authenticationParameters": "file:///etc/b"},
        {"trustFile": "/etc/a", "brokerClientTrustCertsFilePath": "/etc/b"},
        {"brokerServiceUrl": "pulsar+ssl://a:6651", "brokerServiceUrlTls": "pulsar+ssl://b:6651"},
        {"serviceUrl": "https://a:8443", "serviceUrlTls": "https://b:8443"},
    ):
        with pytest.raises(MalformedRequest, match="name the same thing") as refused:
            given_back(SECURED, **changes)
        assert all(name in str(refused.value) for name in changes)


def test_cluster_data_of_pulsar_s_own_tools_means_the_same_each_time() -> None:
    data = {
        "serviceUrl": "http://old:8080",
        "serviceUrlTls": "https://old:8443",
        "brokerServiceUrl": "pulsar://old:6650",
        "brokerServiceUrlTls": "pulsar+ssl://old:6651",
        "brokerClientTlsEnabled": True,
        "brokerClientTrustCertsFilePath": "/etc/ca.pem",
        "authenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "authenticationParameters": "file:///etc/token",
    }
    admin: Any = SimpleNamespace(urls=UrlList(()))
    made = PulsarCluster(
        name="cloud", **clusters._cluster_fields(admin, {**data, "gateway": "us", "role": "replicator"})
    )
    assert made == SECURED
    assert clusters._cluster_fields(admin, data, made) == {}, "it may be given again"
    assert clusters._cluster_fields(admin, {**data, "brokerServiceUrlTls": "pulsar+ssl://new:6651"}, made) == {
        "service_url": "pulsar+ssl://new:6651"
    }


def test_a_certificate_is_named_as_clients_of_pulsar_do() -> None:
    admin: Any = SimpleNamespace(urls=UrlList(()))
    plugin = "org.apache.pulsar.client.impl.auth.AuthenticationTls"
    given = {"authenticationPlugin": plugin, "authenticationParameters": "tlsCertFile:/etc/c.pem,tlsKeyFile:/etc/k.pem"}
    fields = clusters._cluster_fields(admin, given)
    assert fields == {"certificate_file": "/etc/c.pem", "key_file": "/etc/k.pem"}
    made = replace(SECURED, token_file="", **fields)
    shown = clusters._shown(made)
    assert {name: shown[name] for name in given} == given and given_back(made) == made
    assert given_back(made, certificateFile="", keyFile="") == replace(made, certificate_file="", key_file="")
    for bad in (
        {"authenticationPlugin": plugin, "authenticationParameters": "file:///etc/token"},
        {**given, "authenticationPlugin": "a.Other"},
    ):
        with pytest.raises(MalformedRequest, match=r"tlsCertFile:/PATH|oauthFile"):
            clusters._cluster_fields(admin, bad)
