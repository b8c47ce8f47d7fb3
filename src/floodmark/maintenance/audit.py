"""Audit: does a destination hold every row that was committed for it, each once?

    committed rows ──(1)──▶ acknowledged chunks ──(2)──▶ the destination
         │(0)
        lake

0. `deep` only: the rows of each partition, counted in the lake, are those that the blocks recorded.
1. From the records: acknowledged rows add up to committed rows, range by range (`conservation`), the watermark's
   own total to its chunks', and every row that was given up is in quarantine.
2. The destination is queried (`AuditableDestination`): by names and counts, or if `deep` row by row.

Nothing is written anywhere, and nothing depends on a store at rest.

Invariants
- U30 A finding is what two reads agree on: a delivery in progress is not damage.
- U31 A range below the watermark without an acknowledged chunk counts as delivered only if the destination confirms it.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from floodmark.control import blocks, datasets, deliveries, inspection, losses, sinks
from floodmark.control.chunks import ParcelStart, parcel_start
from floodmark.control.database import Database
from floodmark.control.deliveries import Channel, Intent, Watermark
from floodmark.control.inspection import BlockStats, ChunkRecord, GivenUpRow, IntentRecord, Removal
from floodmark.control.sinks import Sink
from floodmark.delivery.destination import Account, AuditableDestination, Audited, ExpectedRange, Finding
from floodmark.delivery.kinds import kind_of
from floodmark.delivery.scope import Scope
from floodmark.delivery.source import RowSource
from floodmark.engine import Engine
from floodmark.lake import queries
from floodmark.maintenance.findings import agreed, flush_is_running, loss_finding
from floodmark.read import View, view_of
from floodmark.sequence import RangeSet, SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa


# ── What the records of one channel say, and the account of it that its destination is held against ──────────────────


# ── Whether the acknowledged rows are the committed rows, range by range, from the records alone ──────────────────────
# Two series run along the sequence numbers: the committed blocks, each with its tally of one partition, and the
# acknowledged chunks, each with the tally that its acknowledgement recorded. Tallies of disjoint ranges add up, so the
# two are compared wherever a chunk ends between two blocks. A chunk that ends inside a block is compared together with
# those after it.
#
# Rows may be missing on the side of the chunks for a reason that is on record: they were removed from the lake before
# they left (retention with leave, purge), or the sink's row filter left them out.


@dataclass(frozen=True, slots=True)
class Imbalance:
    """A range in which the two sides do not add up."""

    range: SequenceRange
    committed: Tally
    settled: Tally

    @property
    def what(self) -> str:
        if self.committed.rows == self.settled.rows:
            return f"The {self.settled.rows} rows acknowledged in {self.range} differ from the rows committed there."
        return f"{self.committed.rows} rows were committed in {self.range}, and {self.settled.rows} were acknowledged."


def effective(chunks: Sequence[ChunkRecord]) -> list[ChunkRecord]:
    """The acknowledged chunks that count, in order, out of those of all intents, oldest intent first.

    A channel that lost its watermark settles its ranges again; of chunks that overlap, the newest counts.
    """
    covered = RangeSet()
    counted: list[ChunkRecord] = []
    for chunk in reversed([chunk for chunk in chunks if chunk.state != "pending"]):
        if not any(item.intersect(chunk.range) for item in covered):
            covered.add(chunk.range)
            counted.append(chunk)
    return sorted(counted, key=lambda chunk: chunk.range)


def holes(chunks: Sequence[ChunkRecord], whole: SequenceRange) -> list[SequenceRange]:
    """Where no acknowledged chunk is recorded."""
    return RangeSet.of(chunk.range for chunk in chunks).missing_within(whole)


class Committed:
    """What the blocks hold of one partition, in order."""

    def __init__(self, stats: Sequence[BlockStats]) -> None:
        self._first = [item.first_seq for item in stats]
        self._last = [item.last_seq for item in stats]
        self._sums = list(accumulate((item.tally for item in stats), initial=Tally()))

    def within(self, span: SequenceRange) -> Tally | None:
        """What was committed in a range; None where it begins or ends inside a block's rows."""
        begin, end = bisect_right(self._last, span.after), bisect_right(self._first, span.through)
        if begin >= end:
            return Tally()
        if self._first[begin] <= span.after or self._last[end - 1] > span.through:
            return None
        return self._sums[end] - self._sums[begin]


