"""`produce` and `consume`: messages by hand, with the official client."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from heliograph.cli.groups import add
from heliograph.cli.rest import TokenOption
from heliograph.model.errors import ConfigError

TopicArgument = Annotated[str, typer.Argument(help="A full name, or a short one in public/default.")]


def register(app: typer.Typer) -> None:
    add(app, produce=produce, consume=consume)


def official() -> Any:
    """The official client's module: it comes late, for most commands need none. Raises ConfigError where it is not
    installed.
    """
    try:
        import pulsar
    except ImportError as error:
        raise ConfigError("this command speaks through the official client: pip install pulsar-client") from error
    return pulsar


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """What a command speaks to through the official client: a Pulsar service, and a token where it wants one."""

    url: Annotated[str, typer.Option("--service", envvar="HELIOGRAPH_SERVICE", help="The Pulsar service URL.")] = (
        "pulsar://127.0.0.1:6650"
    )
    token: TokenOption = ""

    @contextmanager
    def connected(self, what: str) -> Iterator[Any]:
        """A connection, closed behind its use. what: what could not be done, where a broker refuses it. Raises
        ConfigError then, and where the URL is none.
        """
        connection = self.client()
        try:
            yield connection
        except official().PulsarException as error:
            raise ConfigError(
                f"{what} at {self.url}: {str(error).removeprefix('Pulsar error: ')}; is it running, and may this role "
                "do that?"
            ) from error
        finally:
            connection.close()

    def client(self) -> Any:
        """An official client, which its caller closes. Raises ConfigError where the URL is none."""
        pulsar, options = official(), dict[str, Any]()
        if not self.url.startswith(("pulsar://", "pulsar+ssl://")):
            raise ConfigError(f"--service: expected pulsar://host:port or pulsar+ssl://host:port, not {self.url!r}")
        if self.token:
            options["authentication"] = pulsar.AuthenticationToken(self.token)
        if self.url.startswith("pulsar+ssl://") and os.environ.get("HELIOGRAPH_CA"):
            options["tls_trust_certs_file_path"] = os.environ["HELIOGRAPH_CA"]
        quiet = pulsar.FileLogger(
            pulsar.LoggerLevel.Error, os.devnull
        )  # its own console log would stand among the messages
        return pulsar.Client(self.url, logger=quiet, operation_timeout_seconds=30, **options)


def produce(
    topic: TopicArgument,
    message: Annotated[
        list[str] | None,
        typer.Option("--message", "-m", help="A message; again for each further one. None: lines of stdin."),
    ] = None,
    key: Annotated[str, typer.Option("--key", "-k", help="Of every message.")] = "",
    properties: Annotated[
        list[str] | None, typer.Option("--property", help="name=value of every message; again for each further one.")
    ] = None,
    service: Service = Service(),
    json_output: Annotated[bool, typer.Option("--json", help="Print the message ids as JSON.")] = False,
) -> None:
    """Send messages and print their ids."""
    pairs = dict(_pair(text) for text in properties or ())
    found: Iterable[str] = message if message else (line.rstrip("\n") for line in sys.stdin)
    sent: list[str] = []
    with service.connected(f"cannot produce to {topic}") as connection:
        producer = connection.create_producer(topic)
        for text in found:
            sent.append(str(producer.send(text.encode(), properties=pairs or None, partition_key=key or None)))
            if not json_output:
                typer.echo(sent[-1])
        producer.close()
    if json_output:
        typer.echo(json.dumps(sent))


def _pair(text: str) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator:
        raise ConfigError(f"--property: expected name=value, not {text!r}")
    return name, value


def consume(
    topic: TopicArgument,
    subscription: Annotated[
        str, typer.Option("--subscription", "-s", help="Its name; it stays when this ends.")
    ] = "heliograph-cli",
    count: Annotated[int, typer.Option("--count", "-n", help="So many messages; 0: until nothing comes.", min=0)] = 0,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", help="Seconds to wait for the next message: 60 with --count, else 5.", min=0.1),
    ] = None,
    earliest: Annotated[bool, typer.Option("--earliest/--latest", help="Where a new subscription begins.")] = True,
    shared: Annotated[bool, typer.Option("--shared", help="Beside other consumers of the subscription.")] = False,
    service: Service = Service(),
    json_output: Annotated[bool, typer.Option("--json", help="A line of JSON a message.")] = False,
) -> None:
    """Receive messages, acknowledge them, and print them; exit code 1 where fewer came than --count."""
    pulsar = official()
    wait_ms = int(1000 * (timeout_s or (60.0 if count else 5.0)))
    got = 0
    with service.connected(f"cannot consume {topic}") as connection:
        consumer = connection.subscribe(
            topic,
            subscription,
            consumer_type=pulsar.ConsumerType.Shared if shared else pulsar.ConsumerType.Exclusive,
            initial_position=pulsar.InitialPosition.Earliest if earliest else pulsar.InitialPosition.Latest,
        )
        while not count or got < count:
            try:
                received = consumer.receive(timeout_millis=wait_ms)
            except pulsar.Timeout:
                break
            got += 1
            typer.echo(_line(received, json_output))
            consumer.acknowledge(received)
        consumer.close()
    if got < count:
        raise typer.Exit(1)


def _line(message: Any, json_output: bool) -> str:
    data = message.data().decode(errors="replace")
    if not json_output:
        return str(data)
    fields = {
        "id": str(message.message_id()),
        "topic": message.topic_name(),
        "published_ms": message.publish_timestamp(),
        "data": data,
    }
    extra = {
        "key": message.partition_key(),
        "properties": message.properties(),
        "redelivered": message.redelivery_count(),
    }
    return json.dumps(fields | {key: value for key, value in extra.items() if value})
