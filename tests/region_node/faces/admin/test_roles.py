"""What each role is answered, call by call: `rights_table.txt`, written by hand, against the rows, and against a region
of real processes that knows its callers by tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import count, cycle
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.admin_paths import PARAMETER
from region_node.faces.admin.calls.call_rights import CallAccess
from region_node.faces.admin.server.admin_server import ROUTES
from tests.region_node.faces.guarded_region import Guarded

TABLE = Path(__file__).with_name("rights_table.txt")
LETTERS = "nocpts"
LET_THROUGH = {
    CallAccess.PUBLIC: "nocpts",
    CallAccess.METRICS: "nocpts",
    CallAccess.ANY: ".ocpts",
    CallAccess.PASSED_ON: ".ocpts",
    CallAccess.PRODUCE: "...pts",
    CallAccess.EACH: "..c.ts",
    CallAccess.CONSUME: "..c.ts",
    CallAccess.LOOK_UP: "..cpts",
    CallAccess.LIST: "..cpts",
    CallAccess.TENANT: "....ts",
    CallAccess.SUPER: ".....s",
}
Call = tuple[str, str]


def table(text: str) -> Iterator[tuple[Call, str]]:
    """(method and path, who is let through) of each line."""
    short: dict[str, str] = {}
    for line in text.splitlines():
        if not line or line.startswith("#"):
            continue
        if found := re.fullmatch(r"(\w+)\s*= (/\S+)", line):
            short[found[1]] = found[2]
            continue
        who, methods, path = line.split()
        assert len(who) == len(LETTERS) and all(a in (b, ".") for a, b in zip(who, LETTERS, strict=True)), line
        begin, slash, rest = path.partition("/")
        for method in methods.split(","):
            yield (method, short[begin] + slash + rest if begin else path), who


def plain(path: str) -> str:
    return PARAMETER.sub(r"{\1}", path)


WANTED = dict(table(TABLE.read_text()))


def test_the_table_has_each_call_once_and_no_other() -> None:
    lines = [call for call, _ in table(TABLE.read_text())]
    assert len(lines) == len(set(lines))
    assert set(lines) == {(row.method, plain(row.path)) for row in ROUTES}


def test_rows_say_what_the_table_says() -> None:
    said = {(row.method, plain(row.path)): LET_THROUGH[row.access] for row in ROUTES}
    assert {call: (who, WANTED[call]) for call, who in said.items() if who != WANTED[call]} == {}


# -- a region ----------------------------------------------------------------------------------------------------------

OWN = {
    "domain": "persistent",
    "tenant": "shop",
    "namespace": "live",
    "topic": "orders",
    "subscription": "s",
    "sub": "s",
    "bundle": "0x00000000_0xffffffff",
    "cluster": "us",
    "region": "us",
    "path": "admin/v2/brokers/health",
    "id": "us-bookie-0",
    "bookie": "us-bookie-0",
    "broker": "us-broker-0",
    "group": "metadata",
    "member": "us-meta-0",
    "kind": "functions",
    "rest": "/shop/live",
    "file": "style.css",
    "role": "reader",
    "name": "default",
}
"""Names as they are in the region; any other is a number."""
FIXED = {"domain", "group", "kind", "rest", "path", "bundle"}
"""Names that have to fit a pattern."""
TOPIC = "persistent://shop/live/orders"
BODIES: dict[str, Any] = {
    "snapshots": {"topics": [TOPIC]},
    "vectors": {"positions": {TOPIC: "0:0"}},
    "hold": {"positions": {TOPIC: "0:0"}, "subscription": "held"},
    "held": {"topics": [TOPIC], "subscription": "held"},
    "objects": {"ranges": {TOPIC: [[0, 0, 0]]}},
    "blocks": {"ranges": [[TOPIC, 0, 0, 0]]},
}
"""Of the calls whose body names the topics."""
ENDS_THE_BROKER = {("POST", "/admin/v2/brokers/shutdown")}
_ABSENT = count()


def filled(path: str, **names: str) -> str:
    return PARAMETER.sub(lambda found: names.get(found[1]) or OWN.get(found[1], "1"), path)


def spared(path: str, who: str) -> str:
    """The path with names of what is not there, as far as who is let through needs no others."""
    held = {"tenant"} if "t" in who else set[str]()
    held |= {"namespace"} if {"c", "p"} & set(who) else set()
    names = {name for name, _ in PARAMETER.findall(path)} & set(OWN) - FIXED - held
    absent = f"absent-{next(_ABSENT)}"
    return filled(path, **dict.fromkeys(names, absent))


def answers(guarded: Guarded, call: Call, who: str) -> str:
    """Who is let through. Who is to be refused asks for what is there; for changes the others ask for what is not."""
    method, path = call
    found, body = "", BODIES.get(path.rpartition("/")[2]) if "/reading/" in path else None
    for letter in LETTERS:
        allowed = letter in who
        if allowed and call in ENDS_THE_BROKER:
            found += letter
            continue
        at = spared(path, who) if allowed and method != "GET" else filled(path)
        status, said = guarded.ask(letter, "GET" if method == "*" else method, at, body)
        assert status != 500, (method, at, letter, said)
        assert not allowed or status != 405 or "/console/at/" in path, (method, at, letter, said)
        assert status != (403 if letter == "n" else 401), (method, at, letter, said)
        found += "." if status in (401, 403) else letter
    return found


@pytest.mark.wan
@pytest.mark.slow
def test_every_role_is_answered_as_the_table_says(guarded: Guarded) -> None:
    before = guarded.state()
    found = {call: answers(guarded, call, who) for call, who in WANTED.items()}
    wrong = [f"{' '.join(call)}: {found[call]}, wanted {who}" for call, who in WANTED.items() if found[call] != who]
    assert not wrong, "\n".join(wrong)
    assert guarded.state() == before


@pytest.mark.wan
@pytest.mark.slow
def test_what_is_passed_on_is_asked_in_the_callers_name(guarded: Guarded) -> None:
    for path, who in (("admin/v2/tenants", ".....s"), ("admin/v2/tenants/shop", "....ts")):
        assert answers(guarded, ("GET", f"/console/at/us/{path}"), who) == who


@pytest.mark.wan
@pytest.mark.slow
def test_only_a_super_user_says_which_broker_a_bundle_comes_to(guarded: Guarded) -> None:
    _, said = guarded.ask("s", "GET", "/admin/v2/namespaces/shop/live/bundles")
    unload = "/admin/v2/namespaces/shop/live/{}_{}/unload?destinationBroker=absent".format(*said["boundaries"][:2])
    told = {letter: guarded.ask(letter, "PUT", unload) for letter in "ts"}
    assert told["t"][0] == 403 and "destinationBroker" in str(told["t"][1])
    assert told["s"][0] == 404 and "absent" in str(told["s"][1])


@pytest.mark.wan
@pytest.mark.slow
def test_no_name_leads_out_of_its_place(guarded: Guarded) -> None:
    """Also not for who may do everything: a path that was checked is the path that is done."""
    before, wrong, names = guarded.state(), [], cycle(("x%2F..%2F..%2Fshop", "..", "%2e%2e", ".%2E"))
    for method, path in WANTED:
        for part in sorted({found for found, _ in PARAMETER.findall(path)} - FIXED):
            at = filled(path, **{"tenant": "other", part: next(names)})
            status, said = guarded.ask("s", "GET" if method == "*" else method, at)
            if status not in (404, 405, 412):
                wrong.append(f"{method} {at}: {status} {said!r:.200}")
    assert not wrong, "\n".join(wrong)
    assert guarded.state() == before


@pytest.mark.wan
@pytest.mark.slow
@pytest.mark.parametrize("part", ["tenant", "namespace"])
def test_an_admin_reaches_no_other_tenant_by_a_slash_in_a_name(guarded: Guarded, part: str) -> None:
    before, wrong = guarded.state(), []
    for method, path in WANTED:
        if f"{{{part}}}" in path and WANTED[method, path] != LET_THROUGH[CallAccess.PUBLIC]:
            at = filled(path, **{"tenant": "other", part: "shop%2Flive"})
            status, said = guarded.ask("o", method, at)
            if not 400 <= status < 500:
                wrong.append(f"{method} {at}: {status} {said!r:.200}")
    assert not wrong, "\n".join(wrong)
    assert guarded.state() == before
