"""What each role is answered, request by request: `rights_table.txt`, written by hand, against the rows, and against a
region of real processes that knows its clients by tokens.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from heliograph.wire.kafka.message_codec import BY_NAME, decode_fields
from heliograph.wire.kafka.record_batches import build_batch
from region_node.faces.kafka.connection.request_table import SERVED
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.security.api_rights import ApiRight as R
from tests.region_node.faces.guarded_region import ROLES, Guarded
from tests.region_node.faces.kafka.harness import request
from tests.region_node.live import until

TABLE = Path(__file__).with_name("rights_table.txt")
LETTERS = "ngocptls"
SHORT = {
    **{one: f"{one}_AUTHORIZATION_FAILED" for one in ("TOPIC", "GROUP", "CLUSTER")},
    "ID": "TRANSACTIONAL_ID_AUTHORIZATION_FAILED",
    "SASL": "SASL_AUTHENTICATION_FAILED",
}
ORDERS, GROUP, ID = "shop/live/orders", "packers", "billing"
REFUSALS = {one for one in SHORT.values() if "SASL" not in one} | {"INVALID_TOPIC_EXCEPTION", "closed"}
_NEW = count()


def table(text: str) -> Iterator[tuple[str, dict[str, str]]]:
    """(request, letter -> answer) of each line."""
    for line in text.splitlines():
        if line and not line.startswith("#"):
            name, *answers = line.partition("|")[0].split()
            assert len(answers) == len(LETTERS), line
            yield name, {letter: SHORT.get(one, one) for letter, one in zip(LETTERS, answers, strict=True)}


WANTED = dict(table(TABLE.read_text()))


def test_the_table_has_each_request_once_and_no_other() -> None:
    lines = [name for name, _ in table(TABLE.read_text())]
    assert len(lines) == len(set(lines))
    assert {name.partition(":")[0] for name in lines} == set(SERVED)


LET_THROUGH = {
    R.NONE: "ngocptls",
    R.ANY_ROLE: "gocptls",
    R.READ_TOPIC: "cts",
    R.WRITE_TOPIC: "pts",
    R.DESCRIBE_TOPIC: "cpts",
    R.CREATE_TOPIC: "ts",
    R.ALTER_TOPIC: "ts",
    R.ALTER_TOPIC_CONFIGS: "ts",
    R.DESCRIBE_TOPIC_CONFIGS: "cpts",
    R.DELETE_TOPIC: "ts",
    R.READ_GROUP: "cts",
    R.DESCRIBE_GROUP: "cts",
    R.DELETE_GROUP: "ts",
    R.WRITE_TRANSACTIONAL_ID: "pts",
    R.ANY_GRANT: "ocptls",
    R.IDEMPOTENT_WRITE: "optls",
    R.TENANT: "ls",
    R.SUPER: "s",
}
ONE_OF_THEM = {
    "produce": R.WRITE_TOPIC,
    "init_producer_id": R.IDEMPOTENT_WRITE,
    "init_producer_id:id": R.WRITE_TRANSACTIONAL_ID,
    "init_producer_id:new": R.IDEMPOTENT_WRITE,
    "describe_configs": R.DESCRIBE_TOPIC_CONFIGS,
    "describe_configs:broker": R.TENANT,
}
"""Lines to which one of the row's rights applies; to others all do."""
OF_ITS_TENANT = {"create_acls", "describe_acls:topic", "delete_acls:topic"}
"""Lines about a topic, of whose tenant an admin is wanted."""
LISTS = {"metadata:all", "describe_topic_partitions:all"}
"""Lines that are answered to every role, without what it may not see."""


def test_rows_say_what_the_table_says() -> None:
    wrong = []
    for name, wanted in WANTED.items():
        rights = SERVED[name.partition(":")[0]].rights
        if name in ONE_OF_THEM:
            assert ONE_OF_THEM[name] in rights, name
            rights = (ONE_OF_THEM[name],)
        said = set(LETTERS).intersection(*(LET_THROUGH[right] for right in rights))
        said = set("ts") if name in OF_ITS_TENANT else set(LETTERS[1:]) if name in LISTS else said
        through = {letter for letter, one in wanted.items() if one not in REFUSALS}
        if said != through:
            wrong.append(f"{name}: the row lets {sorted(said)} through, the table {sorted(through)}")
    assert not wrong, "\n".join(wrong)


