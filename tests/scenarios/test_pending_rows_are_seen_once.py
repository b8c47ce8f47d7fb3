"""Rows can be looked at before they are committed: every acknowledged row once, wherever it is, whoever flushes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from worlds import AS_BEFORE, DATASET, World, dies

from floodmark import faults
from floodmark import pending as pending_module
from floodmark.control import segments
from floodmark.errors import Corrupt, InvalidCursor, Permanent, Retryable, SchemaConflict, UnknownDataset
from floodmark.process import process_identity
from floodmark.spool.landing import landing_files
from floodmark.spool.sealing import landing_directory
from floodmark.spool.segments import split_segment
from floodmark.store import Store
from floodmark.testing import kill_store

LOOK_POINTS = [point for point in faults.POINTS if point.startswith("pending.")]
FLUSH_POINTS = [
    point
    for point in faults.POINTS
    if point.startswith(("flush.", "segment.", "seal.")) and point != "flush.released"  # needs a race of its own
]


@pytest.fixture(autouse=True)
def _processes_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """The "processes" here share one: let each see the segments that another one was writing as a dead one's."""
    host, boot, pid, _ = process_identity().split("/")
    monkeypatch.setattr("floodmark.spool.segments.process_identity", lambda: f"{host}/{boot}/{pid}/before")


