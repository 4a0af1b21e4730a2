"""A soak goes on where it was ended, on the same commit alone, and says which kinds of faults hardly happen."""

from __future__ import annotations

import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path

from geo_tests.sim.life_faults import SOME
from geo_tests.sim.passive_world import PassiveWorld
from geo_tests.sim.soak import known_kinds, settings_of, summary
from geo_tests.sim.soak_record import ENOUGH, RARE, Ran, SoakRecord, rare_kinds, record_of
from geo_tests.sim.world import World


def test_what_passed_is_remembered_and_what_failed_is_run_again(tmp_path: Path) -> None:
    path = tmp_path / ".soak" / "commit.world.jsonl"
    record = SoakRecord(path)
    record.add(Ran(seed=1, messages=5, kinds={"cut wan": 2}, reports={"risk": 3}))
    record.add(Ran(seed=2, error="Violation: lost"))
    record.add(Ran(seed=3))
    with path.open("a") as file:
        file.write('\n{"seed": 4, "mess')  # the machine lost power here
    again = SoakRecord(path)
    assert again.passed == {1: Ran(seed=1, messages=5, kinds={"cut wan": 2}, reports={"risk": 3}), 3: Ran(seed=3)}
    again.add(Ran(seed=3, error="Violation: twice"))
    assert set(SoakRecord(path).passed) == {1}


def test_lines_that_are_no_records_count_for_nothing(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text('\n[]\n"x"\n{"seed": 1, "of another version": 2}\n{"seed": 7}\n')
    assert set(SoakRecord(path).passed) == {7}


def test_a_record_is_of_one_commit_and_of_none_where_the_tree_was_changed(tmp_path: Path) -> None:
    def git(*words: str) -> None:
        subprocess.run(["git", "-c", "user.name=t", "-c", "user.email=t@t", *words], cwd=tmp_path, check=True)

    git("init", "-q")
    (tmp_path / ".gitignore").write_text(".soak/\n")
    git("add", ".")
    git("commit", "-qm", "one")
    record_of("world", tmp_path).add(Ran(seed=1))
    assert set(record_of("world", tmp_path).passed) == {1} and not record_of("passive", tmp_path).passed
    (tmp_path / "new").write_text("x")
    changed = record_of("world", tmp_path)
    changed.add(Ran(seed=2))
    assert set(changed.passed) == {2} and not record_of("world", tmp_path).passed
    git("add", ".")
    git("commit", "-qm", "two")
    assert not record_of("world", tmp_path).passed
    git("checkout", "-q", "HEAD~1")
    assert set(record_of("world", tmp_path).passed) == {1}


def test_a_folder_that_is_no_checkout_has_no_record(tmp_path: Path) -> None:
    record_of("world", tmp_path).add(Ran(seed=1))
    assert not list(tmp_path.iterdir())


def test_kinds_that_hardly_happen_are_named_where_enough_worlds_ran() -> None:
    often = [Ran(seed=n, kinds={"cut wan": 3, "wrong clock": 1} if n % 20 == 0 else {"cut wan": 1}) for n in range(500)]
    assert len(often) == ENOUGH and rare_kinds(often, {"": ("cut wan", "wrong clock")}) == {}
    assert rare_kinds(often, {"": ("cut wan", "wiped disk")}) == {"wiped disk": 0.0}
    seldom = [*often[1:], Ran(seed=500, kinds={"cut wan": 1})]
    assert rare_kinds(seldom, {"": ("cut wan", "wrong clock")}) == {"wrong clock": 24 / 500}
    assert rare_kinds(often[:-1], {"": ("wiped disk",)}) == {}
    lines = summary(seldom, {"wrong clock": 24 / 500})
    assert (
        lines[0].startswith("500 worlds passed")
        and "too rare: wrong clock, in 4.8% of the worlds that draw it" in lines[-1]
    )
    assert any("24 wrong clock, in 5% of the worlds" in line for line in lines)
    assert "       0 rot, in 0% of the worlds" in summary(seldom, {}, {"": ("rot",)})


def test_a_kind_is_wanted_of_the_worlds_that_draw_it() -> None:
    known = {"a": ("cut wan", "wiped disk"), "b": ("cut wan",)}
    ran = [Ran(seed=n, sort="ab"[n % 2], kinds={"cut wan": 1}) for n in range(2 * ENOUGH)]
    assert rare_kinds(ran, known) == {"wiped disk": 0.0} and rare_kinds(ran[2:], known) == {}
    ran = [replace(one, kinds={"cut wan": 1, "wiped disk": 1}) if one.seed % 36 == 0 else one for one in ran]
    assert rare_kinds(ran, known) == {}, "of half of the worlds it is 5.6 %"
    assert any("28 wiped disk, in 6% of the worlds" in line for line in summary(ran, {}, known))


def test_every_kind_of_fault_is_wanted_and_drawn_often_enough() -> None:
    """By its weight in each sort of world: what is refused leaves enough."""
    ran = [Ran(seed=seed, sort=World(seed, settings_of(seed)).sort()) for seed in range(160)]
    known = known_kinds(ran)
    assert [settings_of(seed).weather for seed in range(4)] == [False, True, False, True]
    every = set().union(*known.values())
    assert {"wipe bookie", "roll voter back", "restore configuration", "come again", "go back", "truncate"} <= every
    assert {"delete and make again", "edit while cut off", "broker runs ahead", "rot", "silent region"} <= every
    passive = PassiveWorld(0)
    assert {"stop broker", "stop metadata", "cut wan"} <= passive.kinds()
    assert passive.kinds() == known_kinds([Ran(seed=0, sort="x")], passive=True)["x"]
    for world in (
        passive,
        *(World(one.seed, settings_of(one.seed)) for one in {one.sort: one for one in ran}.values()),
    ):
        weights, faults = Counter[str](), world.settings.faults
        for weight, kind in world.faults.kinds:
            weights[kind.__name__] += weight
        assert 1 - (1 - min(weights.values()) / weights.total()) ** faults > 1.3 * RARE, (world.verdict.sort, weights)
        rare = [weight for weight, _ in world.faults.lives.rare()]
        assert not rare or SOME * min(rare) / sum(rare) > 1.2 * RARE
