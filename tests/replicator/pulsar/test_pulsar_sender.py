"""What a topic sends to a Pulsar cluster, what a receipt confirms, and that everything else goes again."""

from __future__ import annotations

import random

from heliograph.wire.kafka.entry_conversion import entry_of
from heliograph.wire.kafka.record_batches import build_batch, sealed
from heliograph.wire.pulsar.entry_metadata import entry_metadata
from heliograph.wire.pulsar.geo_replication import MARKER_RECEIPT, SOURCE_POSITION
from heliograph.wire.run import FLAG_HIDDEN, FLAG_KAFKA, FLAG_MARKER, Run
from replicator.log.transaction_buffer import ABORT, COMMIT, TransactionBuffer, marker_run
from replicator.pulsar.pulsar_sender import Outgoing, PulsarSender, PulsarSenderSettings
from tests.region_node.faces.pulsar.codec import entry

START = (5, -1)


def run_of(*parts: bytes, **more: object) -> Run:
    return Run(list(parts), [len(part) for part in parts], **more)  # type: ignore[arg-type]


def sender(by_position: bool = True, **settings: int) -> PulsarSender:
    made = PulsarSender("us", "cloud", START, PulsarSenderSettings(**settings))
    made.opened(by_position)
    return made


def bodies(out: list[Outgoing]) -> list[bytes]:
    return [bytes(outgoing.payload) for outgoing in out]


def test_an_entry_says_where_it_comes_from_and_lies() -> None:
    core = sender()
    (out,) = core.take(5, 3, run_of(entry(b"x", producer="p", sequence=9)), None)
    metadata = out.metadata
    assert (metadata.producer_name, metadata.sequence_id, metadata.replicated_from) == ("p", 9, "us")
    assert [(pair.key, pair.value) for pair in metadata.properties] == [(SOURCE_POSITION, "5:3")]


def test_what_another_region_published_goes_too() -> None:
    """The cluster knows the gateway alone."""
    (out,) = sender().take(5, 0, run_of(entry(b"x", replicated_from="eu")), None)
    assert out.metadata.replicated_from == "us"


def test_what_came_from_there_never_goes_back() -> None:
    core = sender()
    parts = [entry(b"a"), entry(b"b", replicated_from="cloud"), entry(b"c")]
    metadata, payload = entry_metadata(parts[1])
    moved = (
        metadata.SerializeToString() + b"\x2a\x02eu"
    )  # by way of an earlier gateway, and then of a link between regions
    parts.append(len(moved).to_bytes(4, "big") + moved + bytes(payload))
    assert bodies(core.take(5, 0, run_of(*parts), None)) == [b"a", b"c"]


def test_addressed_hidden_and_marked_entries() -> None:
    core = sender()
    parts = [
        entry(b"a", replicate_to=["eu"]),
        entry(b"b", replicate_to=["eu", "cloud"]),
        entry(b"c"),
        entry(b"d"),
        entry(b"e"),
    ]
    assert bodies(core.take(5, 0, run_of(*parts, flags=[0, 0, FLAG_HIDDEN, FLAG_MARKER, 0]), None)) == [b"b", b"e"]


def test_no_entry_of_a_client_is_a_marker_there() -> None:
    """The cluster would move a subscription by it; an earlier version has stored such."""
    (out,) = sender().take(5, 0, run_of(entry(b"x", marker_type=12)), None)
    assert not out.metadata.HasField("marker_type") and bytes(out.payload) == b"x"


def test_the_mark_moves_with_receipts_and_over_what_never_goes() -> None:
    core = sender()
    assert core.take(5, 0, run_of(entry(b"x", replicated_from="cloud")), None) == [] and core.mark == (5, 0)
    core.take(5, 1, run_of(entry(b"a"), entry(b"b"), entry(b"-", replicated_from="cloud")), None)
    core.take(5, 4, run_of(entry(b"-", replicated_from="cloud")), None)
    assert core.mark == (5, 0)
    assert core.receipt(5, 1) and core.mark == (5, 1)
    assert not core.receipt(5, 1)
    assert core.receipt(5, 2) and core.mark == (5, 4) and core.bytes_in_flight == 0


def test_receipts_of_an_older_cluster_name_sequences() -> None:
    core = sender(by_position=False)
    out = core.take(5, 0, run_of(entry(b"a"), entry(b"b"), entry(b"c")), None)
    assert [outgoing.number for outgoing in out] == [1, 2, 3]
    assert core.receipt(2, 0) and core.mark == (5, 1)


def test_a_receipt_of_a_marker_confirms_no_entry() -> None:
    core = sender()
    core.take(5, 0, run_of(*(entry(b"%d" % n) for n in range(9))), None)
    assert core.next_number() > 5, "above the ledger's number, where it would be a position behind all of them"
    assert not core.receipt(10, MARKER_RECEIPT) and core.mark == START
    assert core.receipt(5, 3) and core.mark == (5, 3)