class Client:
    """One connection over a socket. letter: whose it is; `n` signs in as nobody."""

    def __init__(self, region: Guarded, letter: str) -> None:
        self.region, self.letter = region, letter
        self.socket = socket.create_connection(("127.0.0.1", region.port("kafka")), 60)
        if letter != "n":
            assert self.ask("sasl_handshake", mechanism="PLAIN")["error_code"] == 0
            assert self.ask("sasl_authenticate", auth_bytes=self.plain())["error_code"] == 0

    def plain(self) -> bytes:
        return b"\0u\0token:" + self.region.tokens.get(self.letter, "no.such.token").encode()

    def ask(self, name: str, version: int | None = None, /, **fields: Any) -> dict[str, Any]:
        """The answer; {}: the connection was closed."""
        api = BY_NAME[name]
        version = min(api.highest, _BY_NAME_UP_TO.get(name, api.highest)) if version is None else version
        self.socket.sendall(request(name, version, fields))
        try:
            size = int.from_bytes(self._take(4), "big")
            answer = self._take(size)
        except ConnectionError:
            return {}
        head = 5 if api.is_flexible(version) and name != "api_versions" else 4
        return decode_fields(name, version, answer[head:], answer=True)

    def _take(self, size: int) -> bytes:
        found = b""
        while len(found) < size:
            if not (data := self.socket.recv(size - len(found))):
                raise ConnectionError
            found += data
        return found


_BY_NAME_UP_TO = {"produce": 12, "fetch": 12}
"""Later versions name topics by ids."""


@pytest.fixture(scope="module")
def clients(guarded: Guarded) -> Iterator[dict[str, Client]]:
    """One of each role; the group has offsets of the topic, and the transactional id is the producer's."""
    made = {letter: Client(guarded, letter) for letter in ROLES}
    groups = [GROUP, *(f"{GROUP}-{letter}" for letter in ROLES)]
    ids = [ID, *(f"{ID}-{letter}" for letter in ROLES)]
    for kind, keys in ((0, groups), (1, ids)):
        until(
            lambda kind=kind, keys=keys: (
                code(made["s"].ask("find_coordinator", key_type=kind, coordinator_keys=keys)) == "ok"
            )
        )
    for group in groups:
        until(lambda group=group: code(made["c"].ask("offset_commit", **commit(group))) == "ok")
    until(lambda: code(made["p"].ask("init_producer_id", transactional_id=ID, transaction_timeout=60_000)) == "ok")
    yield made
    for client in made.values():
        client.socket.close()


def codes(answer: Any) -> Iterator[int]:
    if isinstance(answer, dict):
        if answer.get("error_code"):
            yield answer["error_code"]
        answer = answer.values()
    if not isinstance(answer, (str, bytes, int, float, type(None))):
        for each in answer:
            yield from codes(each)


def code(answer: dict[str, Any]) -> str:
    return "closed" if not answer else Code(next(codes(answer), 0)).name.replace("NONE", "ok")


def commit(group: str, topic: str = ORDERS) -> dict[str, Any]:
    part = {"partition_index": 0, "committed_offset": 0, "committed_metadata": ""}
    return {"group_id": group, "topics": [{"name": topic, "partitions": [part]}]}


def joining(topic: str) -> bytes:
    return b"\0\0\0\0\0\x01" + len(topic.encode()).to_bytes(2, "big") + topic.encode() + b"\xff\xff\xff\xff"


