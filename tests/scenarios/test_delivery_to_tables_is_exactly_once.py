"""A table sink brings every row once, whatever dies, arrives late, or is done to the target meanwhile.

The steps of a tick that concern the sink are taken here by hand, so that each test can stop between any two of them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from sqlalchemy import select

import channels
from floodmark import errors, faults
from floodmark.control import datasets
from floodmark.control.deliveries import Channel, Intent
from floodmark.control.schema import chunks, removals
from floodmark.delivery.destination import Copied, Parcel, Source
from floodmark.delivery.sinks.table import CONFLICTS_MAX, KIND
from floodmark.engine import Engine
from floodmark.lake import queries
from floodmark.lake.targets import ORIGIN_COLUMNS, TargetAppend
from floodmark.schema import LONG, SEQ, STRING
from floodmark.schema.types import DOUBLE
from floodmark.sequence import SequenceRange, Tally
from floodmark.store import Store
from floodmark.testing import crash_at
from floodmark.testing.memory.lake import MemoryLake
from floodmark.testing.memory.targets import MemoryTarget, MemoryTargets

TARGET = "central.copies.events"
FIRST, SECOND = SequenceRange(0, 3), SequenceRange(3, 5)


@dataclass
class Export:
    """One channel of a table sink, and the tick's steps around it."""

    store: Store
    lake: MemoryLake
    dataset: str = "events"
    partition: str = "all"
    table: str = "central.copies"
    where: str | None = None
    sink: str | None = None
    channel: Channel = field(init=False)
    intent: Intent | None = None

    def __post_init__(self) -> None:
        self.channel = channels.open_channel(
            self.store.engine.database, dataset=self.dataset, partition=self.partition, sink=self.sink
        )

    @property
    def targets(self) -> MemoryTargets:
        return self.lake.targets

    def destination(self) -> Any:
        """As a new process makes it."""
        settings = {**KIND.defaults, "table": self.table, "where": self.where, "datasets": [self.dataset]}
        KIND.check(settings)
        own = self.store.engine
        engine = Engine(own.root, own.settings, own.database, self.lake, own.clock)
        made = KIND.connect(engine, self.channel, settings)
        made.open()
        return made

    def source(self, **more: Any) -> Source:
        declared = self.store.engine.database.read(lambda c: datasets.get(c, self.dataset))
        state = self.lake.load(declared.table_name)
        assert state is not None
        assert state.head is not None
        return Source(declared.table_name, state.head, declared.schema, row_filter=self.where, **more)

    def pin(self, *ranges: SequenceRange) -> Intent:
        self.intent = channels.pin(self.store.engine.database, self.channel, ranges)
        return self.intent

    def copy(self, range: SequenceRange, **more: Any) -> Copied:
        assert self.intent is not None
        return self.destination().copy(self.intent, range, self.source(**more))

    def acknowledge(self, range: SequenceRange, copied: Copied) -> bool:
        assert self.intent is not None
        return channels.acknowledge(self.store.engine.database, self.intent, range, copied.tally)

    def deliver(self, *ranges: SequenceRange, **more: Any) -> list[Copied]:
        """Copy and acknowledge, in order."""
        done = []
        for range in ranges:
            done.append(self.copy(range, **more))
            assert self.acknowledge(range, done[-1])
        return done

    def there(self, name: str = TARGET) -> list[int]:
        """The numbers in the target."""
        return [row["_origin_seq"] for row in self.targets.rows(name)]

    def base(self, range: SequenceRange) -> str | None:
        assert self.intent is not None
        wanted = (chunks.c.intent == self.intent.id) & (chunks.c.after_seq == range.after)
        return self.store.engine.database.read(lambda c: c.execute(select(chunks.c.base).where(wanted)).scalar_one())


@pytest.fixture
def numbers() -> Callable[[int], Sequence[int]]:
    counter = itertools.count(1)
    return lambda count: list(itertools.islice(counter, count))


