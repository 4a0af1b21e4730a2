"""Settings of security: what an instance with TLS tells its processes, and combinations that are refused with a
sentence.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import ConfigError, Unauthenticated
from region_node.instance.plan.layout import load_plan, make_plan, node_settings, save_plan
from region_node.process.settings import ProcessSettings, build
from region_node.security.authentication.authentication_service import MachinePorts, _plugin, build_authentication
from region_node.security.authentication.principal import Credentials, Principal
from region_node.security.certificate_authority import ensure_certificates
from region_node.security.settings import SecuritySettings, TokenSettings
from tests.region_node.security.authentication.issuer import beside
from tests.region_node.topics.fake_storage import FakeClock


@pytest.mark.parametrize("brokers", [1, 2])
def test_every_process_of_an_instance_with_tls_gets_what_it_needs(tmp_path: Path, brokers: int) -> None:
    plan = make_plan(["us", "eu"], brokers={"us": brokers, "eu": brokers}, bookies=2, wan="none", tls=True)
    save_plan(tmp_path, plan)
    assert load_plan(tmp_path) == plan
    ensure_certificates(tmp_path / "tls", ["us", "eu"])
    for node in plan.nodes():
        settings = build(ProcessSettings, node_settings(tmp_path, plan, node), "")
        assert settings.tls is not None and settings.tls.internal
        for role in (*node.roles, "replicator", "server"):
            cert, key = settings.tls.pair(role)
            assert Path(cert).is_file() and Path(key).is_file() and (node.region in Path(cert).name)
        if "broker" in node.roles:
            region = plan.region(node.region)
            told = (settings.broker.tls_port, settings.broker.shared_tls_port)
            assert (
                (told == (region.service_tls_port, 0))
                if brokers == 1
                else (told[1] == region.service_tls_port != told[0] > 0)
            )


def test_an_instance_without_tls_is_as_it_was(tmp_path: Path) -> None:
    plan = make_plan(["us"], brokers={"us": 1}, bookies=2, wan="none")
    settings = [build(ProcessSettings, node_settings(tmp_path, plan, node), "") for node in plan.nodes()]
    assert all(each.tls is None and each.security == SecuritySettings() for each in settings)
    assert {each.broker.tls_port for each in settings} == {-1}


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"authentication": ("magic",)}, "none of"),
        ({"authentication": ("tls", "tls")}, "twice"),
        ({"authentication": ("token",)}, "tokens is empty"),
        ({"authentication": ("basic",)}, "htpasswd"),
        ({"authorization": True, "super_users": ("root",)}, "nobody is authenticated"),
        ({"authorization": True, "authentication": ("tls",)}, "super_users"),
        ({"refresh_ahead_s": 0.5}, "refresh_ahead_s"),
        ({"connections_per_address": -1}, "connections_per_address"),
    ],
)
def test_what_cannot_be_meant_is_refused(fields: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        SecuritySettings(**fields)


def test_a_source_of_tokens_has_one_place_of_keys(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(64))
    path = str(tmp_path / "a")
    for fields in (
        {},
        {"secret_file": path, "jwks_url": "https://x.test"},
        {"secret_file": str(tmp_path / "none")},
        {"secret_file": path, "leeway_s": 301},
    ):
        with pytest.raises(ConfigError, match=r"security\.tokens"):
            TokenSettings(algorithms=("HS256",), **fields)
    for algorithms in ((), ("none",), ("RS256",), ("HS256", "ES256")):
        with pytest.raises(ConfigError, match="algorithms must be"):
            TokenSettings(algorithms=algorithms, secret_file=path)


def test_the_console_has_one_issuer_by_https() -> None:
    def source(number: int, **fields: Any) -> TokenSettings:
        given = {"issuer": f"https://{number}.test", "role_prefix": f"{number}:", "console_client_id": "c", **fields}
        return TokenSettings(algorithms=("RS256",), **given)

    SecuritySettings(authentication=("token",), tokens=(source(1), source(2, console_client_id="")))
    with pytest.raises(ConfigError, match="one button"):
        SecuritySettings(authentication=("token",), tokens=(source(1), source(2)))
    for wrong, why in (
        ({"issuer": "", "jwks_url": "https://1.test/keys"}, "wants an issuer"),
        ({"issuer": "http://1.test", "jwks_url": "https://1.test/keys"}, "must begin with https"),
        ({"console_scope": "profile"}, "must have openid"),
    ):
        with pytest.raises(ConfigError, match=why):
            source(1, **wrong)


def test_two_issuers_share_names_of_roles_only_where_both_say_so(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(64))

    def signed(issuer: str, **fields: Any) -> TokenSettings:
        return TokenSettings(algorithms=("HS256",), secret_file=str(tmp_path / "a"), issuer=issuer, **fields)

    for sources in (
        (signed("one"), signed("two")),
        (signed(""), signed("one")),
        (signed("one", role_prefix=""), signed("two")),
        (signed("one", role_prefix="x:"), signed("two"), signed("three")),
    ):
        with pytest.raises(ConfigError, match="role_prefix"):
            SecuritySettings(authentication=("token",), tokens=sources)
    for sources in (
        (signed("one"),),
        (signed("one"), signed("one")),
        (signed(""), signed("")),
        (signed(""), signed("one", role_prefix="one:")),
        (signed("one", role_prefix=""), signed("two", role_prefix="")),
        (signed("one", role_prefix="x:"), signed("two", role_prefix="x:")),
    ):
        SecuritySettings(authentication=("token",), tokens=sources)
    for wrong in ("a\nb", "x" * 65):
        with pytest.raises(ConfigError, match="role_prefix"):
            signed("one", role_prefix=wrong)


def test_a_plug_in_of_another_package_gets_its_settings_and_its_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    class Badge:
        def __init__(self, settings: Mapping[str, str], clock: Any) -> None:
            self.prefix = settings["prefix"]

        async def identify(self, credentials: Credentials) -> Principal:
            if not credentials.data:
                raise Unauthenticated("no badge")
            return Principal(role=self.prefix + credentials.data.decode(), expires_ms=1_000_000 + 7 * 60_000)

    class Point:
        def load(self) -> Any:
            return Badge

    def entry_points(*, group: str, name: str) -> list[Point]:
        return [Point()] if (group, name) == ("heliograph.authentication", "badge") else []

    monkeypatch.setattr(
        "region_node.security.authentication.authentication_service.metadata.entry_points", entry_points
    )
    settings = SecuritySettings(authentication=("badge",), plugins={"badge": {"prefix": "b-"}})
    world = build_authentication(
        settings, MachinePorts(clock=FakeClock(), rng=random.Random(1), fetch=no_fetch, offload=beside)
    )
    assert asyncio.run(world.identify(Credentials(method="badge", data=b"7"))).role == "b-7"
    for method in ("badge", "none", "x" * 99):
        with pytest.raises(Unauthenticated):
            asyncio.run(world.identify(Credentials(method=method)))
    found = {
        (name.removeprefix("pulsar_"), *list(labels.values())[1:]): value
        for name, _, labels, value in world.counts.samples("us")
    }
    assert found["authentication_success_total", "Badge", "badge"] == 1
    assert found["authentication_failures_total", "Badge", "badge", "refused"] == 1
    assert (
        found["authentication_failures_total", "none", "none", "missing"]
        == found["authentication_failures_total", "none", "other", "not_open"]
        == 1
    )
    assert [found["expiring_token_minutes_bucket", bound] for bound in ("5", "10", "60", "+Inf")] == [0, 1, 1, 1]
    assert found["expiring_token_minutes_sum",] == 7 and found["expired_token_total",] == 0


async def no_fetch(url: str) -> bytes:
    raise OSError(url)


def test_a_plug_in_that_is_not_installed_is_said() -> None:
    SecuritySettings(authentication=("mine",), plugins={"mine": {"a": "b"}})
    with pytest.raises(ConfigError, match=r"heliograph\.authentication"):
        _plugin("mine")


def test_bind_and_ports() -> None:
    base: dict[str, Any] = {
        "region": "us",
        "node_id": "n",
        "data_dir": "/d",
        "meta": ["h:1"],
        "config": ["h:1"],
        "bind": "10.0.0.1",
    }
    with pytest.raises(ConfigError, match="internal"):
        build(ProcessSettings, {**base, "roles": ["bookie"]}, "").check_roles()
    for security in ({"allow_insecure": True}, {"authentication": ["tls"]}):
        build(ProcessSettings, {**base, "roles": ["broker"], "security": security}, "").check_roles()
    with pytest.raises(ConfigError, match="may do everything"):
        build(ProcessSettings, {**base, "roles": ["broker"]}, "").check_roles()
    with pytest.raises(ConfigError, match="past security"):
        open_link = {"broker": {"link_port": 7000}, "security": {"anonymous_role": "guest"}}
        build(ProcessSettings, {**base, "bind": "127.0.0.1", "roles": ["broker"], **open_link}, "").check_roles()
    for broker, why in (
        ({"port": -1}, "no client"),
        ({"tls_port": 70000}, "tls_port"),
        ({"admin_port": -1, "admin_tls_port": 0}, "admin_tls_port"),
    ):
        with pytest.raises(ConfigError, match=why):
            build(ProcessSettings, {**base, "broker": broker}, "")


def test_a_region_whose_audience_is_named_has_one() -> None:
    """An empty one would be none, and tokens would go there whoever they are for."""
    assert SecuritySettings(region_audiences={"eu": "eu-brokers"}).region_audiences == {"eu": "eu-brokers"}
    with pytest.raises(ConfigError, match=r"region_audiences: 'ap' has no audience"):
        SecuritySettings(region_audiences={"eu": "eu-brokers", "ap": ""})
