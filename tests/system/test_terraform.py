"""The Terraform modules with a real OpenTofu: form, plans, and an instance on hosts of its own that is made, used,
changed, and taken away.

The hosts are network namespaces with addresses, disks, and SSH servers (`tests.system.hosts`), six of them: region eu
on four, us and ap on one each.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from geo_tests.wan.instance import eventually
from tests.guide.page import Page
from tests.guide.shell import Reader, Shell
from tests.system import programs
from tests.system.hosts import PYTHON, Network
from tests.system.prometheus import PATIENCE_S, RULES, Prometheus
from tests.system.releases import wheels

pytestmark = [pytest.mark.system, pytest.mark.timeout(2400)]
ROOT = Path(__file__).resolve().parents[2]
MODULES = ROOT / "terraform"
HELIOGRAPH = Path(sys.executable).with_name("heliograph")
TOPIC = "persistent://public/default/round-the-world"
MIRROR = "providers.tfrc"
"""Beside a configuration: where its providers are, for machines whose way to the registry is closed
(HELIOGRAPH_TERRAFORM_MIRROR).
"""
ALL = ["meta", "config", "bookie", "broker"]
ENVIRONMENT = {"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1", "TF_CLI_ARGS": "-no-color"}
PLACES = {
    "--http 10.1.0.13:8000": "--http 10.66.0.13:8000 --http 10.66.0.15:8000",  # here eu has another bookie
    "cd terraform/": "cd ",
    "tofu init": "tofu init -input=false",
    "tofu apply": "tofu apply -auto-approve -input=false",
    "10.1.0.": "10.66.0.",
    "10.2.0.11": "10.66.0.21",
    "10.3.0.11": "10.66.0.31",
    "/var/lib/heliograph": "/srv/heliograph",
}
"""What stands in docs/operating/deploying.md and restore.md -> what is there in its place."""
_APPLY_S = 1500


def tofu(
    folder: Path, *words: str, prefix: list[str] | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("TF_")}
    env |= {"CHECKPOINT_DISABLE": "1", "TF_IN_AUTOMATION": "1"}
    if (folder / MIRROR).exists():
        env["TF_CLI_CONFIG_FILE"] = str(folder / MIRROR)
    command = [*(prefix or []), str(programs.tofu()), f"-chdir={folder}", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=env, timeout=_APPLY_S)
    said = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    assert not check or done.returncode == 0, said[-6000:]
    return subprocess.CompletedProcess(command, done.returncode, said, "")


@pytest.fixture(scope="session")
def copied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Terraform folder, where `init` may write."""
    folder = tmp_path_factory.mktemp("terraform") / "terraform"
    shutil.copytree(MODULES, folder, ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    return folder


def test_everything_is_formatted() -> None:
    tofu(MODULES, "fmt", "-check", "-recursive", "-diff")


@pytest.mark.parametrize("folder", ["modules/instance", "modules/region", "examples/ssh", "examples/local"])
def test_it_is_valid(copied: Path, folder: str) -> None:
    tofu(copied / folder, "init", "-backend=false", "-input=false")
    tofu(copied / folder, "validate")


@pytest.mark.parametrize("folder", ["examples/aws", "examples/gcp"])
def test_a_cloud_is_valid_where_its_provider_can_be_had(copied: Path, folder: str) -> None:
    if mirror := os.environ.get("HELIOGRAPH_TERRAFORM_MIRROR"):
        (copied / folder / MIRROR).write_text(
            f'provider_installation {{\n  filesystem_mirror {{\n    path = "{mirror}"\n  }}\n}}\n'
        )
    if (done := tofu(copied / folder, "init", "-backend=false", "-input=false", check=False)).returncode:
        assert "provider" in done.stdout, done.stdout
        pytest.skip(
            f"the provider of {folder} cannot be had here, from no registry and no mirror (HELIOGRAPH_TERRAFORM_MIRROR)"
        )
    tofu(copied / folder, "validate")


def test_three_regions_on_this_machine(copied: Path, tmp_path: Path) -> None:
    folder, data = copied / "examples" / "local", tmp_path / "data"
    given = ["-auto-approve", "-input=false", f"-var=data={data}", f"-var=heliograph={HELIOGRAPH}"]
    tofu(folder, "init", "-input=false")
    tofu(folder, "apply", *given)
    try:
        regions = json.loads(Path(f"{data}.status.json").read_text())["regions"]
        assert set(regions) == {"us", "eu", "ap"}
        subprocess.run(
            [str(HELIOGRAPH), "produce", TOPIC, "-m", "hello", "--service", regions["us"]["service_url"]],
            check=True,
            capture_output=True,
        )
        said = subprocess.run(
            [str(HELIOGRAPH), "consume", TOPIC, "-n", "1", "--service", regions["ap"]["service_url"]],
            capture_output=True,
            text=True,
        )
        assert said.stdout.strip() == "hello", said
    finally:
        tofu(folder, "destroy", *given)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"wait_s": 0}, "The wait is 1 to 86400 seconds."),
        ({"regions": {}}, "An instance has one region at least"),
        ({"service": "upstart"}, "The service is systemd, or plain where a host has no systemd."),
        (
            {"regions": {"eu": {"number": 1, "hosts": {"a": {"address": "10.0.0.1", "roles": ALL}}}}},
            "Each region wants at least two bookies",
        ),
        ({}, "Say where heliograph-server comes from"),
    ],
)
def test_a_wrong_variable_is_told_in_a_sentence(copied: Path, wrong: dict[str, Any], sentence: str) -> None:
    tofu(copied / "examples" / "ssh", "init", "-backend=false", "-input=false")
    good = {"eu": {"number": 1, "hosts": {"a": {"address": "10.0.0.1", "roles": ALL, "bookies": 2}}}}
    (copied / "wrong.tfvars.json").write_text(json.dumps({"regions": good, **wrong}))
    done = tofu(
        copied / "examples" / "ssh", "plan", "-input=false", f"-var-file={copied / 'wrong.tfvars.json'}", check=False
    )
    assert done.returncode == 1 and sentence in " ".join(done.stdout.replace("│", " ").split()), done.stdout


