"""Switchover, failover, and the way back, with real processes, the official client, and every message counted."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pulsar
import pytest

from geo_tests.wan.disaster import Load, active_passive, back, cut_off, dr, numbers, stopped_pids, takes
from geo_tests.wan.instance import Instance, eventually, heliograph, rest
from heliograph.model.errors import ConfigError


def test_a_switchover_under_load_loses_nothing_and_repeats_nothing(pair: Instance) -> None:
    namespace, topic = "public/planned", "persistent://public/planned/orders"
    active_passive(pair, namespace, "us")
    load = Load(pair.client("us"), topic, "planned")
    load.wait_for(100)
    plan = dr(pair, "us", "switchover", namespace, "--dry-run")
    assert plan["dry_run"] and plan["target"] == "eu" and not dr(pair, "us", "history", namespace)
    found = dr(pair, "us", "switchover", namespace)
    assert (found["state"], found["report"]["undelivered"], found["report"]["epoch"]) == ("done", 0, 2)
    load.wait_for(100)
    assert takes(pair, "eu", namespace) and not takes(pair, "us", namespace)
    load.end()
    both: list[Callable[[], list[str]]] = [
        lambda region=region: pair.read_all(region, topic) for region in ("us", "eu")
    ]  # type: ignore[misc]
    eventually(lambda: all(len(read()) >= load.sent for read in both), "everything is in both regions")
    for read in both:
        counted = Counter(int(body) for body in read())
        assert sorted(counted) == list(range(load.sent)), "nothing is lost"
        assert set(counted.values()) == {1}, "nothing comes twice"
    state = eventually(
        lambda: (found := dr(pair, "eu", "status", namespace))["targets"]["us"]["can_switch"] and found,
        "it could be switched back",
    )
    assert state["active"] == "eu", state


def test_a_lost_region_is_failed_over_and_its_tail_is_kept(trio: Instance) -> None:
    namespace, topic = "public/forced", "persistent://public/forced/orders"
    active_passive(trio, namespace, "us")
    load = Load(trio.client("us"), topic, "orders")
    load.wait_for(100)
    cut_off(trio, "us", cut=True, kinds=("link",))
    load.wait_for(150)
    cut_off(trio, "us", cut=True)
    try:
        eventually(lambda: not takes(trio, "us", namespace), "us has not renewed its lease, and stops by itself")
        confirmed = load.settled()
        refused = dr(trio, "eu", "failover", namespace, "--to", "eu", check=False)
        assert "--yes" in refused and dr(trio, "eu", "status", namespace)["active"] == "us", (
            "nothing is done without a yes"
        )
        forced = dr(trio, "eu", "failover", namespace, "--to", "eu", "--yes")
        assert forced["state"] == "done" and forced["report"]["after"]["silent_s"] > 0
        eventually(lambda: takes(trio, "eu", namespace), "eu takes messages")
        other = Load(trio.client("eu"), topic, "others", first=1_000_000)
        other.wait_for(50)
        other.end()
        assert len(load.confirmed) == confirmed, "us confirms nothing under an old lease"
        held = {n for n in numbers(trio, "eu", topic) if n < 1_000_000}
        alone = set(numbers(trio, "us", topic)) - held
        assert len(alone) >= 100 and alone >= set(load.confirmed) - held
    finally:
        cut_off(trio, "us", cut=False)
    report = dr(trio, "eu", "rejoin", namespace, "--region", "us")["report"]
    load.end()
    eventually(
        lambda: all(set(numbers(trio, region, topic)) >= set(range(load.sent)) for region in ("us", "eu")),
        "both have everything",
    )
    assert report["tail"]["messages"] == len(alone), "as reported, so counted"
    for region in ("us", "eu"):
        found = numbers(trio, region, topic)
        assert {n for n in found if n >= 1_000_000} == set(range(1_000_000, other.sent)), (
            "what eu took meanwhile is kept"
        )
        assert set(found) >= set(load.confirmed), "and so is what us had alone"
        assert set(found.values()) == {1}, "what the client tried again in eu is there once"
    back = dr(trio, "eu", "switchover", namespace, "--to", "us")
    assert back["state"] == "done" and [op["kind"] for op in dr(trio, "us", "history", namespace)] == [
        "failover",
        "rejoin",
        "switchover",
    ]


def test_a_lost_region_is_failed_over_from_by_itself_and_not_while_it_is_held(trio: Instance) -> None:
    namespace, topic = "public/alone", "persistent://public/alone/orders"
    active_passive(trio, namespace, "us")
    load = Load(trio.client("us"), topic, "orders")
    load.wait_for(20)
    load.end()
    wanted = dr(trio, "us", "set", namespace, "--auto", "after=10s to=eu hold=60m")["automatic"]
    assert wanted["after_s"] == 10.0
    dr(trio, "us", "hold", namespace, "--for", "1h")
    cut_off(trio, "us", cut=True)
    try:

        def known() -> dict[str, Any]:
            found: dict[str, Any] = dr(trio, "eu", "status", namespace)["automatic"]
            return found

        eventually(lambda: known()["lost_s"] > 10 and "holds it for 3600 s" in known()["said"], "it is held")
        assert dr(trio, "eu", "status", namespace)["active"] == "us"
        heliograph("dr", "hold", namespace, "--for", "off", "--admin", trio.admin("eu"))
        eventually(lambda: takes(trio, "eu", namespace), "eu takes messages")
        eventually(lambda: bool(dr(trio, "eu", "history", namespace)), "the failover is done")
        (moved,) = dr(trio, "eu", "history", namespace)
        assert (moved["kind"], moved["by"], moved["state"]) == ("failover", "automatic", "done")
        assert moved["report"]["automatic"]["said_by"] == ["eu"] and moved["report"]["after"]["silent_s"] > 10
        told = rest("GET", f"{trio.admin('eu')}/heliograph/v1/audit?all=true")["changes"]
        assert {"failover.begun", "failover.done"} <= {row["path"] for row in told if row["method"] == "EVENT"}
        assert "a failover to eu holds it for 3600 s" in known()["held"]
        other = Load(trio.client("eu"), topic, "others", first=1_000_000)
        other.wait_for(20)
        other.end()
    finally:
        cut_off(trio, "us", cut=False)
    eventually(lambda: dr(trio, "us", "status", namespace)["active"] == "eu", "us hears of it")
    assert dr(trio, "eu", "status", namespace)["active"] == "eu", "failback is an operator's"


def test_a_broker_that_was_stopped_and_goes_on_confirms_nothing(trio: Instance) -> None:
    namespace, topic = "public/stopped", "persistent://public/stopped/orders"
    active_passive(trio, namespace, "us")
    load = Load(trio.client("us"), topic, "stopped")
    load.wait_for(50)
    processes = {row["name"]: row["pid"] for row in trio.status()["regions"]["us"]["processes"]}
    bookies = [pid for name, pid in processes.items() if "bookie" in name]
    broker = next(pid for name, pid in processes.items() if "broker" in name)
    stopped_pids.update([*bookies, broker])
    try:
        for pid in bookies:
            os.kill(pid, signal.SIGSTOP)
        before = load.sent
        eventually(
            lambda: load.sent > before + 200 and len(load.confirmed) < load.sent - 150,
            "messages wait for their ack quorum",
        )
        os.kill(broker, signal.SIGSTOP)
        for pid in bookies:
            os.kill(pid, signal.SIGCONT)  # now the quorum is there, and the broker does not know it yet
        forced = dr(trio, "eu", "failover", namespace, "--to", "eu", "--yes")
        assert forced["state"] == "done"
        eventually(lambda: takes(trio, "eu", namespace), "eu takes messages")
        confirmed = set(load.confirmed)
    finally:
        os.kill(broker, signal.SIGCONT)
    load.wait_for(100)
    load.end()
    reader = trio.client("eu").create_reader(topic, pulsar.MessageId.earliest)
    in_eu: dict[int, set[tuple[int, int]]] = {}
    while reader.has_message_available():
        message = reader.read_next(timeout_millis=60_000)
        in_eu.setdefault(int(message.data()), set()).add(
            (message.message_id().ledger_id(), message.message_id().entry_id())
        )
    late = {n: at for n, at in load.ids.items() if n not in confirmed}
    assert len(late) >= 100 and all(
        at in in_eu.get(n, set()) or at == (-1, -1) or at[1] > 1 << 40 for n, at in late.items()
    ), "eu alone confirmed it"
    lease = rest("GET", f"{trio.admin('us')}/heliograph/v1/dr")["lease"]
    assert lease["not_confirmed"] >= 20, "what us had stored and not confirmed before is not confirmed afterwards"


def test_the_health_port_is_open_only_while_messages_are_stored_and_read(trio: Instance) -> None:
    """What the official clients' own failover looks at is whether a connection is accepted: here that says
    something.
    """
    url = trio.state["regions"]["ap"]["health_url"]
    host, port = url.removeprefix("pulsar://").split(":")

    def accepts() -> bool:
        try:
            socket.create_connection((host, int(port)), timeout=20.0).close()
        except OSError:
            return False
        return True

    eventually(accepts, "open once the canary went well")
    client = pulsar.Client(url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    trio.clients.append(client)
    client.create_producer("persistent://public/default/by-health-port").send(b"a client works through it")
    bookies = [row["pid"] for row in trio.status()["regions"]["ap"]["processes"] if "bookie" in row["name"]]
    stopped_pids.update(bookies)
    for pid in bookies:
        os.kill(pid, signal.SIGSTOP)
    try:
        eventually(lambda: not accepts(), "brokers run and accept connections, but nothing can be stored")
        with pytest.raises(ConfigError, match="503"):
            rest("GET", f"{trio.admin('ap')}/heliograph/v1/health")
        socket.create_connection(
            trio.state["regions"]["ap"]["service_url"].removeprefix("pulsar://").split(":"), timeout=20.0
        ).close()
    finally:
        for pid in bookies:
            os.kill(pid, signal.SIGCONT)
    eventually(accepts, "open again")
    assert rest("GET", f"{trio.admin('ap')}/heliograph/v1/health")["healthy"]


def test_a_drill_leaves_producers_alone_and_its_report_says_what_is(trio: Instance, tmp_path: Path) -> None:
    namespace, topic = "public/rehearsed", "persistent://public/rehearsed/orders"
    active_passive(trio, namespace, "us")
    load = Load(trio.client("us"), topic, "rehearsed")
    rest("PUT", f"{trio.admin('us')}/admin/v2/persistent/{namespace}/parted/partitions", 12)
    for name in ("parted", *(f"plain-{index}" for index in range(5))):
        trio.client("us").create_producer(f"persistent://{namespace}/{name}").send(b"one")
    eventually(
        lambda: len(rest("GET", f"{trio.admin('us')}/heliograph/v1/dr/{namespace}/facts")["topics"]) == 18,
        "all topics and partitions are there",
    )
    load.wait_for(200)
    file = tmp_path / "report.json"
    report = dr(trio, "eu", "drill", namespace, "--to", "eu", "--out", str(file))
    before = rest("GET", f"{trio.admin('us')}/heliograph/v1/dr")
    row = next(row for row in before["namespaces"] if row["namespace"] == namespace)
    assert (row["active"], row["epoch"], row["state"]) == ("us", 1, "open"), "the namespace itself was left alone"
    load.wait_for(50)
    load.end()
    assert (
        report["passed"] and report["audit"]["entries"] >= 100 and report["audit"]["left"] == report["duplicates"] == 0
    ), report
    assert report["rto_lost_s"] > report["rto_s"] >= report["first"]["max_ms"] / 1000 > 0
    assert report["topics"]["text"] == "measured with 18 of 18 topics" and report["first"]["topics"] == 18, report
    led = report["clients"]["pulsar"]
    assert (
        led["measured"] and led["clients"] == 8 and report["rto_s"] >= max(led["acked"]["max_s"], led["read"]["max_s"])
    )
    assert led["acked"]["p50_s"] > 0 and led["read"]["p50_s"] > 0, led
    cost = report["publish_latency"]
    assert cost["us"]["verdict"] == "kept" and min(cost["us"]["p99_before_ms"], cost["us"]["p99_during_ms"]) > 0, cost
    assert cost["us"]["entries_during"] > 100 and cost["eu"]["entries_during"] > 0, "links' copies are counted in eu"
    assert json.loads(heliograph("dr", "verify", str(file), "--admin", trio.admin("ap"), "--json").stdout)["valid"], (
        "any region can tell"
    )
    file.write_text(json.dumps({**report, "passed": not report["passed"]}))
    assert "does not fit" in heliograph("dr", "verify", str(file), "--admin", trio.admin("ap"), check=False).stderr
    listed = f"{trio.admin('us')}/admin/v2/namespaces/public"
    eventually(
        lambda: not [name for name in rest("GET", listed) if "-drill-" in name],
        "us, too, has heard that the shadow is gone",
    )
    dr(trio, "eu", "drill", namespace, "--to", "eu", "--every", "1d")  # the first of them at once
    eventually(
        lambda: len(dr(trio, "us", "reports", namespace)) == 2,
        "the schedule has begun one by itself, and its report is kept",
    )
    assert [kept["by"] for kept in dr(trio, "us", "reports", namespace)] == ["anonymous", "schedule"]
    heliograph("dr", "reports", namespace, "--id", "-1", "--out", str(file), "--admin", trio.admin("us"))
    assert json.loads(heliograph("dr", "verify", str(file), "--admin", trio.admin("ap"), "--json").stdout)[
        "signed_by"
    ] in ("us", "eu", "ap")
    heliograph("dr", "drill", namespace, "--every", "off", "--admin", trio.admin("us"))
    dr(trio, "us", "set", namespace, "--active", "us", "--rto", "0.001")
    failed = heliograph("dr", "drill", namespace, "--to", "eu", "--admin", trio.admin("eu"), "--json", check=False)
    assert failed.returncode == 1 and "are promised" in " ".join(json.loads(failed.stdout)["because"]), failed.stdout
    # somebody's, under the name of the next shadow
    own = f"{namespace}-drill-{dr(trio, 'eu', 'history', namespace)[-1]['id'] + 1}"
    trio.namespace(own, ["us", "eu"])
    trio.client("us").create_producer(f"persistent://{own}/mine").send(b"mine")

    def refused() -> bool:
        told = heliograph(
            "dr", "drill", namespace, "--to", "eu", "--wait", "2", "--admin", trio.admin("eu"), check=False
        )
        return bool(told.returncode) and f"{own} is not the shadow of a drill" in told.stderr + told.stdout

    eventually(refused, "the drill goes on up to where it would take what is not its own")
    dr(trio, "eu", "cancel", namespace)
    assert trio.read_all("us", f"persistent://{own}/mine") == ["mine"]
    operations = f"{trio.admin('eu')}/heliograph/v1/dr/{namespace}/operations"
    given_up = f"{namespace}-drill-{rest('POST', operations, {'kind': 'drill', 'to': 'eu'})['id']}"
    eventually(
        lambda: rest("POST", f"{operations}/advance", {})["step"] == "clean",
        "the shadow is there, failed over, and has its message",
    )
    assert given_up in rest("GET", listed)
    dr(trio, "eu", "cancel", namespace)
    eventually(
        lambda: given_up not in rest("GET", listed), "some broker of eu removes the shadow of a drill that was given up"
    )
    assert own in rest("GET", listed) and trio.read_all("us", f"persistent://{own}/mine") == ["mine"]
    heliograph("dr", "unset", namespace, "--admin", trio.admin("us"))


def test_a_deleted_topic_is_unusable_comes_back_and_goes_for_good_in_every_region(pair: Instance) -> None:
    namespace, topic = "public/deleting", "persistent://public/deleting/orders"
    pair.namespace(namespace, ["us", "eu"])
    producer = pair.client("us").create_producer(topic, producer_name="p", send_timeout_millis=120_000)
    consumer = pair.client("eu").subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
    for n in range(20):
        producer.send(str(n).encode())
    for _ in range(5):
        consumer.acknowledge(consumer.receive(timeout_millis=60_000))
    stats = f"{pair.admin('eu')}/admin/v2/persistent/public/deleting/orders/stats"
    eventually(lambda: rest("GET", stats)["subscriptions"]["s"]["msgBacklog"] == 15, "five are acknowledged in eu")
    preview = dr(pair, "us", "delete", topic, "--dry-run")
    assert [(row["region"], row["entries"], row["producers"], row["consumers"]) for row in preview] == [
        ("us", 20, 1, 0),
        ("eu", 20, 0, 1),
    ]
    assert preview[1]["backlog"] == {"s": 15} and not dr(pair, "us", "deletions", namespace)
    assert "--yes" in dr(pair, "us", "delete", topic, check=False)
    consumer.close()
    dr(pair, "us", "delete", topic, "--yes")

    def refused(region: str) -> bool:
        try:
            pair.client(region).create_producer(topic, send_timeout_millis=3000).close()
        except pulsar.PulsarException:
            return True
        return False

    for region in ("us", "eu"):
        eventually(lambda region=region: refused(region), f"nobody can use it in {region}")
        listed = f"{pair.admin(region)}/admin/v2/persistent/public/deleting"
        eventually(lambda listed=listed: topic not in rest("GET", listed), f"it is not listed in {region}")
    heliograph("dr", "undelete", topic, "--admin", pair.admin("eu"))
    for region in ("us", "eu"):
        eventually(lambda region=region: len(back(pair, region, topic)) == 20, f"it is back in {region}, with its data")
    eventually(lambda: rest("GET", stats)["subscriptions"]["s"]["msgBacklog"] == 15, "and with its subscription")
    producer.send(b"20")
    eventually(lambda: len(back(pair, "eu", topic)) == 21, "links go on")
    producer.close()
    heliograph("dr", "delete", topic, "--yes", "--grace", "0", "--admin", pair.admin("us"))
    eventually(lambda: not dr(pair, "us", "deletions", namespace), "both regions have purged")
    for region in ("us", "eu"):
        eventually(
            lambda region=region: refused(region) or not back(pair, region, topic), f"nothing of it is left in {region}"
        )


def test_a_deleted_namespace_comes_back_whole_and_goes_for_good_in_every_region(pair: Instance) -> None:
    namespace, topics = "public/leaving", [f"persistent://public/leaving/{name}" for name in ("orders", "bills")]
    pair.namespace(namespace, ["us", "eu"])
    for topic in topics:
        producer = pair.client("us").create_producer(topic)
        for n in range(5):
            producer.send(str(n).encode())
        producer.close()
    pair.client("eu").subscribe(topics[0], "s", initial_position=pulsar.InitialPosition.Earliest).close()
    for topic in topics:
        eventually(lambda topic=topic: len(back(pair, "eu", topic)) == 5, "it is in eu")
    preview = dr(pair, "us", "delete", namespace, "--dry-run")
    assert [(row["region"], row["topics"], row["entries"]) for row in preview] == [("us", 2, 10), ("eu", 2, 10)], (
        preview
    )
    assert "--yes" in dr(pair, "us", "delete", namespace, check=False) and not dr(pair, "us", "deletions", namespace)
    dr(pair, "us", "delete", namespace, "--yes")
    for region in ("us", "eu"):
        eventually(
            lambda region=region: not rest("GET", f"{pair.admin(region)}/admin/v2/persistent/public/leaving"),
            "no topic is listed",
        )
        eventually(lambda region=region: back(pair, region, topics[0]) == [], f"nobody can use it in {region}")
    with pytest.raises(ConfigError, match="undelete"):
        rest("DELETE", f"{pair.admin('eu')}/admin/v2/namespaces/{namespace}?force=true")
    heliograph("dr", "undelete", namespace, "--admin", pair.admin("eu"))
    for region in ("us", "eu"):
        for topic in topics:
            eventually(
                lambda region=region, topic=topic: len(back(pair, region, topic)) == 5, f"{topic} is back in {region}"
            )
    stats = f"{pair.admin('eu')}/admin/v2/persistent/public/leaving/orders/stats"
    eventually(lambda: rest("GET", stats)["subscriptions"]["s"]["msgBacklog"] == 5, "with its subscription")
    dr(pair, "eu", "delete", namespace, "--yes", "--grace", "0")
    for region in ("us", "eu"):
        names = f"{pair.admin(region)}/admin/v2/namespaces/public"
        eventually(lambda names=names: namespace not in rest("GET", names), f"it is gone in {region}, with its name")


def test_a_typo_in_the_list_of_regions_is_seen_before_and_undone_after(pair: Instance) -> None:
    namespace, topic = "public/typo", "persistent://public/typo/orders"
    active_passive(pair, namespace, "us")
    producer = pair.client("us").create_producer(topic, send_timeout_millis=120_000)
    producer.send(b"1")
    pair.client("eu").subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest).close()
    eventually(lambda: back(pair, "eu", topic) == ["1"], "it is in eu")
    path = f"{pair.admin('us')}/admin/v2/namespaces/{namespace}/replication"
    with pytest.raises(ConfigError, match="active in us"):
        rest("POST", path, ["eu"])
    wanted = {"leave": ["eu"], "join": [], "topics": 1, "messages_not_sent": {"eu": 0}, "at_risk": {}}
    eventually(lambda: rest("POST", f"{path}?dry_run=true", ["us"]) == wanted, "us has heard that eu has it")
    assert rest("GET", path) == ["us", "eu"], "a dry run changes nothing"
    rest("POST", path, ["us"])
    producer.send(b"2")
    rest("POST", path, ["us", "eu"])
    eventually(lambda: back(pair, "eu", topic) == ["1", "2"], "data that was there, and what came meanwhile")
    stats = f"{pair.admin('eu')}/admin/v2/persistent/public/typo/orders/stats"
    assert rest("GET", stats)["subscriptions"]["s"]["msgBacklog"] == 2, "and the subscription"
    producer.close()


def test_interrupted_in_the_middle_it_goes_on_elsewhere_and_broken_promises_are_told(pair: Instance) -> None:
    namespace, topic = "public/halfway", "persistent://public/halfway/orders"
    active_passive(pair, namespace, "us")
    dr(pair, "us", "set", namespace, "--active", "us", "--rpo", "5")
    load = Load(pair.client("us"), topic, "halfway", every_s=0.05)  # a busy machine must be able to catch up with it
    load.wait_for(50)

    def events() -> list[str]:
        """Of both brokers of us, in their order: one of them owns the topic, and on a busy machine not always the same
        one.
        """
        found = list[tuple[int, str]]()
        for row in pair.status()["regions"]["us"]["processes"]:
            if "broker" in row["name"]:
                told = rest("GET", f"http://127.0.0.1:{row['ports']['admin']}/heliograph/v1/dr")["events"]
                found += [(event["time_ms"], event["event"]) for event in told if event["namespace"] == namespace]
        return [event for _, event in sorted(found)]

    cut_off(pair, "us", cut=True, kinds=("link",))
    try:
        eventually(lambda: events()[-1:] == ["slo.broken"], "messages are at risk for longer than five seconds")
        stuck = heliograph("dr", "switchover", namespace, "--wait", "1", "--admin", pair.admin("us"), check=False)
        assert stuck.returncode == 2 and "links that are down" in stuck.stderr
    finally:
        cut_off(pair, "us", cut=False)
    eventually(lambda: events()[-1:] == ["slo.kept"], "the link has caught up")
    path = f"{pair.admin('us')}/heliograph/v1/dr/{namespace}/operations/advance"
    eventually(
        lambda: rest("POST", path)["step"] == "deliver", "check and drain are done, and then whoever asked is gone"
    )
    assert dr(pair, "eu", "status", namespace)["state"] == "draining" and not takes(pair, "us", namespace)
    done = dr(pair, "eu", "switchover", namespace)
    assert done["state"] == "done" and [step["step"] for step in done["steps"]][:2] == ["check", "drain"]
    load.wait_for(50)
    load.end()
    for region in ("us", "eu"):
        eventually(
            lambda region=region: sorted(numbers(pair, region, topic).elements()) == list(range(load.sent)),
            f"each message once in {region}",
        )


def changed(url: str, value: Any) -> bool:
    """Whether the configuration takes the value now."""
    try:
        rest("POST", url, value)
    except ConfigError:
        return False
    return True


def test_policies_edited_while_cut_off_are_obeyed_here_merged_later_and_conflicts_are_listed(trio: Instance) -> None:
    namespace, topic = "public/edited", "persistent://public/edited/orders"
    trio.namespace(namespace, ["us", "eu"])
    trio.client("us").create_producer(topic).send(b"1")
    eventually(lambda: back(trio, "eu", topic) == ["1"], "it is in eu")
    us, eu = (f"{trio.admin(region)}/admin/v2" for region in ("us", "eu"))
    conflicts = f"{trio.admin('us')}/heliograph/v1/conflicts"
    cut_off(trio, "us", cut=True, kinds=("config",))
    try:
        eventually(lambda: rest("GET", conflicts)["stale_s"] > 0, "us hears no leader of the configuration")
        rest("POST", f"{us}/persistent/public/edited/orders/messageTTL?messageTTL=60", 60)
        rest("POST", f"{us}/namespaces/{namespace}/messageTTL", 111)
        rest("POST", f"{us}/namespaces/{namespace}/maxProducersPerTopic", 5)
        assert rest("GET", f"{us}/namespaces/{namespace}/messageTTL") == 111, "it is obeyed in us at once"
        assert [edit["changes"][0][0] for edit in rest("GET", conflicts)["pending"]] == [
            ["messageTTL"],
            ["maxProducers"],
        ]
        eventually(lambda: changed(f"{eu}/namespaces/{namespace}/messageTTL", 222), "the others have a leader")
        eventually(lambda: rest("GET", f"{eu}/namespaces/{namespace}/messageTTL") == 222, "eu obeys what it was told")
        assert rest("GET", f"{us}/namespaces/{namespace}/messageTTL") == 111
        with pytest.raises(ConfigError, match="503"):
            rest("POST", f"{us}/namespaces/{namespace}/replication", ["us"])
    finally:
        cut_off(trio, "us", cut=False)
    eventually(lambda: not rest("GET", conflicts)["pending"], "us has merged what it has")
    for url in (us, eu):
        eventually(
            lambda url=url: rest("GET", f"{url}/namespaces/{namespace}/maxProducersPerTopic") == 5,
            "what nobody else touched is everywhere",
        )
        eventually(
            lambda url=url: rest("GET", f"{url}/namespaces/{namespace}/messageTTL") == 222,
            "the configuration keeps what it had",
        )
    listed = json.loads(heliograph("conflicts", "list", "--admin", trio.admin("eu"), "--json").stdout)["conflicts"]
    assert [(row["path"], row["mine"], row["theirs"], row["region"]) for row in listed] == [
        (["messageTTL"], [111], [222], "us")
    ]
    heliograph("conflicts", "resolve", listed[0]["name"], "--take", "mine", "--admin", trio.admin("eu"))
    for url in (us, eu):
        eventually(
            lambda url=url: rest("GET", f"{url}/namespaces/{namespace}/messageTTL") == 111, "as an operator decided"
        )
    eventually(lambda: not rest("GET", conflicts)["conflicts"], "the conflict is over")
    assert rest("GET", f"{us}/persistent/public/edited/orders/messageTTL") == 60, "a topic's own policy is the region's"
