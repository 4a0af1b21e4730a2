"""When links between regions speak TLS, and what is said where only half of it is set."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from region_node.process.role_runtime import replicator_tls
from region_node.security.settings import TlsSettings


def test_links_speak_tls_where_both_a_certificate_and_a_key_are_set(tmp_path: Path) -> None:
    made, context = [], ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    ca, certificate, key = (str(tmp_path / name) for name in ("ca.pem", "a.pem", "a.key"))
    for path in (ca, certificate, key):
        Path(path).touch()

    def make(*paths: str) -> ssl.SSLContext:
        made.append(paths)
        return context

    assert replicator_tls(None, make) is None and replicator_tls(TlsSettings(ca=ca), make) is None
    halves = (TlsSettings(ca=ca, replicator_cert=certificate), TlsSettings(ca=ca, replicator_key=key))
    for half in halves:
        with pytest.raises(ConfigError, match="links between regions need both"):
            replicator_tls(half, make)
    assert not made
    both = TlsSettings(ca=ca, replicator_cert=certificate, replicator_key=key)
    assert replicator_tls(both, make) is context and made == [(ca, certificate, key)]