@pytest.fixture
def add(store: Store, numbers) -> Callable[..., None]:
    """Commits rows to a dataset."""

    def commit(count: int, dataset: str = "events", **more: Any) -> None:
        store.capture(dataset, [{"id": id, "name": f"n{id}", **more} for id in numbers(count)])
        store.flush(dataset)

    return commit


@pytest.fixture
def export(store: Store, lake: MemoryLake, add) -> Export:
    """Five rows wait for a new table."""
    store.add_dataset("events", schema={"id": "int", "name": "string"})
    add(5)
    made = Export(store, lake)
    made.pin(FIRST, SECOND)
    return made


def stranger(numbers: Sequence[int] = (1, 2, 3, 4, 5), *, store: str = "another") -> pa.Table:
    """Rows of somebody else, with numbers that are also ours."""
    return pa.table(
        {
            "id": pa.array([0] * len(numbers), pa.int64()),
            "_origin_store": [store] * len(numbers),
            "_origin_seq": pa.array(numbers, pa.int64()),
            "_origin_partition": ["all"] * len(numbers),
        }
    )


def counted(export: Export, within: SequenceRange) -> Tally:
    """What the source has."""
    source = export.source()
    stats = queries.stats(export.lake, source.table, snapshot=source.snapshot, within=within, partition_by=())
    return stats[0].tally


# ── the ordinary way ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_arrive_once_with_their_origin_and_ticks_bring_only_what_is_new(export: Export, store: Store, add):
    done = export.deliver(FIRST, SECOND)

    assert [item.tally.rows for item in done] == [3, 2]
    assert all(item.bytes > 0 for item in done)
    assert export.targets.rows(TARGET)[0] == {
        "id": 1,
        "name": "n1",
        "_origin_store": store.store_id,
        "_origin_seq": 1,
        "_origin_partition": "all",
    }
    for start in (5, 7, 9):  # not 100, 200, 300 rows
        add(2)
        export.pin(SequenceRange(start, start + 2))
        assert export.deliver(SequenceRange(start, start + 2))[0].tally.rows == 2
    assert export.there() == list(range(1, 12))
    assert channels.watermark(store.engine.database, export.channel) == 11


def test_a_range_without_rows_makes_no_commit(export: Export, store: Store):
    export.deliver(FIRST, SECOND)
    before = len(export.targets.tables[TARGET].snapshots)
    export.pin(SequenceRange(5, 50))

    assert export.deliver(SequenceRange(5, 50)) == [Copied(0, Tally())]
    assert len(export.targets.tables[TARGET].snapshots) == before


def test_partitions_share_a_table_and_are_told_apart(store: Store, lake: MemoryLake, add):
    store.add_dataset("events", partition_by=["site"])
    add(2, site="a")
    add(2, site="b")
    for site in ("a", "b"):
        export = Export(store, lake, partition=f"site={site}")
        export.pin(SequenceRange(0, 4))
        export.deliver(SequenceRange(0, 4), partition_values={"site": site})
    rows = lake.targets.rows(TARGET)
    assert [(row["_origin_seq"], row["_origin_partition"]) for row in rows] == [
        (1, "site=a"),
        (2, "site=a"),
        (3, "site=b"),
        (4, "site=b"),
    ]


def test_rows_that_were_given_up_stay_behind_and_can_be_replayed(export: Export):
    source, second = export.source(), counted(export, SequenceRange(1, 2))
    done = export.deliver(FIRST, given_up={2: second, 99: second})
    assert done[0].tally.rows == 2
    assert export.there() == [1, 3]

    row = next(iter(export.lake.scan(source.table, snapshot=source.snapshot, within=SequenceRange(1, 2))))
    parcel = Parcel(
        export.channel,
        SequenceRange(1, 2),
        row.select(["id", "name"]),
        row[SEQ],
        row["_ingest_id"],
        second,
        replay=True,
    )
    for _ in range(3):
        export.destination().deliver(parcel)
    assert export.there() == [1, 2, 3]

    export.targets.delete(TARGET, SequenceRange(1, 2))
    export.destination().deliver(parcel)
    assert export.there() == [1, 3], "its mark is still known"


