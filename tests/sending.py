"""A store that forwards to a hub, as far as the hub can tell: it numbers rows, keeps totals, sends ranges of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlalchemy import select

from floodmark import wire
from floodmark.control import ledger
from floodmark.control.ledger import Entry
from floodmark.control.schema import segments
from floodmark.rows.content import content_ids
from floodmark.rows.fit import fit, rows_to_columns
from floodmark.schema import Schema
from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally
from floodmark.store import Store
from floodmark.wire import ChunkHeader, GivenUpRange

DATASET = "events"


@dataclass
class Chunk:
    header: ChunkHeader
    content: bytes
    dataset: str = DATASET
    media: str = wire.LINES

    @property
    def path(self) -> str:
        return f"/v1/datasets/{self.dataset}/chunks"

    @property
    def body(self) -> bytes:
        return wire.compress(self.content)

    def headers(self, token: str | None = None) -> dict[str, str]:
        found = {
            "Content-Type": self.media,
            "Content-Encoding": "zstd",
            wire.HEADER: self.header.encode(),
            wire.KEY_HEADER: wire.idempotency_key(
                self.header.origin, self.dataset, self.header.partition, self.header.range
            ),
        }
        return found if token is None else {**found, "Authorization": f"Bearer {token}"}


@dataclass
class Sender:
    """Rows with the numbers 1, 2, … unless told otherwise, in one partition."""

    origin: str = "edge-1"
    partition: str = "all"
    schema: Schema = field(default_factory=Schema)
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    given_up: set[int] = field(default_factory=set)
    media: str = wire.LINES
    prefixes: dict[int, int] = field(default_factory=dict)
    """The first 64 bits of each row's content id, as far as they were needed."""

    def add(self, count: int, *, first: int | None = None) -> None:
        start = first or max(self.rows, default=0) + 1
        self.rows |= {seq: {"id": seq, "text": f"{self.origin} {seq}"} for seq in range(start, start + count)}

    def prefix(self, seq: int) -> int:
        if seq not in self.prefixes:
            missing = [other for other in sorted(self.rows) if other not in self.prefixes]
            self.prefixes |= dict(zip(missing, content_ids(self.table(missing))[1], strict=True))
        return self.prefixes[seq]

    def total(self, through: int) -> Tally:
        numbers = [seq for seq in self.rows if seq <= through]
        return Tally(len(numbers), sum(map(self.prefix, numbers)) % 2**64)

    def table(self, numbers: list[int]) -> pa.Table:
        columns, values = rows_to_columns([self.rows[seq] for seq in numbers])
        fitted = fit(self.schema, columns, values, rows=len(numbers))
        assert fitted.misfits == []
        return fitted.table

    def chunk(self, after: int, through: int, **changes: Any) -> Chunk:
        inside = [seq for seq in sorted(self.rows) if after < seq <= through]
        sent = [seq for seq in inside if seq not in self.given_up]
        content, tally, types = self._body(sent)
        values = {
            "origin": self.origin,
            "partition": self.partition,
            "range": SequenceRange(after, through),
            "tally": tally,
            "before": self.total(after),
            "digest": wire.digest_of(content),
            "given_up": tuple(
                GivenUpRange(SequenceRange(seq - 1, seq), Tally(1, self.prefix(seq)))
                for seq in inside
                if seq in self.given_up
            ),
            "path": (self.origin,),
            "types": types,
        }
        return Chunk(ChunkHeader(**{**values, **changes}), content, media=self.media)

    def replay(self, seq: int) -> Chunk:
        content, tally, types = self._body([seq])
        header = ChunkHeader(
            origin=self.origin,
            partition=self.partition,
            range=SequenceRange(seq - 1, seq),
            tally=tally,
            before=self.total(seq - 1),
            digest=wire.digest_of(content),
            replay=True,
            path=(self.origin,),
            types=types,
        )
        return Chunk(header, content, media=self.media)

    def _body(self, numbers: list[int]) -> tuple[bytes, Tally, dict[str, str]]:
        if not numbers and self.media == wire.LINES:
            return b"", Tally(), {}
        table = self.table(numbers)
        ids, prefixes = content_ids(table)
        sequence, identifiers = pa.chunked_array([numbers], pa.int64()), pa.chunked_array([ids])
        if self.media == wire.COLUMNS:
            content = wire.encode_columns(table, sequence, identifiers)
        else:
            content = wire.encode_lines(table, sequence, identifiers, schema=self.schema)
        return content, Tally(len(numbers), sum(prefixes) % 2**64), wire.types_lost_in_json(self.schema, table)


# ── what a hub holds ─────────────────────────────────────────────────────────────────────────────────────────────────


def entry(store: Store, origin: str = "edge-1", partition: str = "all") -> Entry | None:
    return store.engine.database.read(lambda c: ledger.find(c, origin=origin, dataset=DATASET, partition=partition))


def never_got(store: Store, found: Entry) -> list[SequenceRange]:
    """The ranges of a channel that were given up."""
    return store.engine.database.read(lambda c: ledger.given_up_within(c, found, SequenceRange(0, SEQUENCE_MAX)))


def spooled(store: Store, dataset: str = DATASET) -> list[dict[str, Any]]:
    """Every row in a registered segment."""
    import pyarrow.parquet as pq

    paths = store.engine.database.read(
        lambda c: (
            c.execute(
                select(segments.c.path)
                .where(segments.c.dataset == dataset, segments.c.state == "sealed")
                .order_by(segments.c.registered)
            )
            .scalars()
            .all()
        )
    )
    found = [row for path in paths for row in pq.read_table(store.path / path).to_pylist()]
    return [{name: value for name, value in row.items() if not name.startswith("_ingest_")} for row in found]


def spooled_ids(store: Store) -> list[int]:
    return sorted(row["id"] for row in spooled(store))


def segment_states(store: Store) -> list[str]:
    return list(store.engine.database.read(lambda c: c.execute(select(segments.c.state)).scalars().all()))


def check(store: Store, sender: Sender, *, through: int) -> None:
    """Every row up to there exactly once, and the ledger in agreement with them."""
    wanted = sorted(seq for seq in sender.rows if seq <= through and seq not in sender.given_up)
    mine = [row["id"] for row in spooled(store) if row["text"].startswith(f"{sender.origin} ")]
    assert sorted(mine) == wanted
    found = entry(store, sender.origin, sender.partition)
    assert found is not None
    assert (found.through, found.tally) == (through, sender.total(through))
    given_up = sorted(seq for seq in sender.given_up if seq <= through)
    assert found.given_up_rows == len(given_up)
    assert [seq for span in never_got(store, found) for seq in range(span.after + 1, span.through + 1)] == given_up
