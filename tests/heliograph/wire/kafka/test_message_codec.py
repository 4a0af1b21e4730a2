"""Kafka's requests and answers: every version of every message there and back, and whatever bytes come."""

from __future__ import annotations

import random
import struct
from collections.abc import Generator
from typing import Any

import pytest

from heliograph.model.errors import PeerError
from heliograph.runtime.throttle import at_once
from heliograph.wire.kafka.message_codec import (
    APIS,
    BY_NAME,
    ELEMENTS_MAX,
    STEP_ELEMENTS,
    MessageWriter,
    decode_fields,
    decode_request,
    encode_answer,
    encode_any,
    encode_fields,
    encode_in_steps,
    encode_varint,
)
from tests.heliograph.wire.kafka.made_messages import made

EVERY = [
    (api.name, version, answer)
    for api in APIS.values()
    for version in range(api.lowest, api.highest + 1)
    for answer in (False, True)
]


def normal(fields: Any, given: dict[str, Any], read: dict[str, Any], version: int) -> None:
    """What was given is what is read."""
    for field in fields:
        if field.name in given:
            same(field, given[field.name], read[field.name], version)


def same(field: Any, given: Any, read: Any, version: int) -> None:
    if isinstance(given, list):
        assert len(given) == len(read)
        for one, other in zip(given, read, strict=True):
            same(field, one, other, version)
    elif field.kind == "struct" and given is not None:
        normal(field.fields, given, read, version)
    else:
        assert given == read


@pytest.mark.parametrize(("name", "version", "answer"), EVERY)
def test_there_and_back(name: str, version: int, answer: bool) -> None:
    rng, api = random.Random(version * 100 + answer), BY_NAME[name]
    fields = api.answer if answer else api.request
    for _ in range(5):
        given = made(rng, fields, version, api.is_flexible(version))
        normal(
            fields,
            given,
            decode_fields(name, version, encode_fields(name, version, given, answer=answer), answer=answer),
            version,
        )