def test_the_modules_own_tests_pass(copied: Path) -> None:
    """Plans, and one sentence for each variable that is wrong."""
    tofu(copied / "modules" / "instance", "init", "-backend=false", "-input=false")
    said = tofu(copied / "modules" / "instance", "test").stdout
    assert re.search(r"Success! (\d+) passed, 0 failed", said), said


def _without_steps(text: str) -> str:
    """A module's text without provisioners and connections: what is left only keeps state."""
    kept, depth = list[str](), 0
    for line in text.splitlines():
        if depth or re.match(r'\s*(provisioner "[\w-]+"|connection) \{', line):
            depth += line.count("{") - line.count("}")
        else:
            kept.append(line)
    return "\n".join(kept) + "\n"


def test_a_witness_of_before_it_was_among_the_regions_is_moved_and_nothing_is_destroyed(tmp_path: Path) -> None:
    """Its module was a call of its own, with the same hosts' steps."""
    shutil.copytree(MODULES, tmp_path / "t", ignore=shutil.ignore_patterns(".terraform*", "*.tfstate*"))
    folder = tmp_path / "t" / "modules" / "instance"
    for text in (folder / "main.tf", folder.parent / "region" / "main.tf"):
        text.write_text(_without_steps(text.read_text()))
    hosts = {"a": {"address": "10.0.0.1", "roles": ALL, "bookies": 2}}
    given = {
        "name": "moved",
        "regions": {name: {"number": number, "hosts": hosts} for number, name in enumerate(("eu", "us"), 1)},
        "witness": {"name": "oslo", "address": "10.0.0.9"},
        "wheels": str(tmp_path),
        "work": str(tmp_path / "work"),
    }
    given["regions"]["us"]["hosts"] = {"b": {**hosts["a"], "address": "10.0.0.2"}}  # type: ignore[index]
    (folder / "terraform.tfvars.json").write_text(json.dumps(given))
    tofu(folder, "init", "-input=false")
    tofu(folder, "apply", "-auto-approve", "-input=false")
    tofu(folder, "state", "mv", 'module.region["oslo"]', 'module.witness["oslo"]')
    said = tofu(folder, "plan", "-input=false").stdout
    assert 'module.witness["oslo"].terraform_data.host["oslo"] has moved to' in said
    assert "will be destroyed" not in said and "must be replaced" not in said, said
    assert "0 to add, 0 to change, 0 to destroy" in said, said


