"""SCRAM: passwords that are proved and never sent, for Kafka's clients; SCRAM-SHA-256 and SCRAM-SHA-512.

Is: one exchange as a pure core, and the instance's users of this kind. Isn't: other ways to authenticate
(`region_node.security`), a right, or the value that is kept (`heliograph.model.configuration.kafka_users`).
Invariants: neither a password nor what it can be made from is stored, only what proves it; an unknown user is answered
as a known one until the end; a proof is compared in constant time; a nonce is never used twice. Who may do everything
in a region is a user of that region's own, which no other one has written.
Source: RFC 5802, RFC 7677; Kafka KIP-84, KIP-554; docs/protocols/kafka.md, "Security".
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
from collections.abc import Callable

from heliograph.model.configuration.kafka_users import KAFKA_USERS, ScramUser, key_of, named
from heliograph.model.errors import CorruptData, Unauthenticated
from heliograph.runtime.clock import Rng
from region_node.faces.kafka.shared_rows import RowStores, SharedRows

log = logging.getLogger("region_node.kafka")

HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
NUMBERS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
_WRONG = "user or password is wrong"
_TOKEN_BYTES_MAX = 4096


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
    """The instance's SCRAM users, as this broker follows them. Make it on the event loop."""

    def __init__(self, stores: RowStores, rng: Rng, may_everything: Callable[[str], bool]) -> None:
        """may_everything: whether a role of that name may do everything in this region."""
        self._rng = rng
        self.rows = SharedRows(stores, (KAFKA_USERS,), self._on_row, lambda key: may_everything(named(key)[0]))
        self._users: dict[str, ScramUser] = {}
        self._secret = rng.getrandbits(256).to_bytes(32, "big")

    def _on_row(self, key: str) -> None:
        value = self.rows.get(key)
        self._users.pop(key, None)
        if value is not None:
            try:
                self._users[key] = ScramUser.decode(value)
            except CorruptData as error:  # who cannot be read cannot sign in
                log.warning("kafka.user_unreadable", extra={"key": key, "error": str(error)})

    def nonce(self) -> str:
        return f"{self._rng.getrandbits(192):048x}"

    async def find(self, mechanism: str, user: str) -> ScramUser:
        """Returns a user; for an unknown name one that nothing proves, the same each time from this broker. Raises
        MetadataUnavailable.
        """
        await self.rows.synced()
        found = self._users.get(key_of(user, mechanism))
        if found is not None:
            return found
        seed = hmac.digest(self._secret, f"{mechanism} {user}".encode(), "sha512")
        size = hashlib.new(HASHES[mechanism]).digest_size
        return ScramUser(ITERATIONS_MIN, seed[:16], hmac.digest(self._secret, seed, "sha512")[:size], bytes(size))

    async def put(self, user: str, mechanism: str, made: ScramUser) -> None:
        """Raises VersionConflict, and what the metadata raises."""
        kept = made.encode()
        await self.rows.change(key_of(user, mechanism), lambda _: kept)

    async def delete(self, user: str, mechanism: str) -> bool:
        """Deletes a user of one mechanism, and returns whether it was there. Raises as `put`."""
        return await self.rows.change(key_of(user, mechanism), lambda _: None)

    async def all(self) -> dict[str, dict[str, ScramUser]]:
        """User -> mechanism -> what is kept. Raises MetadataUnavailable."""
        await self.rows.synced()
        out: dict[str, dict[str, ScramUser]] = {}
        for key in sorted(self._users):
            user, mechanism = named(key)
            out.setdefault(user, {})[mechanism] = self._users[key]
        return out