# ── crashes and late requests ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("point", ["table.base_recorded", "table.decided", "table.appended", "table.synced"])
@pytest.mark.parametrize("time", [1, 2, 3])
def test_a_crash_at_any_point_neither_loses_nor_doubles_a_row(point: str, time: int, export: Export, add):
    with crash_at(point, time=time):
        export.deliver(FIRST, SECOND)
    add(3)  # what comes in between belongs to the next range
    export.targets.compact(TARGET)
    mark = channels.watermark(export.store.engine.database, export.channel)
    export.deliver(*[item for item in (FIRST, SECOND) if item.through > mark])
    assert export.there() == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("answer", ["lose_answer", "hold", "drop"])
def test_a_lost_answer_is_settled_by_looking(answer: str, export: Export):
    answers = iter([answer])
    export.targets.on_append = lambda _request: next(answers, "land")
    export.deliver(FIRST, SECOND)
    assert export.targets.deliver_held() == ([False] if answer == "hold" else [])
    assert export.there() == [1, 2, 3, 4, 5]


def test_a_late_request_that_lands_first_is_the_delivery(export: Export):
    """The retry collides with its own earlier request: a conflict is not a verdict."""
    targets = export.targets

    def fate(_request: TargetAppend) -> str:
        if targets.held:
            targets.deliver_held()
            return "land"
        return "hold"

    targets.on_append = fate
    export.deliver(FIRST)
    assert export.there() == [1, 2, 3]


def test_a_late_request_that_lands_between_the_look_and_the_append_is_not_doubled(export: Export):
    """D6: the append stands on the head that was looked at, and on no newer one."""
    answers = iter(["hold"])
    export.targets.on_append = lambda _request: next(answers, "land")
    arrived: list[bool] = []
    faults.arm("table.decided", faults.nth_time(2, lambda: arrived.extend(export.targets.deliver_held())))

    export.deliver(FIRST)

    assert arrived == [True]
    assert export.there() == [1, 2, 3]


def test_two_exporters_with_one_chunk_bring_it_once(export: Export):
    other = export.destination()
    intent, source = export.intent, export.source()
    assert intent is not None
    answers = iter([lambda: other.copy(intent, FIRST, source)])

    def fate(_request: TargetAppend) -> str:
        next(answers, lambda: None)()
        return "land"

    export.targets.on_append = fate
    export.deliver(FIRST)
    assert export.there() == [1, 2, 3]


def test_a_late_exporter_sends_nothing_for_a_chunk_that_is_settled_and_deleted_since(export: Export):
    late = export.destination()
    intent, source = export.intent, export.source()
    export.deliver(FIRST)
    export.targets.delete(TARGET)
    export.targets.expire(TARGET)

    assert late.copy(intent, FIRST, source).bytes == 0
    assert export.there() == []


def test_the_first_base_stands(export: Export):
    """D5: it is from before every attempt."""
    export.targets.on_append = lambda _request: "drop"
    with pytest.raises(errors.Retryable):
        export.copy(FIRST)
    first = export.base(FIRST)
    export.targets.add(TARGET, stranger())
    with pytest.raises(errors.Retryable):
        export.copy(FIRST)
    assert first is not None
    assert export.base(FIRST) == first


def test_a_target_that_never_answers_is_left_for_later(export: Export):
    sent = []
    export.targets.on_append = lambda request: sent.append(request) or "drop"
    with pytest.raises(errors.Retryable, match=r"rows \(0, 3\] of 'events'"):
        export.copy(FIRST)
    assert len(sent) == 2
    assert export.there() == []


def test_the_files_are_durable_before_the_chunk_counts(export: Export):
    export.deliver(FIRST)
    export.targets.lose_power()
    assert export.there() == [1, 2, 3]


def test_files_that_are_not_there_stop_the_acknowledgement(export: Export):
    with crash_at("table.appended"):
        export.copy(FIRST)
    export.targets.lose_power()
    with pytest.raises(errors.FilesMissing):
        export.copy(FIRST)


# ── what others do to the target ─────────────────────────────────────────────────────────────────────────────────────


