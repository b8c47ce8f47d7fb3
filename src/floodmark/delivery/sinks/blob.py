"""A blob sink: one object per chunk, named by its range, in a directory or a bucket.

    <prefix>/<dataset>/<partition>/<after>-<through>.<format>

The name has the range, so a repeated delivery finds its own object: it is compared, and equal means delivered.
No process ever replaces an object, not even by a late request. The prefix belongs to one sink of one store, which has
claimed it (`_floodmark_claim.json`).

Objects also record what was delivered: after a restore of the control database from a backup, the sink reads their
names and uses the same ranges.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from floodmark.control import datasets, sinks
from floodmark.control.deliveries import Channel
from floodmark.control.sinks import Sink
from floodmark.delivery.destination import (
    Account,
    Audited,
    Delivered,
    ExpectedRange,
    Finding,
    Kind,
    Parcel,
    whole_number,
)
from floodmark.delivery.outcomes import Busy, Holdings, Oversized
from floodmark.delivery.scope import Scope
from floodmark.delivery.sinks.formats import FORMATS, check_format, decoded, encoded, holds_rows
from floodmark.delivery.sinks.objects import OPTIONS, SECRET, Claim, ObjectPlace, check_place, place_of
from floodmark.engine import Engine
from floodmark.errors import DivergedHistory, InvalidSetting, Permanent, reason_of
from floodmark.schema import Schema
from floodmark.sequence import SEQUENCE_MAX, RangeSet, SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa


# ── Whether the objects of a channel are those in the records ────────────────────────────────────────────────────────
# The rows of an object have the checksum that was recorded at delivery: a row's content id covers its user columns, and
# an object has all of them. If they do not (a settle function changed values after the id was computed), the object is
# compared with the present rows of the lake; if the lake has fewer rows now, the object cannot be verified.


_RESTORE = "Restore the object from a backup, or deliver everything to a new prefix with a new sink."
HOLES_MAX = 50
"""So many stretches without an object are looked up in the lake, where the records of chunks are folded."""
_MOVE_AWAY = "Move it away: readers of the prefix count its rows as delivered."


@dataclass(slots=True)
class ObjectAudit:
    """One audit of one channel's folder."""

    place: ObjectPlace
    folder: str
    schema: Schema
    account: Account
    listed: Mapping[str, tuple[SequenceRange, str] | None]
    """Every name in the folder with its range and format; None for a name that no sink writes."""
    rows: int = 0
    unproven: int = 0
    """Objects whose rows could not be verified, without evidence of damage."""
    _objects: dict[str, tuple[SequenceRange, str]] = field(init=False)
    """Those names that a sink writes."""
    _used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._objects = {name: parsed for name, parsed in self.listed.items() if parsed is not None}

    def run(self, *, deep: bool) -> Audited:
        found = [*self._missing(), *(self._damaged() if deep else ())]
        found += self._extra()
        note = None
        if self.unproven:
            note = f"{self.unproven} objects have the expected number of rows; their content can no longer be verified."
        return Audited(self.rows if deep else None, tuple(found), note)

    def _missing(self) -> Iterator[Finding]:
        for expected in self.account.expected:
            names = self._names(expected) if expected.tally.rows else []
            if expected.replayed and names != self._whole(expected) and len(names) < len(expected.replayed):
                what = f"{len(expected.replayed)} rows of {expected.range} were replayed, but only {len(names)} exist."
                yield Finding("object-missing", what, self._where(), _RESTORE, expected.range)
            elif expected.tally.rows and not names:
                what, kind = f"The object of {expected.range} is missing: {expected.tally.rows} rows.", "object-missing"
                if not expected.recorded:
                    kind = "never-sent"
                    what = (
                        f"{expected.tally.rows} rows of {expected.range} are below the watermark, but have neither "
                        "a recorded chunk nor an object."
                    )
                yield Finding(kind, what, self._where(), _RESTORE, expected.range)
            elif expected.part is not None:
                yield from self._holes(expected, expected.part, names)

    def _holes(
        self, expected: ExpectedRange, part: Callable[[SequenceRange], ExpectedRange], names: Sequence[str]
    ) -> Iterator[Finding]:
        """Of a range whose chunks are folded: their names tile it, but where they had no rows."""
        covered = RangeSet()
        for span, name in sorted((self._objects[name][0], name) for name in names):
            if any(item.intersect(span) for item in covered):
                what = f"The object {name} has rows of a range that another object has, too."
                yield Finding("object-extra", what, f"{self._where()}/{name}", _MOVE_AWAY, span)
            covered.add(span)
        holes = covered.missing_within(expected.range)
        if len(holes) > HOLES_MAX:
            self.unproven += len(names)
            return
        for hole in holes:
            rows = part(hole).tally.rows
            if rows:
                what = f"No object has the {rows} rows of {hole}."
                yield Finding("object-missing", what, self._where(), _RESTORE, hole)

    def _names(self, expected: ExpectedRange) -> list[str]:
        """The objects of a delivered range: its own, or several if it may have been delivered in parts."""
        found = self._whole(expected) if expected.recorded and expected.part is None else []
        if expected.replayed and not found:
            alone = {SequenceRange(seq - 1, seq) for seq in expected.replayed}
            found = [name for name, (span, _) in self._objects.items() if span in alone]
        if not expected.recorded or expected.part is not None:
            found = [name for name, (span, _) in self._objects.items() if expected.range.intersect(span) == span]
        self._used.update(found)
        return found

    def _whole(self, expected: ExpectedRange) -> list[str]:
        return [name for name, (span, _) in self._objects.items() if span == expected.range][:1]

    def _extra(self) -> Iterator[Finding]:
        allowed = set(self.account.pending)
        for name, parsed in sorted(self.listed.items()):
            if name in self._used or (parsed is not None and parsed[0] in allowed):
                continue
            if parsed is None and not name.endswith(tuple(f".{format}" for format in FORMATS)):
                continue  # not an object with rows: another file of the user
            yield self._unknown(name, None if parsed is None else parsed[0])

    def _unknown(self, name: str, span: SequenceRange | None) -> Finding:
        where = f"{self._where()}/{name}"
        if span is not None and self.account.watermark <= span.after < span.through <= self.account.horizon:
            what = f"The object {name} exists but is not recorded: its delivery was forgotten, or is in progress."
            remedy = "The next export compares its rows, and records it."
            return Finding("object-unrecorded", what, where, remedy, span, wrong=False)
        what = f"The object {name} belongs to no recorded chunk."
        return Finding("object-extra", what, where, _MOVE_AWAY, span)

    # ── row by row ───────────────────────────────────────────────────────────────────────────────────────────────

    def _damaged(self) -> Iterator[Finding]:
        for expected in self.account.expected:
            names = self._names(expected) if expected.tally.rows else []
            if expected.part is not None:
                yield from self._compared_folded(expected, expected.part, names)
            elif names and names == self._whole(expected):
                yield from self._compared(expected, names[0])
            elif names:
                yield from self._counted(expected, names)

    def _compared(self, expected: ExpectedRange, name: str) -> Iterator[Finding]:
        from floodmark.rows.content import content_ids, tally

        content, rows, problem = self._read(name)
        if problem is not None or rows is None:
            yield problem or self._gone(expected, name)
            return
        self.rows += rows.num_rows
        ids, prefixes = content_ids(rows)
        if tally(prefixes) == expected.tally:
            return
        wanted = expected.tally.rows
        where = f"{self._where()}/{name}"
        if rows.num_rows == wanted:
            today = expected.fetch()
            if today.num_rows < wanted:
                self.unproven += 1
            elif not holds_rows(content, today, self._objects[name][1], self.schema):
                what = f"The object {name} has {wanted} rows as expected, but not the rows that were delivered."
                yield Finding("rows-altered", what, where, _RESTORE, expected.range)
            return
        twice = sum(count - 1 for count in Counter(ids.to_pylist()).values())
        kind = "rows-missing" if rows.num_rows < wanted else "rows-doubled" if twice else "rows-extra"
        what = f"The object {name} has {rows.num_rows} rows, but {wanted} were delivered."
        yield Finding(kind, what, where, _RESTORE, expected.range)

    def _compared_folded(
        self, expected: ExpectedRange, part: Callable[[SequenceRange], ExpectedRange], names: Sequence[str]
    ) -> Iterator[Finding]:
        """All objects of a range together; where that is not enough, each with the rows that the lake has today."""
        from floodmark.rows.content import content_ids, tally

        found = Tally()
        doubled = False
        for name in names:
            _, rows, problem = self._read(name)
            if problem is not None or rows is None:
                yield problem or self._gone(expected, name)
                return
            ids, prefixes = content_ids(rows)
            found += tally(prefixes)
            doubled = doubled or len(set(ids.to_pylist())) < rows.num_rows
        self.rows += found.rows
        if found == expected.tally:
            return
        if found.rows != expected.tally.rows:
            kind = "rows-missing" if found.rows < expected.tally.rows else "rows-doubled" if doubled else "rows-extra"
            what = (
                f"The objects within {expected.range} have {found.rows} rows, but {expected.tally.rows} were delivered."
            )
            yield Finding(kind, what, self._where(), _RESTORE, expected.range)
            return
        for name in names:
            span, format = self._objects[name]
            content, rows, _ = self._read(name)
            today = part(span).fetch()
            if rows is None or today.num_rows < rows.num_rows:
                self.unproven += 1
            elif not holds_rows(content, today, format, self.schema):
                what = f"The object {name} has {rows.num_rows} rows, but not the rows that were delivered."
                yield Finding("rows-altered", what, f"{self._where()}/{name}", _RESTORE, span)

    def _counted(self, expected: ExpectedRange, names: list[str]) -> Iterator[Finding]:
        count = 0
        for name in names:
            _, rows, problem = self._read(name)
            if problem is not None:
                yield problem
            count += 0 if rows is None else rows.num_rows
        self.rows += count
        if count != expected.tally.rows:
            what = f"The objects within {expected.range} have {count} rows, but the lake has {expected.tally.rows}."
            kind = "rows-missing" if count < expected.tally.rows else "rows-extra"
            yield Finding(kind, what, self._where(), _RESTORE, expected.range)

    def _read(self, name: str) -> tuple[bytes, pa.Table | None, Finding | None]:
        parsed = self.listed[name]
        content = self.place.read(f"{self.folder}/{name}")
        if content is None or parsed is None:
            return b"", None, None
        try:
            return content, decoded(content, parsed[1], self.schema), None
        except ValueError as error:
            what = f"The object {name} cannot be read ({len(content)} bytes): {reason_of(error)}."
            return content, None, Finding("object-damaged", what, f"{self._where()}/{name}", _RESTORE, parsed[0])

    def _gone(self, expected: ExpectedRange, name: str) -> Finding:
        return Finding("object-missing", f"The object {name} is missing.", self._where(), _RESTORE, expected.range)

    def _where(self) -> str:
        return f"{self.place.where}/{self.folder}"


