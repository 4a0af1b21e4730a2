"""The Go client's own test suite, from its module zip, against a Heliograph: every test that one server can serve
passes.

The suite wants a server on fixed ports, and partly one in a container, with its own certificates, or several clusters;
those are left out by name.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import urllib.request
from base64 import b64encode
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha1
from pathlib import Path

import pytest

from benchmarks.servers import Heliograph
from tests.region_node.region_processes import Region
from tests.system.go_suite import TESTED, program, suite

pytestmark = [pytest.mark.system, pytest.mark.timeout(3000)]
ELSEWHERE = re.compile("Container|Clustered|Athenz|BlueGreen|Extensible|TransactionsNotEnabled|NotEnabled")
SECURE = re.compile("TLS|Tls|HTTPS|Auth|OAuth|Token")
TOPIC = re.compile(r'[tT]opic(?:Name)?(?: *:=|:) *"([^"\n]*[^"/\n])"')
CONTAINERS = {  # they stop and start a server of their own, in Docker
    "TestConsumerKeepReconnectingAndThenCallClose",
    "TestReconnectConsumer",
    "TestReconnectedBrokerSendPermits",
    "TestProducerKeepReconnectingAndThenCallClose",
    "TestSendAsyncCouldTimeoutWhileReconnecting",
}
PULSAR_TOO = {"TestSendTimeout", "TestSendContextExpired"}  # they fail against Apache Pulsar 4.0.7 as well
RACES = {  # its second seek may overtake its subscribing again behind the first one, and finds no consumer
    "TestReaderWithSeekByID",
}
DIFFERENT = {  # docs/protocols/differences.md, "Administration"
    "TestTxn_ImplCommitOrAbort",  # the same end of a transaction again succeeds: an answer may have been lost
    "TestUpdateDynamicConfigurationWithCustomURL",  # a setting that is true or false gets an object
}


def run(source: Path, package: str, name: str, environment: dict[str, str]) -> tuple[str, int, str]:
    """(test, exit code, what it said)."""
    command = [str(program(package)), "-test.v", "-test.run", f"^{name}$", "-test.timeout", "240s"]
    done = subprocess.run(
        command,
        cwd=source / package,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    return name, done.returncode, done.stdout


def listed(source: Path, package: str, environment: dict[str, str]) -> list[str]:
    """Its tests, but for those that want servers of another kind."""
    command = [str(program(package)), "-test.list", "^Test"]
    done = subprocess.run(command, cwd=source / package, env=environment, capture_output=True, text=True, check=True)
    names = [name for name in done.stdout.split() if name.startswith("Test") and not ELSEWHERE.search(name)]
    return [name for name in names if name not in CONTAINERS | PULSAR_TOO | RACES | DIFFERENT]


def lanes(texts: Iterable[str], names: Sequence[str]) -> list[list[str]]:
    """Tests that name the same topic stand in one lane: two consumers of one exclusive subscription refuse each other.
    texts: of the files that the tests are in.
    """
    of_topic: dict[str, list[str]] = {}
    lane_of = {name: [name] for name in names}
    for text in texts:
        for body in re.split(r"^func ", text, flags=re.MULTILINE):
            name = body.partition("(")[0]
            for topic in TOPIC.findall(body) if name in lane_of else ():
                first = of_topic.setdefault(topic.removeprefix("persistent://public/default/"), lane_of[name])
                if first is not lane_of[name]:
                    first += lane_of[name]
                    for each in lane_of[name]:
                        lane_of[each] = first
    return list({id(lane): lane for lane in lane_of.values()}.values())


def test_tests_of_one_topic_run_one_after_another() -> None:
    text = """
