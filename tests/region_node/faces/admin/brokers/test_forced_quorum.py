"""What a broker adds to the plan of a forced quorum, and that it has nothing done that is refused."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.model.errors import HeliographError, MetadataUnavailable, NotAllowed
from region_node.faces.admin.brokers import forced_quorum
from region_node.faces.admin.brokers.forced_quorum import Lost, force, rejoin
from region_node.faces.admin.calls.other_regions import RegionAnswered, RegionRefused


class Asked:
    """A broker of eu, whose node would go on without us. silent_s: of links from us."""

    def __init__(self, silent_s: float, refused: list[str]) -> None:
        self.verbs: list[tuple[str, ...]] = []
        self.changes: list[Any] = []
        self.refused = refused
        self.region = "eu"
        self.links = SimpleNamespace(silent_s=lambda region: silent_s)
        self.view = SimpleNamespace(region=lambda name: name if name == "us" else None)
        self.members = {"config": self._group}
        self.region_patience_s = 1.0

    async def _group(self, verb: str, member: str, said: str = "") -> tuple[dict[str, Any], bool]:
        self.verbs.append((verb, member, said))
        plan = {"refused": list(self.refused), "silent_s": {"us": 50.0, "oslo": 50.0}}
        return {"members": [], "generation": 1, "plan": plan}, True

    def changed(self, request: Any, before: Any, after: Any) -> None:
        self.changes.append(after)


def ask(
    asked: Any, *, dry: bool = False, answers: bool | HeliographError = False, stopped: bool = True
) -> dict[str, Any]:
    async def elsewhere(*_: Any) -> None:
        if isinstance(answers, HeliographError):
            raise answers
        if not answers:
            raise MetadataUnavailable("region us does not answer")

    request: Any = SimpleNamespace(query={"dry_run": "true"} if dry else {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forced_quorum, "elsewhere", elsewhere)
        return asyncio.run(force(asked, request, Lost(["us", "oslo"], stopped)))


def test_what_is_not_refused_is_done_and_audited() -> None:
    asked = Asked(60.0, [])
    found = ask(asked)
    assert found["changed"] and [verb for verb, *_ in asked.verbs] == ["dry-force", "force"]
    assert asked.verbs[0][1:] == ("us,oslo", "stopped") and asked.changes
    dry = Asked(60.0, [])
    found = ask(dry, dry=True, stopped=False)
    assert found["would_change"] and not found["changed"] and dry.verbs == [("dry-force", "us,oslo", "")]


@pytest.mark.parametrize(
    ("silent_s", "answers", "refused", "why"),
    [
        (3.0, False, [], "a link from us was heard 3.0 s ago"),
        (60.0, True, [], "a broker of us answers"),
        (60.0, RegionRefused("it answered 403"), [], "a broker of us answers"),
        (60.0, RegionAnswered("it answered 500"), [], "a broker of us answers"),
        (60.0, False, ["us leads"], "us leads"),
    ],
)
def test_nothing_is_forced_while_a_lost_region_is_heard(
    silent_s: float, answers: bool | HeliographError, refused: list[str], why: str
) -> None:
    asked = Asked(silent_s, refused)
    with pytest.raises(NotAllowed, match=why):
        ask(asked, answers=answers)
    assert not asked.changes and [verb for verb, *_ in asked.verbs] == ["dry-force"]
    found = ask(asked, answers=answers, dry=True)
    assert not found["would_change"] and why in found["plan"]["refused"][0]


def test_a_step_of_the_way_back_is_the_nodes() -> None:
    asked: Any = Asked(60.0, [])
    request: Any = SimpleNamespace(match_info={"member": "us"})
    assert asyncio.run(rejoin(asked, request))["changed"] and asked.verbs == [("rejoin", "us", "")]