@pytest.fixture
def make(quick_path: Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def build(**dataset: Any) -> World:
        made.append(World.make(quick_path / f"store{len(made)}", **dataset))
        return made[-1]

    yield build
    for world in made:
        world.close()


@pytest.fixture
def world(make: Callable[..., World]) -> World:
    return make()


def seen(store: Store, **options: Any) -> list[tuple[Any, bool]]:
    """Each row's id, and whether it is pending."""
    parts = store.read_with_pending(DATASET, **options)
    return [(row["id"], part.pending) for part in parts for row in part.table.to_pylist()]


def ids(store: Store, **options: Any) -> list[Any]:
    return [id for id, _ in seen(store, **options)]


def rows_everywhere(world: World) -> Store:
    """Two committed rows, two in a segment, three in a dead writer's landing file and two in that of a live one."""
    world.committed(2)
    dead = world.open()
    world.capture(dead, 2, arrow=True)
    world.capture(dead, 3)
    kill_store(dead)
    live = world.open()
    world.capture(live, 2)
    return live


# ── where a row is ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_row_is_seen_from_its_capture_on_and_once_at_every_stage(world: World) -> None:
    store = world.open()
    assert seen(store) == []
    mine = world.capture(store, 3)
    assert seen(store) == [(id, True) for id in mine]
    store.seal(DATASET)
    assert seen(store) == [(id, True) for id in mine]
    store.flush(DATASET)
    assert seen(store) == [(id, False) for id in mine]


def test_committed_rows_come_first_then_sealed_then_landed_ones(world: World) -> None:
    store = rows_everywhere(world)
    found = seen(store)
    assert [id for id, _ in found] == world.acknowledged
    assert [pending for _, pending in found] == [False] * 2 + [True] * 7


def test_a_look_changes_nothing(world: World) -> None:
    store = rows_everywhere(world)

    def state() -> object:
        files = sorted((path, path.stat().st_size) for path in world.root.rglob("spool/**/*") if path.is_file())
        return files, store.status()

    before = state()
    ids(store)
    ids(store)
    assert state() == before
    world.check()


def test_a_look_leaves_no_copies_behind(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    store = rows_everywhere(world)
    ids(store)
    parts = store.read_with_pending(DATASET)
    next(parts)
    assert list(tmp_path.iterdir()), "nothing was copied"
    parts.close()
    assert list(tmp_path.iterdir()) == []


def test_a_spool_on_another_file_system_is_copied(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def other_device(*_: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", other_device)
    store = rows_everywhere(world)
    assert ids(store) == world.acknowledged


def test_columns_and_a_partition_can_be_chosen(world: World) -> None:
    store = rows_everywhere(world)
    assert ids(store, partition={"site": "s1"}) == [id for id in world.acknowledged if id % 2]
    parts = list(store.read_with_pending(DATASET, columns=["site"]))
    assert {tuple(part.table.column_names) for part in parts} == {("site",)}
    assert sum(part.table.num_rows for part in parts) == len(world.acknowledged)
    with pytest.raises(SchemaConflict, match="no column 'colour'"):
        ids(store, columns=["colour"])
    with pytest.raises(UnknownDataset):
        list(store.read_with_pending("../etc"))


def test_a_column_that_only_pending_rows_have_is_null_in_committed_ones(world: World) -> None:
    world.committed(1)
    store = world.open()
    store.capture(DATASET, [{"id": 100, "colour": "red"}])
    assert [row.get("colour") for part in store.read_with_pending(DATASET) for row in part.table.to_pylist()] == [
        None,
        "red",
    ]


def test_what_sealing_would_quarantine_is_left_out(world: World) -> None:
    """L4: neither a damaged line nor an incomplete one is a row."""
    store = world.open()
    mine = world.capture(store, 2)
    (path,) = landing_files(landing_directory(store.engine, DATASET))
    with path.open("ab") as file:
        file.write(b"no envelope\n")
        file.write(b'{"v":1,"rows":1,"columns":["id"],"val')
    assert ids(store) == mine
    assert store.quarantine.entries() == []


def test_rows_of_a_segment_that_is_set_aside_are_seen(world: World) -> None:
    store = world.open()
    mine = world.capture(store, 2, arrow=True)
    (segment,) = store.engine.database.read(lambda c: segments.sealed(c, DATASET))
    store.engine.database.transact(lambda c: segments.set_aside(c, segment.id, "it failed alone"))
    assert seen(store) == [(id, True) for id in mine]


def test_a_store_without_a_cursor_says_so_and_one_without_spark_too(world: World) -> None:
    store = world.open()
    with pytest.raises(InvalidCursor, match="takes no cursor"):
        store.read(DATASET, since=store.cursor(DATASET), pending=True)
    with pytest.raises(InvalidCursor, match="takes no cursor"):
        store.read(DATASET, until=str(store.cursor(DATASET)), pending=True)
    with pytest.raises(Permanent, match="read_with_pending"):
        store.read(DATASET, pending=True)


# ── crashes and races ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", FLUSH_POINTS)
def test_after_a_crash_at_any_point_every_row_is_seen_once(world: World, point: str) -> None:
    """I12, I4, I7: also where the append has landed and no record says so."""
    kill_store(rows_everywhere(world))
    assert dies(lambda: world.open().flush(DATASET), at=point), f"{point} was never reached"
    world.close()
    assert sorted(ids(world.open())) == world.acknowledged
    world.check()


def test_a_block_whose_answer_is_lost_is_seen_once(world: World) -> None:
    store = rows_everywhere(world)
    world.lake.on_append = lambda _: "hold"
    with pytest.raises(Retryable):
        store.flush(DATASET)
    assert sorted(ids(store)) == world.acknowledged
    world.lake.on_append = None
    assert any(world.lake.deliver_held())
    assert sorted(ids(store)) == world.acknowledged
    world.check()


@pytest.mark.parametrize("identity", [None, ["id"]])
@pytest.mark.parametrize("crash", [None, *(point for point in FLUSH_POINTS if point not in AS_BEFORE)])
@pytest.mark.parametrize("point", LOOK_POINTS)
def test_a_flush_in_the_middle_of_a_look_hides_and_doubles_nothing(
    make: Callable[..., World], point: str, crash: str | None, identity: list[str] | None
) -> None:
    """At each point of the look a flush runs to its end, or to its death at any point of its own."""
    world = make(identity=identity)
    store = rows_everywhere(world)

    def flush() -> None:
        with faults.disarmed():
            if crash is None:
                world.open().flush(DATASET)
            else:
                dies(lambda: world.open().flush(DATASET), at=crash)

    faults.arm(point, faults.nth_time(1, flush))
    try:
        assert sorted(ids(store)) == world.acknowledged
    finally:
        faults.disarm_all()
    assert sorted(ids(store)) == world.acknowledged
    kill_store(store)
    world.check()


@pytest.mark.parametrize("point", LOOK_POINTS)
def test_rows_that_arrive_during_a_look_are_seen_once_or_not_at_all(world: World, point: str) -> None:
    store = rows_everywhere(world)
    before = list(world.acknowledged)

    def others() -> None:
        with faults.disarmed():
            busy = world.open()
            world.capture(busy, 2)
            world.capture(busy, 2, arrow=True)
            busy.flush(DATASET)
            world.capture(busy, 1)

    faults.arm(point, faults.nth_time(1, others))
    try:
        found = ids(store)
    finally:
        faults.disarm_all()
    assert len(found) == len(set(found))
    assert set(before) <= set(found) <= set(world.acknowledged)
    assert sorted(ids(store)) == sorted(world.acknowledged)


@pytest.mark.parametrize("point", LOOK_POINTS)
def test_a_segment_that_is_split_during_a_look_is_seen_once_and_in_its_place(world: World, point: str) -> None:
    """U34."""
    store = rows_everywhere(world)

    def split() -> None:
        with faults.disarmed():
            (segment,) = store.engine.database.read(lambda c: segments.sealed(c, DATASET))
            (declared,) = store.datasets()
            assert split_segment(store.engine, declared, segment)

    faults.arm(point, faults.nth_time(1, split))
    try:
        assert ids(store) == world.acknowledged
    finally:
        faults.disarm_all()
    assert ids(store) == world.acknowledged
    kill_store(store)
    world.check()


@pytest.mark.parametrize("point", LOOK_POINTS)
def test_a_type_that_is_corrected_during_a_look_hides_no_row(make: Callable[..., World], point: str) -> None:
    """U42."""
    world = make(schema={"id": "long", "price": "string"})
    store = rows_everywhere(world)

    def correct() -> None:
        with faults.disarmed():
            store.change_dataset(DATASET, types={"price": "decimal(9,2)"})
            store.capture(DATASET, [{"id": 100, "price": "1.50"}])

    faults.arm(point, faults.nth_time(1, correct))
    try:
        assert sorted(set(ids(store)) - {100}) == world.acknowledged
    finally:
        faults.disarm_all()
    assert sorted(ids(store)) == [*world.acknowledged, 100]


def test_a_flush_between_two_parts_of_a_look_takes_nothing_from_it(world: World) -> None:
    store = rows_everywhere(world)
    parts = store.read_with_pending(DATASET)
    found = next(parts).table["id"].to_pylist()
    world.open().flush(DATASET)
    world.compact()
    found += [id for part in parts for id in part.table["id"].to_pylist()]
    assert found == world.acknowledged


def test_a_spool_that_is_flushed_under_every_look_ends_in_an_error_that_says_so(world: World) -> None:
    store = world.open()
    looks = itertools.count()

    def flush() -> None:
        with faults.disarmed():
            next(looks)
            world.open().flush(DATASET)

    def refill() -> None:
        with faults.disarmed():
            world.capture(world.open(), 1, arrow=True)

    faults.arm("pending.sized", refill)
    faults.arm("pending.pinned", flush)
    try:
        with pytest.raises(Retryable, match=f"removed {pending_module.ATTEMPTS_MAX} times"):
            ids(store)
    finally:
        faults.disarm_all()
    assert next(looks) == pending_module.ATTEMPTS_MAX
    assert sorted(ids(store)) == world.acknowledged


def test_a_segment_that_is_damaged_is_reported_and_nothing_is_shown_in_its_place(world: World) -> None:
    world.committed(1)
    store = world.open()
    world.capture(store, 2, arrow=True)
    (path,) = world.segment_files()
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(Corrupt, match="cannot be read"):
        ids(store)
    path.unlink()
    with pytest.raises(Retryable, match="could not be read") as missing:
        ids(store)
    assert "fsck" in str(missing.value.hint)


# ── identity ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def row(id: Any, value: int = 0, **more: Any) -> dict[str, Any]:
    return {"id": id, "value": value, **more}


def values(store: Store) -> list[tuple[Any, int]]:
    parts = store.read_with_pending(DATASET)
    return [(item["id"], item["value"]) for part in parts for item in part.table.to_pylist()]


def committed_values(store: Store) -> list[tuple[Any, int]]:
    return [(item["id"], item["value"]) for batch in store.read_since(DATASET) for item in batch.table.to_pylist()]


def captured_in_stages(store: Store, *stages: list[dict[str, Any]]) -> list[tuple[Any, int]]:
    """The first rows are committed, the second sealed, the others landed. What the look shows is what flush commits."""
    for number, rows in enumerate(stages):
        if rows:
            store.capture(DATASET, rows)
        if number == 0:
            store.flush(DATASET)
        elif number == 1:
            store.seal(DATASET)
    shown = values(store)
    store.flush(DATASET)
    assert committed_values(store) == shown, "flush decided otherwise"
    return shown


DATASETS: dict[str, dict[str, Any]] = {
    "an identity": {"identity": ["id"]},
    "an identity and an event time": {"identity": ["id"], "event_time": "at"},
    "an identity at any event time": {"identity": ["id"], "event_time": "at", "identity_scope": "all"},
    "a fallback": {"identity": [["id"], ["other"]]},
    "two columns": {"identity": ["id", "other"]},
    "null identities that are kept": {"identity": ["id"], "identity_null": "keep"},
    "fractions": {"identity": ["part"]},
    "no identity": {},
}


@pytest.mark.parametrize("kind", DATASETS)
def test_a_look_shows_the_rows_that_flush_commits(make: Callable[..., World], kind: str) -> None:
    """Of rows of one identity the first: committed, or earlier in the spool. The rule is the dataset's."""
    schema = {"id": "long", "value": "long", "at": "timestamp", "other": "string", "part": "double"}
    store = make(**{"schema": schema, "partition_by": [], **DATASETS[kind]}).open()
    times = ["2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z", None]
    numbers = itertools.count()

    def stage() -> list[dict[str, Any]]:
        return [
            row(id, next(numbers), at=at, other=other, part=part)
            for id, other, part in [(1, "a", 0.5), (2, None, 0.1 + 0.2), (None, "a", -0.0), (None, None, None)]
            for at in times
        ]

    shown = captured_in_stages(store, stage()[:7], stage()[2:9], stage(), stage()[5:])
    assert shown


def test_rows_without_an_identity_that_are_equal_are_one(make: Callable[..., World]) -> None:
    """B10."""
    store = make(identity=["id"], schema={"id": "long", "value": "long"}, partition_by=[]).open()
    shown = captured_in_stages(store, [row(None, 1)], [row(None, 1), row(None, 2)], [row(None, 2), row(None, 3)])
    assert shown == [(None, 1), (None, 2), (None, 3)]


def test_a_duplicate_in_another_partition_is_a_duplicate(make: Callable[..., World]) -> None:
    store = make(identity=["id"]).open()
    store.capture(DATASET, [{"id": 1, "site": "a"}])
    store.flush(DATASET)
    store.capture(DATASET, [{"id": 1, "site": "b"}, {"id": 2, "site": "b"}])
    assert ids(store, partition={"site": "b"}) == [2]


def test_rows_from_before_the_cut_off_do_not_come_back(make: Callable[..., World]) -> None:
    world = make(identity=["id"], event_time="at", schema={"id": "long", "at": "timestamp"})
    store = world.open()
    now = world.clock.now()
    old, new = now.replace(year=now.year - 1).isoformat(), now.isoformat()
    store.capture(DATASET, [{"id": 1, "at": old}, {"id": 2, "at": new}])
    store.flush(DATASET)
    assert store.retain(DATASET, older_than="30d").rows == 1
    for arrow in (False, True):
        rows = [{"id": 1, "at": now.replace(year=now.year - 1)}, {"id": 3 + arrow, "at": now}, {"id": 9, "at": None}]
        store.capture(DATASET, pa.Table.from_pylist(rows) if arrow else rows)
    assert sorted(ids(store)) == [2, 3, 4, 9]
    store.flush(DATASET)
    assert sorted(ids(store)) == [2, 3, 4, 9]


@pytest.mark.parametrize("point", [None, *LOOK_POINTS])
def test_purged_rows_do_not_come_back(make: Callable[..., World], point: str | None) -> None:
    """Also if the purge comes in the middle of a look, and removes the row that hid its pending duplicate."""
    store = make(identity=["id"], partition_by=[]).open()
    store.capture(DATASET, [{"id": 1}, {"id": 2}])
    store.flush(DATASET)
    store.capture(DATASET, [{"id": 1}, {"id": 3}])

    def purge() -> None:
        with faults.disarmed():
            store.purge(DATASET, where="id = 1")

    if point is None:
        purge()
        store.capture(DATASET, [{"id": 1}])
    else:
        faults.arm(point, faults.nth_time(1, purge))
    try:
        if point == "pending.loaded":  # purged files are removed at once, like from every other reader
            with pytest.raises(Retryable, match="expired while it was read"):
                ids(store)
        found = ids(store)
    finally:
        faults.disarm_all()
    assert sorted(set(found) - {1}) == [2, 3]
    assert len(found) == len(set(found))
    assert 1 not in ids(store)


def test_a_settle_function_is_not_run(make: Callable[..., World]) -> None:
    world = make(settle=f"{__name__}:drop_everything")
    store = world.open()
    mine = world.capture(store, 2)
    assert seen(store) == [(id, True) for id in mine]


def drop_everything(rows: Any) -> Any:
    return rows.limit(0)


def test_more_pending_rows_than_can_be_compared_here_are_refused_with_a_way_out(
    make: Callable[..., World], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pending_module, "COMPARED_ROWS_MAX", 2)
    world = make(identity=["id"])
    store = world.open()
    world.capture(store, 3)
    with pytest.raises(Retryable, match="3 rows of 'events' are pending") as refused:
        ids(store)
    assert "floodmark flush" in str(refused.value.hint)
    store.flush(DATASET)
    assert len(ids(store)) == 3


def test_large_landing_files_are_taken_in_parts(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("floodmark.spool.sealing.SEAL_BYTES_MAX", 200)
    store = world.open()
    for _ in range(20):
        world.capture(store, 2)
    (path,) = landing_files(landing_directory(store.engine, DATASET))
    assert path.stat().st_size > 800
    assert ids(store) == world.acknowledged
