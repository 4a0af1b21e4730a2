"""Founding: how the first voters of a group find out that there is no group yet, and may make one.

Is: what one of them knows of the lives of all. Isn't: what a member that takes no part in a founding waits for
(`leader`), or when it asks (`core`).
A life begins where a member finds its folder empty, and has a number by chance. An empty folder may be that of a voter
that has forgotten how it voted and what it stored: such a one is unproven, and neither votes nor stands nor counts.
Each first voter tells the others which lives it has heard of. The group is founded once all of them, unproven, name the
same lives of all; whoever knows that keeps those lives and tells them, and whoever finds its own life among them
belongs to the founding.
A first voter that was alone, and whose settings name members that came later, founds only once each of those says that
no leader has spoken to it: where there is a group, one of them says that it knows of it, and its leader speaks to the
founder, which it knows. Where the step that made its folder has enrolled it, it waits for those that are there alone:
an instance begins host by host, and region by region, and a folder that was emptied is enrolled no more.
Invariant: of a life that is named in a founding, no earlier one of that member has voted for, or stored anything of, a
member that keeps its folder: all others were still unproven when it had begun.
Source: docs/decisions/0204-an-empty-folder-counts-for-nothing.md.
"""

from __future__ import annotations

from heliograph.raft.messages import Founding, FoundingStage, Lives


class Founders:
    """founders: all first voters; empty for a member that was none. lives: of the founding, where it is known. later:
    who came later, as the settings of a first voter that was alone say. enrolled: its folder is of a member that never
    ran, as the step says that made it. known: one of those that came later knows of a group.
    """

    __slots__ = ("_fresh", "_heard", "_told", "enrolled", "founders", "known", "later", "life", "lives", "node_id")

    def __init__(
        self,
        node_id: str,
        life: int,
        founders: tuple[str, ...] = (),
        lives: Lives = (),
        later: tuple[str, ...] = (),
        *,
        enrolled: bool = False,
    ) -> None:
        self.node_id, self.life, self.founders, self.lives = node_id, life, founders, lives
        self.later = later if founders == (node_id,) else ()
        self.enrolled, self.known = enrolled and bool(self.later), False
        self._fresh: dict[str, None] = {}
        self._heard = {node_id: life}
        self._told: dict[str, Lives] = {}
        """Which lives each of the others has heard of, as it said last."""

    def begin_again(self, life: int) -> None:
        """Another life, in a folder that is not what it was, and so belongs to no founding."""
        self.life, self.lives, self.enrolled = life, (), False
        self._heard = {self.node_id: life}
        self._told.clear()
        self._fresh.clear()

    def hear_later(self, sender: str, message: Founding, *, fresh: bool) -> None:
        """One of `later` answers this first voter, which is unproven. Once all know of no group there is none."""
        if message.stage is not FoundingStage.FRESH:
            self.known = True
        elif fresh and not self.known:
            self._fresh[sender] = None
            if self._fresh.keys() >= set(self.later):
                self.found_alone()

    def found_alone(self) -> None:
        """It is a founding of this life alone."""
        self.lives = ((self.node_id, self.life),)

    def others(self) -> list[str]:
        return [founder for founder in self.founders if founder != self.node_id]

    def question(self, *, fresh: bool) -> Founding:
        """fresh: no leader has spoken to this life; otherwise there is a group, and it only asks whether it belongs to
        its founding.
        """
        return Founding(0, FoundingStage.FRESH if fresh else FoundingStage.LATE, tuple(sorted(self._heard.items())))

    def answer(self) -> Founding | None:
        """What a member that is proven says to one that is not."""
        return Founding(0, FoundingStage.FOUNDED, self.lives) if self.lives else None

    def hear(self, sender: str, message: Founding, *, fresh: bool) -> bool:
        """Another one says something to this one, which is unproven. Returns whether there is something to tell."""
        lives = dict(message.lives)
        if message.stage is FoundingStage.FOUNDED:
            if lives.get(self.node_id) == self.life:
                self.lives = message.lives
            return False
        if message.stage is FoundingStage.LATE or not fresh or sender not in lives:
            return False
        self._told[sender] = message.lives
        news = self._heard.get(sender) != lives[sender]
        self._heard[sender] = lives[sender]
        known = tuple(sorted(self._heard.items()))
        if len(known) == len(self.founders) and all(self._told.get(other) == known for other in self.others()):
            self.lives = known
        return news
