"""HTTP with an issuer.

Is: one question and its answer. Isn't: what is asked.
Invariants: no redirect is followed; an answer takes ten seconds at most, however slowly its bytes come, and has at most
`_BYTES_MAX` bytes; http:// goes through no proxy.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

_BYTES_MAX = 256 << 10
_TIMEOUT_S = 10.0


def ask(url: str, form: Mapping[str, str] | None, *, timeout_s: float = _TIMEOUT_S) -> tuple[int, dict[str, Any]]:
    """GET, or POST of a form. Raises OSError where no JSON object comes back in time."""
    return asyncio.run(_ask(url, form, timeout_s))


async def _ask(url: str, form: Mapping[str, str] | None, timeout_s: float) -> tuple[int, dict[str, Any]]:
    from aiohttp import ClientError, ClientSession, ClientTimeout  # it takes a while, and most commands ask no issuer

    timeout, headers = ClientTimeout(total=timeout_s), {"Accept": "application/json"}
    method, proxies = "GET" if form is None else "POST", url.startswith("https://")
    try:
        async with (
            ClientSession(timeout=timeout, trust_env=proxies) as session,
            session.request(method, url, data=form, headers=headers, allow_redirects=False) as answer,
        ):
            data = b""
            async for chunk in answer.content.iter_chunked(_BYTES_MAX):
                data += chunk
                if len(data) > _BYTES_MAX:
                    raise OSError(f"its answer has more than {_BYTES_MAX >> 10} KiB")
            status = answer.status
    except TimeoutError as error:
        raise OSError(f"it took longer than {timeout_s:.0f} s") from error
    except (ClientError, ValueError) as error:
        raise OSError(str(error)) from error
    if 300 <= status < 400:
        raise OSError(f"it answered {status} and names another address, which is not followed")
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return status, found
    if (status == 200 and form is None) or (status < 400 and data.strip()):
        raise OSError("its answer is no JSON object")
    return status, {}
