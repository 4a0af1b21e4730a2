"""RaftCore: what one member of a Raft group does next.

Is: elections with pre-vote and check-quorum, and what a follower does; events in by method calls, actions out by
`take_actions`. What a leader does is in `leader`, what both hold in `core_state`. Isn't: I/O, clocks, chance (`now` and
`rng` are given), bytes (`messages`), the state machine.
Invariants: one leader a term; the term, the vote, and entries are durable before any message that depends on them
leaves (the shell carries out `Actions` in order: store, then send, then apply, and one batch after the other); a member
that was removed, or that hears no leader where others do, changes no term; votes are asked of, and counted for, the
voters of the configuration in the log. A member that has lost its log votes as if it had it still, and does not stand,
until it holds as much again. One whose folder was empty neither votes nor stands nor counts, until a founding or a
leader proves it (`founding`, `leader`). So it is with one whose folder is an older copy, once another voter says so; it
neither votes for, nor is elected by, a voter that has not said that it knows of no later start (`starts`). Nothing is
heard of another generation than its own (`generations`).
Source: Ongaro, "Consensus: bridging theory and practice", 3-6, 9.6, 6.4.
"""

from __future__ import annotations

import crc32c

from heliograph.model.errors import NotAllowed
from heliograph.raft.actions import FOREVER, Actions, CoreSettings, RaftRole
from heliograph.raft.core_state import IncomingSnapshot
from heliograph.raft.generations import FORCED_TERMS, Standing, following
from heliograph.raft.leader import Leading
from heliograph.raft.membership import forced
from heliograph.raft.messages import (
    CONFIG,
    NOOP,
    Append,
    AppendReply,
    Founding,
    FoundingStage,
    Heartbeat,
    HeartbeatReply,
    LaterGeneration,
    Message,
    Proof,
    SnapshotChunk,
    SnapshotReply,
    StartKnown,
    StartNumber,
    TimeoutNow,
    VoteReply,
    VoteRequest,
    encode_config,
)
from heliograph.raft.progress import Progress
from heliograph.raft.starts import StartsRecord

ANSWER_TIMEOUTS = 10
"""For so many election time-outs a first voter that is enrolled asks those that are to come later."""

__all__ = ["Actions", "CoreSettings", "RaftCore", "RaftRole"]