def test_others_who_append_meanwhile_are_followed(export: Export):
    times = iter(range(3))

    def fate(_request: TargetAppend) -> str:
        if next(times, None) is not None:
            export.targets.add(TARGET, stranger())
        return "land"

    export.targets.on_append = fate
    export.deliver(FIRST, SECOND)
    ours = [row for row in export.targets.rows(TARGET) if row["_origin_store"] != "another"]
    assert [row["_origin_seq"] for row in ours] == [1, 2, 3, 4, 5]


def test_others_who_append_all_the_time_make_it_come_again_later(export: Export):
    sent = []

    def fate(request: TargetAppend) -> str:
        sent.append(request)
        export.targets.add(TARGET, stranger())
        return "land"

    export.targets.on_append = fate
    with pytest.raises(errors.Retryable):
        export.copy(FIRST)
    assert len(sent) == CONFLICTS_MAX


@pytest.mark.parametrize("landed", [True, False])
@pytest.mark.parametrize("afterwards", ["nothing", "compaction", "a stranger", "both"])
@pytest.mark.parametrize("expired", [False, True])
def test_a_crash_before_the_acknowledgement_beside_what_others_do(
    landed: bool, afterwards: str, expired: bool, export: Export
):
    export.targets.on_append = lambda _request: "land" if landed else "drop"
    with crash_at("table.appended"):
        export.copy(FIRST)
    export.targets.on_append = None
    if afterwards in ("a stranger", "both"):
        export.targets.add(TARGET, stranger())
        export.targets.add(TARGET, stranger())
    if afterwards in ("compaction", "both"):
        export.targets.compact(TARGET)
    if expired:
        export.targets.expire(TARGET)

    if expired and not landed and "stranger" in afterwards.replace("both", "stranger"):
        with pytest.raises(errors.Permanent, match="is unknown"):
            export.copy(FIRST)  # not guessed
        return
    export.deliver(FIRST, SECOND)
    ours = [row["_origin_seq"] for row in export.targets.rows(TARGET) if row["_origin_store"] != "another"]
    assert sorted(ours) == [1, 2, 3, 4, 5]


def test_snapshots_that_expire_between_ticks_do_not_matter(export: Export, add):
    """The cursor does not live in the target's history."""
    export.deliver(FIRST, SECOND)
    export.targets.add(TARGET, stranger())
    export.targets.compact(TARGET)
    export.targets.expire(TARGET)
    add(2)
    export.pin(SequenceRange(5, 7))
    export.deliver(SequenceRange(5, 7))
    ours = [row["_origin_seq"] for row in export.targets.rows(TARGET) if row["_origin_store"] != "another"]
    assert sorted(ours) == [1, 2, 3, 4, 5, 6, 7]


def test_rows_that_a_user_deletes_do_not_come_back(export: Export):
    with crash_at("table.appended"):
        export.copy(FIRST)
    export.targets.delete(TARGET)

    export.deliver(FIRST, SECOND)

    assert export.there() == [4, 5]


@pytest.mark.parametrize("gone", [None, SequenceRange(2, 3)])
def test_rows_that_a_user_deletes_do_not_come_back_where_the_commit_is_forgotten_too(
    gone: SequenceRange | None, export: Export
):
    """All of them, or the last: either way nobody can tell them from rows that never came."""
    with crash_at("table.appended"):
        export.copy(FIRST)
    export.targets.delete(TARGET, gone)
    export.targets.expire(TARGET)

    with pytest.raises(errors.Permanent, match="is unknown") as raised:
        export.copy(FIRST)

    assert "remove the sink and add it again" in str(raised.value)
    assert 3 not in export.there()


@pytest.mark.parametrize("how", ["dropped", "made anew", "made anew and filled"])
def test_a_table_that_was_dropped_is_not_taken_for_its_successor(how: str, export: Export):
    with crash_at("table.base_recorded"):
        export.copy(FIRST)
    if how == "dropped":
        export.targets.drop(TARGET)
    else:
        export.targets.create(TARGET, {**ORIGIN_COLUMNS, "id": LONG, "name": STRING})
    if how == "made anew and filled":
        export.targets.add(TARGET, stranger())

    with pytest.raises(errors.Permanent, match="is not the table that"):
        export.copy(FIRST)

    assert how == "dropped" or len(export.targets.rows(TARGET)) in (0, 5)


