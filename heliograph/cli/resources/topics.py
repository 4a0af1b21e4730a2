"""`topics` and `subscriptions`: what a topic is, holds, and owes to whom."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from heliograph.cli.calls import Call
from heliograph.cli.groups import add, group
from heliograph.cli.regions import links
from heliograph.cli.regions.links import Topic
from heliograph.cli.resources import policies
from heliograph.cli.rest import Rest
from heliograph.cli.show import Output, cells, done, table
from heliograph.model.admin_paths import SUBSCRIPTION, TOPIC, namespace_path, path_of, topic_path
from heliograph.model.errors import ConfigError

Subscription = Annotated[str, typer.Argument(help="The subscription's name.")]
Force = Annotated[bool, typer.Option("--force", help="Also while clients are connected.")]
_EARLIEST, _LATEST = {"ledgerId": -1, "entryId": -1}, {"ledgerId": (1 << 63) - 1, "entryId": (1 << 63) - 1}


def register(app: typer.Typer) -> None:
    topics = group(app, "topics", "Topics: make, look into, change; where messages lie in each region.")
    add(topics, list=listed, create=create, delete=delete, partitions=partitions, unload=unload, terminate=terminate)
    add(topics, truncate=truncate, compact=compact, stats=stats, internal_stats=internal_stats, lookup=lookup)
    add(topics, links=links.links, unpark=links.unpark, give_up=links.give_up)
    policies.register(topics, "topic", topic_path)
    subscriptions = group(app, "subscriptions", "Subscriptions of a topic.")
    add(subscriptions, list=subscriptions_list, create=subscriptions_create, delete=subscriptions_delete)
    add(subscriptions, reset=subscriptions_reset, skip=subscriptions_skip, peek=subscriptions_peek)
    add(subscriptions, expire=subscriptions_expire)


# -- topics ------------------------------------------------------------------------------------------------------------


def listed(
    rest: Rest, output: Output, namespace: Annotated[str, typer.Argument(help="tenant/namespace.")] = "public/default"
) -> None:
    """List the topics of a namespace: partitioned ones once, with their number of partitions."""
    namespace_path(namespace)
    found: dict[str, int] = {}
    for domain in ("persistent", "non-persistent"):
        base = f"/admin/v2/{domain}/{namespace}"
        for topic in rest.get(f"{base}/partitioned"):
            found[topic] = rest.get(f"{topic_path(topic)}/partitions")["partitions"]
        for topic in rest.get(base):
            if topic.rpartition("-partition-")[0] not in found:
                found[topic] = 0
    output.rows(("topic", "partitions"), sorted(found.items()), found)


def create(
    rest: Rest,
    topic: Topic,
    count: Annotated[int, typer.Option("--partitions", "-p", help="0: not partitioned.", min=0, max=4096)] = 0,
) -> None:
    """Make a topic, partitioned or not."""
    path = topic_path(topic)
    if count:
        rest.put(f"{path}/partitions", count)
    else:
        rest.put(path)
    done(f"topic {topic} is created")


def delete(
    rest: Rest,
    topic: Topic,
    force: Force = False,
    only_here: Annotated[
        bool,
        typer.Option("--only-here", help="What this region has of it, at once; others that have it bring it back."),
    ] = False,
) -> None:
    """Remove a topic with its data and subscriptions, in every region that has it: where several do, `heliograph dr
    undelete` brings it back until its grace period has ended.
    """
    path = topic_path(topic)
    rest.delete(f"{path}/partitions" if _count(rest, path) else path, force=force, onlyHere=only_here)
    done(f"topic {topic} is removed")


@Call("POST", f"{TOPIC}/partitions", said="topic {topic} has {count} partitions")
def partitions(topic: Topic, count: Annotated[int, typer.Argument(help="More than there are.", min=1)]) -> int:
    """Give a partitioned topic more partitions; clients see them by themselves."""
    return count


@Call("PUT", f"{TOPIC}/unload", said="topic {topic} is unloaded")
def unload(topic: Topic) -> None:
    """Close a topic at its broker: the next client opens it again."""


def terminate(rest: Rest, topic: Topic) -> None:
    """Take no more messages, for ever; consumers hear of the end."""
    path = topic_path(topic)
    found = rest.post(f"{path}/terminate/partitions" if _count(rest, path) else f"{path}/terminate")
    done(
        f"topic {topic} ends at {found.get('ledgerId')}:{found.get('entryId')}"
        if "ledgerId" in found
        else f"topic {topic} is terminated"
    )


@Call("DELETE", f"{TOPIC}/truncate", said="topic {topic} is empty")
def truncate(topic: Topic) -> None:
    """Delete every message that is there, whatever retention says and whoever waits for it."""


def compact(
    rest: Rest,
    topic: Topic,
    status: Annotated[bool, typer.Option("--status", help="Only say how the last one went.")] = False,
) -> None:
    """Keep, beside the log, the latest message of each key; it goes on in the background."""
    path = f"{topic_path(topic)}/compaction"
    if not status:
        rest.put(path)
    found = rest.get(path)
    done(f"topic {topic}: compaction {found['status']}{': ' + found['lastError'] if found['lastError'] else ''}")


def stats(rest: Rest, output: Output, topic: Topic) -> None:
    """Show rates, clients, and backlog."""
    path = topic_path(topic)
    found = rest.get(f"{path}/partitioned-stats" if _count(rest, path) else f"{path}/stats")
    if output.json:
        output.show(found)
        return
    rates = ("msgRateIn", "msgThroughputIn", "msgRateOut", "msgThroughputOut")
    keys = (*rates, "msgInCounter", "msgOutCounter", "storageSize", "deduplicationStatus")
    output.show({key: found.get(key) for key in keys} | {"publishers": len(found["publishers"])})
    counts = ("consumers", "backlog", "unacked", "delayed", "expired")
    columns = ("subscription", "type", *counts, "out msgs/s", "redelivered/s")
    table(columns, [_subscription_row(name, s) for name, s in sorted(found["subscriptions"].items())])
    if found.get("replication"):
        lines = [
            (to, "yes" if r["connected"] else "no", r["replicationBacklog"], r["replicationDelayInSeconds"])
            for to, r in found["replication"].items()
        ]
        table(("replicated to", "connected", "backlog", "age s"), lines)


def _subscription_row(name: str, s: dict[str, Any]) -> tuple[Any, ...]:
    s = {"type": "", "consumers": [], "msgDelayed": 0, "totalMsgExpired": 0, "msgRateRedeliver": 0.0, **s}
    numbers = cells(
        s, "msgBacklog", "unackedMessages", "msgDelayed", "totalMsgExpired", "msgRateOut", "msgRateRedeliver"
    )
    return (name, s["type"], len(s["consumers"]), *numbers)


@Call("GET", f"{TOPIC}/internalStats")
def internal_stats(topic: Topic, answer: dict[str, Any]) -> None:
    """Show a topic's ledgers and cursors."""
    ledgers = [cells(ledger, "ledgerId", "entries", "size", "offloaded") for ledger in answer["ledgers"]]
    table(("ledger", "entries", "bytes", "offloaded"), ledgers)
    cursors = [
        (name, *cells(cursor, "markDeletePosition", "numberOfEntriesSinceFirstNotAckedMessage"))
        for name, cursor in answer["cursors"].items()
    ]
    table(("cursor", "mark-delete", "behind"), cursors)


