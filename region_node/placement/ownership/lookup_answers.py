"""What a lookup answers: an address of a broker, under the name of a listener.

Is: the choice among what a broker says of itself. Isn't: which broker it is (`ownership_service`).
Source: docs/protocols/ownership.md, "Lookup".
"""

from __future__ import annotations

from typing import NamedTuple

from heliograph.model.errors import NotOwner
from region_node.placement.ownership.broker_records import BrokerRecord


class LookupAnswer(NamedTuple):
    """Where to go: `url` without TLS, `url_tls` with it; one of them may be empty. `redirect`: ask there again,
    authoritatively.
    """

    url: str
    url_tls: str
    redirect: bool


def answer_of(record: BrokerRecord, listener: str, redirect: bool) -> LookupAnswer:
    """The address of `record` under that listener name. Raises NotOwner with the text that clients look for."""
    url = record.url(listener)
    if url is None:
        raise NotOwner(f"the broker do not have {listener} listener")
    if not listener:
        return LookupAnswer(url, record.listeners.get("tls", ""), redirect)
    return LookupAnswer("", url, redirect) if url.startswith("pulsar+ssl://") else LookupAnswer(url, "", redirect)
