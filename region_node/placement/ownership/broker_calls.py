"""BrokerCalls: what one broker asks of the others of its region, at their admin interface.

Is: one call with this broker's own credentials, and the connections that calls share. Isn't: who is asked (the owner of
a topic, whoever leads), a path, or what an answer means.
Invariants: a broker that has TLS inside the region asks no other without it.
"""

from __future__ import annotations

import json
import ssl
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import ClientError, ClientSession, ClientTimeout
from yarl import URL

from heliograph.model.errors import MetadataUnavailable, NotFound
from region_node.placement.ownership.broker_records import BrokerRecord
from region_node.runtime import request_ids

_CALL_TIMEOUT_S = 15.0


class BrokerCalls:
    """A broker has one. `own_header` proves it to the others. `inside`: with which they are asked; None: plainly."""

    def __init__(
        self, own_header: Callable[[], Mapping[str, str]] = dict, inside: ssl.SSLContext | None = None
    ) -> None:
        self._own_header, self._inside = own_header, inside
        self._session: ClientSession | None = None

    async def close(self) -> None:
        """Closes the connections that calls have left open."""
        if self._session is not None:
            await self._session.close()

    async def call(self, record: BrokerRecord, method: str, path: str, body: Any = None) -> Any:
        """The JSON that the broker answers, or None where the answer is empty. Raises NotFound, MetadataUnavailable."""
        if self._session is None:
            self._session = ClientSession(timeout=ClientTimeout(total=_CALL_TIMEOUT_S))
        base = record.inside_url_by(self._inside is not None)
        if not base:
            raise MetadataUnavailable(
                f"broker {record.broker} has no admin port that it can be asked at: set broker.admin_port there"
            )
        try:
            headers = {**self._own_header(), **request_ids.header()}
            url = URL(base.rstrip("/") + path, encoded=True)  # as it was checked: nothing is resolved on the way
            async with self._session.request(
                method, url, headers=headers, json=body, ssl=self._inside or True
            ) as answer:
                text = await answer.text()
        except (ClientError, TimeoutError) as error:
            raise MetadataUnavailable(
                f"broker {record.broker} does not answer at {base or 'an address of its own'}: {error}"
            ) from error
        if answer.status == 404:
            raise NotFound(f"broker {record.broker}: {text}")
        if answer.status >= 300:
            raise MetadataUnavailable(f"broker {record.broker} answered {answer.status}: {text}")
        return json.loads(text) if text else None