# -- an instance -------------------------------------------------------------------------------------------------------


class Deployed:
    """`examples/ssh`, given to hosts by `tofu apply`."""

    def __init__(self, folder: Path, network: Network, wheels: Path) -> None:
        self.network, self.folder = network, folder / "examples" / "ssh"
        eu = {name: {"address": network.add(name, number)} for number, name in enumerate(("eu-a", "eu-b", "eu-c"), 11)}
        eu["eu-a"]["roles"] = ALL  # type: ignore[assignment]
        eu["eu-d"] = {"address": network.add("eu-d", 15), "roles": ["bookie"]}
        single = {
            name: {"address": network.add(name, number), "roles": ALL, "bookies": 2}
            for number, name in ((21, "us-a"), (31, "ap-a"))
        }
        self.given: dict[str, Any] = {
            "regions": {
                "eu": {"number": 1, "hosts": eu},
                "us": {"number": 2, "hosts": {"us-a": single["us-a"]}},
                "ap": {"number": 3, "hosts": {"ap-a": single["ap-a"]}},
            },
            "ssh": {"key_file": str(network.key), "timeout": "5m"},
            "service": "plain",
            "data": "/srv/heliograph",
            "settings": {"broker": {"cache_mb": 16}, "security": {"allow_insecure": True}},
            "wheels": str(wheels),
            "pip_options": "--no-compile",
            "python": PYTHON,
            "heliograph": str(HELIOGRAPH),
            "wait_s": 900,
        }
        for region in self.given["regions"].values():
            for host in region["hosts"].values():
                host["ssh_host_key"] = network.host_key
        tofu(self.folder, "init", "-input=false")

    def write(self) -> None:
        (self.folder / "test.auto.tfvars.json").write_text(json.dumps(self.given))

    def do(self, *words: str, check: bool = True) -> str:
        self.write()
        return tofu(self.folder, *words, prefix=self.network.inside([]), check=check).stdout

    def apply(self) -> str:
        return self.do("apply", "-auto-approve", "-input=false")

    def urls(self) -> dict[str, str]:
        """Region -> one broker's service URL."""
        found: dict[str, Any] = json.loads(self.do("output", "-json", "regions"))
        return {region: str(found[region]["service_url"]).partition(",")[0] for region in ("eu", "us", "ap")}

    @property
    def ssh(self) -> list[str]:
        """What a page's `ssh` is here."""
        options = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
        return [shutil.which("ssh") or "/usr/bin/ssh", "-i", str(self.network.key), *options]

    def address(self, host: str) -> str:
        return str(
            next(h["address"] for r in self.given["regions"].values() for name, h in r["hosts"].items() if name == host)
        )


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    found = Network(tmp_path)
    try:
        yield found
    finally:
        found.close()


def turns(said: str, region: str) -> list[str]:
    """The hosts of a region's rolling change, in order, each once for all of its consecutive lines. Regions change side
    by side.
    """
    hosts = re.findall(rf'terraform_data\.active\["({region}-[^"]+)"\] \(remote-exec\): (?:stops|starts) ', said)
    return [host for at, host in enumerate(hosts) if at == 0 or hosts[at - 1] != host]


