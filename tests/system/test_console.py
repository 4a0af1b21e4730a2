"""The console in a real browser: every page, keyboard, acts, a switchover, a link cut and healed, signing in, and what
is refused.

Chromium and playwright are fetched into ~/.cache/heliograph the first time. HELIOGRAPH_PICTURES=FOLDER also writes the
pictures of the documentation.
"""

from __future__ import annotations

import json
import os
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest

from geo_tests.wan.instance import Instance, eventually, heliograph
from region_node.commands.demo import _rest as rest
from tests.heliograph.cli.signing_in.local_issuer import TestIssuer
from tests.system.browser import chromium, drive, interpreter

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]  # the first time, 130 MB are fetched
SCRIPT = Path(__file__).with_name("console_steps.py")
PICTURES = os.environ.get("HELIOGRAPH_PICTURES", "")


@pytest.fixture(scope="module")
def instance(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Instance]:
    """us with two brokers, so that some topics are another broker's, and eu; public/geo in both."""
    pulsar = pytest.importorskip("pulsar")
    interpreter(), chromium()
    folder = tmp_path_factory.mktemp("console")
    (folder / "wan.json").write_text(json.dumps({"us-eu": {"rtt_ms": 20, "jitter_ms": 1}}))
    made = Instance(folder / "data", regions=("us", "eu"), wan=str(folder / "wan.json"), brokers="us=2,eu=1", bookies=3)
    try:
        made.namespace("public/geo", ["us", "eu"])
        topic = "persistent://public/geo/seen"
        made.client("us").subscribe(topic, "kept").close()
        producer = made.client("us").create_producer(topic)
        for _ in range(20):
            producer.send(b"x" * 100)
        rest("PUT", f"{made.admin('us')}/admin/v2/persistent/public/geo/wide/partitions", 3)
        wide = made.client("us").create_producer("persistent://public/geo/wide")
        made.client("us").subscribe("persistent://public/geo/wide", "all parts").close()
        for _ in range(6):
            wide.send(b"y" * 100)
        made.client("us").subscribe(
            topic, "reading", consumer_name="<img src=x onerror=alert(1)>", consumer_type=pulsar.ConsumerType.Shared
        )
        eventually(
            lambda: len(made.links(topic)) == 2 and not any(r["backlog_messages"] for r in made.links(topic).values()),
            "the links are in step",
        )
        yield made
    finally:
        made.down()


def test_every_page_loads_and_can_be_read_by_everybody(instance: Instance) -> None:
    found = drive(SCRIPT, "pages", base=instance.admin("us"), pictures=PICTURES)
    assert found["said"] == []
    assert len(found["pages"]) == 16
    for name, page in found["pages"].items():
        assert page["faults"] == [], name
        assert page["compared"] > 5, name
        assert page["outside"] == [], name
        assert page["wide"] <= 0, f"{name} is wider than the screen"
    topic = found["pages"]["light #/topics/public/geo/seen"]["text"]
    assert "<img src=x onerror=alert(1)>" in topic, "text stays text"
    wide = found["pages"]["light #/topics/public/geo/wide"]["text"]
    assert (
        "All partitions together" in wide and wide.count("wide-partition-") == 3 and re.search(r"all parts\s+6\b", wide)
    ), wide
    region = found["pages"]["light #/region"]["text"]
    for row in (
        r"us-bookie-0\s+data folder\s+ledgers\s+good\s+[\d.]+ \wi?B",
        r"us-bookie-0\s+data folder\s+journal\s+good",
    ):
        assert re.search(row, region), region
    assert "us → eu" in found["pages"]["light #/map"]["text"]
    canary = re.search(r"This broker .* test message.*", found["pages"]["light #/disaster"]["text"])
    assert canary and "does not store" not in canary[0], found["pages"]["light #/disaster"]["text"]


def test_how_far_a_bookie_is_emptied_is_shown(instance: Instance) -> None:
    admin = instance.admin("us")
    held = rest("GET", f"{admin}/heliograph/v1/bookies/us-bookie-1")
    assert (
        held["state"]["bookie"] == "us-bookie-1"
        and held["state"]["ledgerDirectories"][0]["freeBytes"] > 0
        and held["reason"] == ""
    )
    rest("POST", f"{admin}/heliograph/v1/bookies/us-bookie-1/decommission")
    try:
        found = drive(SCRIPT, "emptied", base=admin)
        left, none = r"being emptied: \d+ ledgers, .* still have a copy there.*", "empty: it may be stopped"
        assert found["said"] == [] and re.fullmatch(rf"us-bookie-1 is ({left}|{none})\.", found["told"])
    finally:
        rest("DELETE", f"{admin}/heliograph/v1/bookies/us-bookie-1/decommission")
    heliograph("process", "kill", "eu-bookie-0", "--data", str(instance.data))
    try:
        away = eventually(
            lambda: (
                (row := rest("GET", f"{instance.admin('eu')}/heliograph/v1/bookies/eu-bookie-0"))["state"] is None
                and row
            ),
            "it is away",
        )
        assert away["reason"].startswith(("it does not answer at", "it is away"))
    finally:
        heliograph("process", "start", "eu-bookie-0", "--data", str(instance.data))