# ── Blob ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


# ── One chunk becomes one object: encoded, created if absent, else compared ──────────────────────────────────────────


REPLACES = "Use an object store, or a newer version of it, that supports conditional writes (If-None-Match)."


@dataclass(frozen=True, slots=True)
class ObjectWriter:
    """Stores the rows of a range of one channel under the range's name. Can be pickled: Spark tasks run it."""

    place: ObjectPlace
    folder: str
    format: str
    schema: Schema
    chunk_bytes: int
    found: Mapping[SequenceRange, str] = field(default_factory=dict)
    """Ranges that exist in another format, with that format: a retry compares, and adds no second copy."""
    claim: Claim | None = None
    """Created again after each object that a server reports as created: otherwise a server that replaces objects would
    not be detected. One small request per object."""

    @property
    def is_local(self) -> bool:
        return not self.place.remote

    def __call__(self, range: SequenceRange, rows: pa.Table) -> dict[str, Any]:
        """Returns the object's `bytes`, and whether it was `created` now or already had these rows."""
        if rows.num_rows == 0:
            return {"bytes": 0, "created": False}  # a range without rows has no object
        format = self.found.get(range, self.format)
        key = f"{self.folder}/{range.after}-{range.through}.{format}"
        if rows.num_rows > 1 and rows.nbytes > self.chunk_bytes:
            self._split_unless_there(key, rows.nbytes)
        content = encoded(rows, format, self.schema)
        created = self.place.create(key, content)
        if not created:
            self._compare(key, range, content, rows, format)
        elif self.place.remote and self.claim is not None and not self.claim.proves(self.place):
            raise Permanent(
                f"{self.place.where} no longer refuses to replace objects. {key} was written now; if another "
                "object had that name, it was replaced.",
                hint=f"Check earlier versions of it. {REPLACES}",
            )
        return {"bytes": len(content), "created": created}

    def _split_unless_there(self, key: str, size: int) -> None:
        """Existing objects are never split again: one that was written with a larger limit is compared unchanged."""
        if self.place.read(key) is None:
            raise Oversized(f"{size} bytes of rows for {key}, and chunk_bytes is {self.chunk_bytes}")

    def _compare(self, key: str, range: SequenceRange, content: memoryview, rows: pa.Table, format: str) -> None:
        found = self.place.read(key)
        if found is None:
            raise Busy(f"{self.place.where}/{key} is being written by another process.", hint="Export again.")
        if found == content:
            return
        try:
            same = holds_rows(found, rows, format, self.schema)
        except ValueError as error:
            raise DivergedHistory(
                f"{self.place.where}/{key} is not what this sink wrote: {reason_of(error)}.",
                hint="Move the object away, then export again; or deliver to a new prefix.",
            ) from error
        if not same:
            raise DivergedHistory(
                f"{self.place.where}/{key} holds other rows for the range {range}.",
                hint="Was the store restored from a backup, or the object changed? Deliver to a new prefix.",
            )


