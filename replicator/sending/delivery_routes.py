"""DeliveryRoute: of which origins this region delivers to one target, what of them it has sent, and what the target
holds.

Is: whose business an entry is, by the trees and the target's vector: the part of `replicator.sending.link_sender` that
its decisions rest on. Isn't: a decision what is sent.
Invariants: of an origin only its tree's parent of the target delivers, and only once the target holds what it gets by
earlier trees; the origin itself takes over what no parent delivers, up to the newest record of its tree.
Source: docs/protocols/links.md, "Topologies".
"""

from __future__ import annotations

from heliograph.model.coordinates import Origin, Vector
from heliograph.model.positions import BEFORE_ALL, Position
from replicator.log.routing_trees import Tree
from replicator.log.topic_state import TopicState


class DeliveryRoute:
    """From this region (`region`; "": there are no trees) to `target`. `mark`: everything at or below it needs no
    sending any more.
    """

    def __init__(self, target: str, state: TopicState, mark: Position, region: str) -> None:
        self.target, self.state, self.region = target, state, region
        self.mark = mark
        self.remote = Vector()
        """Durable at the target, as last heard."""
        self.takes_over: Position | None = None
        """The target is behind a change of trees and gets nothing from its parent there: up to here the origin, this
        region, delivers itself.
        """
        self._sent: dict[Origin, Position] = {}

    def previous(self, origin: Origin) -> Position:
        """The coordinate of `origin` that was sent last on this attempt, or that the target holds."""
        return max(self._sent.get(origin, BEFORE_ALL), self.remote.prefix(origin))

    def _is_parent(self, origin: Origin, tree: Tree | None, at: Position) -> bool:
        """Whether this region delivers to the target what lies at coordinate `at`, and goes by `tree`."""
        own = self.state.is_own(origin)
        if tree is None:
            return own
        return tree.parent(self.target) == self.region or (
            own and self.takes_over is not None and at <= self.takes_over
        )

    def ready(self, origin: Origin) -> bool:
        """Whether what follows at the target is this region's to send: else another region closes its range first."""
        previous = self.previous(origin)
        return self._is_parent(origin, self.state.trees.following(origin, previous), (previous[0], previous[1] + 1))

    def pending(self) -> bool:
        """Whether the target is behind a change of this region's trees."""
        book, origin = self.state.trees, self.state.origin
        return book.following(origin, self.remote.prefix(origin)) is not book.newest(origin)

    def _foreign(self) -> list[Origin]:
        """Other regions' origins that some tree sends to the target from here."""
        book = self.state.trees
        return [
            origin
            for origin in book
            if not self.state.is_own(origin) and book.uses(origin, self.region, self.target, self.remote.prefix(origin))
        ]

    def _relays(self) -> bool:
        return bool(self.state.trees) and bool(self._foreign())

    def _gone(self, first: Position) -> list[Origin]:
        """Origins of which something may have been trimmed that lay behind the mark: the topic begins at `first`."""
        if first <= self.mark or self.state.trees.adjacent(self.mark, first):
            return []
        end, before = (first[0], first[1] - 1), self.state.positions.before
        return [origin for origin in self._foreign() if before(origin, end)[0] > BEFORE_ALL]