def test_an_instance_over_ssh_from_nothing_to_nothing(copied: Path, network: Network, tmp_path: Path) -> None:
    instance = Deployed(copied, network, wheels(tmp_path / "first", "0.1.0"))
    with Shell(copied, places=PLACES, prefix=network.inside([]), **ENVIRONMENT) as shell:
        shell.program("tofu", [str(programs.tofu())])
        shell.program("ssh", instance.ssh)
        page = Reader(Page.read("deploying.md"), shell)
        instance.write()
        page.section("Hosts over SSH")
        page.section("Watch it")
        at_a_cut(network, tmp_path / "prometheus", instance.folder / "targets.json")
        follow_the_rest(instance, page, tmp_path)


def at_a_cut(network: Network, folder: Path, targets: Path) -> None:
    """Region us loses its network: the alert of its links fires in eu, and clears when it is back."""
    config = (
        (RULES / "shard.yaml")
        .read_text()
        .replace("rule_files: [recording.yaml]", "rule_files: [recording.yaml, alerts.yaml]")
    )
    watcher = Prometheus(folder, config, {"targets.json": targets.read_text()}, prefix=network.inside([]))
    fired = ("HeliographLinkDown", "eu", "us")
    try:
        eventually(
            lambda: watcher.ask('up{cluster="eu"} == 1') and fired not in watcher.firing(),
            "eu is scraped, and its links stand",
            PATIENCE_S,
        )
        network.cable(21, plugged=False)
        eventually(lambda: fired in watcher.firing(), "the alert of the link to us fires", PATIENCE_S)
        network.cable(21, plugged=True)
        eventually(
            lambda: fired not in watcher.firing() and watcher.ask('up{cluster="us"} == 1'), "it clears", PATIENCE_S
        )
    finally:
        watcher.stop()


def restored(instance: Deployed, shell: Shell, urls: dict[str, str]) -> None:
    """eu loses the metadata of its three voters, and gets it back from a backup: what was there is there, and messages
    go both ways.
    """
    reader = Reader(Page.read("restore.md"), shell)
    for heading in reader.page.headings:
        reader.section(heading)
    reader.finish()
    kept = shell.run(f"heliograph consume {TOPIC} -n 3 -s again --earliest --timeout 300 --service {urls['eu']}")
    assert all(f"from {region}" in kept for region in urls), kept
    members = json.loads(shell.run(f"heliograph meta members --admin http://{instance.address('eu-a')}:8080 --json"))[
        "members"
    ]
    assert {row["member"]: row["role"] for row in members} == {f"eu-{name}-meta": "voter" for name in "abc"}
    for region, other, reads in (("eu", "us", "-n 1 -s reader-us"), ("us", "eu", "-n 2 -s again")):
        shell.run(f"heliograph produce {TOPIC} -m 'restored, {region}' --service {urls[region]}")
        assert f"restored, {region}" in shell.run(
            f"heliograph consume {TOPIC} {reads} --timeout 300 --service {urls[other]}"
        )


class Publisher:
    """A client in eu that publishes without a pause, while something is done to the region."""

    def __init__(self, network: Network, shell: Shell, urls: dict[str, str], topic: str) -> None:
        self._shell, self._read = shell, f"heliograph consume {topic} -s all --timeout 300 --service {urls['ap']} -n"
        shell.run(f"heliograph consume {topic} -n 0 -s all --timeout 1 --service {urls['ap']}")
        program = str(Path(__file__).with_name("through_an_upgrade.py"))
        words = network.inside([sys.executable, program, urls["eu"], topic])
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None and self._process.stdout.readline() == "publishing\n"

    def ended(self) -> None:
        """It saw no error, and in another region everything that was confirmed is there, once and in order."""
        assert self._process.poll() is None
        told, _ = self._process.communicate("", timeout=300)
        result = json.loads(told.splitlines()[-1])
        assert result["confirmed"] > 0 and result["errors"] == 0, result
        read = self._shell.run(f"{self._read} {result['confirmed']}")
        assert read.split() == [str(at) for at in range(result["confirmed"])]


