"""What a hub does with a chunk, decided from its header and the channel's entry. Pure.

T is the end of the channel: everything up to T has arrived, or was given up by the sender.

| the chunk                    | the decision                                                                     |
|------------------------------|----------------------------------------------------------------------------------|
| no channel yet               | stored if its sender never delivered anything; otherwise `LedgerBehind`          |
| after = T                    | stored if the sender's totals at T are the channel's; else `DivergedHistory`     |
| after > T                    | `LedgerBehind`: rows between T and `after` would be missing permanently          |
| through ≤ T                  | nothing is stored: it has arrived before; the response has the channel's end     |
| after < T < through          | `LedgerAhead`: the sender compares totals at T first, then sends the rest        |
| a replay of given-up rows    | stored, and no longer given up; the totals already include them (H3)             |
| a replay of some that arrived| `LedgerAhead`: the sender sends them row by row                                  |
| passed through this store    | `Loop`                                                                           |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from floodmark.control.ledger import Entry
from floodmark.errors import DivergedHistory, LedgerAhead, LedgerBehind, Loop, MalformedChunk, Permanent
from floodmark.sequence import SequenceRange, Tally
from floodmark.wire import GIVEN_UP_RANGES_MAX, PATH_STORES_MAX_OF_OLD, VERSION, ChunkHeader, LedgerState

_NOTHING = LedgerState(0, Tally())


class Disagreement(Exception):
    """The chunk and the ledger disagree; the response has the reason and the end of the ledger."""

    def __init__(self, error: Permanent, state: LedgerState, *, version: int = VERSION) -> None:
        super().__init__(error.message)
        self.error = error
        self.state = state
        self.version = version
        """The protocol version of the sender."""


@dataclass(frozen=True, slots=True)
class Take:
    """Store the rows, and update the channel to `entry` from the version that was read."""

    entry: Entry
    seen: int | None
    given_up: tuple[SequenceRange, ...] = ()
    """Ranges whose rows the sender has given up."""
    replayed: SequenceRange | None = None
    """A range whose rows have now arrived."""


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """Store nothing: the channel ends after this chunk."""


def check_loop(header: ChunkHeader, *, store_id: str) -> None:
    """H4: `Loop` if the rows have passed this store before, on any path."""
    if store_id == header.origin or store_id in header.path:
        raise Loop(
            "The rows of this chunk have passed through this store before.",
            hint="Nothing was stored. Remove one of the forward sinks that form the loop.",
        )
    if header.version == 1 and len(header.path) >= PATH_STORES_MAX_OF_OLD:
        raise Loop(
            f"The chunk names {len(header.path)} stores, and its sender may have left out more.",
            hint="Nothing was stored. Upgrade the sending store: newer versions name all of them.",
        )


def decide(
    header: ChunkHeader, *, dataset: str, seen: Entry | None, given_up: Sequence[SequenceRange] = ()
) -> Take | AlreadyThere:
    """Decide a chunk. `given_up` are the channel's ranges that overlap the chunk's."""
    if header.replay:
        return _decide_replay(header, seen, given_up)
    if seen is None:
        return Take(_first(header, dataset), None, _ranges(header))
    end = seen.through
    if header.range.after == end:
        return Take(_next(header, seen), seen.version, _ranges(header))
    if header.range.after > end:
        raise _behind(header, seen)
    if header.range.through <= end:
        return AlreadyThere()
    raise Disagreement(
        LedgerAhead(
            f"The ledger of this channel ends at {end}, inside the chunk {header.range}.",
            hint=f"Nothing was stored. Compare the totals at {end}, then send the rows after it.",
        ),
        state_of(seen),
    )


def state_of(
    entry: Entry | None, given_up: Sequence[SequenceRange] = (), *, ranges_max: int | None = GIVEN_UP_RANGES_MAX
) -> LedgerState:
    """The reported state of a channel, with the first of the ranges that were given up."""
    if entry is None:
        return _NOTHING
    shown = tuple(given_up[:ranges_max])
    return LedgerState(entry.through, entry.tally, entry.given_up_rows, shown, len(given_up) > len(shown))


def _ranges(header: ChunkHeader) -> tuple[SequenceRange, ...]:
    return tuple(item.range for item in header.given_up if item.tally.rows)


def _first(header: ChunkHeader, dataset: str) -> Entry:
    # `after` may be any number: a sender that has delivered nothing leaves no gap.
    if header.before.rows:
        raise _behind(header, None)
    if header.before.checksum:
        raise MalformedChunk(
            "The chunk is malformed: it has a checksum, but no rows, before it.", hint="Nothing was stored."
        )
    return Entry(
        origin=header.origin,
        dataset=dataset,
        partition=header.partition,
        through=header.range.through,
        tally=header.total,
        given_up_rows=header.given_up_tally.rows,
    )


def _next(header: ChunkHeader, seen: Entry) -> Entry:
    if header.before != seen.tally:
        raise Disagreement(
            DivergedHistory(
                f"Up to {seen.through} the sender has {header.before.rows:,} rows with checksum "
                f"{header.before.checksum_text}, but the ledger {seen.tally.rows:,} with {seen.tally.checksum_text}.",
                hint="Nothing was stored. Was the sending store restored from a backup, or copied? Its new rows have "
                "numbers that other rows had before: send them with another origin.",
            ),
            state_of(seen),
        )
    return replace(
        seen,
        through=header.range.through,
        tally=header.total,
        given_up_rows=seen.given_up_rows + header.given_up_tally.rows,
        version=seen.version + 1,
    )


def _decide_replay(header: ChunkHeader, seen: Entry | None, given_up: Sequence[SequenceRange]) -> Take | AlreadyThere:
    span = header.range
    if seen is None or span.through > seen.through:
        raise Disagreement(
            LedgerBehind(
                "Rows that were given up are sent again, but the ledger ends before them.",
                hint="Nothing was stored. Send the chunks before them first.",
            ),
            state_of(seen),
        )
    if not given_up:
        return AlreadyThere()
    if given_up[0].intersect(span) != span:
        raise Disagreement(
            LedgerAhead(
                f"Some of the rows of {span} have arrived since they were given up.",
                hint="Nothing was stored. Send the others one by one.",
            ),
            state_of(seen, given_up),
        )
    left = max(0, seen.given_up_rows - header.tally.rows)
    return Take(replace(seen, given_up_rows=left, version=seen.version + 1), seen.version, replayed=span)


def _behind(header: ChunkHeader, seen: Entry | None) -> Disagreement:
    end = state_of(seen).through
    return Disagreement(
        LedgerBehind(
            f"The ledger of this channel ends at {end}, but the chunk begins after {header.range.after}: "
            "rows in between would be missing.",
            hint="Nothing was stored. If the hub was restored from a backup, let the sender continue where the ledger "
            "ends.",
        ),
        state_of(seen),
    )