def imbalances(
    chunks: Sequence[ChunkRecord],
    blocks: Committed,
    *,
    removed: Sequence[Removal] = (),
    filtered: bool = False,
) -> Iterator[Imbalance]:
    """Compare neighbouring chunks with the blocks at every cut that both have."""
    run: list[ChunkRecord] = []
    for chunk in chunks:
        if run and run[-1].range.through != chunk.range.after:
            run = []  # a gap: its rows are checked elsewhere
        run.append(chunk)
        span = SequenceRange(run[0].range.after, chunk.range.through)
        committed = blocks.within(span)
        if committed is None:
            continue
        settled = sum((item.tally for item in run), Tally())
        if not _adds_up(committed, settled, span, removed, filtered=filtered):
            yield Imbalance(span, committed, settled)
        run = []


def _adds_up(
    committed: Tally, settled: Tally, span: SequenceRange, removed: Sequence[Removal], *, filtered: bool
) -> bool:
    if committed == settled:
        return True
    fewer = committed.rows - settled.rows
    if filtered:
        return fewer >= 0
    gone = [item for item in removed if item.range.intersect(span)]
    # A removal names a range, and not which of its rows had left before: no more than its rows may be missing.
    return bool(gone) and 0 < fewer <= sum(item.tally.rows for item in gone)


# ── Accounts ─────────────────────────────────────────────────────────────────────────────────────────────────────────


_HOW = frozenset({"format", "chunk_rows", "chunk_bytes"})
"""Pinned settings that say how, and not where to, chunks go."""


@dataclass(frozen=True, slots=True)
class Records:
    """All that is on record about one channel, read at one instant."""

    mark: Watermark | None
    start: ParcelStart | None
    """Of a channel whose destination keeps a ledger: up to where that must reach."""
    intents: list[IntentRecord]
    committed: Committed
    stats: list[inspection.BlockStats]
    removed: list[Removal]
    """What retention and purge removed; then the part of it that the sink never received."""
    forfeited: list[Removal]
    given_up: list[GivenUpRow]

    @property
    def chunks(self) -> list[ChunkRecord]:
        return [chunk for item in self.intents for chunk in item.chunks]


def read_records(connection: Connection, sink: Sink, channel: Channel) -> Records:
    stats = inspection.stats_of(connection, channel.dataset, channel.partition)
    forfeited = inspection.forfeits_of(connection, channel)
    return Records(
        deliveries.watermark(connection, channel),
        parcel_start(connection, channel) if kind_of(sink).contiguous else None,
        inspection.intents_of(connection, channel),
        Committed(stats),
        stats,
        [*inspection.removals_of(connection, channel.dataset, channel.partition), *forfeited],
        forfeited,
        inspection.given_up_of(connection, channel),
    )


def accounts(
    sink: Sink,
    channel: Channel,
    records: Records,
    settled: Sequence[ChunkRecord],
    unrecorded: Sequence[SequenceRange],
    source: RowSource,
) -> Iterator[tuple[dict[str, Any], Account]]:
    """One account for each place that the channel has been delivered to: a sink's url may have changed."""
    if source.view.snapshot is None:
        return
    pinned = {item.intent.id: item.intent for item in records.intents}
    today = Intent("", channel, SequenceRange(0, 1), _pinned_today(sink, source))
    places: dict[str, list[ExpectedRange]] = {_place(sink, today): []}
    settings = {_place(sink, today): today.settings}
    given_up = {row.seq: row.tally for row in records.given_up if row.state != "replayed"}

    def add(intent: Intent, item: ExpectedRange) -> None:
        places.setdefault(_place(sink, intent), []).append(item)
        settings.setdefault(_place(sink, intent), intent.settings)

    for chunk in settled:
        intent = pinned[chunk.intent]
        if chunk.state == "acknowledged":
            item = _expected(source, intent, chunk.range, chunk.tally, given_up)
            folded = partial(_part, records, source, intent, given_up) if chunk.folded > 1 else None
            add(intent, replace(item, part=folded))
        sent = [row for row in records.given_up if row.state == "replayed" and row.seq in chunk.range]
        if chunk.state == "quarantined" and sent:
            tally = sum((row.tally for row in sent), Tally())
            item = _expected(source, intent, chunk.range, tally, given_up)
            add(intent, replace(item, replayed=tuple(row.seq for row in sent)))
    for span in unrecorded:  # U31
        tally = _committed_in(records, source, today, span)
        if tally.rows:
            add(today, replace(_expected(source, today, span, tally, given_up), recorded=False))
    mark = records.mark or Watermark(0, Tally())
    for place, items in places.items():
        pending = [
            chunk.range
            for item in records.intents
            if _place(sink, item.intent) == place
            for chunk in item.chunks
            if chunk.range.through > mark.seq
        ]
        delivered = any(item.tally.rows for item in items)
        start = records.start if delivered else None
        yield (
            {key: value for key, value in settings[place].items() if key in kind_of(sink).pinned},
            Account(
                tuple(sorted(items, key=lambda item: item.range)),
                tuple(pending),
                mark.seq,
                source.view.horizon,
                0 if start is None else start.after,
                Tally() if start is None else start.before,
                frozenset(given_up),
            ),
        )