def test_by_keyboard(instance: Instance) -> None:
    found = drive(SCRIPT, "keyboard", base=instance.admin("us"))
    assert found["stayed"] == "clear kept", "what is asked again leaves the keyboard where it was"
    assert "no consumer of kept will ever be given them" in found["effects"]
    assert found["focused"] == "Leave everything as it is"
    assert found["said"] == []


def test_a_link_with_strange_names_makes_no_other_call(instance: Instance) -> None:
    assert drive(SCRIPT, "strange_places", base=instance.admin("us"))["asked"] == []


def test_a_broker_that_does_not_answer_is_said_and_asked_again(instance: Instance) -> None:
    assert "does not answer" in drive(SCRIPT, "silence", base=instance.admin("us"))["told"]


def test_the_map_shows_a_link_that_is_cut_and_heals(instance: Instance) -> None:
    proxies = [p.name for way in (("us", "eu"), ("eu", "us")) for p in instance.proxies("link", *way)]
    producer = instance.client("us").create_producer("persistent://public/geo/seen")
    with ThreadPoolExecutor(1) as beside:
        given = {"toxiproxy": instance.state["wan"]["toxiproxy"], "proxies": proxies, "pictures": PICTURES}
        seen = beside.submit(drive, SCRIPT, "cut", base=instance.admin("us"), **given)
        while not wait([seen], timeout=0.2).done:
            producer.send(b"x")
    found = seen.result()
    assert "us → eu" in found["down"]
    assert found["said"] == []


def test_acts_say_what_they_do_and_do_it(instance: Instance) -> None:
    admin, topic = instance.admin("us"), "public/geo/seen"
    held = rest("GET", f"{admin}/heliograph/v1/topics/{topic}/vectors")["regions"]["us"]["origins"][0]
    found = drive(SCRIPT, "acts", base=admin, coordinate=f"{held['origin']}:{held['through'][0]}:{held['through'][1]}")
    assert found["where"].count("found") + found["where"].count("here") >= 2, found["where"]
    assert found["said"] == []
    changed = [
        row["path"]
        for row in rest("GET", f"{admin}/heliograph/v1/audit?all=true")["changes"]
        if "/seen/" in row["path"]
    ]
    assert [path.rpartition("/seen/")[2] for path in changed] == [
        "subscription/kept/skip/1",
        "subscription/kept/skip_all",
        "unload",
    ]
    assert rest("GET", f"{admin}/admin/v2/persistent/{topic}/stats")["subscriptions"]["kept"]["msgBacklog"] == 0


def test_a_parked_link_is_shown_and_decided(instance: Instance) -> None:
    name = "public/geo/parts-company"
    first = publish_as(instance, "us", name, "amount")
    eventually(lambda: schemas(instance, "eu", name) == {0: first}, "the first schema is in both regions")
    proxies = [p.name for way in (("us", "eu"), ("eu", "us")) for p in instance.proxies("link", *way)]
    for proxy in proxies:
        instance.toxiproxy.cut(proxy)
    try:
        rest("DELETE", f"{instance.admin('us')}/admin/v2/persistent/{name}?force=true&onlyHere=true")
        second = publish_as(instance, "us", name, "page")
    finally:
        for proxy in proxies:
            instance.toxiproxy.heal(proxy)
    eventually(
        lambda: instance.links(f"persistent://{name}").get(("us", "eu"), {}).get("state") == "parked",
        "the link is parked",
    )
    found = drive(SCRIPT, "park", base=instance.admin("us"), topic=name, to="eu")
    assert "amount" in found["seen"] and "page" in found["seen"]
    assert "Schema versions 0 change in eu" in found["effects"]
    assert found["said"] == []
    eventually(lambda: schemas(instance, "eu", name).get(0) == second, "eu has taken it, and counts its own behind it")


def publish_as(instance: Instance, region: str, name: str, field: str) -> str:
    """One message of a record with that field; returns the field's name."""
    from pulsar.schema import Integer, JsonSchema, Record

    record = type("Row", (Record,), {field: Integer()})
    client = instance.client(region)
    producer = client.create_producer(f"persistent://{name}", schema=JsonSchema(record))
    producer.send(record(**{field: 1}))
    producer.close()
    return field


def schemas(instance: Instance, region: str, name: str) -> dict[int, str]:
    """Number -> the record's one field."""
    try:
        found = rest("GET", f"{instance.admin(region)}/admin/v2/schemas/{name}/schemas")["getSchemaResponses"]
    except urllib.error.HTTPError:
        return {}
    return {row["version"]: json.loads(row["data"])["fields"][0]["name"] for row in found}


