"""Requests by which clients sign in, and administrators make users that can: SASL, and SCRAM's users.

Is: one handler a request. Isn't: a check of credentials (`login`), or a proof (`scram`).
Source: Kafka KIP-43, KIP-152, KIP-368, KIP-554; docs/protocols/kafka.md, "Security".
"""

from __future__ import annotations

import hashlib

from heliograph.model.configuration.kafka_users import ScramUser
from heliograph.model.errors import HeliographError, MetadataUnavailable, PeerError
from heliograph.runtime.throttle import RowPace
from heliograph.wire.kafka.message_codec import Fields, Request
from region_node.faces.kafka.error_codes import Code, Refused, code_of
from region_node.faces.kafka.security.scram import (
    HASHES,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    NUMBERS,
    user_of,
)
from region_node.faces.kafka.session.kafka_session import KafkaSession
from region_node.faces.kafka.session.login import MECHANISMS


async def sasl_handshake(session: KafkaSession, request: Request) -> Fields:
    return {
        "error_code": session.login.handshake(request.fields["mechanism"], request.version),
        "mechanisms": list(MECHANISMS),
    }


async def sasl_authenticate(session: KafkaSession, request: Request) -> Fields:
    try:
        answer = await session.login.token(request.fields["auth_bytes"])
    except MetadataUnavailable:  # closed without an answer, as by Kafka's brokers: any code of one is final
        raise
    except HeliographError as error:
        if isinstance(error, PeerError):
            return {"error_code": Code.ILLEGAL_SASL_STATE, "error_message": str(error)}
        session.close_when_answered()
        return {"error_code": Code.SASL_AUTHENTICATION_FAILED, "error_message": f"Authentication failed: {error}"}
    return {"error_code": 0, "auth_bytes": answer, "session_lifetime": session.login.lifetime_ms()}


def _check(session: KafkaSession, request: Request) -> None:
    """A user is a role everywhere, so only who may do everything makes one."""
    if session.broker.security.authentication.open:
        raise Refused(Code.SECURITY_DISABLED, "nothing is authenticated here: set security.authentication")
    session.gate.of_all(request)


async def alter_users(session: KafkaSession, request: Request) -> Fields:
    rows: dict[str, Fields] = {}
    pace = RowPace()
    for change in [*request.fields["deletions"], *request.fields["upsertions"]]:
        await pace.row()
        user, mechanism = change["name"], NUMBERS.get(change["mechanism"], "")
        row = rows.setdefault(user, {"user": user, "error_code": 0, "error_message": None})
        try:
            _check(session, request)
            if not mechanism or not user or len(user) > 256:
                raise Refused(
                    Code.INVALID_REQUEST, "a user has 1 to 256 characters, and SCRAM-SHA-256 or SCRAM-SHA-512"
                )
            if "salt" not in change:
                if not await session.broker.scram.delete(user, mechanism):
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
            await session.broker.scram.put(
                user, mechanism, user_of(mechanism, change["iterations"], change["salt"], change["salted_password"])
            )
        except HeliographError as error:
            row["error_code"], row["error_message"] = code_of(error), str(error)
    return {"results": list(rows.values())}


async def describe_users(session: KafkaSession, request: Request) -> Fields:
    wanted = request.fields["users"]
    try:
        known: dict[str, dict[str, ScramUser]] = {}
        if (
            not session.broker.security.authentication.open
        ):  # else there are none: kafka-configs.sh asks for them beside users' quotas
            _check(session, request)
            known = await session.broker.scram.all()
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
