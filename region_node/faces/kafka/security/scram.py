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
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote, unquote

import msgpack

from heliograph.kv.metadata_store import MetadataStore, rows_under
from heliograph.model.errors import CorruptData, HeliographError, Unauthenticated
from heliograph.runtime.clock import Rng
from heliograph.runtime.throttle import RowPace
from heliograph.wire.kafka.message_codec import Fields, Request
from region_node.faces.kafka.error_codes import Code, Refused, code_of

if TYPE_CHECKING:
    from region_node.faces.kafka.connection.kafka_connection import KafkaConnection

USERS = "/kafka/scram/"
FORMAT = 1
HASHES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
NUMBERS = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
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
    """Stores the SCRAM users of this region in its metadata."""

    def __init__(self, meta: MetadataStore, rng: Rng) -> None:
        self._meta, self._rng = meta, rng
        self._secret = rng.getrandbits(256).to_bytes(32, "big")

    def nonce(self) -> str:
        return f"{self._rng.getrandbits(192):048x}"

    async def find(self, mechanism: str, user: str) -> ScramUser:
        """Returns a user; for an unknown name one that nothing proves, the same each time from this broker."""
        found = await self._meta.get(_key(user, mechanism))
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


# -- requests ----------------------------------------------------------------------------------------------------------


def _check(connection: KafkaConnection, request: Request) -> None:
    """A user is a role everywhere, so only who may do everything makes one."""
    if connection.broker.security.authentication.open:
        raise Refused(Code.SECURITY_DISABLED, "nothing is authenticated here: set security.authentication")
    connection.gate.of_all(request)


async def alter_users(connection: KafkaConnection, request: Request) -> Fields:
    rows: dict[str, Fields] = {}
    pace = RowPace()
    for change in [*request.fields["deletions"], *request.fields["upsertions"]]:
        await pace.row()
        user, mechanism = change["name"], NUMBERS.get(change["mechanism"], "")
        row = rows.setdefault(user, {"user": user, "error_code": 0, "error_message": None})
        try:
            _check(connection, request)
            if not mechanism or not user or len(user) > 256:
                raise Refused(
                    Code.INVALID_REQUEST, "a user has 1 to 256 characters, and SCRAM-SHA-256 or SCRAM-SHA-512"
                )
            if "salt" not in change:
                if not await connection.broker.scram.delete(user, mechanism):
                    raise Refused(Code.RESOURCE_NOT_FOUND, "there is no such user")
                continue
            if not ITERATIONS_MIN <= change["iterations"] <= ITERATIONS_MAX or not change["salt"]:
                raise Refused(
                    Code.UNACCEPTABLE_CREDENTIAL,
                    f"iterations must be {ITERATIONS_MIN} to {ITERATIONS_MAX}, and there must be a salt",
                )
            if len(change["salted_password"]) != hashlib.new(HASHES[mechanism]).digest_size:
                raise Refused(
                    Code.UNACCEPTABLE_CREDENTIAL, "the salted password is of another length than its mechanism's"
                )
            await connection.broker.scram.put(
                user, mechanism, user_of(mechanism, change["iterations"], change["salt"], change["salted_password"])
            )
        except HeliographError as error:
            row["error_code"], row["error_message"] = code_of(error), str(error)
    return {"results": list(rows.values())}


async def describe_users(connection: KafkaConnection, request: Request) -> Fields:
    wanted = request.fields["users"]
    try:
        known: dict[str, dict[str, ScramUser]] = {}
        if (
            not connection.broker.security.authentication.open
        ):  # else there are none: kafka-configs.sh asks for them beside users' quotas
            _check(connection, request)
            known = await connection.broker.scram.all()
    except HeliographError as error:
        return {"error_code": code_of(error), "error_message": str(error), "results": []}
    rows: list[Fields] = []
    for user in sorted(known) if not wanted else dict.fromkeys(each["name"] for each in wanted):
        found = known.get(user)
        infos = (
            [
                {"mechanism": number, "iterations": found[name].iterations}
                for number, name in NUMBERS.items()
                if name in found
            ]
            if found
            else []
        )
        rows.append({"user": user, "error_code": 0 if found else Code.RESOURCE_NOT_FOUND, "credential_infos": infos})
    return {"error_code": 0, "results": rows}
