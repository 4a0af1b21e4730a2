"""Http: requests to a region's admin ports over connections that are kept, from code that blocks: Spark's workers,
jobs, tools.

Is: JSON and streams over the standard library, redirects between brokers, TLS, a token. Isn't: asyncio, or a retry of
what an answer refused.
Invariants: a kept connection that the broker closed meanwhile is opened anew, once; so every request here may be sent
twice, and callers only make such. Not for several threads at once.
"""

from __future__ import annotations

import http.client
import json
import ssl
from typing import Any
from urllib.parse import urlsplit

from heliograph.model.errors import ConfigError, HeliographError, MetadataUnavailable, NotFound, reason_of

_TIMEOUT_S = 60
_HOPS_MAX = 5
_FIND_S = 10
_PORTS = {"pulsar": 6650, "pulsar+ssl": 6651}


def tls_context(ca: str = "", certificate: str = "", key: str = "") -> ssl.SSLContext | None:
    """Makes a context of the files that say whom to trust and who this is; None where neither is given: the system's
    holds. Raises MetadataUnavailable where a file cannot be read.
    """
    if not (ca or certificate):
        return None
    try:
        context = ssl.create_default_context(cafile=ca or None)
        if certificate:
            context.load_cert_chain(certificate, key or None)
    except (OSError, ssl.SSLError) as error:
        raise MetadataUnavailable(f"the TLS files {ca} {certificate} {key} cannot be read: {error}") from error
    return context


def admin_urls(service_url: str, tls: ssl.SSLContext | None = None) -> str:
    """Returns the admin URLs of those brokers behind a service URL (pulsar://host:port,host:port) that answer,
    separated by commas. An http one is the admin URL itself.

    A broker tells HTTP that comes to its Pulsar port where its admin port is. Raises ConfigError, MetadataUnavailable.
    """
    scheme, _, hosts = service_url.partition("://")
    if scheme in ("http", "https"):
        return ",".join(each if "://" in each else f"{scheme}://{each}" for each in service_url.split(","))
    if scheme not in _PORTS or not hosts:
        raise ConfigError(
            f"{service_url!r} is no service URL: it is pulsar://host:port or pulsar+ssl://host:port, several hosts "
            "separated by commas"
        )
    found, reason = dict[str, None](), ""
    for host in map(str.strip, hosts.rstrip("/").split(",")):
        try:
            address = host if urlsplit(f"//{host}").port else f"{host}:{_PORTS[scheme]}"
        except ValueError as error:
            raise ConfigError(f"{service_url!r} is no service URL: {error}") from error
        connection: http.client.HTTPConnection
        if scheme == "pulsar+ssl":
            connection = http.client.HTTPSConnection(address, timeout=_FIND_S, context=tls)
        else:
            connection = http.client.HTTPConnection(address, timeout=_FIND_S)
        try:
            connection.request("GET", "/")
            target = urlsplit(connection.getresponse().getheader("Location", ""))
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            reason = f"{address}: {reason_of(error)}"
            continue
        finally:
            connection.close()
        if target.netloc:
            found[f"{target.scheme}://{target.netloc}"] = None
    if not found:
        raise MetadataUnavailable(
            f"no broker of {service_url} says where its admin port is; give admin_url. {reason}".strip()
        )
    return ",".join(found)


class Http:
    """Raises NotFound, MetadataUnavailable (nobody answers, or not at this moment), HeliographError (refused)."""

    def __init__(self, bases: str, *, token: str = "", tls: ssl.SSLContext | None = None) -> None:
        """bases: admin URLs of one region, separated by commas; the next one is asked where one does not answer."""
        self.bases = [base.strip().rstrip("/") for base in bases.split(",") if base.strip()]
        self.renew(token)
        self._tls = tls
        self._kept: dict[str, http.client.HTTPConnection] = {}

    def renew(self, token: str) -> None:
        """From the next request on; connections stay."""
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def another(self) -> Http:
        """With connections of its own, for an answer that is read while others are asked."""
        made = Http(",".join(self.bases), tls=self._tls)
        made._headers = self._headers
        return made

    def json(self, method: str, path: str, body: Any = None, *, base: str = "") -> Any:
        """The answer's JSON; None where it is empty. base: another broker than those that were named."""
        answer = self.open(method, path, body, base=base)
        text = answer.read()
        return json.loads(text) if text else None

    def open(self, method: str, path: str, body: Any = None, *, base: str = "") -> http.client.HTTPResponse:
        """The answer, to be read to its end before the next request to the same broker."""
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        headers = {**self._headers, "Content-Type": "application/json"} if data is not None else self._headers
        if base:
            return self._follow(method, base + path, data, headers)
        for number, each in enumerate(list(self.bases)):
            try:
                answer = self._follow(method, each + path, data, headers)
            except MetadataUnavailable:
                if number == len(self.bases) - 1:
                    raise
                continue
            self.bases = self.bases[number:] + self.bases[:number]  # who answers is asked first from now on
            return answer
        raise MetadataUnavailable("no admin URL was named")

    def _follow(self, method: str, url: str, data: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        for _ in range(_HOPS_MAX):
            answer = self._request(method, url, data, headers)
            target = answer.getheader("Location", "")
            if answer.status == 307 and target:
                answer.read()
                url = target
                continue
            if answer.status < 300:
                return answer
            reason = answer.read().decode(errors="replace").strip()
            if answer.status == 404:
                raise NotFound(f"{url}: {reason}")
            kind = MetadataUnavailable if answer.status >= 500 else HeliographError
            raise kind(f"{url}: {answer.status} {reason}")
        raise MetadataUnavailable(f"{url}: brokers send this request from one to the next; try again")

    def _request(self, method: str, url: str, data: bytes | None, headers: dict[str, str]) -> http.client.HTTPResponse:
        parts = urlsplit(url)
        base, path = f"{parts.scheme}://{parts.netloc}", parts.path + (f"?{parts.query}" if parts.query else "")
        fresh = base not in self._kept
        try:
            return self._once(base, method, path, data, headers)
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            self._drop(base)
            if fresh:
                raise self._silent(base, error) from error
        try:
            return self._once(base, method, path, data, headers)
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            self._drop(base)
            raise self._silent(base, error) from error

    def _once(
        self, base: str, method: str, path: str, data: bytes | None, headers: dict[str, str]
    ) -> http.client.HTTPResponse:
        connection = self._kept.get(base)
        if connection is None:
            host = base.partition("://")[2]
            if base.startswith("https:"):
                connection = http.client.HTTPSConnection(host, timeout=_TIMEOUT_S, context=self._tls)
            else:
                connection = http.client.HTTPConnection(host, timeout=_TIMEOUT_S)
            self._kept[base] = connection
        connection.request(method, path, data, headers)
        return connection.getresponse()

    def _drop(self, base: str) -> None:
        connection = self._kept.pop(base, None)
        if connection is not None:
            connection.close()

    def _silent(self, base: str, error: Exception) -> MetadataUnavailable:
        return MetadataUnavailable(f"{base} does not answer ({error}); is the region up, and is this its admin URL?")

    def close(self) -> None:
        """Also what is half read."""
        for base in list(self._kept):
            self._drop(base)
