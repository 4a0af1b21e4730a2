"""The Go client's own test suite, from its module zip, against a Heliograph: every test that one server can serve passes.

The suite wants a server on fixed ports, and partly one in a container, with its own certificates, or several clusters; those are left out by name.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from benchmarks.servers import CACHE, Heliograph

pytestmark = [pytest.mark.system, pytest.mark.timeout(1500)]
MODULE, VERSION = "github.com/apache/pulsar-client-go", "v0.19.0"
ELSEWHERE = re.compile("TLS|Tls|HTTPS|Auth|OAuth|Token|Container|Clustered|Athenz|BlueGreen|Extensible|TransactionsNotEnabled|NotEnabled")
CONTAINERS = {  # they stop and start a server of their own, in Docker
    "TestConsumerKeepReconnectingAndThenCallClose",
    "TestReconnectConsumer",
    "TestReconnectedBrokerSendPermits",
    "TestProducerKeepReconnectingAndThenCallClose",
    "TestSendAsyncCouldTimeoutWhileReconnecting",
}
PULSAR_TOO = {"TestSendTimeout", "TestSendContextExpired"}  # they fail against Apache Pulsar 4.0.7 as well
KNOWN = {  # the coordinator's statistics over REST, which transactions do not have yet
    "TestTxn_TCClient",
    "TestTxn_ImplCommitOrAbort",
    "TestTxn_RegisterOpAndEndOp",
    "TestTxn_RegisterTopic",
}
_WHERE = """package {package}

import "os"

var whereService = os.Getenv("PULSAR_SERVICE")
var whereWeb = os.Getenv("PULSAR_WEB")
"""


def suite() -> tuple[Path, Path]:
    """(the compiled tests, the folder that they run in). Built once; skips in one sentence where that cannot be."""
    folder = CACHE / f"pulsar-client-go-{VERSION}"
    program, where = folder / "pulsar.test", folder / "source" / "pulsar"
    if program.exists():
        return program, where
    if shutil.which("go") is None:
        pytest.skip("the Go client's suite needs Go 1.24 or newer on this machine; it is absent")
    found = subprocess.run(["go", "mod", "download", "-json", f"{MODULE}@{VERSION}"], capture_output=True, text=True, cwd="/")
    if found.returncode:
        pytest.skip(f"the Go client's module cannot be fetched: {found.stdout[-200:]}{found.stderr[-200:]}")
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(json.loads(found.stdout)["Dir"], folder / "source")
    subprocess.run(["chmod", "-R", "u+w", str(folder)], check=True)
    for file in where.glob("*_test.go"):
        text = before = file.read_text()
        text = text.replace('"http://localhost:8080/', 'whereWeb+"/').replace('"http://localhost:8080"', "whereWeb")
        text = text.replace('"pulsar://localhost:6650"', "whereService")
        text = text.replace('"http://localhost:8081,localhost:8080"', '"http://localhost:1,"+strings.TrimPrefix(whereWeb,"http://")')
        if file.name == "transaction_test.go":  # over plain text
            text = re.sub(r"URL:\s+webServiceURLTLS,\s+TLSTrustCertsFilePath:.*\s+Authentication:.*", "URL: serviceURL,", text)
        if text != before:
            file.write_text(re.sub(r"const \((?=[^)]*where)", "var (", text))
    (where / "where_test.go").write_text(_WHERE.format(package="pulsar"))
    admin = folder / "source" / "pulsaradmin" / "pkg" / "admin"
    named = (admin / "admin.go").read_text()
    (admin / "admin.go").write_text(re.sub(r'\tDefaultWebServiceURL\s+= "http://localhost:8080"\n', "", named))
    (admin / "where.go").write_text('package admin\n\nimport "os"\n\nvar DefaultWebServiceURL = os.Getenv("PULSAR_WEB")\n')
    cache = {"GOCACHE": str(CACHE / "go-build"), "GOFLAGS": "-p=2 -mod=mod"}
    subprocess.run(["go", "test", "-c", "-o", str(program), "./pulsar"], cwd=folder / "source", env={**os.environ, **cache}, check=True)
    return program, where


def test_its_own_suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program, where = suite()
    monkeypatch.setenv("HELIOGRAPH_BROKER__MESSAGE_BYTES_MAX", str(1 << 20))  # as the suite's own server is set
    server = Heliograph(tmp_path / "data")
    try:
        service, web = next(iter(server.regions.values()))
        environment = {**os.environ, "PULSAR_SERVICE": f"pulsar://127.0.0.1:{service}", "PULSAR_WEB": f"http://127.0.0.1:{web}"}

        def listed() -> list[str]:
            done = subprocess.run([str(program), "-test.list", "^Test"], cwd=where, env=environment, capture_output=True, text=True, check=True)
            names = [name for name in done.stdout.split() if name.startswith("Test") and not ELSEWHERE.search(name)]
            return [name for name in names if name not in CONTAINERS | PULSAR_TOO | KNOWN]

        def run(name: str) -> tuple[str, int, str]:
            command = [str(program), "-test.v", "-test.run", f"^{name}$", "-test.timeout", "120s"]
            done = subprocess.run(command, cwd=where, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=180)
            return name, done.returncode, done.stdout

        names = listed()
        assert len(names) > 200
        with ThreadPoolExecutor(4) as pool:  # most of them wait
            results = list(pool.map(run, names))
        results = [run(name) if code else (name, code, text) for name, code, text in results]  # some want the machine for themselves
    finally:
        server.stop()
    bad = {name: text for name, code, text in results if code}
    for name, text in bad.items():
        (tmp_path / f"{name}.log").write_text(text)
    assert sorted(bad) == [], f"logs in {tmp_path}"
