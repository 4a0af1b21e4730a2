"""FetchSessions: what clients fetch, so that they need not name it each time.

Is: incremental sessions of one broker. Isn't: an answer (`fetch`).
Invariants: a session that is not known, or another role's, is refused, and the client begins a new one.
Bounds: PARTITIONS_A_SESSION in one session, PARTITIONS_MAX in all of a broker's.
Source: Kafka KIP-227; docs/protocols/kafka.md, "Fetch".
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from heliograph.runtime.clock import Rng
from heliograph.wire.kafka.message_codec import Fields
from region_node.faces.kafka.error_codes import Code, Refused

Key = tuple[str | bytes, int]
"""(the topic, by its id from version 13 on and before by its name; partition)"""
Wanted = dict[Key, Fields]
PARTITIONS_A_SESSION = 10_000
PARTITIONS_MAX = 500_000


class FetchSession:
    """What one client fetches, so that it need not say it again. `owner`: its roles. `sent`: what each partition's last
    answer said.
    """

    __slots__ = ("by_id", "epoch", "number", "owner", "sent", "wanted")

    def __init__(self, number: int, owner: tuple[str, ...], by_id: bool) -> None:
        self.number, self.owner, self.epoch, self.by_id = number, owner, 1, by_id
        self.wanted: Wanted = {}
        self.sent: dict[Key, tuple[int, int, int]] = {}


class FetchSessions:
    """Holds one broker's incremental sessions; beyond `count_max`, or `partitions_max` in all, the longest unused goes
    first. A session that is another role's is not known. session_partitions_max: of one.
    """

    def __init__(
        self,
        count_max: int,
        rng: Rng,
        *,
        partitions_max: int = PARTITIONS_MAX,
        session_partitions_max: int = PARTITIONS_A_SESSION,
    ) -> None:
        self._sessions: OrderedDict[int, FetchSession] = OrderedDict()
        self._max, self._rng = count_max, rng
        self._partitions_max, self._session_partitions_max = partitions_max, session_partitions_max
        self._partitions = 0

    def begin(self, owner: tuple[str, ...], by_id: bool, wanted: Wanted) -> FetchSession | None:
        """None: it wants so many partitions that its client is to name them each time."""
        if len(wanted) > self._session_partitions_max:
            return None
        number = 0
        while number == 0 or number in self._sessions:
            number = self._rng.getrandbits(31)
        session = self._sessions[number] = FetchSession(number, owner, by_id)
        self.change(session, wanted)
        return session

    def go_on(self, number: int, owner: tuple[str, ...], epoch: int, by_id: bool) -> FetchSession:
        """Returns a session and moves it to its next epoch. Raises Refused: not known, or asked otherwise."""
        session = self._sessions.get(number)
        if session is None or session.owner != owner:
            raise Refused(Code.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            raise Refused(Code.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            raise Refused(Code.FETCH_SESSION_TOPIC_ID_ERROR)
        session.epoch = 1 if epoch == (1 << 31) - 1 else epoch + 1
        self._sessions.move_to_end(number)
        return session

    def change(self, session: FetchSession, wanted: Wanted, forgotten: Iterable[Key] = ()) -> None:
        """It wants these too, or otherwise than before, and those no more. Raises Refused where it ends by that: its
        client begins anew, and is told to do without.
        """
        before = len(session.wanted)
        for key in forgotten:
            session.wanted.pop(key, None)
            session.sent.pop(key, None)
        session.wanted.update(wanted)
        self._partitions += len(session.wanted) - before
        if len(session.wanted) > self._session_partitions_max:
            self._drop(session.number)
            raise Refused(Code.FETCH_SESSION_ID_NOT_FOUND)
        while len(self._sessions) > self._max or self._partitions > self._partitions_max:
            self._drop(next(iter(self._sessions)))

    def end(self, number: int, owner: tuple[str, ...]) -> None:
        session = self._sessions.get(number)
        if session is not None and session.owner == owner:
            self._drop(number)

    def _drop(self, number: int) -> None:
        self._partitions -= len(self._sessions.pop(number).wanted)

    def __len__(self) -> int:
        return len(self._sessions)
