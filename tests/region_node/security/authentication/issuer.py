"""An issuer of tokens for tests: keys, tokens with any header and claims, and a key set that can be rotated."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from typing import Any

from joserfc import jws
from joserfc.jwk import ECKey, OctKey, RSAKey

SECRET = bytes(range(64))
RSA = RSAKey.generate_key(2048, auto_kid=True)
EC = ECKey.generate_key("P-256", auto_kid=True)


def token(key: Any, algorithm: str, **claims: Any) -> bytes:
    header = {"alg": algorithm} | ({"kid": key.kid} if key.kid else {})
    return jws.serialize_compact(header, json.dumps(claims).encode(), key, algorithms=[algorithm]).encode()


def secret_token(algorithm: str = "HS256", secret: bytes = SECRET, **claims: Any) -> bytes:
    return token(OctKey.import_key(secret), algorithm, **claims)


def by_hand(header: dict[str, Any], claims: Any, secret: bytes | None = None) -> bytes:
    """A token as no library makes it; `secret`: signed by HMAC-SHA-256, whatever the header says."""
    body = b".".join(base64.urlsafe_b64encode(json.dumps(part).encode()).rstrip(b"=") for part in (header, claims))
    signature = (
        b"" if secret is None else base64.urlsafe_b64encode(hmac.digest(secret, body, hashlib.sha256)).rstrip(b"=")
    )
    return body + b"." + signature


class KeySetServer:
    """`fetch` as the plug-in calls it. `keys`: what is published now; `down`: nothing answers."""

    def __init__(self, *keys: Any) -> None:
        self.keys = list(keys)
        self.asked: list[str] = []
        self.down = False

    async def fetch(self, url: str) -> bytes:
        self.asked.append(url)
        if self.down:
            raise OSError("down")
        if url.endswith("openid-configuration"):
            return json.dumps({"issuer": "https://issuer.test", "jwks_uri": "https://issuer.test/keys"}).encode()
        return json.dumps({"keys": [key.as_dict(private=False) for key in self.keys]}).encode()


async def beside(work: Any, first: bytes, second: bytes, _: str) -> bool:
    return bool(work(first, second))