def test_a_switchover_from_dry_run_to_done(instance: Instance) -> None:
    instance.namespace("public/moved", ["us", "eu"])
    instance.client("us").create_producer("persistent://public/moved/t").send(b"x")
    rest("PUT", f"{instance.admin('us')}/heliograph/v1/dr/public/moved", {"active": "us", "slo": {"rpo_s": 5}})
    eventually(
        lambda: rest("GET", f"{instance.admin('us')}/heliograph/v1/dr/public/moved")["targets"]["eu"]["can_switch"],
        "eu can take over",
    )
    heliograph("dr", "drill", "public/moved", "--to", "eu", "--admin", instance.admin("us"))
    found = drive(SCRIPT, "switchover", base=instance.admin("us"), namespace="public/moved", to="eu", pictures=PICTURES)
    assert "Nothing was changed" in found["dry"]
    assert "Active in us" in found["dry"]
    assert json.loads(found["report"])["signed_by"] == "us", "what was opened stays open"
    assert "us stops taking messages" in found["effects"]
    assert not [said for said in found["said"] if "412" not in said], (
        "while it flips, a question may meet both states and is refused once"
    )
    assert rest("GET", f"{instance.admin('eu')}/heliograph/v1/dr/public/moved")["active"] == "eu"


def test_moves_of_one_namespace_and_of_all_that_a_tenant_has_in_a_region(instance: Instance) -> None:
    namespace, us = "shop/moves", instance.admin("us")
    rest("PUT", f"{us}/admin/v2/tenants/shop", {"allowedClusters": ["us", "eu"]})
    instance.namespace(namespace, ["us", "eu"])
    instance.client("us").create_producer(f"persistent://{namespace}/t").send(b"x")
    rest("PUT", f"{us}/heliograph/v1/dr/{namespace}", {"active": "us"})
    eventually(
        lambda: rest("GET", f"{us}/heliograph/v1/dr/{namespace}")["targets"]["eu"]["can_switch"], "eu can take over"
    )
    given = {"namespace": namespace, "tenant": "shop", "active": "us", "to": "eu"}
    found = drive(SCRIPT, "moves", base=us, pictures=PICTURES, **given)
    for kind, text in found["boxes"].items():
        assert "At risk: 0 messages (0 B) are not in" in text, (kind, text)
        assert re.search(r"CPU \d+ %, memory \d+ %, disk \d+ %", text), (kind, text)
    assert "passed" in found["reports"]["drill"]
    assert "Nothing was changed" in found["plan"] and "1 of 1 namespaces move, with 1 topics" in found["plan"]
    assert not [said for said in found["said"] if "412" not in said]
    assert rest("GET", f"{instance.admin('eu')}/heliograph/v1/dr/{namespace}")["active"] == "eu"
    history = rest("GET", f"{us}/heliograph/v1/dr/{namespace}/operations")
    kinds = ["drill", "failover", "rejoin", "switchover", "switchover"]
    assert [(row["kind"], row["state"]) for row in history] == [(kind, "done") for kind in kinds]


def test_signing_in_and_what_is_refused(tmp_path: Path) -> None:
    from geo_tests.wan.kafka_support import secure_region, token

    interpreter(), chromium()
    with secure_region(tmp_path) as region:
        bearer: dict[str, Any] = {"Authorization": f"Bearer {token('root')}"}
        shop = json.dumps({"allowedClusters": ["us"], "adminRoles": ["dora"]}).encode()
        paths: dict[str, bytes | None] = {
            "persistent/public/default/mine": None,
            "tenants/shop": shop,
            "namespaces/shop/web": None,
        }
        for path, body in {**paths, "persistent/shop/web/orders": None}.items():
            headers = {**bearer, "Content-Type": "application/json"}
            urllib.request.urlopen(
                urllib.request.Request(f"{region.admin_url()}/admin/v2/{path}", body, headers, method="PUT"), timeout=60
            ).read()
        found = drive(
            SCRIPT, "signed_in", base=region.admin_url(), root=token("root"), tenant=token("bob"), owner=token("dora")
        )
    assert found["kept"][:2] == [[], ""], "the token is in this tab's session alone"
    assert token("root") not in found["kept"][2]
    assert "'bob'" in found["refused"]
    assert "'bob' may not PUT" in found["act"]
    assert "Use of this tenant" in found["own"], "a tenant's admin sees what is the tenant's"
    assert all("public/default" not in seen and "us-bookie" not in seen for seen in found["others"].values()), found[
        "others"
    ]


def test_signing_in_at_an_issuer(tmp_path: Path) -> None:
    """The browser knows the broker as localhost, and the issuer by its address: two sites, as they are."""
    from geo_tests.wan.kafka_support import secure_region

    interpreter(), chromium()
    with TestIssuer() as issuer:
        source = {"algorithms": ["ES256"], "issuer": issuer.url, "role_prefix": "corp:", "console_client_id": "console"}
        with secure_region(tmp_path, source, super_users=("corp:alice",)) as region:
            base = region.admin_url().replace("127.0.0.1", "localhost")
            found = drive(SCRIPT, "signed_in_at_an_issuer", base=base)
    assert found["kept"] == [[], [], "", f"{base}/console/"], "no script sees the session"
    assert found["cookies"] == [["heliograph-session", "/console/", True, "Strict"]]
    assert found["left"] == []