def _pinned_today(sink: Sink, source: RowSource) -> dict[str, Any]:
    own = {key: sink.settings[key] for key in kind_of(sink).pinned}
    return own | {"columns": list(source.view.dataset.schema.names), "where": sink.settings.get("where")}


def _place(sink: Sink, intent: Intent) -> str:
    where_to = {key: intent.settings.get(key) for key in kind_of(sink).pinned if key not in _HOW}
    return json.dumps(where_to, sort_keys=True)


def _expected(
    source: RowSource, intent: Intent, span: SequenceRange, tally: Tally, given_up: Mapping[int, Tally]
) -> ExpectedRange:
    inside = {seq: item for seq, item in given_up.items() if seq in span}
    place = replace(source.place(intent), given_up=given_up)

    def fetch() -> pa.Table:
        import pyarrow as pa
        import pyarrow.compute as pc

        piece = source.rows(intent, span)
        kept = pc.invert(pc.is_in(piece.sequence, pa.array(sorted(inside), pa.int64())))
        return piece.table.filter(kept) if inside else piece.table

    return ExpectedRange(span, tally, place, fetch)


def _part(
    records: Records, source: RowSource, intent: Intent, given_up: Mapping[int, Tally], span: SequenceRange
) -> ExpectedRange:
    """U35: a part of a range whose chunks are folded."""
    return _expected(source, intent, span, _committed_in(records, source, intent, span), given_up)


def _committed_in(records: Records, source: RowSource, intent: Intent, span: SequenceRange) -> Tally:
    """What a range without a chunk had: by the blocks if they record it, otherwise by the lake and the removals."""
    row_filter = intent.settings.get("where")
    known = records.committed.within(span)
    if known is not None and (row_filter is None or not known.rows):
        return known
    gone = [item for item in records.removed if item.range.intersect(span) == item.range]
    lost = [item for item in records.forfeited if item.range.intersect(span) == item.range]
    # Twice: once for the removal that it is part of, once for its own entry among them.
    delivered = sum((item.tally for item in gone), Tally()) - sum((item.tally for item in (*lost, *lost)), Tally())
    return source.totals(intent.channel, span, row_filter=row_filter) + delivered


# ── Audit ────────────────────────────────────────────────────────────────────────────────────────────────────────────


_FSCK = "Run `floodmark fsck`."
_SCOPE = "If the name is misspelled, correct `datasets` or `partitions` of the sink. Otherwise it has no rows yet."


