"""A Pulsar cluster's registration: what was read, changed in one place, and given back whole changes that place."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from geo_tests.sim.loop import run_alone
from global_config import keys
from heliograph.model.configuration.configuration_records import PulsarCluster, RegionInfo
from heliograph.model.errors import MalformedRequest, NotAllowed
from region_node.faces.admin.calls.call_parameters import called
from region_node.faces.admin.geo_replication import clusters
from region_node.security.allowed_urls import UrlList
from tests.region_node.faces.admin.old_view import OldView

SECURED = PulsarCluster(
    name="cloud",
    gateway="us",
    service_url="pulsar+ssl://old:6651",
    admin_url="https://old:8443",
    role="replicator",
    token_file="token",
    trust_file="ca.pem",
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
        ({"tokenFile": "new"}, {"token_file": "new"}),
        ({"tokenFile": ""}, {"token_file": ""}),
        ({"authenticationParameters": "file:///new"}, {"token_file": "new"}),
        ({"authenticationParameters": "file:///new", "tokenFile": "new"}, {"token_file": "new"}),
        ({"trustFile": "new"}, {"trust_file": "new"}),
        ({"certificateFile": "c", "keyFile": "k"}, {"certificate_file": "c", "key_file": "k"}),
        (
            {"brokerClientCertificateFilePath": "c", "brokerClientKeyFilePath": "k"},
            {"certificate_file": "c", "key_file": "k"},
        ),
        ({"oauthFile": "o", "tokenFile": ""}, {"oauth_file": "o", "token_file": ""}),
        ({"brokerClientTrustCertsFilePath": "new"}, {"trust_file": "new"}),
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
        {"tokenFile": "a", "authenticationParameters": "file:///b"},
        {"trustFile": "a", "brokerClientTrustCertsFilePath": "b"},
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
        "brokerClientTrustCertsFilePath": "ca.pem",
        "authenticationPlugin": "org.apache.pulsar.client.impl.auth.AuthenticationToken",
        "authenticationParameters": "file:///token",
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
    given = {"authenticationPlugin": plugin, "authenticationParameters": "tlsCertFile:c.pem,tlsKeyFile:k.pem"}
    fields = clusters._cluster_fields(admin, given)
    assert fields == {"certificate_file": "c.pem", "key_file": "k.pem"}
    with_slashes = {**given, "authenticationParameters": "tlsCertFile:/c.pem,tlsKeyFile:/k.pem"}
    assert clusters._cluster_fields(admin, with_slashes) == fields
    made = replace(SECURED, token_file="", **fields)
    shown = clusters._shown(made)
    assert {name: shown[name] for name in given} == given and given_back(made) == made
    assert given_back(made, certificateFile="", keyFile="") == replace(made, certificate_file="", key_file="")
    for bad in (
        {"authenticationPlugin": plugin, "authenticationParameters": "file:///token"},
        {**given, "authenticationPlugin": "a.Other"},
    ):
        with pytest.raises(MalformedRequest, match=r"tlsCertFile:NAME|oauthFile"):
            clusters._cluster_fields(admin, bad)


@pytest.mark.parametrize("path", ("/etc/passwd", "/token", "../token", "..", "a/b", "file:///etc/passwd", ".hidden"))
def test_files_are_names_alone(path: str) -> None:
    names = [*clusters._FILES.values(), "brokerClientTrustCertsFilePath", "brokerClientCertificateFilePath"]
    for given in (*({name: path} for name in names), {"authenticationParameters": f"file:///etc/{path}"}):
        with pytest.raises(NotAllowed, match=r"give the name alone.*security\.cluster_files of the gateway's brokers"):
            given_back(SECURED, **given)


def test_a_path_that_was_stored_before_may_be_given_back() -> None:
    before = replace(SECURED, token_file="/etc/shown/token", trust_file="/etc/shown/ca.pem")
    assert given_back(before) == before and given_back(before, role="other") == replace(before, role="other")
    assert given_back(before, tokenFile="token") == replace(before, token_file="token")


def test_a_regions_addresses_are_changed_over_what_is_stored_whatever_this_broker_knows_yet() -> None:
    async def main() -> None:
        asked: Any = SimpleNamespace(match_info={"cluster": "us"})
        old = await OldView().start()
        await old.config.raise_level("us", 5)
        await called(clusters.update, old.admin, asked, given={"serviceUrl": "http://new:8080"})
        await called(clusters.update, old.admin, asked, given={"brokerServiceUrl": "pulsar://new:6650"})
        stored = await old.stored(keys.region("us"), RegionInfo)
        assert (stored.admin_url, stored.service_url) == ("http://new:8080", "pulsar://new:6650")
        assert stored.feature_level == 5
        (_, first), (second, _) = old.audited
        assert first == second, "what stood there is told"

    run_alone(main())
