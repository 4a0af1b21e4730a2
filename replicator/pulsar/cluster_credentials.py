"""Credentials: by what this region proves to a real Pulsar cluster who it is, and what the cluster must prove.

Is: files of one folder on the gateway's brokers, read whenever a connection is made: authorities, a client
certificate, a token; to which hosts what they hold may go; and of OAuth 2 the request that brings a token, and how long
that holds. Isn't: the asking (`region_node.replication.pulsar_clusters`), or a connection.
Invariants: no secret stands in the configuration; whoever writes there chooses among the files of that folder, and
among hosts that the settings name, and nothing else; a file that cannot be read is named in the error, its content
never is.
Source: docs/protocols/interop.md, "Who it is, there".
"""

from __future__ import annotations

import json
import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from heliograph.client.secret_urls import secret_may_go_to
from heliograph.model.configuration.configuration_records import PulsarCluster
from heliograph.model.errors import NotAllowed

_HOLDS_S = 60.0
"""A token of which nothing says how long it holds."""
_RENEWED_AFTER = 0.8
_NAME = re.compile(r"[A-Za-z0-9_=+@-][A-Za-z0-9_.=+@-]{0,254}")


def check_file_name(name: str) -> str:
    """Returns it: a file's name without a folder. Raises NotAllowed."""
    if not _NAME.fullmatch(name):
        raise NotAllowed(
            f"{name!r} is no name of a file: give the name alone, without a folder, of a file that lies in the folder "
            "security.cluster_files of the gateway's brokers"
        )
    return name


class ClusterFiles:
    """Files of one folder; listed: whether the settings name a host, so that what the files hold may go there. Without
    arguments nothing is read, and nothing goes anywhere.
    """

    def __init__(self, folder: str = "", listed: Callable[[str], bool] = lambda _host: False) -> None:
        self._folder, self._listed = folder.rstrip("/"), listed

    def check_destination(self, cluster: PulsarCluster, host: str) -> None:
        """Raises NotAllowed where the cluster is to be shown a token or a certificate, and the settings do not name
        that host.
        """
        if (cluster.token_file or cluster.certificate_file or cluster.oauth_file) and not self._listed(host):
            raise NotAllowed(
                f"cluster {cluster.name}: a token or a certificate goes only to hosts that security.allowed_urls of "
                f"this broker's settings names: add {host} to it, if it is of that cluster"
            )

    def token(self, cluster: PulsarCluster) -> str:
        """By which this region is known there; "": by none. Raises NotAllowed where its file cannot be read."""
        return self._read(cluster.token_file, cluster, "token").decode().strip() if cluster.token_file else ""

    def tls(self, cluster: PulsarCluster) -> ssl.SSLContext:
        """Which authorities its brokers must prove to be of, and the certificate that is shown to them. Raises
        NotAllowed where a file cannot be read.
        """
        authorities = self._read(cluster.trust_file, cluster, "authorities").decode() if cluster.trust_file else None
        try:
            context = ssl.create_default_context(cadata=authorities)
        except ssl.SSLError as error:
            raise NotAllowed(f"cluster {cluster.name}: {cluster.trust_file} holds no certificates: {error}") from error
        if cluster.certificate_file:
            for name, what in ((cluster.certificate_file, "certificate"), (cluster.key_file, "key")):
                if name:
                    self._read(name, cluster, what)
            certificate = self._path(cluster.certificate_file, cluster, "certificate")
            key = self._path(cluster.key_file, cluster, "key") if cluster.key_file else None
            try:
                context.load_cert_chain(certificate, key, password=_no_password)
            except (ssl.SSLError, NotAllowed) as error:
                raise NotAllowed(
                    f"cluster {cluster.name}: {certificate} and the key in {key or certificate} are no pair in PEM "
                    "without a password"
                ) from error
        return context

    def client(self, cluster: PulsarCluster) -> ClientCredentials:
        """As whom its issuer is asked for a token. Raises NotAllowed where the file cannot be read, or is no such
        file.
        """
        return ClientCredentials.parse(self._read(cluster.oauth_file, cluster, "OAuth client"), cluster)

    def _path(self, name: str, cluster: PulsarCluster, what: str) -> Path:
        """Where it lies: what was registered with this very folder before names were asked for counts as its name."""
        if not self._folder:
            raise NotAllowed(
                f"cluster {cluster.name}: this broker reads no file for its {what}, because security.cluster_files is "
                f"not set: set it to the folder that holds {name!r}, and nothing else that is secret"
            )
        return Path(self._folder, check_file_name(name.removeprefix(f"{self._folder}/")))

    def _read(self, name: str, cluster: PulsarCluster, what: str) -> bytes:
        path = self._path(name, cluster, what)
        try:
            return path.read_bytes()
        except OSError as error:
            raise NotAllowed(
                f"cluster {cluster.name}: the file of its {what} cannot be read on this broker: {path}: "
                f"{error.strerror}"
            ) from error


@dataclass(frozen=True, slots=True)
class ClientCredentials:
    """OAuth 2: who asks which issuer for a token, as Pulsar's key file has it; with `audience` and `scope` where the
    issuer wants them.
    """

    issuer: str
    client: str
    secret: str
    audience: str = ""
    scope: str = ""

    @classmethod
    def parse(cls, blob: bytes, cluster: PulsarCluster) -> ClientCredentials:
        """Raises NotAllowed where it is not the content of such a file."""
        try:
            given = json.loads(blob)
            made = cls(
                *(str(given[name]) for name in ("issuer_url", "client_id", "client_secret")),
                *(str(given.get(name, "")) for name in ("audience", "scope")),
            )
            private = secret_may_go_to(made.issuer)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise NotAllowed(
                f"cluster {cluster.name}: {cluster.oauth_file} must be JSON with issuer_url, client_id, and "
                "client_secret, maybe audience and scope"
            ) from error
        if not private:
            raise NotAllowed(
                f"cluster {cluster.name}: issuer_url {made.issuer} in {cluster.oauth_file} must be https://, the "
                "secret goes there"
            )
        return made

    @property
    def metadata_url(self) -> str:
        """Where the issuer says where tokens are given."""
        return f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"

    @property
    def form(self) -> dict[str, str]:
        """The fields of the request for a token, to be sent as a form. It holds the secret."""
        form = {"grant_type": "client_credentials", "client_id": self.client, "client_secret": self.secret}
        return form | {name: value for name, value in (("audience", self.audience), ("scope", self.scope)) if value}


def lasts_s(expires_in: object) -> float:
    """For how long a token is used that the issuer says holds so many seconds: another is asked for before it ends."""
    known = isinstance(expires_in, int | float) and not isinstance(expires_in, bool) and expires_in > 0
    return _RENEWED_AFTER * (float(expires_in) if known else _HOLDS_S)  # type: ignore[arg-type]


def _no_password() -> str:
    raise NotAllowed("the key is encrypted")
