"""A blob sink: one object per chunk, named by its range, in a directory or a bucket.

    <prefix>/<dataset>/<partition>/<after>-<through>.<format>

The name carries the range, so a repeated delivery meets its own object: it is compared, and equal means delivered.
Nothing is ever replaced, by whomever and however late. The prefix belongs to one sink of one store, which has signed
it (`_floodmark_claim.json`).

Objects also remember what was delivered: a control database that was restored from a backup reads its way back from
their names, and cuts its ranges where they are cut already.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from floodmark.control import datasets
from floodmark.control.deliveries import Channel
from floodmark.delivery.destination import (
    Account,
    Audited,
    Delivered,
    Discrepancy,
    Kind,
    Parcel,
    Surroundings,
    whole_number,
)
from floodmark.delivery.outcomes import Busy, Holdings
from floodmark.delivery.sinks.formats import FORMATS, check_format
from floodmark.delivery.sinks.objects import Claim, ObjectPlace
from floodmark.delivery.sinks.places import OPTIONS, SECRET, check_place, place_of
from floodmark.delivery.sinks.writer import REPLACES, ObjectWriter
from floodmark.errors import DivergedHistory, InvalidSetting, Permanent
from floodmark.schema import Schema
from floodmark.sequence import SEQUENCE_MAX, SequenceRange

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
    """What each channel has in other formats than ours, beyond what was delivered when it was last looked at."""

    @property
    def place(self) -> ObjectPlace:
        """Where objects go, with the credentials as they are now: one that was rotated needs no restart."""
        return place_of(self.settings)

    def open(self) -> None:
        """Sign the prefix, or find our own signature there; and prove that nothing in it is ever replaced.

        Each time: the server may be another one than the one that took the signature, or be set up in another way.
        """
        place = self.place
        found = place.read(CLAIM)
        if found is not None:
            self._check_ours(place, found)  # before it is created again, perhaps over the other's
        if (found is None or place.remote) and not self.claim.proves(place):
            raise Permanent(f"{place.where} replaces an object that was to be created only if absent.", hint=REPLACES)
        if found is None:
            found = place.read(CLAIM)
        if found is None:
            raise Busy(f"{place.where} is being signed by somebody else.", hint="Export again.")
        self._check_ours(place, found)

    @property
    def claim(self) -> Claim:
        """What stands in the prefix of this sink."""
        return Claim(CLAIM, json.dumps({"store": self.store_id, "sink": self.sink}, sort_keys=True).encode())

    def _check_ours(self, place: ObjectPlace, found: bytes) -> None:
        if _signature(found) != {"store": self.store_id, "sink": self.sink}:
            raise Permanent(
                f"{place.where} belongs to another sink or store.", hint="Give every sink a prefix of its own."
            )

    def held(self, channel: Channel, *, after: int) -> Holdings:
        """The ranges of the channel's objects beyond a number, whichever format they have."""
        place, folder = self.place, _folder(channel)
        found = sorted((range, format) for range, format in _ranges(place.list(folder)) if range.through > after)
        _check_cuts([range for range, _ in found], f"{place.where}/{folder}", after=after)
        self._found[channel] = {range: format for range, format in found if format != self.settings["format"]}
        return Holdings(tuple(range for range, _ in found))

    def task(self, channel: Channel) -> ObjectWriter:
        """How one chunk of a channel is stored, here or in a task of Spark's."""
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
        from floodmark.delivery.sinks.objects_audit import ObjectAudit

        place, folder = self.place, _folder(channel)
        names = list(place.list(folder))
        listed = {name: next(iter(_ranges([name])), None) for name in names}
        audit = ObjectAudit(place, folder, self.schema, account, listed).run(deep=deep)
        found = place.read(CLAIM)
        if not account.settled or (
            found is not None and _signature(found) == {"store": self.store_id, "sink": self.sink}
        ):
            return audit
        what = "The prefix is not signed by this sink any more." if found else "The signature of the prefix is gone."
        unsigned = Discrepancy(
            "claim-lost", what, f"{place.where}/{CLAIM}", None, "Put it back from a backup, or deliver to a new prefix."
        )
        return replace(audit, discrepancies=(unsigned, *audit.discrepancies))

    def close(self) -> None:
        pass


def _folder(channel: Channel) -> str:
    return f"{channel.dataset}/{channel.partition}"


def _check_cuts(found: Sequence[SequenceRange], where: str, *, after: int) -> None:
    """Each object beyond a number begins there or behind it, and behind the one before it."""
    if found and found[0].after < after:
        raise DivergedHistory(
            f"An object in {where} holds the range {found[0]}, and this store has delivered only a part of it.",
            hint="Another history was delivered there: keep it, and deliver to a new prefix.",
        )
    for left, right in pairwise(found):
        if right.after < left.through:
            raise DivergedHistory(
                f"Two objects in {where} hold the same rows: those of {left} and {right}.",
                hint="Find out which history is yours and move the other away, or deliver to a new prefix.",
            )


def _ranges(names: Iterable[str]) -> Iterable[tuple[SequenceRange, str]]:
    """What the names of objects say; a name that no sink would give is somebody else's."""
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
"""An object is made in memory and sent in one request."""
CONCURRENCY = 4
"""Partitions that are delivered to a bucket at the same time: an object costs a round trip, which is mostly waiting."""


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
            hint=f"It is at most {CHUNK_BYTES_MAX}: one object is one request.",
        )


def _connect(surroundings: Surroundings, channel: Channel, settings: Mapping[str, Any]) -> BlobSink:
    dataset = surroundings.database.read(lambda c: datasets.get(c, channel.dataset))
    return BlobSink(dict(settings), dataset.schema, store_id=surroundings.store_id, sink=channel.sink)


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
    # Not how the place is reached: an intent that had pinned a misspelt endpoint could never be fulfilled.
    pinned=("url", "format", "chunk_rows", "chunk_bytes"),
    secret=SECRET,
)