def test_a_receipt_of_a_marker_from_an_older_cluster_confirms_what_was_before_it() -> None:
    core = sender(by_position=False)
    core.take(5, 0, run_of(entry(b"a"), entry(b"b")), None)
    assert core.receipt(core.next_number(), MARKER_RECEIPT) and core.mark == (5, 1)


def test_after_a_lost_connection_everything_unconfirmed_goes_again() -> None:
    core = sender()
    core.take(5, 0, run_of(*(entry(b"%d" % n) for n in range(4))), None)
    core.receipt(5, 1)
    core.opened(True)
    assert core.read_at == (5, 2) and core.room and not core.receipt(5, 1)
    assert bodies(core.take(5, 2, run_of(entry(b"2"), entry(b"3")), None)) == [b"2", b"3"]


def test_what_the_cluster_was_found_to_have_does_not_go_again() -> None:
    core = sender()
    core.take(5, 0, run_of(*(entry(b"%d" % n) for n in range(4))), None)
    core.receipt(5, 0)
    core.opened(True, (5, 2))
    assert core.mark == (5, 2) and core.read_at == (5, 3)
    core.opened(True, START)
    assert core.mark == (5, 2), "it never goes back"


def test_the_window_bounds_what_is_in_flight() -> None:
    core = sender(entries_max=2)
    core.take(5, 0, run_of(entry(b"a"), entry(b"b")), None)
    assert not core.room
    core.receipt(5, 0)
    assert core.room
    small = sender(bytes_max=1)
    assert small.room
    small.take(5, 0, run_of(entry(b"a")), None)
    assert not small.room


def test_a_transaction_that_is_over_goes_as_plain_messages() -> None:
    (out,) = sender().take(5, 0, run_of(entry(b"x", txnid_most_bits=1, txnid_least_bits=2), transaction=(1, 2)), None)
    assert not out.metadata.HasField("txnid_least_bits") and not out.metadata.HasField("txnid_most_bits")


def test_aborted_and_ending_entries_of_transactions_never_go() -> None:
    buffer, (aborted, committed) = TransactionBuffer(), ((1, 1), (1, 2))
    runs = [run_of(entry(b"a"), transaction=aborted), run_of(entry(b"c"), transaction=committed)]
    runs += [marker_run(aborted, ABORT, 0), marker_run(committed, COMMIT, 0)]
    for at, run in enumerate(runs):
        buffer.confirm(5, at, run)
    core = sender()
    assert [bodies(core.take(5, at, run, buffer)) for at, run in enumerate(runs)] == [[], [b"c"], [], []]
    assert core.receipt(5, 1) and core.mark == (5, 3)


def test_any_history_of_receipts_markers_and_losses_confirms_each_entry_in_order() -> None:
    """The cluster stores what it gets, and drops what it had, by position; connections end anywhere."""
    for seed in range(200):
        rng = random.Random(seed)
        topic = [entry(b"%d" % n, **({"replicated_from": "cloud"} if rng.random() < 0.2 else {})) for n in range(60)]  # type: ignore[arg-type]
        core, stored = sender(entries_max=8), list[bytes]()
        newest = (-1, -1)
        wire: list[Outgoing | int] = []  # a marker: its number
        back: list[tuple[int, int]] = []
        while core.mark < (5, len(topic) - 1):
            step = rng.random()
            if step < 0.05:
                wire, back = [], []
                core.opened(True)
            elif step < 0.1:
                wire.append(core.next_number())
            elif step < 0.5 and core.room and core.read_at[1] < len(topic):
                first = max(0, core.read_at[1])
                wire += core.take(5, first, run_of(*topic[first : first + rng.randint(1, 5)]), None)
            elif step < 0.75 and wire:
                sent = wire.pop(0)
                if isinstance(sent, int):
                    back.append((sent, MARKER_RECEIPT))
                    continue
                ledger, _, number = sent.metadata.properties[0].value.partition(":")
                position = int(ledger), int(number)
                if position > newest:
                    newest = position
                    stored.append(bytes(sent.payload))
                back.append(position)
            elif back:
                core.receipt(*back.pop(0))
            gone = [
                b"%d" % n
                for n, part in enumerate(topic)
                if (5, n) <= core.mark and not entry_metadata(part)[0].replicated_from
            ]
            assert stored[: len(gone)] == gone, seed
        assert stored == [b"%d" % n for n, part in enumerate(topic) if not entry_metadata(part)[0].replicated_from], (
            seed
        )


def test_a_record_batch_that_has_no_form_for_pulsar_holds_up_nothing() -> None:
    core = sender()
    good = entry_of(build_batch([(1, None, b"v", ())]), 1, 1)
    poison = entry_of(sealed(b"no gzip at all", 1, 0, 1, 1, 1), 1, 1)
    out = core.take(5, 0, run_of(poison, good, poison, flags=[FLAG_KAFKA] * 3), None)
    assert [one.metadata.num_messages_in_batch for one in out] == [1]
    core.receipt(out[0].number, 0) if not core.by_position else core.receipt(5, 1)
    assert core.read_at == (5, 3)