def test_a_request_that_lands_in_the_successor_of_its_table_is_noticed(export: Export):
    """The base of a dropped table is accepted by an empty one of its name: only the identity tells."""

    def fate(_request: TargetAppend) -> str:
        export.targets.create(TARGET, {**ORIGIN_COLUMNS, "id": LONG, "name": STRING})
        return "land"

    export.targets.on_append = fate
    with pytest.raises(errors.Permanent, match="is not the table that"):
        export.copy(FIRST)


# ── what is lost on our side ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("expired", [False, True])
def test_a_lost_watermark_goes_on_behind_what_is_there(expired: bool, export: Export, store: Store, lake: MemoryLake):
    export.deliver(FIRST, SECOND)
    if expired:
        export.targets.compact(TARGET)
        export.targets.expire(TARGET)
    again = Export(store, lake)

    held = again.destination().held(again.channel, after=0)

    assert held.end == 5
    if not expired:
        assert held.tally == counted(export, SequenceRange(0, 5))
    assert again.destination().held(again.channel, after=5).end is None


def test_a_table_of_others_holds_nothing_of_ours(export: Export):
    assert export.destination().held(export.channel, after=0).end is None
    export.targets.create(TARGET, {**ORIGIN_COLUMNS, "id": LONG})
    export.targets.add(TARGET, stranger())
    assert export.destination().held(export.channel, after=0).end is None


@pytest.mark.parametrize("expired", [False, True])
def test_the_same_range_under_a_new_record_is_recognised(expired: bool, export: Export, store: Store, lake: MemoryLake):
    export.deliver(FIRST, SECOND)
    if expired:
        export.targets.compact(TARGET)
        export.targets.expire(TARGET)
    again = Export(store, lake)
    again.pin(FIRST, SECOND)
    again.deliver(FIRST, SECOND)
    assert again.there() == [1, 2, 3, 4, 5]


def test_other_boundaries_over_what_is_there_are_refused(export: Export, store: Store, lake: MemoryLake):
    export.deliver(FIRST)
    again = Export(store, lake)
    again.pin(SequenceRange(0, 5))
    with pytest.raises(errors.DivergedHistory, match="a part of rows"):
        again.copy(SequenceRange(0, 5))
    assert again.there() == [1, 2, 3]


def test_other_rows_under_the_same_numbers_are_refused(export: Export, store: Store, lake: MemoryLake):
    export.deliver(FIRST)
    again = Export(store, lake)
    again.pin(FIRST)
    lake.delete("events_g1", SequenceRange(0, 1))
    with pytest.raises(errors.DivergedHistory, match="other rows"):
        again.copy(FIRST)


# ── one table, one dataset of a store ────────────────────────────────────────────────────────────────────────────────


def test_two_datasets_of_a_store_cannot_share_a_table(export: Export, store: Store, lake: MemoryLake, add):
    """The numbers of one would be taken for the other's, and its rows for delivered."""
    export.deliver(FIRST, SECOND)
    store.add_dataset("others")
    add(2, dataset="others")
    other = Export(store, lake, dataset="others", table=TARGET)
    with pytest.raises(errors.Permanent, match="other rows of this store"):
        other.destination()


def test_two_filters_of_a_dataset_cannot_share_a_table(store: Store, lake: MemoryLake, export: Export):
    one = Export(store, lake, where="id > 2")
    one.pin(FIRST, SECOND)
    assert [item.tally.rows for item in one.deliver(FIRST, SECOND)] == [1, 2]
    assert one.there() == [3, 4, 5]
    with pytest.raises(errors.Permanent, match="other rows of this store"):
        export.copy(FIRST)