def lookup(rest: Rest, output: Output, topic: Topic) -> None:
    """Show which broker serves a topic."""
    path = topic_path(topic).replace("/admin/v2/", "/lookup/v2/topic/", 1)
    found = rest.get(path)
    broker = found["brokerUrl"] or found["brokerUrlTls"]
    output.show({"broker": broker, "admin": found["httpUrl"], "bundle": rest.get(f"{path}/bundle")})


def _count(rest: Rest, path: str) -> int:
    return int(rest.get(f"{path}/partitions")["partitions"])


# -- subscriptions -----------------------------------------------------------------------------------------------------


def _path(topic: str, subscription: str) -> str:
    return path_of(SUBSCRIPTION, topic=topic, subscription=subscription)


@Call("GET", f"{TOPIC}/subscriptions")
def subscriptions_list(topic: Topic) -> None:
    """List a topic's subscriptions."""


Position = Annotated[str, typer.Option("--position", help="earliest, latest, or ledger:entry: what comes next.")]


def _message_id(text: str) -> dict[str, int]:
    if text in ("earliest", "latest"):
        return _EARLIEST if text == "earliest" else _LATEST
    ledger, _, entry = text.partition(":")
    try:
        return {"ledgerId": int(ledger), "entryId": int(entry)}
    except ValueError as error:
        raise ConfigError(f"--position: expected earliest, latest, or ledger:entry, not {text!r}") from error


