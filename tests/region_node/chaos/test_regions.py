"""An instance is known by the admin URL of a broker of each region, and its clients by what brokers say."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from heliograph.model.errors import ConfigError
from region_node.chaos.regions import AdminRegions, NotInTime, eventually, service_url


@contextmanager
def brokers(*statuses: dict[str, Any]) -> Iterator[list[str]]:
    """Admin URLs of brokers that say these of themselves."""
    servers = []
    for status in statuses:

        class Answers(BaseHTTPRequestHandler):
            said = json.dumps(status).encode()

            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(self.said)))
                self.end_headers()
                self.wfile.write(self.said)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        servers.append(HTTPServer(("127.0.0.1", 0), Answers))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
    try:
        yield [f"http://127.0.0.1:{server.server_port}" for server in servers]
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


def status(region: str) -> dict[str, Any]:
    return {"region": region, "brokers": [{"listeners": {"": f"pulsar://{region}:6650"}}]}


@pytest.mark.slow
def test_a_region_is_whatever_its_broker_says() -> None:
    with brokers(status("us"), status("eu")) as urls:
        made = AdminRegions(urls)
        assert made.names == ["us", "eu"] and made.rest("eu").get("/heliograph/v1/status")["region"] == "eu"
        with pytest.raises(ConfigError, match="is of region us, as one before it: give one URL of each"):
            AdminRegions([urls[0], urls[0]])


def test_where_no_broker_answers_it_says_so() -> None:
    with pytest.raises(ConfigError, match="no broker answers at"):
        AdminRegions(["http://127.0.0.1:9"])


def test_clients_are_told_of_every_broker_and_of_tls_where_there_is_nothing_else() -> None:
    assert service_url([{"": "pulsar://a:1"}, {"": "pulsar://b:2"}, {"": "pulsar://a:1"}]) == "pulsar://a:1,b:2"
    assert service_url([{"tls": "pulsar+ssl://a:1"}]) == "pulsar+ssl://a:1"
    with pytest.raises(ConfigError, match="is one up"):
        service_url([{}])


def test_what_is_waited_for_is_asked_for_again_and_given_up_in_time() -> None:
    answers = iter([None, 0, "yes"])
    assert eventually(lambda: next(answers), "a yes") == "yes"

    def refused() -> None:
        raise ConfigError("away")

    with pytest.raises(NotInTime, match="not within 0 s: it is there"):
        eventually(refused, "it is there", 0.0)
