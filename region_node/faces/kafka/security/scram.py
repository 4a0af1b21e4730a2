"""SCRAM: passwords that are proved and never sent, for Kafka's clients; SCRAM-SHA-256 and SCRAM-SHA-512.

Is: one exchange as a pure core, and the region's users of this kind. Isn't: other ways to authenticate
(`region_node.security`), or a right.
Invariants: neither a password nor what it can be made from is stored, only what proves it; an unknown user is answered
as a known one until the end; a proof is compared in constant time; a nonce is never used twice.
Source: RFC 5802, RFC 7677; Kafka KIP-84, KIP-554; docs/protocols/kafka.md, "Security".

    /kafka/scram/{user}/{mechanism}  ->  [1, iterations, salt, stored key, server key]      of this region
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import NamedTuple
from urllib.parse import quote, unquote

import msgpack

from heliograph.kv.metadata_store import MetadataStore, rows_under
from heliograph.model.errors import CorruptData, MetadataUnavailable, Unauthenticated
from heliograph.runtime.clock import Rng
from heliograph.runtime.listeners.address_counts import group_of
from heliograph.runtime.throttle import FairQueue

USERS = "/kafka/scram/"
FORMAT = 1
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
NUMBERS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
FINDS_AT_ONCE = 8
"""So many users are looked up in the metadata at a time, for who has not signed in."""
FINDS_WAITING_MAX = 10_000
"""So many others wait, as many as a broker has connections as a rule."""
_WRONG = "user or password is wrong"
_TOKEN_BYTES_MAX = 4096


class ScramUser(NamedTuple):
    iterations: int
    salt: bytes
    stored_key: bytes
    server_key: bytes


def user_of(mechanism: str, iterations: int, salt: bytes, salted_password: bytes) -> ScramUser:
    """What is kept, of what an administrator's tool has made of a password."""
    name = HASHES[mechanism]
    client_key = hmac.digest(salted_password, b"Client Key", name)
    return ScramUser(
        iterations, salt, hashlib.new(name, client_key).digest(), hmac.digest(salted_password, b"Server Key", name)
    )


class ScramExchange:
    """One client's. `user` is known after `begin`; it is proved once `finish` returns."""

    def __init__(self, mechanism: str, nonce: str) -> None:
        self._hash, self._nonce = HASHES[mechanism], nonce
        self.user = ""
        self._bare = self._first = ""
        self._header = ""

    def begin(self, data: bytes) -> None:
        """The client's first message. Raises Unauthenticated."""
        text = _text(data)
        parts = text.split(",", 2)
        if len(parts) != 3 or parts[0] not in ("n", "y") or (parts[1] and not parts[1].startswith("a=")):
            raise Unauthenticated("a SCRAM message that is not one")
        self._header, self._bare = f"{parts[0]},{parts[1]},", parts[2]
        fields = _fields(self._bare)
        if "m" in fields or not fields.get("n") or not fields.get("r"):
            raise Unauthenticated("a SCRAM message without user or nonce, or with an extension that is not known")
        self.user = fields["n"].replace("=2C", ",").replace("=3D", "=")
        self._nonce = fields["r"] + self._nonce

    def challenge(self, known: ScramUser) -> bytes:
        self._first = f"r={self._nonce},s={base64.b64encode(known.salt).decode()},i={known.iterations}"
        return self._first.encode()

    def finish(self, data: bytes, known: ScramUser) -> bytes:
        """The client's last message; returns the server's. Raises Unauthenticated."""
        text = _text(data)
        bare, separator, proof_text = text.rpartition(",p=")
        fields = _fields(bare)
        header = base64.b64encode(self._header.encode()).decode()
        if not separator or fields.get("r") != self._nonce or fields.get("c") != header:
            raise Unauthenticated(_WRONG)
        try:
            proof = base64.b64decode(proof_text, validate=True)
        except (ValueError, binascii.Error) as error:
            raise Unauthenticated(_WRONG) from error
        message = f"{self._bare},{self._first},{bare}".encode()
        signature = hmac.digest(known.stored_key, message, self._hash)
        if len(proof) != len(signature):
            raise Unauthenticated(_WRONG)
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        if not hmac.compare_digest(hashlib.new(self._hash, client_key).digest(), known.stored_key):
            raise Unauthenticated(_WRONG)
        return b"v=" + base64.b64encode(hmac.digest(known.server_key, message, self._hash))


def _text(data: bytes) -> str:
    if len(data) > _TOKEN_BYTES_MAX:
        raise Unauthenticated("a SCRAM message that is too long")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise Unauthenticated("a SCRAM message that is no text") from error


def _fields(text: str) -> dict[str, str]:
    return {part[0]: part[2:] for part in text.split(",") if len(part) > 1 and part[1] == "="}


class ScramUsers:
    """Stores the SCRAM users of this region in its metadata. Who signs in waits for it, addresses in turn."""

    def __init__(self, meta: MetadataStore, rng: Rng, *, waiting_max: int = FINDS_WAITING_MAX) -> None:
        self._meta, self._rng = meta, rng
        self._finds = FairQueue(FINDS_AT_ONCE, waiting_max)
        self._secret = rng.getrandbits(256).to_bytes(32, "big")

    def nonce(self) -> str:
        return f"{self._rng.getrandbits(192):048x}"

    async def find(self, mechanism: str, user: str, host: str = "") -> ScramUser:
        """Returns a user; for an unknown name one that nothing proves, the same each time from this broker. Raises
        MetadataUnavailable.

        host: who asks.
        """
        if not await self._finds.take(group_of(host)):
            raise MetadataUnavailable("too many clients wait to sign in by SCRAM: try again")
        try:
            found = await self._meta.get(_key(user, mechanism))
        finally:
            self._finds.give()
        if found is not None:
            return _decode(found[0])
        seed = hmac.digest(self._secret, f"{mechanism} {user}".encode(), "sha512")
        size = hashlib.new(HASHES[mechanism]).digest_size
        return ScramUser(ITERATIONS_MIN, seed[:16], hmac.digest(self._secret, seed, "sha512")[:size], bytes(size))

    async def put(self, user: str, mechanism: str, made: ScramUser) -> None:
        packed: bytes = msgpack.packb([FORMAT, *made])
        await self._meta.put(_key(user, mechanism), packed)

    async def delete(self, user: str, mechanism: str) -> bool:
        """Deletes a user of one mechanism, and returns whether it was there."""
        return await self._meta.delete(_key(user, mechanism))

    async def all(self) -> dict[str, dict[str, ScramUser]]:
        out: dict[str, dict[str, ScramUser]] = {}
        for key, blob, _ in await rows_under(self._meta, USERS):
            user, mechanism = (unquote(part) for part in key.removeprefix(USERS).split("/"))
            out.setdefault(user, {})[mechanism] = _decode(blob)
        return out


def _key(user: str, mechanism: str) -> str:
    return f"{USERS}{quote(user, safe='')}/{mechanism}"


def _decode(blob: bytes) -> ScramUser:
    try:
        number, iterations, salt, stored_key, server_key = msgpack.unpackb(blob)
        if number != FORMAT:
            raise CorruptData(f"SCRAM user: format {number}; this version reads {FORMAT}")
        return ScramUser(iterations, salt, stored_key, server_key)
    except (ValueError, TypeError, msgpack.exceptions.UnpackException) as error:
        raise CorruptData(f"SCRAM user: {error}") from error
