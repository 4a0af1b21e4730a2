"""An image is the table of its index, whatever changes while it is read; snapshots of both versions are read, damaged
ones are refused.
"""

from __future__ import annotations

import random

import msgpack
import pytest

from heliograph.kv.engine import table_image as image_module
from heliograph.kv.engine.table_image import Head, rows_part
from heliograph.kv.engine.table_rows import Row
from heliograph.kv.machine_commands import CommandKind, command, open_answer, txn_fields
from heliograph.kv.metadata_store import Delete, Op, Put
from heliograph.kv.state_machine import KvMachine, MachineSettings
from heliograph.model.errors import CorruptData


def run(machine: KvMachine, *ops: Op) -> None:
    open_answer(machine.apply(machine.index + 1, command(CommandKind.TXN, txn_fields(ops))))


def table_of(machine: KvMachine) -> list[tuple[str, bytes, int]]:
    return machine.under("/")


@pytest.mark.parametrize("seed", range(80))
def test_an_image_holds_the_rows_of_its_index(seed: int) -> None:
    rng = random.Random(seed)
    machine = KvMachine(settings=MachineSettings(part_rows=rng.choice((1, 3, 10))))
    names = [f"/{number:03d}" for number in range(60)]

    def change() -> None:
        key = rng.choice(names)
        run(machine, Delete(key) if rng.random() < 0.4 else Put(key, bytes([rng.randrange(256)])))

    for _ in range(rng.choice((0, 10, 100))):
        change()
    open_images: list[tuple[list[tuple[str, bytes, int]], list[tuple[str, Row]], image_module.Image]] = []
    finished = 0
    while finished < 4:
        if len(open_images) < 3 and rng.random() < 0.2:
            open_images.append((table_of(machine), [], machine.image()))
        if rng.random() < 0.7:
            change()
        if open_images and rng.random() < 0.5:
            expected, taken, image = each = rng.choice(open_images)
            rows = image.rows()
            taken += rows
            if not rows:
                assert [(key, value, version) for key, (value, version, _) in taken] == expected
                machine.release(image)
                open_images.remove(each)
                finished += 1


@pytest.mark.parametrize("seed", range(20))
def test_a_snapshot_in_pieces_is_that_of_its_beginning(seed: int) -> None:
    rng, settings = random.Random(seed), MachineSettings(part_rows=4)
    machine = KvMachine(settings=settings)
    lease = open_answer(machine.apply(1, command(CommandKind.GRANT, [3000])))[0]
    for number in range(50):
        run(machine, Put(f"/{number:03d}", b"x" * number, lease=lease if number % 7 == 0 else 0))
    machine.apply(machine.index + 1, command(CommandKind.NEXT_IDS, ["n", 5, 0]))
    whole, pieces = machine.snapshot(), []
    for piece in machine.parts():
        pieces.append(piece)
        run(machine, Put(f"/{rng.randrange(60):03d}", b"new"), Delete(f"/{rng.randrange(60):03d}x"))
        run(machine, Delete(f"/{rng.randrange(60):03d}"))
    again, same = KvMachine(settings=settings), KvMachine(settings=settings)
    again.restore(b"".join(pieces))
    same.restore(whole)
    assert again.snapshot() == same.snapshot() == whole
    assert not machine._images


def test_a_restore_ends_the_images_that_are_open() -> None:
    machine = KvMachine()
    for number in range(5):
        run(machine, Put(f"/{number}", b""))
    other = machine.snapshot()
    pieces = machine.parts()
    first = next(pieces)
    machine.restore(other)
    blob = b"".join([first, *pieces])
    with pytest.raises(CorruptData, match="cut off"):
        KvMachine().restore(blob)


def test_a_snapshot_of_the_first_version_is_read() -> None:
    fields = [9, ["/a", "/b"], [b"1", b"2"], [3, 9], [0, 4], [["n", 7]], [[4, 3000]], [[5, 1, [[1, b"answer"]]]]]
    machine, same = KvMachine(), KvMachine()
    machine.restore(b"\x01" + msgpack.packb(fields))
    assert machine.index == 9 and machine.get("/b") == (b"2", 9) and machine.leases() == {4: 3000}
    same.restore(machine.snapshot())
    assert same.apply(10, command(CommandKind.NEXT_IDS, ["n", 1, 0])) == machine.apply(
        10, command(CommandKind.NEXT_IDS, ["n", 1, 0])
    )


def test_parts_of_another_shape_are_refused() -> None:
    def restored(*rest: bytes) -> KvMachine:
        machine = KvMachine()
        machine.restore(bytes([image_module.VERSION]) + image_module.part([3, [], [], []]) + b"".join(rest))
        return machine

    good = rows_part([("/a", (b"", 1, 0))])
    shapes = (
        image_module.part([1, 2, 3]),
        image_module.part([[1], [2], [3]]),
        image_module.part([[1], [2, 3], [3], [4]]),
    )
    for wrong in (*shapes, b"\x00\x00\x00\x01\xc1", b"\x00\x00"):
        with pytest.raises(CorruptData):
            restored(good, wrong, image_module.part([2]))
    machine = restored(good, image_module.part([1]))
    assert machine.head() == Head(3) and machine.under("/") == [("/a", b"", 1)]


def test_an_image_of_a_prefix_holds_the_key_that_is_the_prefix_itself() -> None:
    machine = KvMachine()
    run(machine, Put("/a", b"old"), Put("/a/b", b"old"), Put("/b", b"other"))
    image = machine.image_under("/a")
    run(machine, Put("/a", b"new"), Delete("/a/b"), Put("/a/c", b"new"), Put("/b", b"new"))
    assert [(key, row[0]) for key, row in image.rows()] == [("/a", b"old"), ("/a/b", b"old")]
    assert image.ended and image.rows() == []
    machine.release(image)