# ── Blob ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


CLAIM = "_floodmark_claim.json"
_NAME = re.compile(rf"(0|[1-9][0-9]*)-([1-9][0-9]*)\.({'|'.join(map(re.escape, FORMATS))})")


@dataclass(frozen=True, slots=True)
class BlobSink:
    """Objects at one place, for every channel of one dataset and sink."""

    settings: Mapping[str, Any] = field(repr=False)
    schema: Schema
    store_id: str
    sink: str
    _found: dict[Channel, dict[SequenceRange, str]] = field(default_factory=dict, repr=False)
    """Objects of each channel in other formats than ours, beyond the watermark at the last listing."""

    @property
    def place(self) -> ObjectPlace:
        """Where objects are written, with the present credentials: a rotated one needs no restart."""
        return place_of(self.settings)

    def open(self) -> None:
        """Claim the prefix, or find our own claim there, and verify that the server never replaces objects.

        Each time: the server, or its configuration, may have changed since the prefix was claimed.
        """
        place = self.place
        found = place.read(CLAIM)
        if found is not None:
            self.check_ours(place, found)  # before it is created again, which might replace another sink's claim
        if (found is None or place.remote) and not self.claim.proves(place):
            raise Permanent(f"{place.where} replaces an object that should be created only if absent.", hint=REPLACES)
        if found is None:
            found = place.read(CLAIM)
        if found is None:
            raise Busy(f"{place.where} is being claimed by another process.", hint="Export again.")
        self.check_ours(place, found)

    @property
    def claim(self) -> Claim:
        """The claim in the prefix of this sink."""
        return Claim(CLAIM, json.dumps({"store": self.store_id, "sink": self.sink}, sort_keys=True).encode())

    def check_ours(self, place: ObjectPlace, found: bytes) -> None:
        """`Permanent` if another sink has claimed the prefix."""
        if _signature(found) != {"store": self.store_id, "sink": self.sink}:
            raise Permanent(f"{place.where} belongs to another sink or store.", hint="Give every sink its own prefix.")

    def held(self, channel: Channel, *, after: int) -> Holdings:
        """The ranges of the channel's objects beyond a number, whichever format they have."""
        place, folder = self.place, _folder(channel)
        found = sorted((range, format) for range, format in _ranges(place.list(folder)) if range.through > after)
        _check_cuts([range for range, _ in found], f"{place.where}/{folder}", after=after)
        self._found[channel] = {range: format for range, format in found if format != self.settings["format"]}
        return Holdings(tuple(range for range, _ in found))

    def task(self, channel: Channel) -> ObjectWriter:
        """The task that stores one chunk of a channel, here or in a Spark task."""
        return ObjectWriter(
            self.place,
            _folder(channel),
            self.settings["format"],
            self.schema,
            self.settings["chunk_bytes"],
            self._found.get(channel, {}),
            self.claim,
        )

    def deliver(self, parcel: Parcel) -> Delivered:
        return Delivered(self.task(parcel.channel)(parcel.range, parcel.rows)["bytes"])

    def audited(self, channel: Channel, account: Account, *, deep: bool) -> Audited:
        """Compare the names of the objects, and if `deep` their rows, with what was delivered."""
        place, folder = self.place, _folder(channel)
        start = Scope.of(self.settings).start(channel)  # objects up to there are of the time before a rewinding
        names = [
            name
            for name in place.list(folder)
            if (own := next(iter(_ranges([name])), None)) is None or own[0].through > start
        ]
        listed = {name: next(iter(_ranges([name])), None) for name in names}
        audit = ObjectAudit(place, folder, self.schema, account, listed).run(deep=deep)
        found = place.read(CLAIM)
        if not account.expected or (
            found is not None and _signature(found) == {"store": self.store_id, "sink": self.sink}
        ):
            return audit
        what = "The prefix is no longer claimed by this sink." if found else "The claim of the prefix is missing."
        unsigned = Finding(
            "claim-lost", what, f"{place.where}/{CLAIM}", "Restore it from a backup, or deliver to a new prefix.", None
        )
        return replace(audit, findings=(unsigned, *audit.findings))

    def close(self) -> None:
        pass


