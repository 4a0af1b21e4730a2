"""Keys that verify tokens: a secret, a public key, or a key set (JWKS), in a file or at an address.

Is: reading them, which key may serve which algorithm, and the cache of a key set (a core: when it is fetched, how long
it counts).
Isn't: claims (`tokens`), or HTTP (`jwks_issuers`).
Invariants: a key serves an algorithm only where its kind, curve, `use`, and `alg` agree, so that a public key never
verifies an HMAC; a key set from an address holds no secrets; an unknown key id makes at most one fetch in
`UNKNOWN_WAIT_S`, whoever sends how many tokens.
Source: RFC 7517, RFC 7518.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc.errors import JoseError
from joserfc.jwk import ECKey, KeySet, OctKey, RSAKey, import_key

from heliograph.model.errors import ConfigError

log = logging.getLogger("region_node.security.keys")

Key = OctKey | RSAKey | ECKey
UNKNOWN_WAIT_S = 10.0
_RETRY_S = 5.0
_KEYS_MAX = 64
_CURVES = {"ES256": "P-256", "ES384": "P-384", "ES512": "P-521"}
_RSA_BITS_MIN = 2048


class KeySource(Protocol):
    async def find(self, kid: str | None, algorithm: str) -> list[Key]:
        """The keys that may have signed it. Raises Unauthenticated where no keys can be had now."""
        ...


def serves(key: Key, algorithm: str) -> bool:
    """Whether a key may verify that algorithm."""
    given = key.as_dict(private=False)
    if (
        given.get("use", "sig") != "sig"
        or given.get("alg", algorithm) != algorithm
        or "verify" not in given.get("key_ops", ["verify"])
    ):
        return False
    family = algorithm[:2]
    if isinstance(key, OctKey):
        return family == "HS"
    if isinstance(key, RSAKey):
        return family in ("RS", "PS")
    return given.get("crv") == _CURVES.get(algorithm)


def chosen(keys: list[Key], kid: str | None, algorithm: str) -> list[Key]:
    fitting = [key for key in keys if serves(key, algorithm)]
    return fitting if kid is None else [key for key in fitting if key.kid in (kid, None)]


# -- reading ----------------------------------------------------------------------------------------------------------


def read_secret(data: bytes, bytes_min: int) -> list[Key]:
    """Raises ConfigError for a short one: a file that is being written is empty for a moment, and anybody can sign with
    an empty secret.
    """
    if len(data) < bytes_min:
        raise ConfigError(f"the secret has {len(data)} bytes, at least {bytes_min} are wanted")
    return [OctKey.import_key(data)]


def read_public_key(data: bytes) -> list[Key]:
    """PEM or DER, RSA or elliptic curve. Raises ConfigError."""
    load = (
        serialization.load_pem_public_key if data.lstrip().startswith(b"-----") else serialization.load_der_public_key
    )
    try:
        key = load(data)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(f"this is no public key in PEM or DER: {error}") from error
    if isinstance(key, rsa.RSAPublicKey):
        if key.key_size < _RSA_BITS_MIN:
            raise ConfigError(f"an RSA key of {key.key_size} bits: at least {_RSA_BITS_MIN} are wanted")
        return [RSAKey.import_key(key)]
    if isinstance(key, ec.EllipticCurvePublicKey):
        return [ECKey.import_key(key)]
    raise ConfigError("only RSA and elliptic curve keys verify tokens here")


def read_key_set(data: bytes, *, secrets: bool) -> list[Key]:
    """A JWKS; kinds that are not known are left out, as RFC 7517 wants. Raises ConfigError."""
    try:
        rows = json.loads(data)["keys"]
        if not isinstance(rows, list) or len(rows) > _KEYS_MAX:
            raise ConfigError(f"a key set holds a list of at most {_KEYS_MAX} keys")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(f'this is no key set, such as {{"keys": [...]}}: {error!r}') from error
    keys: list[Key] = []
    for row in rows:
        if (
            not isinstance(row, dict)
            or row.get("kty") not in ("RSA", "EC", "oct")
            or (row["kty"] == "oct" and not secrets)
        ):
            continue
        try:
            key = import_key(row)
        except (JoseError, ValueError, TypeError, KeyError) as error:
            raise ConfigError(f"the key set holds a key that cannot be read: {error}") from error
        assert isinstance(key, OctKey | RSAKey | ECKey)
        keys.append(key)
    return keys


def key_set_of(keys: list[Key]) -> dict[str, Any]:
    """What an issuer publishes: public parts alone."""
    return dict(KeySet(list(keys)).as_dict(private=False))


# -- sources ----------------------------------------------------------------------------------------------------------


class FileKeys:
    """A file, read again when it has changed. A new one that cannot be read leaves the old keys in place, and is
    logged.
    """

    def __init__(self, path: str, read: Callable[[bytes], list[Key]]) -> None:
        self._path, self._read = Path(path), read
        self._stamp = self._now()
        try:
            self._keys = read(self._path.read_bytes())
        except (OSError, JoseError, ConfigError) as error:
            raise ConfigError(f"security.tokens: the keys in {path} cannot be used: {error}") from error

    async def find(self, kid: str | None, algorithm: str) -> list[Key]:
        stamp = self._now()
        if stamp is not None and stamp != self._stamp:
            self._stamp = stamp
            try:
                self._keys = self._read(self._path.read_bytes())
                log.info("keys.reloaded", extra={"path": str(self._path)})
            except (OSError, JoseError, ConfigError) as error:
                log.warning("keys.unreadable", extra={"path": str(self._path), "error": str(error)})
        return chosen(self._keys, kid, algorithm)

    def _now(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        return status.st_mtime_ns, status.st_size, status.st_ino


class KeySetCache:
    """When a key set is fetched, and how long it counts. A core."""

    def __init__(self, refresh_s: float, stale_s: float) -> None:
        self.keys: list[Key] = []
        self._refresh_s, self._stale_s = refresh_s, stale_s
        self._fetched_at: float | None = None
        self._tried_at: float | None = None

    def usable(self, now: float) -> bool:
        return self._fetched_at is not None and now - self._fetched_at < self._stale_s

    def due(self, now: float) -> bool:
        """Old enough to be fetched again, and not just tried."""
        if self._tried_at is not None and now - self._tried_at < _RETRY_S:
            return False
        return self._fetched_at is None or now - self._fetched_at >= self._refresh_s

    def may_look_again(self, now: float) -> bool:
        """For a key id that is not in it: the issuer may have rotated its keys."""
        return self._tried_at is None or now - self._tried_at >= UNKNOWN_WAIT_S

    def begun(self, now: float) -> None:
        self._tried_at = now

    def fetched(self, now: float, keys: list[Key]) -> None:
        self._fetched_at, self.keys = now, keys