def fields(clients: dict[str, Client], name: str, letter: str, topic: str = ORDERS) -> dict[str, Any]:
    """The request, so that nothing is changed where it is let through."""
    part, let_through = {"partition_index": 0}, WANTED[name][letter] not in REFUSALS
    in_group = {"group_id": GROUP, "generation_id": 1, "member_id": "m"}
    resource = {"resource_type": 2, "resource_name": topic, "configuration_keys": None, "configs": []}
    grant = {"resource_type": 2, "resource_pattern_type": 3, "principal": "User:x", "host": "*", "permission_type": 3}
    every = {"resource_type_filter": 2, "pattern_type_filter": 3, "host_filter": None, "operation": 1}
    named = {"resource_name_filter": topic} if name.endswith("_acls:topic") else {}
    fresh = f"{topic}-{next(_NEW)}"
    if name in ("add_partitions_to_txn", "add_offsets_to_txn", "txn_offset_commit", "end_txn"):
        given = clients["p"].ask("init_producer_id", transactional_id=ID, transaction_timeout=60_000)
        assert not given["error_code"], given
        of_id = {"transactional_id": ID, "producer_id": given["producer_id"], "producer_epoch": given["producer_epoch"]}
    match name:
        case "api_versions":
            return {"client_software_name": "t", "client_software_version": "1"}
        case "sasl_handshake":
            return {"mechanism": "PLAIN"}
        case "produce":
            batch = {"index": 0, "records": build_batch([(1000, b"k", b"v", ())])}
            return {"acks": -1, "timeout": 5000, "topic_data": [{"name": topic, "partition_data": [batch]}]}
        case "fetch":
            wanted = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
            return {"max_wait": 0, "min_bytes": 0, "topics": [{"topic": topic, "partitions": [wanted]}]}
        case "list_offsets":
            return {"replica_id": -1, "topics": [{"name": topic, "partitions": [{**part, "timestamp": -1}]}]}
        case "offset_for_leader_epoch":
            return {"topics": [{"topic": topic, "partitions": [{"partition": 0, "leader_epoch": 0}]}]}
        case "delete_records":
            return {"topics": [{"name": topic, "partitions": [{**part, "offset": 0}]}], "timeout": 5000}
        case "metadata":
            return {"topics": [{"name": topic}], "allow_auto_topic_creation": False}
        case "metadata:new":
            return {"topics": [{"name": fresh}], "allow_auto_topic_creation": True}
        case "metadata:all":
            return {"topics": None}
        case "describe_topic_partitions":
            return {"topics": [{"name": topic}]}
        case "describe_topic_partitions:all":
            return {"topics": [], "response_partition_limit": 1}
        case "describe_cluster":
            return {}
        case "find_coordinator":
            return {"key_type": 0, "coordinator_keys": [GROUP]}
        case "find_coordinator:id":
            return {"key_type": 1, "coordinator_keys": [ID]}
        case "describe_log_dirs":
            return {"topics": None}
        case "join_group":
            member = {"name": "range", "metadata": joining(topic)}
            return {"group_id": GROUP, "session_timeout": 10_000, "protocol_type": "consumer", "protocols": [member]}
        case "sync_group":
            return {**in_group, "assignments": []}
        case "heartbeat":
            return in_group
        case "leave_group":
            return {"group_id": GROUP, "members": [{"member_id": "m"}]}
        case "offset_commit":
            return commit(GROUP, topic)
        case "offset_fetch":
            return {"groups": [{"group_id": GROUP, "topics": [{"name": topic, "partition_indexes": [0]}]}]}
        case "offset_delete":
            return {"group_id": GROUP, "topics": [{"name": topic, "partitions": [{"partition_index": 7}]}]}
        case "describe_groups":
            return {"groups": [GROUP]}
        case "list_groups":
            return {"states_filter": [], "types_filter": []}
        case "delete_groups":
            return {"groups_names": [f"{GROUP}-{letter}"]}
        case "init_producer_id":
            return {"transaction_timeout": 60_000}
        case "init_producer_id:id" | "init_producer_id:new":
            return {
                "transaction_timeout": 60_000,
                "transactional_id": ID if name.endswith("id:id") else f"{ID}-{letter}",
            }
        case "add_partitions_to_txn":
            return {**of_id, "topics": [{"name": topic, "partitions": [0]}]}
        case "add_offsets_to_txn":
            return {**of_id, "group_id": GROUP}
        case "txn_offset_commit":
            return {**commit(GROUP, topic), **of_id}
        case "end_txn":
            return {**of_id, "committed": True}
        case "create_topics":
            new = {"name": fresh, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
            return {"topics": [new], "timeout": 5000, "validate_only": True}
        case "delete_topics":
            return {"topics": [{"name": fresh if let_through else topic}], "timeout": 5000}
        case "create_partitions":
            grown = {"name": topic, "count": 2, "assignments": None}
            return {"topics": [grown], "timeout": 5000, "validate_only": True}
        case "describe_configs":
            return {"resources": [resource]}
        case "alter_configs" | "incremental_alter_configs":
            return {"resources": [resource], "validate_only": let_through}
        case "describe_configs:broker":
            return {"resources": [{**resource, "resource_type": 4, "resource_name": ""}]}
        case "describe_acls" | "describe_acls:topic":
            return {**every, **named, "permission_type": 1}
        case "create_acls" | "create_acls:all":  # of a role that nobody has
            return {"creations": [{**grant, "resource_name": topic if name == "create_acls" else "*", "operation": 3}]}
        case "delete_acls" | "delete_acls:topic":
            absent = {"principal_filter": "User:absent"} if let_through else {}
            return {"filters": [{**every, **named, "permission_type": 1, **absent}]}
        case "describe_client_quotas":
            return {"components": [], "strict": False}
        case "alter_client_quotas":
            quota = {"key": "producer_byte_rate", "value": 1.0, "remove": False}
            entity = {"entity": [{"entity_type": "user", "entity_name": "x"}], "ops": [quota]}
            return {"entries": [entity], "validate_only": let_through}
        case "describe_user_scram_credentials":
            return {"users": None}
        case "alter_user_scram_credentials":
            return {"deletions": [{"name": "absent", "mechanism": 1}], "upsertions": []}
    raise LookupError(f"{name}: write down what is to be sent")


SHOWS = {"metadata:all": "lobby", "describe_topic_partitions:all": "lobby", "list_groups": GROUP}
SHOWS["describe_log_dirs"] = ORDERS
"""Answers that leave out what may not be seen -> what they show to others."""


def answered(guarded: Guarded, clients: dict[str, Client], name: str, letter: str, topic: str = ORDERS) -> str:
    client = Client(guarded, letter) if letter == "n" else clients[letter]
    if name == "sasl_authenticate":
        client.ask("sasl_handshake", mechanism="PLAIN")
        answer = client.ask(name, auth_bytes=client.plain())
    else:
        answer = client.ask(name.partition(":")[0], **fields(clients, name, letter, topic))
    if not answer and letter != "n":
        clients[letter] = Client(guarded, letter)
    found = code(answer)
    return "nothing" if found == "ok" and name in SHOWS and SHOWS[name] not in str(answer) else found


@pytest.mark.wan
@pytest.mark.slow
def test_every_role_is_answered_as_the_table_says(guarded: Guarded, clients: dict[str, Client]) -> None:
    before, wrong = guarded.state(), []
    for name, wanted in WANTED.items():
        for letter in LETTERS:
            found = answered(guarded, clients, name, letter)
            if found != wanted[letter]:
                wrong.append(f"{name} {letter}: {found}, wanted {wanted[letter]}")
    assert not wrong, "\n".join(wrong)
    assert guarded.state() == before


OUTSIDE = (
    "shop/live/..",
    "shop/../orders",
    "../shop/live/orders",
    "other/live/../../shop/live/orders",
    "other/live%2F..%2Fshop%2Flive%2Forders",
    "shop%2Flive%2Forders",
    "shop%2flive/orders",
    "persistent://persistent://shop/live/orders",
    "non-persistent://shop/live/orders",
    "shop/live/orders-partition-0",
    "shop/live/orders\0",
    "shop\uff0flive\uff0forders",
    "shop\u2044live\u2044orders",
    "/shop/live/orders",
    "shop//orders",
    " shop/live/orders",
)
"""Names that no topic can have, and that look like one of another tenant's."""
ALIKE = ("\u0455hop/live/orders", "Shop/live/orders")
"""Names of topics of other tenants, which there are not."""
IN_THE_LISTENERS = (".", "..", "%2e%2e", "shop.live.orders", "orders")
"""Names that are, if anything, topics of the listener's own namespace."""
NEW = {"create_topics", "delete_topics", "metadata:new"}
"""Lines that ask about a new topic, whose name has something behind it, and is one."""
WITH_TOPIC = (
    frozenset(name for name in WANTED if SERVED[name.partition(":")[0]].of_topics is not None)
    - {
        "describe_topic_partitions:all",
        "describe_configs:broker",
        "metadata:all",
    }
    | OF_ITS_TENANT
)


@pytest.mark.wan
@pytest.mark.slow
def test_no_name_leads_out_of_its_tenant(guarded: Guarded, clients: dict[str, Client]) -> None:
    """Neither who administers another tenant gets in by a name, nor who administers the listener's; and a name that is
    none comes to nothing for a super user either.
    """
    before, wrong = guarded.state(), []
    own = [ORDERS, f"persistent://{ORDERS}"]
    tried = {"o": [*own, *OUTSIDE, *ALIKE, *IN_THE_LISTENERS], "l": [*own, *OUTSIDE, *ALIKE], "s": list(OUTSIDE)}
    for name in sorted(WITH_TOPIC):
        for letter, topics in tried.items():
            for topic in topics if letter != "s" or name not in NEW else ():
                found = answered(guarded, clients, name, letter, topic)
                fine = found in REFUSALS or (letter == "s" and found.startswith("UNKNOWN_TOPIC"))
                # a member may name what can be no topic: it is passed over, and the group decides
                if not fine and not (name == "join_group" and found == "MEMBER_ID_REQUIRED"):
                    wrong.append(f"{name} {letter} {topic!r}: {found}")
    assert not wrong, "\n".join(wrong)
    assert guarded.state() == before
