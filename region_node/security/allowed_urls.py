"""Which addresses a region's URL may name: whoever may write one must not make the servers call anything they can
reach.

Is: a list of hosts, *.domains, and address ranges, the check of a URL against it, and regions as links see them through
it. Isn't: a resolver: a name passes only where the list names it.
Invariants: with a list, what it does not name is refused; without one every host passes, but scheme and shape are
checked all the same.
"""

from __future__ import annotations

import ipaddress
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol
from urllib.parse import urlsplit

from heliograph.model.configuration.configuration_records import PulsarCluster, RegionInfo
from heliograph.model.errors import NotAllowed
from heliograph.model.host_names import is_host

log = logging.getLogger("region_node.security.urls")

LINK_SCHEMES = ("pulsar", "pulsar+ssl")
ADMIN_SCHEMES = ("http", "https")
Network = ipaddress.IPv4Network | ipaddress.IPv6Network


class UrlList:
    """`entries`: `host`, `*.domain`, `10.0.0.0/8`; empty: any host."""

    def __init__(self, entries: Sequence[str]) -> None:
        self._names: set[str] = set()
        self._domains: list[str] = []
        self._networks: list[Network] = []
        self._any = not entries
        for entry in entries:
            if entry.startswith("*."):
                self._domains.append(entry[1:].lower())
                continue
            try:
                self._networks.append(ipaddress.ip_network(entry))
            except ValueError:
                self._names.add(entry.lower())

    def check(self, url: str, schemes: Sequence[str]) -> str:
        """Returns it; `pulsar://a:1,b:2` names several hosts. Raises NotAllowed."""
        scheme, _, rest = url.partition("://")
        first, *others = rest.split(",")
        for part in (first, *others):
            self._check(f"{scheme}://{part}", schemes)
        return url

    def _check(self, url: str, schemes: Sequence[str]) -> None:
        try:
            parts = urlsplit(url)
            host, _ = parts.hostname, parts.port
        except ValueError as error:
            raise NotAllowed(f"{url!r} is no URL: {error}") from error
        if parts.scheme not in schemes or not host or "@" in parts.netloc or any(ord(c) <= 32 for c in url):
            raise NotAllowed(f"{url!r}: expected {' or '.join(f'{scheme}://host:port' for scheme in schemes)}")
        if not is_host(host):
            raise NotAllowed(f"{url!r}: {host!r:.300} is no host name: its labels have 1 to 63 characters")
        if not self._any and not self._listed(host.rstrip(".").lower()):
            raise NotAllowed(f"{url!r}: the host is not in security.allowed_urls of the brokers' settings")

    def names(self, host: str) -> bool:
        """Whether an entry is of that host; no entries name none."""
        return self._listed(host.rstrip(".").lower())

    def _listed(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host)
        except ValueError:
            return host in self._names or any(host.endswith(domain) for domain in self._domains)
        return any(address in network for network in self._networks if network.version == address.version)


class UrlRegions(Protocol):
    """The part of the configuration's view that links read."""

    def region(self, name: str) -> RegionInfo | None: ...

    def regions(self) -> list[RegionInfo]: ...

    @property
    def region_numbers(self) -> Mapping[int, str]: ...

    @property
    def broken(self) -> Mapping[str, str]: ...

    def cluster(self, name: str) -> PulsarCluster | None: ...

    def namespace(self, namespace: str) -> object | None: ...

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]: ...


class ListedRegions:
    """Regions without the addresses that the list does not name: what another region, or an earlier setting, let into
    the configuration is not called.
    """

    def __init__(self, view: UrlRegions, urls: UrlList) -> None:
        self._view, self._urls = view, urls
        self._said: set[str] = set()

    def region(self, name: str) -> RegionInfo | None:
        info = self._view.region(name)
        if info is None:
            return None
        links = {source: [url for url in urls if self._passes(url)] for source, urls in info.link_urls.items()}
        return replace(info, service_url=info.service_url if self._passes(info.service_url) else "", link_urls=links)

    def regions(self) -> list[RegionInfo]:
        """As they stand in the configuration: who asks for all of them wants names, numbers, and epochs."""
        return self._view.regions()

    @property
    def region_numbers(self) -> Mapping[int, str]:
        return self._view.region_numbers

    @property
    def broken(self) -> Mapping[str, str]:
        return self._view.broken

    def cluster(self, name: str) -> PulsarCluster | None:
        found = self._view.cluster(name)
        if found is None:
            return None
        service = found.service_url if self._passes(found.service_url) else ""
        return replace(
            found,
            service_url=service,
            admin_url=found.admin_url if self._passes(found.admin_url, ADMIN_SCHEMES) else "",
        )

    def namespace(self, namespace: str) -> object | None:
        return self._view.namespace(namespace)

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return self._view.on_change(callback)

    def _passes(self, url: str, schemes: Sequence[str] = LINK_SCHEMES) -> bool:
        try:
            self._urls.check(url, schemes)
        except NotAllowed as error:
            if url and url not in self._said and len(self._said) < 1000:
                self._said.add(url)
                log.warning("url.not_listed", extra={"error": str(error)})
            return False
        return True
