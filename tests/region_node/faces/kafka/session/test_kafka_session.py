"""A session without a connection: what it asks of its port, and what it does not keep."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from region_node.faces.kafka.connection.request_table import SERVED
from region_node.faces.kafka.quotas.client_quotas import ANONYMOUS
from region_node.faces.kafka.quotas.quota_table import DEFAULT, NONE, PRODUCE
from region_node.faces.kafka.session.kafka_session import KafkaSession, SessionPort
from tests.region_node.faces.kafka.harness import Face, with_face
from tests.region_node.faces.pulsar.harness import settle


class NotedPort:
    """Notes what a session asks of its connection."""

    def __init__(self) -> None:
        self.closed, self.asked = False, list[tuple[Any, ...]]()

    def call_later(self, wait_s: float, action: Callable[[], None]) -> NotedPort:
        return self

    def cancel(self) -> None:
        """A timer of its own."""

    def __getattr__(self, name: str) -> Any:
        return lambda *given: self.asked.append((name, *given))


def session_of(face: Face, port: NotedPort, peer: object = ("10.0.0.7", 5000)) -> KafkaSession:
    made = KafkaSession(cast(SessionPort, port), face.broker, SERVED, 7, tls=False, peer=peer)
    made.login.begin()
    return made


def test_a_session_is_named_by_its_number_and_address() -> None:
    async def run(face: Face) -> None:
        made = session_of(face, NotedPort())
        assert made.named(None) == {"connection": 7, "address": "10.0.0.7:5000"} and made.host == "10.0.0.7"
        assert session_of(face, NotedPort(), peer="").host == "", "a socket of the machine has no address"

    with_face(run)


def test_one_more_quota_holds_a_client_once_and_lets_it_go_once() -> None:
    async def run(face: Face) -> None:
        port = NotedPort()
        made = session_of(face, port)
        await face.broker.quotas.table.change((NONE, DEFAULT), {PRODUCE: 1.0})
        await settle()
        quota = made.limits_of("tool").produce
        assert quota is not None and made.limits_again() is made.limits_of("tool")
        assert made.limits_of("tool") == face.broker.quotas.limits(ANONYMOUS, "tool")
        made.hold_for(5.0, quota)
        made.hold_for(9.0, quota)
        assert made.held_for == [quota]
        made.hold_for(0.0, quota)
        made.hold_for(0.0, quota)
        assert port.asked == [("hold_reading", True, quota), ("hold_reading", False, quota)] and not made.held_for

    with_face(run)


def test_a_session_that_has_ended_is_held_by_nothing() -> None:
    async def run(face: Face) -> None:
        port = NotedPort()
        made = session_of(face, port)
        face.broker.budget.take(made, face.broker.settings.inflight_bytes_max + 1)
        assert port.asked.pop() == ("hold", "budget")
        made.end()
        face.broker.budget.give(face.broker.settings.inflight_bytes_max + 1)
        assert not port.asked, "who is gone is not let go on"

    with_face(run)