def test_rows_of_ours_without_a_claim_are_not_guessed_at(export: Export, store: Store):
    export.targets.create(TARGET, {**ORIGIN_COLUMNS, "id": LONG, "name": STRING})
    export.targets.add(TARGET, stranger([1, 2], store=store.store_id))
    with pytest.raises(errors.Permanent, match="does not name their dataset") as raised:
        export.copy(FIRST)
    assert "SET TBLPROPERTIES" in str(raised.value)


def test_stores_share_a_table(export: Export):
    export.targets.create(TARGET, {**ORIGIN_COLUMNS, "id": LONG, "name": STRING})
    export.targets.add(TARGET, stranger())
    export.deliver(FIRST, SECOND)
    assert len(export.there()) == 10


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_table_grows_with_the_dataset(export: Export, store: Store, add):
    export.deliver(FIRST, SECOND)
    add(1, colour="red")
    store.capture("events", [{"id": 2**40, "name": "wide", "colour": None}])
    store.flush("events")
    export.pin(SequenceRange(5, 7))
    export.deliver(SequenceRange(5, 7))

    kinds = export.targets.tables[TARGET].columns
    assert (kinds["colour"], kinds["id"]) == (STRING, LONG)
    assert [row.get("colour") for row in export.targets.rows(TARGET)][-2:] == ["red", None]
    assert export.targets.rows(TARGET)[-1]["id"] == 2**40


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": LONG}, "_origin_store"),
        ({**ORIGIN_COLUMNS, "_origin_seq": STRING}, "_origin_seq"),
        ({**ORIGIN_COLUMNS, "id": STRING}, "'id' is int in the dataset, and 'id' is string"),
        ({**ORIGIN_COLUMNS, "ID": LONG}, "'ID'"),
    ],
)
def test_a_table_that_cannot_take_the_rows_is_named_with_the_reason(columns, said: str, export: Export):
    export.targets.create(TARGET, columns)
    with pytest.raises(errors.SchemaConflict, match=said):
        export.copy(FIRST)
    assert export.targets.rows(TARGET) == []


def test_a_table_with_wider_and_further_columns_takes_the_rows(export: Export):
    export.targets.create(TARGET, {**ORIGIN_COLUMNS, "id": LONG, "name": STRING, "note": DOUBLE})
    export.deliver(FIRST, SECOND)
    assert export.there() == [1, 2, 3, 4, 5]


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("table", ["events", "a.b.c.d", "a..b", "a.b; DROP", "a.`b`", "", None, 7, "a.b.c "])
def test_a_name_that_is_no_table_is_refused(table: Any):
    with pytest.raises(errors.InvalidSetting, match="table is"):
        KIND.check({**KIND.defaults, "table": table, "datasets": ["events"]})


@pytest.mark.parametrize("chosen", [None, [], ["a", "b"]])
def test_one_table_takes_exactly_one_dataset(chosen: Any):
    with pytest.raises(errors.InvalidSetting, match="exactly one"):
        KIND.check({**KIND.defaults, "table": "a.b.c", "datasets": chosen})
    KIND.check({**KIND.defaults, "table": "a.b.c", "datasets": ["a"]})
    KIND.check({**KIND.defaults, "table": "a.b", "datasets": chosen})
    with pytest.raises(errors.InvalidSetting, match="chunk_rows"):
        KIND.check({**KIND.defaults, "table": "a.b", "datasets": chosen, "chunk_rows": 0})


# ── a source that shrinks, files that go while they are looked at ────────────────────────────────────────────────────


def test_rows_that_were_purged_between_the_delivery_and_its_acknowledgement_do_not_make_another_history(
    export: Export, store: Store, lake: MemoryLake
):
    with crash_at("table.appended"):
        export.copy(FIRST)
    gone = counted(export, SequenceRange(0, 1))
    lake.delete("events_g1", SequenceRange(0, 1))
    store.engine.database.transact(
        lambda c: c.execute(
            removals.insert().values(
                operation="purge-1",
                dataset="events",
                partition_key="all",
                after_seq=0,
                through_seq=1,
                row_count=gone.rows,
                checksum=gone.checksum_text,
                reason="purge",
                removed_at="2026-01-01",
            )
        )
    )

    copied = export.deliver(FIRST)[0]

    assert copied.tally.rows == 3, "what was delivered is what is acknowledged"
    assert export.there() == [1, 2, 3]


