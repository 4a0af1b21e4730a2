"""A request that is refused is one line in the log, with what names it at both ends; what was answered is none."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from heliograph.runtime.throttle import ROWS, at_once
from heliograph.wire.kafka.record_batches import build_batch
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.session.refusals import in_part, refused
from tests.region_node.faces.kafka.harness import Client, Face, request, with_face
from tests.region_node.faces.kafka.topic_requests import create
from tests.region_node.faces.pulsar.harness import settle


def of(answer: dict[str, Any]) -> Any:
    return at_once(refused(answer))


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[dict[str, Any]]:
    names = ("connection", "address", "client", "request", "kind", "code", "error", "refusals", "reason")
    found = [
        {name: record.__dict__[name] for name in names if name in record.__dict__}
        for record in caplog.records
        if record.msg == event
    ]
    caplog.clear()
    return found


def test_a_refused_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    async def run(face: Face) -> None:
        client = Client(face.listener, "10.0.0.7")
        await create(client, "orders", "paid")
        assert lines(caplog, "kafka.request_refused") == []
        session = client.protocol.session
        who = {"connection": session.number, "address": session.address, "client": "", "request": 1}
        creation = {"name": "orders", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
        answer = await client.ask(
            "create_topics", 7, {"topics": [creation, {**creation, "name": "a:b"}], "timeout": 1000}
        )
        assert [row["error_code"] for row in answer["topics"]] == [
            Code.TOPIC_ALREADY_EXISTS,
            Code.INVALID_TOPIC_EXCEPTION,
        ]
        (line,) = lines(caplog, "kafka.request_refused")
        assert line == {
            **who,
            "kind": "create_topics 7",
            "code": "TOPIC_ALREADY_EXISTS",
            "error": answer["topics"][0]["error_message"],
            "refusals": 2,
        }
        batch = build_batch([(1, b"k", b"v", ())])
        good = {"name": "paid", "partition_data": [{"index": 0, "records": batch}]}
        bad = {"name": "orders", "partition_data": [{"index": 0, "records": batch[:-1]}]}
        for topics in ([good], [good, bad]):
            await client.ask(
                "produce", 7, {"transactional_id": None, "acks": -1, "timeout": 1000, "topic_data": topics}
            )
        (line,) = lines(caplog, "kafka.request_refused")
        assert {**line, "error": ""} == {**who, "kind": "produce 7", "code": "CORRUPT_MESSAGE", "error": ""}
        client.raw(
            request("heartbeat", 3, {"group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None})
        )
        await settle(50)
        assert [row["code"] for row in lines(caplog, "kafka.request_refused")] == ["UNKNOWN_MEMBER_ID"]
        client.raw(request("produce", 7, {"transactional_id": None, "acks": 0, "timeout": 1000, "topic_data": [bad]}))
        await settle(20)
        assert client.protocol.closed and [row["code"] for row in lines(caplog, "kafka.request_refused")] == [
            "CORRUPT_MESSAGE"
        ]

    with_face(run)


def test_what_a_rebalance_brings_is_no_refusal() -> None:
    assert of({"error_code": Code.REBALANCE_IN_PROGRESS}) is None
    assert of({"error_code": Code.MEMBER_ID_REQUIRED, "members": [], "none": None, "bytes": [b"x"]}) is None
    rows = {
        "responses": [
            {
                "partitions": [
                    {"error_code": 0},
                    {"error_code": Code.OFFSET_OUT_OF_RANGE},
                    {"error_code": 3, "error_message": "b"},
                ]
            }
        ]
    }
    assert of(rows) == (Code.OFFSET_OUT_OF_RANGE, "", 2)


NO = int(Code.TOPIC_AUTHORIZATION_FAILED)


def test_a_long_answer_is_looked_through_in_pieces() -> None:
    answer = {"topics": [{"partitions": [{"error_code": 3}] * ROWS} for _ in range(4)]}
    assert sum(1 for _ in refused(answer)) == 4 and of(answer) == (Code(3), "", 4 * ROWS)
    assert not list(refused({"topics": [{"partitions": [{"error_code": 0}]}]})), "one that is not takes one step"


@pytest.mark.parametrize(
    ("answer", "done"),
    [
        ({"topics": [{"error_code": NO}, {"error_code": 0}]}, True),
        ({"topics": [{"error_code": NO}, {"error_code": NO}]}, False),
        ({"error_code": 0, "results": [{"error_code": NO, "configs": [{"name": "a"}]}]}, False),
        ({"error_code": NO, "results": [{"error_code": 0}]}, False),
        ({"responses": [{"name": "t", "partitions": [{"error_code": NO}, {"error_code": 0}]}]}, True),
        ({"error_code": 0, "filter_results": []}, True),
        ({"topics": [{"error_code": 0, "configs": [{"name": "a"}]}]}, True),
        ({"throttle_time": 0, "topics": []}, False),
    ],
)
def test_what_was_done_in_part_is_told_from_what_was_refused(answer: dict[str, Any], done: bool) -> None:
    assert in_part(answer) is done