func TestA(t *testing.T) {
	topic := "my-topic"
func TestB(t *testing.T) {
		Topic:  "other",
func TestC(t *testing.T) {
		Topic: "persistent://public/default/my-topic",
	topicName := "third"
func TestD(t *testing.T) {
	topicName := "third"
	topic := "persistent://public/default/" + newName()
"""
    assert lanes([text], ["TestA", "TestB", "TestC", "TestD", "TestE"]) == [
        ["TestA", "TestC", "TestD"],
        ["TestB"],
        ["TestE"],
    ]


def run_all(
    source: Path, package: str, names: list[str], environment: dict[str, str], logs: Path, *, at_once: int = 4
) -> None:
    """Most of them wait, so several at once."""
    together = lanes((path.read_text() for path in sorted((source / package).glob("*_test.go"))), names)
    with ThreadPoolExecutor(at_once) as pool:
        done = pool.map(lambda lane: [run(source, package, name, environment) for name in lane], together)
        results = [result for lane in done for result in lane]
    bad = {name: text for name, code, text in results if code}
    for name, text in bad.items():
        (logs / f"{name}.log").write_text(text)
    assert sorted(bad) == [], f"logs in {logs}"


def test_its_own_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = suite()
    monkeypatch.setenv("HELIOGRAPH_BROKER__MESSAGE_BYTES_MAX", str(1 << 20))  # as the suite's own server is set
    server = Heliograph(tmp_path / "data")
    try:
        service, web = next(iter(server.regions.values()))
        environment = {
            **os.environ,
            "PULSAR_SERVICE": f"pulsar://127.0.0.1:{service}",
            "PULSAR_WEB": f"http://127.0.0.1:{web}",
        }
        names = [name for name in listed(source, "pulsar", environment) if not SECURE.search(name)]
        assert len(names) > 200
        run_all(source, "pulsar", names, environment, tmp_path)
    finally:
        server.stop()


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """A region with the suite's certificates, tokens, and passwords, as the suite's own server has them: the
    environment of its tests.
    """
    files = suite() / "integration-tests"
    folder = tmp_path_factory.mktemp("secured")
    (folder / "users").write_text(
        "admin:{SHA}" + b64encode(sha1(b"123456").digest()).decode() + "\n"
    )  # as .htpasswd of the suite's image
    certificates = {"ca": "cacert", "client_ca": "cacert", "server_cert": "broker-cert", "server_key": "broker-key"}
    tls = {name: str(files / "certs" / f"{file}.pem") for name, file in certificates.items()}
    security = {
        "authentication": ["token", "tls", "basic"],
        "tokens": [{"algorithms": ["HS256"], "secret_file": str(files / "tokens" / "secret.key")}],
        "basic_file": str(folder / "users"),
        "authorization": True,
        "anonymous_role": "anonymous",
        "super_users": ["admin"],
    }
    with Region(folder) as region:
        region.common = {"tls": tls, "security": security}
        region.start(bookies=2, brokers=1, tls_port=0, admin_tls_port=0, advertised_host="localhost")
        ports = region.processes["us-broker-0"].ports
        token = (files / "tokens" / "admin-token").read_text().strip()

        def admin(method: str, path: str, body: object = None) -> None:
            request = urllib.request.Request(
                f"{region.admin_url()}/admin/v2/{path}", json.dumps(body).encode(), method=method
            )
            request.add_header("Authorization", f"Bearer {token}")
            request.add_header("Content-Type", "application/json")
            urllib.request.urlopen(request, timeout=60).close()

        admin("PUT", "clusters/us", {"serviceUrl": region.admin_url(), "brokerServiceUrl": region.service_url()})
        for tenant, roles in (("public", ["anonymous"]), ("private", [])):
            admin("PUT", f"tenants/{tenant}", {"adminRoles": roles, "allowedClusters": ["us"]})
        for namespace, role in (("public/default", "anonymous"), ("private/auth", "token-principal")):
            admin("PUT", f"namespaces/{namespace}")
            admin("POST", f"namespaces/{namespace}/permissions/{role}", ["produce", "consume"])
        yield {
            **os.environ,
            "PULSAR_SERVICE": f"pulsar://localhost:{ports['pulsar']}",
            "PULSAR_WEB": f"http://localhost:{ports['admin']}",
            "PULSAR_SERVICE_TLS": f"pulsar+ssl://localhost:{ports['pulsar_tls']}",
            "PULSAR_WEB_TLS": f"https://localhost:{ports['admin_tls']}",
            "PULSAR_SERVICE_TLS_ADDRESS": f"pulsar+ssl://127.0.0.1:{ports['pulsar_tls']}",
            "PULSAR_WEB_TLS_ADDRESS": f"https://127.0.0.1:{ports['admin_tls']}",
        }


def test_its_tests_of_tls_and_authentication(secured: dict[str, str], tmp_path: Path) -> None:
    source = suite()
    names = [name for name in listed(source, "pulsar", secured) if SECURE.search(name)]
    assert len(names) >= 30
    run_all(source, "pulsar", names, secured, tmp_path)


@pytest.mark.parametrize("package", TESTED[1:])
def test_its_admin_client(package: str, secured: dict[str, str], tmp_path: Path) -> None:
    source = suite()
    names = listed(source, package, secured)
    assert names
    run_all(source, package, names, secured, tmp_path, at_once=1)  # several change one namespace's policies