def _folder(channel: Channel) -> str:
    return f"{channel.dataset}/{channel.partition}"


def _check_cuts(found: Sequence[SequenceRange], where: str, *, after: int) -> None:
    """Check that objects beyond a number do not overlap it or each other."""
    if found and found[0].after < after:
        raise DivergedHistory(
            f"An object in {where} has the range {found[0]}, but this store has delivered only a part of it.",
            hint="Another history was delivered there: keep it, and deliver to a new prefix.",
        )
    for left, right in pairwise(found):
        if right.after < left.through:
            raise DivergedHistory(
                f"Two objects in {where} have the same rows: {left} and {right}.",
                hint="Find out which history is yours and move the other away, or deliver to a new prefix.",
            )


def _ranges(names: Iterable[str]) -> Iterable[tuple[SequenceRange, str]]:
    """The ranges and formats in object names; other names are ignored."""
    for name in names:
        match = _NAME.fullmatch(name)
        if match is not None and int(match[1]) < int(match[2]) <= SEQUENCE_MAX:
            yield SequenceRange(int(match[1]), int(match[2])), match[3]


def _signature(content: bytes) -> Any:
    try:
        return json.loads(content)
    except ValueError:
        return None


# ── the kind ─────────────────────────────────────────────────────────────────────────────────────────────────────────

