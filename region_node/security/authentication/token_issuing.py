"""Issuing tokens: keys, key sets, and the tokens themselves, for an operator without an identity provider.

Is: what `heliograph tokens` does, as functions of bytes. Isn't: verification (`tokens`, `token_keys`), files, or a
server. A public key's id is its RFC 7638 thumbprint, so that the id in a token and in a key set agree without anybody
keeping it.
Source: RFC 7515, RFC 7517, RFC 7518, RFC 7638.
"""

from __future__ import annotations

import json
import re
from typing import Any

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from joserfc import jws
from joserfc.jwk import ECKey, OctKey, RSAKey

from heliograph.model.errors import ConfigError
from heliograph.runtime.clock import Rng
from region_node.security.authentication.token_keys import Key, key_set_of, read_key_set, read_public_key
from region_node.security.settings import ASYMMETRIC, SECRET_BYTES_MIN

_CURVES: dict[str, type[ec.EllipticCurve]] = {"ES256": ec.SECP256R1, "ES384": ec.SECP384R1, "ES512": ec.SECP521R1}
_BY_SIZE = {256: "ES256", 384: "ES384", 521: "ES512"}
_RSA_BITS = 2048
_DURATION = re.compile(r"(\d+)([smhdy])\Z")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "y": 365 * 86_400}


def new_secret(algorithm: str, rng: Rng) -> bytes:
    """Raises ConfigError for an algorithm without a secret."""
    if algorithm not in SECRET_BYTES_MIN:
        raise ConfigError(
            f"{algorithm} has no secret; it takes a key pair. A secret is for {', '.join(SECRET_BYTES_MIN)}"
        )
    size = SECRET_BYTES_MIN[algorithm]
    return rng.getrandbits(size * 8).to_bytes(size, "big")


def new_key_pair(algorithm: str) -> tuple[bytes, bytes]:
    """(private, public), PEM. Raises ConfigError for an algorithm without one."""
    if algorithm not in ASYMMETRIC:
        raise ConfigError(f"{algorithm} takes a secret, not a key pair. A pair is for {', '.join(ASYMMETRIC)}")
    key = (
        ec.generate_private_key(_CURVES[algorithm]())
        if algorithm in _CURVES
        else rsa.generate_private_key(65537, _RSA_BITS)
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private, key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )


def with_key(key_set: bytes, public: bytes) -> bytes:
    """A key set (empty: a new one) with this public key in it; tokens of the others stay good until they are taken
    out.
    """
    keys: list[Key] = read_key_set(key_set, secrets=False) if key_set else []
    (added,) = read_public_key(public)
    added.ensure_kid()
    kept = [key for key in keys if key.kid != added.kid]
    return json.dumps(key_set_of([*kept, added]), indent=1).encode() + b"\n"


def without_key(key_set: bytes, kid: str) -> bytes:
    """A key set without one key: what it signed is good no more. Raises ConfigError where it is not there, or the last
    one.
    """
    keys = read_key_set(key_set, secrets=False)
    kept = [key for key in keys if key.kid != kid]
    if len(kept) == len(keys):
        raise ConfigError(f"the key set has no key {kid}; it has {', '.join(str(key.kid) for key in keys)}")
    if not kept:
        raise ConfigError(
            f"{kid} is the only key of the set, and without it every token would be refused: add the next one first"
        )
    return json.dumps(key_set_of(kept), indent=1).encode() + b"\n"


def read_signing_key(data: bytes, *, private: bool) -> tuple[Key, str]:
    """A secret, or a private key in PEM or DER; and the algorithm that is usual for it. Raises ConfigError."""
    if not private:
        return OctKey.import_key(data), "HS256"
    load = (
        serialization.load_pem_private_key if data.lstrip().startswith(b"-----") else serialization.load_der_private_key
    )
    try:
        key = load(data, None)
    except (ValueError, TypeError) as error:
        raise ConfigError(f"this is no private key without a password, in PEM or DER: {error}") from error
    if isinstance(key, rsa.RSAPrivateKey):
        return RSAKey.import_key(key), "RS256"
    if isinstance(key, ec.EllipticCurvePrivateKey) and key.key_size in _BY_SIZE:
        return ECKey.import_key(key), _BY_SIZE[key.key_size]
    raise ConfigError("only RSA and elliptic curve keys (P-256, P-384, P-521) sign tokens here")


def signed(key: Key, algorithm: str, claims: dict[str, Any]) -> str:
    """The token. Raises ConfigError where the key does not fit the algorithm."""
    header = {"alg": algorithm, "typ": "JWT"}
    if isinstance(key, OctKey):
        if algorithm not in SECRET_BYTES_MIN or len(key.raw_value) < SECRET_BYTES_MIN[algorithm]:
            raise ConfigError(
                f"a secret of {len(key.raw_value)} bytes cannot sign {algorithm}; make one with `heliograph tokens "
                f"keys --algorithm {algorithm}`"
            )
    else:
        key.ensure_kid()
        header["kid"] = str(key.kid)
    try:
        return jws.serialize_compact(header, json.dumps(claims).encode(), key, algorithms=[algorithm])
    except ValueError as error:
        raise ConfigError(f"this key cannot sign {algorithm}: {error}") from error


def seconds(text: str) -> int:
    """`30m`, `12h`, `7d`, `1y`. Raises ConfigError."""
    found = _DURATION.match(text)
    if found is None:
        raise ConfigError(f"{text!r}: expected a duration such as 30m, 12h, 7d, 1y")
    return int(found[1]) * _SECONDS[found[2]]
