"""Traces of messages between two regions, as a collector gets them: OTLP over HTTP, decoded here."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pulsar
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from geo_tests.wan.instance import Instance, eventually
from tests.guide.page import Page
from tests.guide.shell import Reader, Shell

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
KEY = "x-collector-key"


class Collector:
    """Takes traces as OpenTelemetry's own does; spans: (name, region) -> the newest, of one trace."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.refused = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get(KEY) != "let me in" or self.path != "/v1/traces":
                    outer.refused += 1
                    self.send_error(401)
                    return
                request = ExportTraceServiceRequest.FromString(
                    gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                )
                for resource in request.resource_spans:
                    for scope in resource.scope_spans:
                        outer.spans += scope.spans
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def of(self, trace: str) -> dict[tuple[str, str], Any]:
        return {(span.name, region(span)): span for span in list(self.spans) if span.trace_id.hex() == trace}


def region(span: Any) -> str:
    return next(str(pair.value.string_value) for pair in span.attributes if pair.key == "heliograph.region")


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.mark.timeout(600)
def test_a_message_is_seen_on_its_way_through_two_regions(
    tmp_path: Path, collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = tmp_path / "headers"
    headers.write_text(f"{KEY}: let me in\n")
    with Shell(
        tmp_path,
        places={"127.0.0.1:4318": f"127.0.0.1:{collector.server.server_port}", "ONE_IN=10000": f"ONE_IN={1 << 40}"},
    ) as shell:
        page = Reader(Page.read("tracing.md"), shell)
        page.section("Tracing: a message's way through the regions")
        page.finish()
    tracing = {name: value for name, value in shell.environment.items() if "TRACING" in name}
    assert len(tracing) == 2
    for name, value in {
        **tracing,
        "HELIOGRAPH_BROKER__TRACING__DELAY_S": "0.2",
        "HELIOGRAPH_BROKER__TRACING__HEADERS_FILE": str(headers),
    }.items():
        monkeypatch.setenv(name, value)
    instance = Instance(tmp_path / "data", regions=("us", "eu"), wan="none")
    try:
        instance.namespace("public/seen", ["us", "eu"])
        topic = "persistent://public/seen/t"
        there = instance.client("eu").subscribe(topic, "there", initial_position=pulsar.InitialPosition.Earliest)
        here = instance.client("us").subscribe(topic, "here", initial_position=pulsar.InitialPosition.Earliest)
        producer = instance.client("us").create_producer(topic, batching_enabled=False)
        producer.send(b"not chosen")
        producer.send(b"followed", properties={"traceparent": PARENT})
        for consumer in (here, there):
            assert [consumer.receive(60_000).data() for _ in range(2)] == [b"not chosen", b"followed"]
        steps = [
            ("publish", "us"),
            ("store", "us"),
            ("dispatch", "us"),
            ("link.out", "us"),
            ("link.in", "eu"),
            ("store", "eu"),
            ("dispatch", "eu"),
        ]
        trace = PARENT[3:35]
        spans = eventually(
            lambda: found if set(found := collector.of(trace)) == set(steps) else None,
            "every step of the message is there",
        )
        parents = {name: span.parent_span_id.hex() for name, span in spans.items()}
        ids = {name: span.span_id.hex() for name, span in spans.items()}
        assert parents["publish", "us"] == PARENT[36:52]
        assert parents["link.in", "eu"] == ids["link.out", "us"] and parents["dispatch", "eu"] == ids["store", "eu"]
        assert all(span.start_time_unix_nano <= span.end_time_unix_nano for span in spans.values())
        assert {span.trace_id.hex() for span in collector.spans} == {trace} and collector.refused == 0
    finally:
        instance.down()