def follow_the_rest(instance: Deployed, page: Reader, tmp_path: Path) -> None:
    network, shell = instance.network, page.shell
    # Messages go round: what any region publishes is read in each.
    urls = instance.urls()
    for region, url in urls.items():
        shell.run(f"heliograph produce {TOPIC} -m 'from {region}' --service {url}")
    for region, url in urls.items():
        said = shell.run(f"heliograph consume {TOPIC} -n 3 -s reader-{region} --earliest --timeout 300 --service {url}")
        assert all(f"from {other}" in said for other in urls), f"{region}: {said}"
    restored(instance, shell, urls)

    # Nothing to do is nothing done.
    assert "No changes" in instance.do("plan", "-input=false")

    # An upgrade rolls while a client publishes: one host at a time, and what was confirmed is there.
    publisher = Publisher(network, shell, urls, "persistent://public/default/through-an-upgrade")
    instance.given["wheels"] = str(wheels(tmp_path / "second", "0.1.1"))
    instance.write()
    before = network.disk("eu-b", "opt").joinpath("heliograph/etc/tls/broker.eu.pem").read_bytes()
    said = page.section("Before you rely on it")[-1]
    page.finish()
    instance.given["renew"] = "autumn"
    assert network.disk("eu-b", "opt").joinpath("heliograph/etc/tls/broker.eu.pem").read_bytes() != before
    publisher.ended()
    assert sorted(turns(said, "eu")) == ["eu-a", "eu-b", "eu-c", "eu-d"], said
    for host in ("eu-a", "us-a"):
        assert "0.1.1" in shell.run(f"ssh root@{instance.address(host)} /opt/heliograph/current/bin/heliograph version")

    # A host is lost with its disks, and another one takes its place.
    network.break_down("eu-c")
    instance.given["regions"]["eu"]["hosts"]["eu-c"] = {
        "address": network.add("eu-c", 14),
        "ssh_host_key": network.host_key,
        "generation": 2,
    }
    instance.do("state", "rm", 'module.instance.module.region["eu"].terraform_data.host["eu-c"]')
    instance.apply()
    members = shell.run(f"heliograph meta members --admin http://{network.address(11)}:8080 --json")
    assert {row["member"]: row["role"] for row in json.loads(members)["members"]} == {
        "eu-a-meta": "voter",
        "eu-b-meta": "voter",
        "eu-c-g2-meta": "voter",
    }
    shell.run(f"heliograph produce {TOPIC} -m 'after the loss' --service pulsar://{network.address(14)}:6650")
    assert "after the loss" in shell.run(
        f"heliograph consume {TOPIC} -n 3 -s reader-ap --timeout 300 --service {urls['ap']}"
    )

    # A host is taken away while a client publishes: its broker's topics and its bookie's copies go to others first.
    publisher = Publisher(network, shell, urls, "persistent://public/default/through-a-removal")
    del instance.given["regions"]["eu"]["hosts"]["eu-d"]
    instance.apply()
    publisher.ended()
    assert (
        not network.processes("eu-d")
        and not list(network.disk("eu-d", "opt").iterdir())
        and not list(network.disk("eu-d", "srv").iterdir())
    )
    listed = json.loads(shell.run(f"heliograph bookies list --admin http://{network.address(11)}:8080 --json"))
    assert "eu-d" not in json.dumps(listed) and "eu-c-g2-bookie-0" in json.dumps(listed)

    # Taken away, nothing is left: no process, no program, no data.
    hosts = [name for region in instance.given["regions"].values() for name in region["hosts"]]
    instance.do("destroy", "-auto-approve", "-input=false")
    for name in hosts:
        eventually(lambda name=name: not network.processes(name), f"{name} is quiet")
        for folder in ("opt", "srv"):
            assert not list(network.disk(name, folder).iterdir()), (
                f"{name}: {list(network.disk(name, folder).rglob('*'))[:5]}"
            )