@Call("PUT", SUBSCRIPTION, said="subscription {subscription} of {topic} is created")
def subscriptions_create(topic: Topic, subscription: Subscription, position: Position = "latest") -> dict[str, int]:
    """Make a subscription, before any consumer comes."""
    return _message_id(position)


def subscriptions_delete(
    rest: Rest,
    topic: Topic,
    subscription: Subscription,
    force: Force = False,
    only_here: Annotated[
        bool,
        typer.Option("--only-here", help="Also one that other regions have: it comes back unless it is removed there."),
    ] = False,
) -> None:
    """Remove a subscription: what it has not acknowledged is forgotten."""
    rest.delete(_path(topic, subscription), force=force, onlyHere=only_here)
    done(f"subscription {subscription} of {topic} is removed")


def subscriptions_reset(
    rest: Rest,
    topic: Topic,
    subscription: Subscription,
    position: Position = "",
    ago_s: Annotated[int, typer.Option("--ago", help="To what was published so many seconds ago.", min=0)] = -1,
) -> None:
    """Move a subscription back or on; its consumers go on from there."""
    if bool(position) == (ago_s >= 0):
        raise ConfigError("give one of --position and --ago")
    path = _path(topic, subscription)
    if position:
        rest.post(f"{path}/resetcursor", _message_id(position))
    else:
        rest.post(f"{path}/resetcursor/{int(time.time() * 1000) - ago_s * 1000}")
    done(f"subscription {subscription} of {topic} is reset")


def subscriptions_skip(
    rest: Rest,
    topic: Topic,
    subscription: Subscription,
    count: Annotated[int, typer.Option("--count", "-n", help="So many messages; 0: all that wait.", min=0)] = 0,
) -> None:
    """Count messages that wait as acknowledged."""
    rest.post(f"{_path(topic, subscription)}/" + (f"skip/{count}" if count else "skip_all"))
    done(f"subscription {subscription} of {topic} has skipped {count or 'everything'}")


@Call(
    "POST",
    f"{SUBSCRIPTION}/expireMessages/{{seconds}}",
    said="subscription {subscription} of {topic}: nothing older than {seconds} s waits",
)
def subscriptions_expire(
    topic: Topic,
    subscription: Subscription,
    seconds: Annotated[int, typer.Argument(help="What is older counts as acknowledged.", min=0)],
) -> None:
    """Skip what was published longer ago than so many seconds."""


def subscriptions_peek(
    rest: Rest,
    output: Output,
    topic: Topic,
    subscription: Subscription,
    count: Annotated[int, typer.Option("--count", "-n", help="How many.", min=1, max=1000)] = 1,
) -> None:
    """Show the messages that wait first, without taking them."""
    path = _path(topic, subscription)
    found = []
    for index in range(1, count + 1):
        data, headers = rest.raw("GET", f"{path}/position/{index}")
        known = {
            key: headers.get(f"X-Pulsar-{key}")
            for key in ("Message-ID", "publish-time", "producer-name", "num-batch-message", "PROPERTY")
        }
        found.append({"data": data.decode(errors="replace"), **{key: value for key, value in known.items() if value}})
    lines = [cells(message, "Message-ID", "publish-time", "data") for message in found]
    output.rows(("message id", "published", "data"), lines, found)