CHUNK_ROWS = 100_000
CHUNK_BYTES = 128 << 20
CHUNK_BYTES_MAX = 1 << 30
"""An object is built in memory and sent in one request."""
CONCURRENCY = 4
"""Partitions that are delivered to a bucket in parallel: an object costs a round trip, which is mostly idle time."""


def _check(settings: dict[str, Any]) -> None:
    check_place(settings)
    check_format(settings["format"])
    if settings["concurrency"] is None:
        settings["concurrency"] = 1 if settings["url"].startswith("file:") else CONCURRENCY
    for key in ("chunk_rows", "chunk_bytes", "concurrency"):
        whole_number(settings, key)
    if settings["chunk_bytes"] > CHUNK_BYTES_MAX:
        raise InvalidSetting(
            f"chunk_bytes is {settings['chunk_bytes']}.",
            hint=f"It must be at most {CHUNK_BYTES_MAX}: one object is one request.",
        )


def _connect(engine: Engine, channel: Channel, settings: Mapping[str, Any]) -> BlobSink:
    dataset = engine.database.read(lambda c: datasets.get(c, channel.dataset))
    claimant = engine.database.read(lambda c: sinks.claimant(c, channel.sink))
    return BlobSink(dict(settings), dataset.schema, store_id=engine.store_id, sink=claimant)


def _probe(engine: Engine, sink: Sink) -> str:
    own = BlobSink(dict(sink.settings), Schema(), store_id=engine.store_id, sink=sink.claimant)
    place = own.place
    found = place.read(CLAIM)
    if found is not None:
        own.check_ours(place, found)
        if (
            place.remote
        ):  # an existing object is created again: the server needs every right for it, and changes nothing
            if not own.claim.proves(place):
                raise Permanent(f"{place.where} replaces objects that exist.", hint=REPLACES)
            return f"{place.where} answers, accepts writes, and never replaces an object."
    left = place.try_write()
    removed = "" if left is None else f" The probe {left} could not be removed: remove it."
    return f"{place.where} can be written to.{removed}"


KIND = Kind(
    name="blob",
    defaults={
        "format": "parquet",
        "chunk_rows": CHUNK_ROWS,
        "chunk_bytes": CHUNK_BYTES,
        "concurrency": None,
        **dict.fromkeys(OPTIONS),
        **dict.fromkeys(sorted(SECRET)),
    },
    required=("url",),
    check=_check,
    connect=_connect,
    probe=_probe,
    # Not the connection options: an intent with a misspelt endpoint could never be delivered.
    pinned=("url", "format", "chunk_rows", "chunk_bytes"),
    secret=SECRET,
)