def test_snapshots_that_expire_while_their_files_are_synced_are_no_loss(export: Export, monkeypatch):
    calls = []
    real = MemoryTarget.sync

    def sync(self: MemoryTarget, state: Any, *, since: int | None) -> None:
        calls.append(state.history.head)
        if len(calls) == 1:
            export.targets.compact(TARGET)
            export.targets.expire(TARGET)
            raise errors.FilesMissing("A manifest list is missing.")
        real(self, state, since=since)

    monkeypatch.setattr(MemoryTarget, "sync", sync)
    export.deliver(FIRST)
    assert len(set(calls)) == 2
    export.targets.lose_power()
    assert export.there() == [1, 2, 3]


# ── through the whole of a store ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("partitioned", [False, True])
def test_a_store_exports_to_a_table(partitioned: bool, store: Store, lake: MemoryLake, add, reopen):
    store.add_dataset("events", schema={"id": "long"}, partition_by=["name"] if partitioned else [])
    store.add_sink("copy", "table", table="central.copies", chunk_rows=2)
    add(5)
    assert store.export("copy").rows == 5
    again = reopen()
    assert again.export("copy").rows == 0
    add(2)
    assert again.export("copy").rows == 2
    assert [row["_origin_seq"] for row in lake.targets.rows(TARGET)] == [1, 2, 3, 4, 5, 6, 7]

    forgotten = ("chunks", "intents", "watermarks")
    for table in forgotten:
        again.engine.database.transact(lambda c, table=table: c.exec_driver_sql(f"DELETE FROM {table}"))
    add(1)
    last = reopen()
    assert last.export("copy").rows == 1
    assert [row["_origin_seq"] for row in lake.targets.rows(TARGET)] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_sink_that_is_removed_and_added_again_goes_on_behind_what_is_there(store: Store, lake: MemoryLake, add):
    store.add_dataset("events", schema={"id": "long"})
    store.add_sink("copy", "table", table="central.copies")
    add(3)
    store.export("copy")
    lake.targets.delete(TARGET)
    store.remove_sink("copy")
    store.add_sink("other", "table", table="central.copies")
    add(2)
    assert store.export("other").rows == 2
    assert [row["_origin_seq"] for row in lake.targets.rows(TARGET)] == [4, 5]


def test_what_cannot_be_told_blocks_the_sink_until_it_is_added_again(store: Store, lake: MemoryLake, add):
    store.add_dataset("events", schema={"id": "long"})
    store.add_sink("copy", "table", table="central.copies")
    add(3)
    with crash_at("table.appended"):
        store.export("copy")
    lake.targets.create(TARGET, {**ORIGIN_COLUMNS, "id": LONG, "name": STRING})

    assert "is not the table that" in (store.export("copy").blocked or "")
    assert "is not the table that" in (store.sinks()[0].reason or "")
    store.remove_sink("copy")
    store.add_sink("copy", "table", table="central.copies")
    assert store.export("copy").rows == 3


@pytest.mark.parametrize("landed", [True, False])
def test_a_chunk_that_was_given_up_in_doubt_is_replayed_once(landed: bool, store: Store, lake: MemoryLake, add):
    store.add_dataset("events", schema={"id": "long"})
    store.add_sink("copy", "table", table="central.copies", chunk_rows=3)
    add(6)
    lake.targets.on_append = lambda _request: "land" if landed else "drop"
    with crash_at("table.appended"):
        store.export("copy")
    lake.targets.on_append = None
    skipped = store.skip("copy")
    assert [(item.range, item.rows) for item in skipped] == [(FIRST, 3)]
    assert store.export("copy").rows == 3

    for _ in range(2):
        store.replay("copy")

    assert [row["_origin_seq"] for row in lake.targets.rows(TARGET)] == [1, 2, 3, 4, 5, 6]
