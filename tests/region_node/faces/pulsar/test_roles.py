"""What each role is answered, command by command: `rights_table.txt`, written by hand, against the rows, and against a
region of real processes that knows its clients by tokens.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.commands.command_rights import CommandRight as R
from region_node.faces.pulsar.commands.command_table import SERVED
from tests.region_node.faces.guarded_region import ROLES, Guarded
from tests.region_node.faces.pulsar.codec import Reader, frame
from tests.region_node.live import until

K = pb.BaseCommand
TABLE = Path(__file__).with_name("rights_table.txt")
LETTERS = "ngocpts"
AUTH = "AuthorizationError"
TOPIC, NAMESPACE, OPENED = "persistent://shop/live/orders", "shop/live", 7
ASSIGN = "persistent://pulsar/system/transaction_coordinator_assign"
_NEW = count()


def table(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(command, letter -> answer) of each line."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, *answers = line.partition("|")[0].split()
            assert len(answers) == len(LETTERS), line
            yield name, {letter: AUTH if one == "AUTH" else one for letter, one in zip(LETTERS, answers, strict=True)}


WANTED = dict(table(TABLE.read_text()))
NOT_LET_THROUGH = {AUTH, "closed", "NotAllowedError", "ConsumerNotFound", "UnknownError", "AuthenticationError"}
NOT_LET_THROUGH |= {"TransactionNotFound"}
LET_THROUGH = {
    R.NONE: "gocpts",
    R.ANY_ROLE: "gocpts",
    R.LOOK_UP: "cpts",
    R.PRODUCE: "pts",
    R.CONSUME: "cts",
    R.LIST: "cpts",
    R.ANY_GRANT: "ocpts",
    R.OWN_TXN: "ocpts",
    R.OWN_TXN_PRODUCE: "pts",
    R.OWN_TXN_CONSUME: "cts",
    R.BROKERS: "s",
    R.NOBODY: "",
}
NO_ANSWER = {"PONG", "AUTH_RESPONSE", "REDELIVER_UNACKNOWLEDGED_MESSAGES"}
NO_ANSWER |= {"SCALABLE_TOPIC_CLOSE", "WATCH_SCALABLE_TOPICS_CLOSE"}
UNKNOWN_TOO = {"WATCH_TOPIC_LIST_CLOSE"}
"""What is answered so whether it is open or not."""


def test_the_table_has_each_command_once_and_no_other() -> None:
    lines = [name for name, _ in table(TABLE.read_text())]
    assert len(lines) == len(set(lines))
    assert {name.partition(":")[0] for name in lines} == {K.Type.Name(kind) for kind in SERVED}


def test_rows_say_what_the_table_says() -> None:
    wrong = []
    for name, wanted in WANTED.items():
        right = SERVED[K.Type.Value(name)].right if ":" not in name else None
        if right is None or name in NO_ANSWER | UNKNOWN_TOO:
            continue
        said = "p" if name == "CLOSE_PRODUCER" else "c" if right is R.OPENED else LET_THROUGH[right]
        through = "".join(letter for letter in LETTERS if wanted[letter] not in NOT_LET_THROUGH)
        if said != through:
            wrong.append(f"{name}: the row lets {said!r} through, the table {through!r}")
    assert not wrong, "\n".join(wrong)


class SocketClient:
    """One connection over a socket. letter: whose it is; `n` sends no CONNECT."""

    def __init__(self, region: Guarded, letter: str) -> None:
        self.token = region.tokens.get(letter, "no.such.token").encode()
        self.letter, self.reader, self.requests = letter, Reader(), 0
        self.got: list[pb.BaseCommand] = []
        self.socket = socket.create_connection(("127.0.0.1", region.port("pulsar")), 60)
        if letter != "n":
            assert self.connect() == "ok"

    def connect(self) -> str:
        signing = {"auth_method_name": "token", "auth_data": self.token}
        return outcome(self.ask(K.CONNECT, client_version="t", protocol_version=19, **signing))

    def ask(self, kind: int, /, **fields: Any) -> pb.BaseCommand | None:
        """The answer; None: the connection was closed without one to this command."""
        self.socket.sendall(frame(kind, **fields))
        return self.answer(fields.get("request_id"))

    def answer(self, request: int | None = None) -> pb.BaseCommand | None:
        while True:
            while self.got:
                found = self.got.pop(0)
                if found.type in (
                    K.PING,
                    K.ACTIVE_CONSUMER_CHANGE,
                    K.MESSAGE,
                    K.CLOSE_CONSUMER,
                    K.REACHED_END_OF_TOPIC,
                ):
                    continue
                if request is None or found.type == K.SCALABLE_TOPIC_UPDATE or request == request_of(found):
                    return found
            try:
                data = self.socket.recv(1 << 16)
            except ConnectionError:
                return None
            if not data:
                return None
            self.got += [command for command, _ in self.reader.feed(data)]


def part_of(command: pb.BaseCommand) -> Any:
    return command.ListFields()[1][1]


def request_of(command: pb.BaseCommand) -> int:
    return int(getattr(part_of(command), "request_id", -1))


def outcome(command: pb.BaseCommand | None) -> str:
    if command is None:
        return "closed"
    part = part_of(command)
    if command.type == K.GET_TOPICS_OF_NAMESPACE_RESPONSE and not part.topics:
        return "nothing"
    for field in ("error", "error_code"):
        if field in part.DESCRIPTOR.fields_by_name and part.HasField(field):
            return pb.ServerError.Name(getattr(part, field))
    return "ok"


@pytest.fixture(scope="module")
def clients(guarded: Guarded) -> Iterator[dict[str, SocketClient]]:
    made = {letter: SocketClient(guarded, letter) for letter in ROLES if letter in LETTERS}
    for kind, asked in ((K.LOOKUP, TOPIC), (K.LOOKUP, f"{ASSIGN}-partition-0")):
        until(lambda kind=kind, asked=asked: outcome(made["s"].ask(kind, topic=asked, request_id=1)) == "ok")
    until(lambda: outcome(made["s"].ask(K.TC_CLIENT_CONNECT_REQUEST, tc_id=0, request_id=1)) == "ok")
    yield made
    for client in made.values():
        client.socket.close()


def begun(client: SocketClient) -> dict[str, int]:
    found = client.ask(K.NEW_TXN, request_id=next(_NEW) + 1000, tc_id=0, txn_ttl_millis=60_000)
    assert outcome(found) == "ok" and found is not None, found
    return {
        "txnid_least_bits": found.newTxnResponse.txnid_least_bits,
        "txnid_most_bits": found.newTxnResponse.txnid_most_bits,
    }


def fields(clients: dict[str, SocketClient], name: str, letter: str, topic: str, namespace: str) -> dict[str, Any]:
    of_opened: dict[str, Any] = {"consumer_id": OPENED, "request_id": next(_NEW) + 1000}
    asked: dict[str, Any] = {"request_id": of_opened["request_id"]}
    fresh, named = next(_NEW) + 100, {"topic": topic, **asked}
    if "_TXN" in name and name != "NEW_TXN" and letter != "n":
        owner = "p" if letter == "g" or name.endswith(":other") else letter
        asked |= begun(clients[owner])
    match name:
        case "PING" | "PONG":
            return {}
        case "AUTH_RESPONSE":
            return {"response": {"auth_method_name": "token", "auth_data": b"x"}}
        case "LOOKUP" | "PARTITIONED_METADATA" | "GET_SCHEMA":
            return named
        case "LOOKUP:coordinators":
            return {**named, "topic": f"{ASSIGN}-partition-0"}
        case "PARTITIONED_METADATA:coordinators":
            return {**named, "topic": ASSIGN}
        case "GET_OR_CREATE_SCHEMA":
            schema = {"name": "x", "schema_data": b"", "type": pb.Schema.String}
            return {**named, "topic": f"{topic}-typed" if topic == TOPIC else topic, "schema": schema}
        case "GET_TOPICS_OF_NAMESPACE":
            return {**asked, "namespace": namespace, "mode": 0}
        case "WATCH_TOPIC_LIST":
            return {**asked, "namespace": namespace, "topics_pattern": ".*", "watcher_id": fresh}
        case "WATCH_TOPIC_LIST_CLOSE":
            return {**asked, "watcher_id": fresh}
        case "PRODUCER":
            return {**named, "producer_id": fresh}
        case "PRODUCER:subscription":
            return {**named, "producer_id": fresh, "initial_subscription_name": "s"}
        case "SUBSCRIBE":
            return {**named, "subscription": "s", "subType": 1, "consumer_id": fresh}
        case "CLOSE_PRODUCER":
            return {**asked, "producer_id": OPENED}
        case "ACK":
            return {**of_opened, "ack_type": 0, "message_id": [pb.MessageIdData(ledgerId=0, entryId=0)]}
        case "REDELIVER_UNACKNOWLEDGED_MESSAGES":
            return {"consumer_id": OPENED}
        case "SEEK":
            return {**of_opened, "message_publish_time": 1}
        case "CLOSE_CONSUMER" | "GET_LAST_MESSAGE_ID" | "CONSUMER_STATS" | "UNSUBSCRIBE":
            return of_opened
        case "TC_CLIENT_CONNECT_REQUEST":
            return {**asked, "tc_id": 0}
        case "NEW_TXN":
            return {**asked, "tc_id": 0, "txn_ttl_millis": 1000}
        case "ADD_PARTITION_TO_TXN" | "ADD_PARTITION_TO_TXN:other":
            return {**asked, "partitions": [topic]}
        case "ADD_SUBSCRIPTION_TO_TXN" | "ADD_SUBSCRIPTION_TO_TXN:other":
            return {**asked, "subscription": [pb.Subscription(topic=topic, subscription="s")]}
        case "END_TXN" | "END_TXN:other":
            return {**asked, "txn_action": pb.ABORT}
        case "END_TXN_ON_PARTITION":
            return {**asked, "topic": topic, "txn_action": pb.ABORT}
        case "END_TXN_ON_SUBSCRIPTION":
            return {**asked, "subscription": {"topic": topic, "subscription": "s"}, "txn_action": pb.ABORT}
        case "SCALABLE_TOPIC_LOOKUP":
            return {"session_id": 1, "topic": topic}
        case "SCALABLE_TOPIC_SUBSCRIBE":
            return {
                **asked,
                "consumer_id": fresh,
                "topic": topic,
                "subscription": "s",
                "consumer_name": "x",
                "consumer_type": 0,
            }
        case "SCALABLE_TOPIC_CLOSE":
            return {"session_id": 1}
        case "WATCH_SCALABLE_TOPICS":
            return {"watch_id": 1, "namespace": namespace}
        case "WATCH_SCALABLE_TOPICS_CLOSE":
            return {"watch_id": 1}
    raise LookupError(f"{name}: write down what is to be sent")


def opened(clients: dict[str, SocketClient], name: str) -> None:
    """What the command is about: c's consumer, or p's producer."""
    if name == "CLOSE_PRODUCER":
        done = clients["p"].ask(K.PRODUCER, topic=TOPIC, producer_id=OPENED, request_id=next(_NEW) + 1000)
    else:
        mine = {"subscription": "watched", "subType": 1, "consumer_id": OPENED, "request_id": next(_NEW) + 1000}
        done = clients["c"].ask(K.SUBSCRIBE, topic=TOPIC, **mine)
    assert outcome(done) == "ok", done


def answered(
    guarded: Guarded,
    clients: dict[str, SocketClient],
    name: str,
    letter: str,
    topic: str = TOPIC,
    namespace: str = NAMESPACE,
) -> str:
    if name == "CONNECT":
        fresh = SocketClient(guarded, "n")
        fresh.token = guarded.tokens.get(letter, "no.such.token").encode()
        return fresh.connect()
    kind = K.Type.Value(name.partition(":")[0])
    if SERVED[kind].right is R.OPENED and letter == ("p" if name == "CLOSE_PRODUCER" else "c"):
        opened(clients, name)
    client = SocketClient(guarded, letter) if letter == "n" else clients[letter]
    asked = fields(clients, name, letter, topic, namespace)
    if letter == "n":  # whatever comes, no answer to this
        client.socket.sendall(frame(kind, **asked))
        return outcome(client.answer(-2))
    if name in NO_ANSWER:
        client.socket.sendall(frame(kind, **asked))
        found = outcome(client.ask(K.PING))
    else:
        found = outcome(client.ask(kind, **asked))
    if found == "closed":
        clients[letter] = SocketClient(guarded, letter)
    return found


@pytest.mark.wan
@pytest.mark.slow
def test_every_role_is_answered_as_the_table_says(guarded: Guarded, clients: dict[str, SocketClient]) -> None:
    before, wrong = guarded.state(), []
    for name, wanted in WANTED.items():
        for letter in LETTERS:
            found = answered(guarded, clients, name, letter)
            if found != wanted[letter]:
                wrong.append(f"{name} {letter}: {found}, wanted {wanted[letter]}")
    assert not wrong, "\n".join(wrong)
    assert guarded.state() == before


OUTSIDE = (
    "persistent://shop/live/..",
    "persistent://shop/../orders",
    "persistent://../shop/live/orders",
    "persistent://other/live/../../shop/live/orders",
    "persistent://other/live%2F..%2Fshop%2Flive%2Forders",
    "persistent://other/%2e%2e/shop",
    "persistent://shop%2Flive/orders",
    "persistent://persistent://shop/live/orders",
    "persistent:///shop/live/orders",
    "persistent://shop//orders",
    "persistent://shop\uff0flive\uff0forders",
    "persistent://shop/live/",
    "persistent://shop/live",
    "kafka://shop/live/orders",
    "",
)
"""Names that no topic can have, or none that there is, and that look like one of another tenant's."""
ALIKE = (
    TOPIC,
    "shop/live/orders",
    f"{TOPIC}-partition-0",
    "non-persistent://shop/live/orders",
    "persistent://shop/us/live/orders",
    "persistent://\u0455hop/live/orders",
    "persistent://Shop/live/orders",
    "persistent://shop/live/%2e%2e",
    "persistent://shop/live/other\u2044live",
    "orders",
)
"""Names that a topic of another tenant has, or could have."""
NAMESPACES = ("shop/live", "shop/..", "../shop/live", "other/../shop/live", "other/live/../../shop/live", "shop%2Flive")
NAMESPACES += ("persistent://shop/live", "/shop/live", "shop", "", "..", "shop\uff0flive", "other%2F..%2Fshop/live")
NAMED = {R.LOOK_UP, R.PRODUCE, R.CONSUME, R.OWN_TXN_PRODUCE, R.OWN_TXN_CONSUME, R.LIST}
GOOD = {AUTH, "NotAllowedError", "TopicNotFound", "nothing"}


@pytest.mark.wan
@pytest.mark.slow
def test_no_name_leads_out_of_its_tenant(guarded: Guarded, clients: dict[str, SocketClient]) -> None:
    """Who administers another tenant gets in by no name; one that is none comes to nothing for a super user either."""
    before, wrong = guarded.state(), []
    for name in WANTED:
        right = SERVED[K.Type.Value(name.partition(":")[0])].right
        if right not in NAMED or name.endswith((":other", ":coordinators")):
            continue
        for letter in "os":
            topics = [*OUTSIDE, *(ALIKE if letter == "o" else ())]
            for given in NAMESPACES if right is R.LIST else topics:
                if right is R.LIST and letter == "s" and given == NAMESPACE:
                    continue
                where = {"namespace": given} if right is R.LIST else {"topic": given}
                found = answered(guarded, clients, name, letter, **where)
                if found not in GOOD:
                    wrong.append(f"{name} {letter} {given!r}: {found}")
    assert not wrong, "\n".join(wrong)
    assert guarded.state() == before