@pytest.mark.parametrize("seed", range(40))
def test_any_bytes_are_decoded_or_refused(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(60):
        name, version, answer = rng.choice(EVERY)
        api = BY_NAME[name]
        data = bytearray(
            encode_fields(
                name,
                version,
                made(rng, api.answer if answer else api.request, version, api.is_flexible(version)),
                answer=answer,
            )
        )
        for _ in range(rng.randrange(4)):
            if data:
                data[rng.randrange(len(data))] = rng.randrange(256)
        if rng.random() < 0.5:
            data = data[: rng.randrange(len(data) + 1)]
        try:
            decode_fields(name, version, data, answer=answer)
        except PeerError:
            pass


def test_an_array_that_claims_more_than_there_is_makes_nothing() -> None:
    with pytest.raises(PeerError, match="says 2147483647 elements"):
        decode_fields("metadata", 1, b"\x7f\xff\xff\xff")
    with pytest.raises(PeerError):
        decode_fields("metadata", 9, b"\xff\xff\xff\xff\x0f")


def test_a_request_that_is_not_known() -> None:
    with pytest.raises(PeerError, match="request 999 is not known"):
        decode_request(bytearray(b"\x03\xe7\0\0\0\0\0\1\0\0"))
    with pytest.raises(PeerError):
        decode_request(bytearray(b"\0"))
    request = decode_request(bytearray(b"\0\x12\0\x63\0\0\0\1\0\1c"))
    assert (request.api.name, request.supported, request.client, request.correlation) == ("api_versions", False, "c", 1)


def test_unknown_tagged_fields_are_passed_over() -> None:
    plain = encode_fields("heartbeat", 4, {"group_id": "g", "generation_id": 3, "member_id": "m"}, answer=False)
    tagged = plain[:-1] + b"\x02\x05\x03abc\x09\x00"
    assert decode_fields("heartbeat", 4, tagged) == decode_fields("heartbeat", 4, plain)


@pytest.mark.parametrize("where", ["header", "fields"])
def test_a_message_of_very_many_tagged_fields_is_refused(where: str) -> None:
    """Also before a client has signed in: each costs it two bytes, and the loop a turn."""
    many = encode_varint(ELEMENTS_MAX + 1) + b"\x09\x00" * (ELEMENTS_MAX + 1)
    head, names = struct.pack(">hhih", 18, 3, 1, -1), b"\x02n\x02v"
    frame = head + (many + names + b"\0" if where == "header" else b"\0" + names + many)
    with pytest.raises(PeerError, match="tagged fields"):
        decode_request(bytearray(frame))
    few = b"\x02\x09\x00\x0a\x01x"
    assert decode_request(bytearray(head + few + names + few)).fields["client_software_name"] == "n"


def test_the_answer_to_api_versions_has_the_old_header_in_all_versions() -> None:
    frame = b"".join(encode_answer(BY_NAME["api_versions"], 3, 7, {"error_code": 0, "api_keys": []}))
    assert frame[:4] == (len(frame) - 4).to_bytes(4, "big") and frame[4:10] == b"\0\0\0\7\0\0"
    flexible = b"".join(encode_answer(BY_NAME["heartbeat"], 4, 7, {"error_code": 0}))
    assert flexible[4:9] == b"\0\0\0\7\0"


def long_metadata(topics: int, partitions: int) -> dict[str, Any]:
    row = {"replica_nodes": [1], "isr_nodes": [1]}
    rows = [{**row, "partition_index": index} for index in range(partitions)]
    return {"topics": [{"name": f"t{number}", "topic_id": bytes(16), "partitions": rows} for number in range(topics)]}


@pytest.mark.parametrize("version", [1, 12])
def test_a_long_answer_is_encoded_in_steps(version: int, monkeypatch: pytest.MonkeyPatch) -> None:
    api, given, written = BY_NAME["metadata"], long_metadata(3, 600), [0]
    whole = b"".join(encode_any(api, version, 7, given))
    put = MessageWriter.spend

    def spend(writer: MessageWriter, count: int) -> None:
        written[-1] += count
        put(writer, count)

    monkeypatch.setattr(MessageWriter, "spend", spend)
    steps = encode_in_steps(api, version, 7, given)

    def all_steps() -> Generator[None, None, bytes]:
        return b"".join((yield from steps))

    made = all_steps()
    with pytest.raises(StopIteration) as end:
        while True:
            next(made)
            written.append(0)
    assert end.value.value == whole
    assert len(written) > 3 * 600 * 3 // STEP_ELEMENTS and max(written[1:]) <= STEP_ELEMENTS + 4


def test_a_short_answer_is_encoded_in_one_step() -> None:
    api, given = BY_NAME["metadata"], long_metadata(2, 50)
    steps = encode_in_steps(api, 12, 7, given)
    with pytest.raises(StopIteration) as end:
        next(steps)
    assert b"".join(end.value.value) == b"".join(encode_any(api, 12, 7, given))


def test_an_answer_has_a_bound_of_bytes() -> None:
    member = {"member_id": "m", "member_metadata": bytes(1_000)}
    groups = {"groups": [{"group_id": f"g{number}", "members": [member]} for number in range(3)]}
    assert at_once(encode_in_steps(BY_NAME["describe_groups"], 5, 7, groups, bytes_max=4_000))
    with pytest.raises(PeerError, match="fewer topics, partitions, or groups"):
        at_once(encode_in_steps(BY_NAME["describe_groups"], 5, 7, groups, bytes_max=3_000))
    with pytest.raises(PeerError, match="ask for fewer topics"):
        at_once(encode_in_steps(BY_NAME["metadata"], 12, 7, long_metadata(3, 600), bytes_max=20_000))


@pytest.mark.parametrize(("name", "version", "answer"), [each for each in EVERY if each[2]])
def test_steps_make_the_same(name: str, version: int, answer: bool) -> None:
    rng, api = random.Random(version), BY_NAME[name]
    given = made(rng, api.answer, version, api.is_flexible(version))
    steps = encode_in_steps(api, version, 7, given, step_elements=1)
    assert b"".join(at_once(steps)) == b"".join(encode_any(api, version, 7, given))