class RaftCore(Leading):
    """One member. Nothing happens but in these calls; afterwards `take_actions` says what to do, and `next_deadline`
    when to `tick`.
    """

    def _begin(self, now: float) -> None:
        self._draw_election(now)
        if self.standing.superseded:
            self._told_config = self.config
            return
        if self.starts.own:
            self._renumber_at = now + self.settings.renumber_s
            self._tell_start(now)
        if self.unproven:
            if self.deciding == (self.node_id,) and not self.founders.later:
                # there is nobody to whom it could have said anything
                self.founders.found_alone()
                self._found()
            elif self.founders.founders:
                self._ask(now)
                if self.founders.enrolled:
                    self._found_at = now + ANSWER_TIMEOUTS * self.settings.election_timeout_s
        if self.deciding == (self.node_id,) and self.owed is None and not self.unproven:
            self._stand(now)

    def take_actions(self) -> Actions:
        if (
            self.starts.own and self.configs.latest is not self._told_config
        ):  # a member that is new may be asked to stand soon
            self._tell_start(self._now)
        return super().take_actions()

    def next_deadline(self) -> float:
        """FOREVER: a leader that has nobody to lead waits for nothing."""
        return min(
            (self._heartbeat_at if self.progress else FOREVER) if self.role is RaftRole.LEADER else self._election_at,
            self._note_at,
            self._transfer_until,
            self._ask_at,
            self._found_at,
            self._tell_at,
            self._renumber_at,
        )

    # -- events -------------------------------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Time has come to `now`. Early calls do nothing."""
        self._now = now
        if now >= self._note_at:
            self._out.note_commit, self._note_at = True, FOREVER
        if now >= self._ask_at:
            self._ask(now)
        if now >= self._found_at:
            self._found_at = FOREVER
            if self.unproven and self._is_fresh() and not self.founders.known:
                self.founders.found_alone()
                self._found()
        if self.starts.own:
            self._tend_starts(now)
        if now >= self._transfer_until:  # it was not to be: go on leading
            self._end_transfer()
        if self.role is RaftRole.LEADER:
            if now >= self._heartbeat_at:
                self._heartbeat_at = now + self.settings.heartbeat_s
                if self._has_left() or not self._hears_majority(now):
                    self._follow(self.term, "", now)
                else:
                    self._heartbeats()
        elif now >= self._election_at:
            self._draw_election(now)
            if self._may_stand():
                self._campaign(now)
            else:  # it names nobody to its clients whom it does not hear
                self._follow(self.term, "", now)

    def hear(self, sender: str, message: Message, generation: int, now: float) -> None:
        """A message came, of that generation."""
        self._now = now
        if self._is_of(sender, message, generation, now):
            self.receive(sender, message, now)

    def receive(self, sender: str, message: Message, now: float) -> None:
        """A message of this generation came. Any loss, repetition, delay, or order is tolerated."""
        self._now = now
        if isinstance(message, Founding):
            self._on_founding(sender, message, now)
            return
        if isinstance(message, StartNumber | StartKnown):
            self._on_start(sender, message, now)
            return
        if self.unproven and not isinstance(message, Append | Heartbeat | SnapshotChunk | Proof):
            return  # an answer to another life, or a question to a voter
        if message.term > self.term and not _asks_first(message):
            if isinstance(message, VoteRequest) and not message.ordered and self._hears_leader(now):
                return
            self._follow(message.term, sender if isinstance(message, Append | Heartbeat | SnapshotChunk) else "", now)
        elif message.term < self.term:
            if isinstance(message, Append | Heartbeat | SnapshotChunk):
                self._send(sender, AppendReply(self.term, 0, False))  # tells a leader that was cut off
            elif isinstance(message, VoteRequest):
                self._send(sender, VoteReply(self.term, False, message.pre))
            return
        match message:
            case VoteRequest():
                self._on_vote_request(sender, message, now)
            case VoteReply():
                self._on_vote_reply(sender, message, now)
            case Append():
                if self._heed(sender, now):
                    self._on_append(sender, message)
            case Heartbeat():
                if self._heed(sender, now):
                    if not self.unproven:
                        self._on_leaders_commit(sender, message.commit)
                    self._send(sender, HeartbeatReply(self.term, message.round, self.life))
                    if (self.owed is not None or self.unproven) and not self.log.last_index:
                        self._send(
                            sender, AppendReply(self.term, 0, False)
                        )  # it may count on what was lost, and have nothing to send
            case SnapshotChunk():
                if self._heed(sender, now):
                    self._on_chunk(sender, message)
            case Proof():
                if self._heed(sender, now) and self.unproven and message.life == self.founders.life:
                    self.unproven, self._proving = False, True
                    self.owed = (message.term, message.index)
                    self._ask_at = FOREVER
                    self._settle_debt()
            case TimeoutNow():
                if self.role is not RaftRole.LEADER and self._may_stand():
                    self._stand(now, ordered=True)
            case _:
                progress = self.progress.get(sender)
                if self.role is RaftRole.LEADER and progress is not None:
                    progress.heard = now
                    self._on_reply(sender, progress, message)

    # -- generations --------------------------------------------------------------------------------------------------

    def _is_of(self, sender: str, message: Message, generation: int, now: float) -> bool:
        """Whether a message is of this member's generation, and is heard."""
        if generation > max(self.generation, self.standing.superseded):
            if self.log.last_index or self.snapshot is not None:
                left = 0
                if isinstance(message, LaterGeneration) and (self.config.forced or not self._hears_leader(now)):
                    left = message.left  # with a leader of the group it will read of who has joined
                if not self.configs.may_leave_behind(sender, self.commit, left):
                    return False
                self._supersede(Standing(self.standing.adopted, generation), now)
            else:  # what was on its way is of another history
                self._follow(self.term, "", now)
                self._incoming = None
                self._stand_as(Standing(generation))
                if self.starts.own:  # what was told before was not heard
                    self._tell_start(now)
        if self.standing.superseded:
            return False
        if generation < self.generation:
            self._send(sender, LaterGeneration(0, self.configs.left_index if self.config.forced else 0))
        return generation == self.generation and not isinstance(message, LaterGeneration)

    def _stand_as(self, standing: Standing) -> None:
        self.standing = self._out.standing = standing

    def _supersede(self, standing: Standing, now: float) -> None:
        """The group was forced without it: it takes part in nothing any more."""
        self._follow(self.term, "", now)
        self._stand_as(standing)
        self._ask_at = self._found_at = self._tell_at = self._renumber_at = FOREVER

    def set_aside(self, generation: int, now: float) -> None:
        """What this member holds is to be set aside at its next start, for that generation has left it behind. Raises
        NotAllowed where it has not, as far as the others have said.
        """
        if generation <= self.generation or generation < self.standing.superseded:
            raise NotAllowed(f"{self.node_id!r} is of a later generation, or of this one: nothing of it is set aside")
        if generation != self.standing.superseded:
            raise NotAllowed(f"{self.node_id!r} has not heard yet that it was left behind: try again in a moment")
        self._supersede(Standing(self.standing.adopted, generation, True), now)

    @property
    def others_may_decide(self) -> bool:
        """Whether the others may be a majority without this member, and so have decided, or decide yet, what it knows
        nothing of. A learner may be a voter by now; a change that is not known to be committed may not have been made.
        """
        configs = (self.config, self.configs.before) if self.configs.latest_index > self.commit else (self.config,)
        return any(len(config.members) > 2 for config in configs)

    def examine_force(self, now: float) -> None:
        """Raises NotAllowed with the reason why this member may not go on without the others."""
        if self.standing.superseded:
            raise NotAllowed(f"this group was forced already, without {self.node_id!r}")
        if self.owed is not None or self.unproven:
            raise NotAllowed(
                f"{self.node_id!r} has lost what it held, or began with an empty folder, or an older copy: it counts "
                "for nothing. Restore a backup"
            )
        if self.node_id not in self.config.voters:
            raise NotAllowed(f"{self.node_id!r} is no voter: what it has may lack what was decided. Restore a backup")
        if self._hears_leader(now):
            raise NotAllowed(f"a majority is there: {self.leader!r} leads, and {self.node_id!r} hears it")

    def force(self, chance: int, now: float) -> None:
        """Goes on without all other members, as the leader of another generation. chance: 32 bits of it at least.
        Raises NotAllowed as `examine_force` does.
        """
        self.examine_force(now)
        generation = following(self.generation, chance, lossy=self.others_may_decide)
        self._set_hard_state(self.term + FORCED_TERMS, "")
        config = forced(self.config, self.node_id, generation)
        self._append_own([(self.term, CONFIG, encode_config(config))])
        self._stand(now)

    # -- founding -----------------------------------------------------------------------------------------------------

    def _ask(self, now: float) -> None:
        """Tells the other first voters which lives it has heard of; again with each heartbeat, until it is proven."""
        self._ask_at = now + self.settings.heartbeat_s
        for founder in (*self.founders.others(), *self.founders.later):
            self._send(founder, self.founders.question(fresh=self._is_fresh()))

    def _is_fresh(self) -> bool:
        """Nobody has spoken to this life of a group that there is."""
        return not self.term and not self.log.last_index

    def _on_founding(self, sender: str, message: Founding, now: float) -> None:
        founders = self.founders
        if self.unproven and sender in founders.later:
            founders.hear_later(sender, message, fresh=self._is_fresh())
            if founders.lives:
                self._found()
        elif not founders.founders and message.stage is FoundingStage.FRESH:  # it came later, or is to be added yet
            self._send(sender, founders.question(fresh=self.unproven and self._is_fresh()))
        elif sender not in founders.founders:
            return
        elif self.unproven:
            news = founders.hear(sender, message, fresh=self._is_fresh())
            if founders.lives:
                self._found()
            if news:  # also where it has just found that it counts: it has not voted yet, and they wait for its word
                self._ask(now)
            if not self.unproven:
                self._ask_at = FOREVER
        elif message.stage is not FoundingStage.FOUNDED and (answer := founders.answer()) is not None:
            self._send(sender, answer)

    def _found(self) -> None:
        """It belongs to the founding: it counts."""
        self.unproven = False
        self._out.proven = self.founders.lives
        if self.founders.later:  # by this member alone, and they know of no group
            self._ask_at = self._found_at = FOREVER
            self._stand(self._now)

    # -- starts -------------------------------------------------------------------------------------------------------

    def _tend_starts(self, now: float) -> None:
        if now >= self._renumber_at:
            self._renumber_at = now + self.settings.renumber_s
            if self.starts.confirmed:
                self.starts.renumber(self._rng.getrandbits(32))
                self._out.starts = self.starts.record()
        if now >= self._tell_at:
            self._tell_start(now)

    def _tell_start(self, now: float) -> None:
        """Tells the members that have not confirmed it; again with each election time-out."""
        self._told_config = self.config
        self.starts.answered.clear()
        waiting = [member for member in self.config.members if member not in (self.node_id, *self.starts.told)]
        self._tell_at = now + self.settings.election_timeout_s if waiting else FOREVER
        for member in waiting:
            self._send(member, StartNumber(0, self.starts.own))

    def _on_start(self, sender: str, message: StartNumber | StartKnown, now: float) -> None:
        starts = self.starts
        if isinstance(message, StartNumber):
            if starts.hear(sender, message.start, self.config.members):
                self._out.starts = starts.record()
            self._send(sender, StartKnown(0, starts.of(sender)))
            if sender in self.config.members and starts.answers(sender):
                self._send(sender, StartNumber(0, starts.own))
        elif message.start == starts.own:
            if starts.confirm(sender):
                self._out.starts = starts.record()
        elif starts.own and now >= starts.rests_until and starts.is_older_than(message.start):
            self._put_back(message.start, now)

    def _put_back(self, start: int, now: float) -> None:
        """What this member has is older than what it has said: it counts for nothing until a leader proves it."""
        self.starts.renumber(self._rng.getrandbits(32), above=start)
        self.starts.rests_until = self._tell_at = now + self.settings.election_timeout_s
        self._out.starts = self.starts.record()
        self._follow(self.term, "", now)
        self.unproven, self._proving = True, False
        self.founders.begin_again(self._rng.randrange(1, 1 << 63))
        self._out.life = self.founders.life

    def on_starts_stored(self, record: StartsRecord, written: bool) -> None:
        """written: `Actions.starts` is durable; else the disk was full."""
        if self.starts.store(record, written):
            self._tell_start(self._now)

    def _is_sure(self, voter: str, numbered: bool) -> bool:
        """Whether that voter may elect this one, or be elected by it: it knows of no later start of this one. One of an
        earlier version cannot say.
        """
        if not self.starts.own or not numbered or voter in self.starts.sure:
            return True
        self._send(voter, StartNumber(0, self.starts.own))
        return False

    def _has_asked(self, now: float) -> bool:
        """Whether all voters have had the time to say that they know of a later start."""
        if not self.starts.own or now >= self._begun + self.settings.election_timeout_s:
            return True
        return self.starts.sure.issuperset(voter for voter in self.deciding if voter != self.node_id)

    # -- election -----------------------------------------------------------------------------------------------------

    def _draw_election(self, now: float) -> None:
        self._election_at = now + self.settings.election_timeout_s * (1 + self._rng.random())

    def _hears_leader(self, now: float) -> bool:
        return self.role is RaftRole.LEADER or (
            self.leader != "" and now - self._leader_heard < self.settings.election_timeout_s
        )

    def _heed(self, sender: str, now: float) -> bool:
        """A message of this term's leader. False: two leaders of one term, which only a bug elsewhere can bring; it is
        not obeyed.
        """
        if self.role is RaftRole.LEADER:
            return False
        self._follow(self.term, sender, now)
        self._leader_heard = now
        self._draw_election(now)
        return True

    def _hears_majority(self, now: float) -> bool:
        heard = [
            now if m == self.node_id else -FOREVER if self.progress[m].life else self.progress[m].heard
            for m in self.deciding
        ]
        return self._majority(heard) >= now - self.settings.election_timeout_s

    def _may_stand(self) -> bool:
        """A voter that has lost nothing; or one whose removal is not known to be committed, for it may hold what the
        others lack (Ongaro, 4.2.2).
        """
        if self.owed is not None or self.unproven or self.standing.superseded:
            return False
        return self.node_id in self.config.voters or (
            self.configs.latest_index > self.commit and self.node_id in self.configs.before.voters
        )

    def _end_transfer(self) -> None:
        self._transfer_to, self._transfer_until = "", FOREVER

    def _follow(self, term: int, leader: str, now: float) -> None:
        if term > self.term:
            self._set_hard_state(term, "")
        if self.role is RaftRole.LEADER:
            self._draw_election(now)
            self._end_transfer()
            self.progress.clear()
            self._out.lost_reads += [token for *_, tokens in self._rounds for token in tokens] + self._reads
            self._reads.clear()
            self._rounds.clear()
        if self.role is not RaftRole.FOLLOWER or self.leader != leader:
            self._incoming = None
        self.role, self.leader = RaftRole.FOLLOWER, leader

    def _campaign(self, now: float) -> None:
        self._follow(self.term, "", now)
        if self.deciding == (self.node_id,):
            self._stand(now)
            return
        self.role, self._votes = RaftRole.PRE_CANDIDATE, self._own_vote()
        self._ask_for_votes(VoteRequest(self.term + 1, self.log.last_index, self.log.last_term, pre=True))

    def _stand(self, now: float, ordered: bool = False) -> None:
        self._follow(self.term, "", now)
        self._set_hard_state(self.term + 1, self.node_id)
        self.role, self._votes = RaftRole.CANDIDATE, self._own_vote()
        self._draw_election(now)
        self._ask_for_votes(VoteRequest(self.term, self.log.last_index, self.log.last_term, ordered=ordered))
        self._count_votes(now)

    def _own_vote(self) -> dict[str, bool]:
        """Who does not count does not count itself."""
        return {self.node_id: True} if self._counts(self.node_id) else {}

    def _ask_for_votes(self, request: VoteRequest) -> None:
        for member in self.deciding:
            if member != self.node_id:
                self._send(member, request)

    def _may_vote_for(self, sender: str, request: VoteRequest) -> bool:
        """This term's vote is free, or already the sender's."""
        return self.vote in ("", sender) and self.leader in ("", sender)

    def _is_up_to_date(self, request: VoteRequest) -> bool:
        """Also with what this member has held and lost: it may be why an entry is committed. Who has left has only its
        removal to keep: what is behind it is committed without its copy, and the one that is left may need its vote.
        """
        has_left = self.config.voters and self.node_id not in self.config.members and self._has_left()
        last = self.configs.latest_index if has_left else self.log.last_index
        return (request.last_term, request.last_index) >= max((self.log.term(last), last), self.owed or (0, 0))

    def _on_vote_request(self, sender: str, request: VoteRequest, now: float) -> None:
        sure = self._is_sure(sender, request.numbered) and self._has_asked(now)
        if request.pre:
            granted = sure and request.term > self.term and not self._hears_leader(now) and self._is_up_to_date(request)
            self._send(sender, VoteReply(request.term if granted else self.term, granted, pre=True))
            return
        granted = sure and self._may_vote_for(sender, request) and self._is_up_to_date(request)
        if granted:
            if self.vote != sender:
                self._set_hard_state(self.term, sender)
            self._draw_election(now)
        self._send(sender, VoteReply(self.term, granted))

    def _on_vote_reply(self, sender: str, reply: VoteReply, now: float) -> None:
        wanted = RaftRole.PRE_CANDIDATE if reply.pre else RaftRole.CANDIDATE
        term = self.term + 1 if reply.pre and reply.granted else self.term
        if self.role is not wanted or reply.term != term or not self._counts(sender):
            return
        if not reply.granted or self._is_sure(sender, reply.numbered):
            self._votes[sender] = reply.granted
            self._count_votes(now)

    def _counts(self, member: str) -> bool:
        """Whether that member's vote counts."""
        return member in self.deciding

    def _count_votes(self, now: float) -> None:
        voters = len(self.deciding)
        needed = voters // 2 + 1
        granted = sum(self._votes.values())
        if granted >= needed:
            if self.role is RaftRole.PRE_CANDIDATE:
                self._stand(now)
            else:
                self._lead(now)
        elif len(self._votes) - granted > voters - needed:
            self._follow(self.term, "", now)

    def _lead(self, now: float) -> None:
        self.role, self.leader = RaftRole.LEADER, self.node_id
        following = self.log.last_index + 1
        fed = dict.fromkeys((*self.config.members, *self.deciding))
        self.progress = {member: Progress(following, now) for member in fed if member != self.node_id}
        self.term_start = following
        self._round = 0
        self._append_own([(self.term, NOOP, b"")])
        self._heartbeat_at = now + self.settings.heartbeat_s
        for member in self.progress:
            self._replicate(member)

    # -- following ----------------------------------------------------------------------------------------------------

    def _on_append(self, sender: str, message: Append) -> None:
        if message.previous_index < self.commit:
            self._send(sender, AppendReply(self.term, self.commit, True, life=self.life))
            return
        if self.log.term(message.previous_index) != message.previous_term:
            at = self.log.last_at_or_below(message.previous_index, message.previous_term)
            hint = at, max(self.log.term(at), 0)
            self._send(sender, AppendReply(self.term, message.previous_index, False, *hint, self.life))
            return
        through = message.previous_index + len(message.entries)
        for index, entry in enumerate(message.entries, message.previous_index + 1):
            if self.log.term(index) != entry[0]:
                self._replace_from(index, message.entries[index - message.previous_index - 1 :])
                break
        self._alike = self.term, max(self._alike_through(), through)
        self._commit_to(min(message.commit, through))
        self._send(sender, AppendReply(self.term, through, True, life=self.life))

    def _alike_through(self) -> int:
        """Through this entry the log is as this term's leader has it: what is committed, and what it has sent."""
        term, index = self._alike
        return max(self.commit, index if term == self.term else 0)

    def _on_leaders_commit(self, sender: str, commit: int) -> None:
        """A heartbeat names what this member has acknowledged, perhaps before it was started again: then its folder may
        be an older copy since, which ends in what the leader has replaced. So it asks for what follows its commit.
        """
        self._commit_to(min(commit, self._alike_through()))
        if commit > self.commit:
            hint = self.commit, max(self.log.term(self.commit), 0)
            self._send(sender, AppendReply(self.term, commit, False, *hint, self.life))

    def _on_chunk(self, sender: str, chunk: SnapshotChunk) -> None:
        meta = chunk.meta
        if meta.index <= self.commit or self.log.term(meta.index) == meta.term:
            self._commit_to(meta.index)
            self._incoming = None
            self._send(sender, AppendReply(self.term, self.commit, True, life=self.life))
            return
        if meta.size_bytes > self.settings.snapshot_bytes_max:
            return
        incoming = self._incoming
        if incoming is None or (incoming.sender, incoming.meta) != (sender, meta):
            self._incoming_number += 1
            incoming = self._incoming = IncomingSnapshot(self._incoming_number, sender, meta)
        if incoming.handed > incoming.stored:
            return  # its answer is on the way
        if chunk.offset == incoming.handed and 0 < len(chunk.data) <= meta.size_bytes - incoming.handed:
            self._out.pieces.append((incoming.number, meta, incoming.handed, chunk.data))
            incoming.handed += len(chunk.data)
            incoming.crc = crc32c.crc32c(chunk.data, incoming.crc)
        else:
            self._acknowledge(incoming)

    def on_piece_stored(self, number: int) -> None:
        """The piece of `Actions.pieces` with this number that was handed out last is durable."""
        incoming = self._incoming
        if incoming is not None and incoming.number == number:
            incoming.stored = incoming.handed
            self._acknowledge(incoming)

    def on_piece_failed(self, number: int) -> None:
        """It is not (a full disk): the leader begins anew."""
        if self._incoming is not None and self._incoming.number == number:
            self._incoming = None

    def _acknowledge(self, incoming: IncomingSnapshot) -> None:
        meta = incoming.meta
        if incoming.stored < meta.size_bytes:
            self._send(incoming.sender, SnapshotReply(self.term, meta.index, incoming.stored))
            return
        self._incoming = None
        if meta.index > self.commit and incoming.crc == meta.crc:
            self._install(meta)
            self._send(incoming.sender, AppendReply(self.term, meta.index, True, life=self.life))


def _asks_first(message: Message) -> bool:
    """A pre-vote speaks of a term that nobody has begun yet; only its refusal names the voter's own."""
    match message:
        case VoteRequest(_, _, _, True) | VoteReply(_, True, True):
            return True
    return False