@dataclass(frozen=True, slots=True)
class ChannelAudit:
    """One partition, delivered to one sink."""

    dataset: str
    partition: str
    watermark: int
    committed: int
    """All rows, as the blocks recorded them, whether they were to be delivered or are removed by now."""
    settled: int
    """Rows that count as delivered."""
    given_up: int
    """Rows in quarantine."""
    waiting: int
    """Rows above the watermark."""
    there: int | None
    """Rows that the destination was found to have; None where they were not counted."""
    note: str | None = None
    asked: bool = True
    """Whether the destination was queried: otherwise only the records were compared."""
    failed: bool = False
    """It should have been, and there was no answer that counts."""


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit of one sink found.

    Without findings that are `wrong`, the records agree with each other; and where every channel was `asked`, every
    acknowledged row is where it should be.
    """

    sink: str
    kind: str
    deep: bool
    channels: tuple[ChannelAudit, ...]
    findings: tuple[Finding, ...]

    @property
    def sound(self) -> bool:
        return not any(item.wrong for item in self.findings)

    @property
    def asked(self) -> bool:
        """Whether the destination was queried, for every channel."""
        return all(item.asked for item in self.channels)

    @property
    def failed(self) -> bool:
        """Whether the destination should have been queried and could not be."""
        return any(item.failed for item in self.channels)


@dataclass(frozen=True, slots=True)
class Auditor:
    """Audits the sinks of one store."""

    engine: Engine
    progress: Callable[[str], None] | None = None

    @property
    def database(self) -> Database:
        return self.engine.database

    def audit(self, name: str, *, deep: bool = False) -> AuditReport:
        sink, channels, warnings = self.database.read(lambda c: _in_scope(c, name))
        audited: list[ChannelAudit] = []
        findings = [Finding("scope-empty", text, name, _SCOPE, wrong=False) for text in warnings]
        for dataset in sorted({channel.dataset for channel in channels}):
            self._say(f"{dataset}: its blocks and files")
            findings += self._twice(partial(self._of_dataset, dataset, deep=deep))
        for channel in channels:
            self._say(f"{channel.dataset} {channel.partition}")
            line, found = self._channel(sink, channel, deep=deep)
            if found:
                again_line, again = self._channel(sink, channel, deep=deep)  # U30
                line, found = again_line, agreed(found, again)
            audited.append(line)
            findings += found
        return AuditReport(name, sink.kind, deep, tuple(audited), tuple(findings))

    def _say(self, text: str) -> None:
        if self.progress is not None:
            self.progress(text)

    def _twice(self, look: Callable[[], list[Finding]]) -> Sequence[Finding]:
        found = look()
        return agreed(found, look()) if found else []

    # ── the lake ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _of_dataset(self, name: str, *, deep: bool) -> list[Finding]:
        block = self.database.read(lambda c: blocks.undecided(c, name))
        found = []
        if block is not None and not flush_is_running(self.engine.root, name):
            what = f"Block {block.range} is undecided: a flush ended before it was known to be committed."
            run = f"The next flush decides it: run `floodmark flush {name}`."
            found.append(Finding("block-undecided", what, name, run, block.range, wrong=False))
        lost = self.database.read(lambda c: losses.of_dataset(c, name))
        found += [replace(loss_finding(item), wrong=False) for item in lost]  # U33
        view = view_of(self.engine, name)
        state = self.engine.lake.load(view.table)
        if state is None:
            return found
        files = self.engine.lake.files(state, check=True)
        found += [
            _file_finding("file-twice", "is referred to twice: its rows are read twice", name, file)
            for file in files.twice
        ]
        found += [_file_finding("file-missing", "is missing or damaged", name, file) for file in files.missing]
        if deep and not files.missing and view.snapshot is not None:
            found += self._counted(view, view.snapshot)
        return found

    def _counted(self, view: View, snapshot: int) -> Iterator[Finding]:
        """Step 0: one scan of the lake for all partitions."""
        dataset = view.dataset
        counted = {
            item.partition: item.tally
            for item in queries.stats(
                self.engine.lake,
                view.table,
                snapshot=snapshot,
                within=SequenceRange(0, dataset.horizon),
                partition_by=dataset.partition_by,
            )
        }
        recorded, removed = self.database.read(
            lambda c: (inspection.totals_of_blocks(c, dataset.name), inspection.removals_of(c, dataset.name))
        )
        yield from lake_differences(dataset.name, counted, recorded, removed)

    # ── one channel ──────────────────────────────────────────────────────────────────────────────────────────────

    def _channel(self, sink: Sink, channel: Channel, *, deep: bool) -> tuple[ChannelAudit, tuple[Finding, ...]]:
        records = self.database.read(lambda c: read_records(c, sink, channel))
        view = view_of(self.engine, channel.dataset)
        start = Scope.of(sink.settings).start(channel)
        mark = records.mark or Watermark(start, Tally())
        settled = [chunk for chunk in effective(records.chunks) if chunk.range.through <= mark.seq]
        findings = list(_from_records(channel, records, settled, start=start))
        there: int | None = None
        notes: list[str] = []
        asked, failed = True, False
        source = RowSource(self.engine.lake, view)
        unrecorded = holes(settled, SequenceRange(min(start, mark.seq), mark.seq))
        for settings, account in accounts(sink, channel, records, settled, unrecorded, source):
            reply, found = self._destination(sink, channel, settings, account, deep=deep)
            findings += found
            there = there if reply.rows is None else (there or 0) + reply.rows
            notes += [reply.note] if reply.note else []
            asked, failed = asked and reply.asked, failed or reply.failed
        held_back = sum(1 for item in records.given_up if item.state == "held")
        line = ChannelAudit(
            channel.dataset,
            channel.partition,
            mark.seq,
            committed=sum(item.tally.rows for item in records.stats),
            settled=mark.tally.rows,
            given_up=held_back,
            waiting=sum(item.tally.rows for item in records.stats if item.first_seq > mark.seq),
            there=there,
            note=" ".join(notes) or None,
            asked=asked,
            failed=failed,
        )
        return line, tuple(findings)

    def _destination(
        self, sink: Sink, channel: Channel, settings: Mapping[str, Any], account: Account, *, deep: bool
    ) -> tuple[Audited, list[Finding]]:
        where = f"{channel.dataset} {channel.partition}"
        with closing(kind_of(sink).connect(self.engine, channel, {**sink.settings, **settings})) as made:
            if not isinstance(made, AuditableDestination):
                note = f"What a {sink.kind} did with rows cannot be queried: only the records were compared."
                lost = [
                    Finding("never-sent", _never_sent(item), where, _FSCK, item.range)
                    for item in account.expected
                    if not item.recorded and item.tally.rows
                ]
                return Audited(note=note, asked=False), lost
            audited = made.audited(channel, account, deep=deep)
        return audited, [replace(item, where=f"{where} at {item.where}") for item in audited.findings]


def _never_sent(item: ExpectedRange) -> str:
    return f"{item.tally.rows} rows of {item.range} are below the watermark, and no delivered chunk is recorded."


def _file_finding(kind: str, what: str, dataset: str, file: str) -> Finding:
    run = f"Restore it from a backup. {_FSCK}" if kind == "file-missing" else f"Run `floodmark rebuild {dataset}`."
    return Finding(kind, f"Data file {file} {what}.", f"{dataset} {file}", run)


def lake_differences(
    dataset: str, counted: Mapping[str, Tally], recorded: Mapping[str, Tally], removed: Sequence[Removal]
) -> Iterator[Finding]:
    """U17: where the lake does not hold what the blocks recorded without what was removed, in rows and checksum."""
    gone: dict[str, Tally] = {}
    going: dict[str, Tally] = {}
    for item in removed:
        sums = going if item.state == "planned" else gone
        sums[item.partition] = sums.get(item.partition, Tally()) + item.tally
    for partition in sorted({*counted, *recorded}):
        here, wanted = counted.get(partition, Tally()), recorded.get(partition, Tally())
        left = wanted - gone.get(partition, Tally())
        if here in (left, left - going.get(partition, Tally())):  # a running removal has deleted its rows, or not yet
            continue
        others = " others" if here.rows == left.rows else ""
        what = f"The lake has {here.rows}{others} rows, and the blocks recorded {wanted.rows}"
        what += f", of which {gone[partition].rows} were removed." if partition in gone else "."
        yield Finding("lake-differs", what, f"{dataset} {partition}", _FSCK)


# ── from the records ─────────────────────────────────────────────────────────────────────────────────────────────────


def _in_scope(connection: Connection, name: str) -> tuple[Sink, list[Channel], list[str]]:
    """A sink, its channels, and what its scope names that is not there."""
    sink = sinks.get(connection, name)
    scope = Scope.of(sink.settings)
    declared = {item.name: item for item in datasets.everyone(connection)}
    keys = {key: [one.partition for one in datasets.partition_totals(connection, key)] for key in declared}
    found = inspection.channels_of(connection, sink.instance)
    taken = [channel for channel in found if scope.takes(declared[channel.dataset], channel.partition)]
    return sink, taken, scope.warnings(list(declared.values()), keys)


def _from_records(
    channel: Channel, records: Records, settled: Sequence[ChunkRecord], *, start: int
) -> Iterator[Finding]:
    """Step 1."""
    where = f"{channel.dataset} {channel.partition}"
    filtered = any(item.intent.settings.get("where") is not None for item in records.intents)
    for odd in imbalances(settled, records.committed, removed=records.removed, filtered=filtered):
        yield Finding("records-differ", odd.what, where, _FSCK, odd.range)
    mark = records.mark
    if mark is None:
        return
    total = sum((chunk.tally for chunk in settled), Tally())
    if not holes(settled, SequenceRange(min(start, mark.seq), mark.seq)) and total != mark.tally:
        what = f"The watermark counts {mark.tally.rows} rows, and its chunks {total.rows}"
        what += "." if total.rows != mark.tally.rows else ", others."
        yield Finding("watermark-differs", what, where, _FSCK, SequenceRange(min(start, mark.seq), mark.seq))
    for chunk in settled:
        if chunk.state == "quarantined":
            quarantined = sum((row.tally for row in records.given_up if row.seq in chunk.range), Tally())
            if quarantined != chunk.tally:
                what = (
                    f"{chunk.tally.rows} rows of {chunk.range} were given up, and {quarantined.rows} are in quarantine."
                )
                yield Finding("quarantine-differs", what, where, _FSCK, chunk.range)
