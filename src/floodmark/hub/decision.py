"""What a hub does with a chunk, decided from its header and the channel's row. Pure.

T is the end of the channel: everything up to T has arrived, or was given up by the sender.

| the chunk                    | what becomes of it                                                               |
|------------------------------|----------------------------------------------------------------------------------|
| no channel yet               | taken if its sender never delivered anything; else `LedgerBehind`                |
| after = T                    | taken if the sender's totals at T are the channel's; else `DivergedHistory`      |
| after > T                    | `LedgerBehind`: rows between T and `after` would be missing for ever             |
| through ≤ T                  | nothing: it is there already, and the answer says how far the channel is          |
| after < T < through          | `LedgerAhead`: the sender compares totals at T first, then sends what lies behind |
| a replay of a given-up row   | taken, and no longer given up; totals counted it already                          |
| passed through this store    | `Loop`                                                                           |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from floodmark.control.ledger import Entry
from floodmark.errors import DivergedHistory, LedgerAhead, LedgerBehind, Loop, MalformedChunk, Permanent
from floodmark.sequence import Tally
from floodmark.wire import ChunkHeader, LedgerState

_NOTHING = LedgerState(0, Tally())


class Disagreement(Exception):
    """The chunk and the ledger do not go together; the sender is told why, and how far the ledger is."""

    def __init__(self, error: Permanent, state: LedgerState) -> None:
        super().__init__(error.message)
        self.error = error
        self.state = state


@dataclass(frozen=True, slots=True)
class Take:
    """Store the rows, and move the channel to `entry` from the version that was seen."""

    entry: Entry
    seen: int | None


@dataclass(frozen=True, slots=True)
class AlreadyThere:
    """Store nothing: the channel is past this chunk."""


def check_loop(header: ChunkHeader, *, store_id: str) -> None:
    """`Loop` if the rows come from this very store, whatever way they took."""
    if store_id == header.origin or store_id in header.path:
        raise Loop(
            "The rows of this chunk have passed through this store before.",
            hint="Nothing was stored. Remove one of the forward sinks that make the circle.",
        )


def decide(
    header: ChunkHeader, *, dataset: str, seen: Entry | None, replayed: int | None = None
) -> Take | AlreadyThere:
    """What becomes of a chunk. `replayed` is the number of the one row of a replay."""
    if header.replay:
        return _decide_replay(seen, replayed)
    if seen is None:
        return Take(_first(header, dataset), None)
    end = seen.through
    if header.range.after == end:
        return Take(_next(header, seen), seen.version)
    if header.range.after > end:
        raise _behind(header, seen)
    if header.range.through <= end:
        return AlreadyThere()
    raise Disagreement(
        LedgerAhead(
            f"The ledger of this channel ends at {end}, inside the chunk {header.range}.",
            hint=f"Nothing was stored. Compare the totals at {end}, then send what lies behind it.",
        ),
        state_of(seen),
    )


def state_of(entry: Entry | None) -> LedgerState:
    """What is told of a channel."""
    return _NOTHING if entry is None else LedgerState(entry.through, entry.tally, entry.given_up)


def _first(header: ChunkHeader, dataset: str) -> Entry:
    # Where `after` lies does not matter: a sender that has delivered nothing leaves no hole behind.
    if header.before.rows:
        raise _behind(header, None)
    if header.before.checksum:
        raise MalformedChunk(
            "The chunk is malformed: no rows, and yet a checksum, before it.", hint="Nothing was stored."
        )
    return Entry(
        origin=header.origin,
        dataset=dataset,
        partition=header.partition,
        through=header.range.through,
        tally=header.total,
        given_up=tuple(sorted(header.given_up)),
        path=header.path,
    )


def _next(header: ChunkHeader, seen: Entry) -> Entry:
    if header.before != seen.tally:
        raise Disagreement(
            DivergedHistory(
                f"Up to {seen.through} the sender has {header.before.rows:,} rows with checksum "
                f"{header.before.checksum_text}, and the ledger {seen.tally.rows:,} with {seen.tally.checksum_text}.",
                hint="Nothing was stored. Was the sending store restored from a backup, or copied? Its new rows carry "
                "numbers that others had before: send them under an origin of their own.",
            ),
            state_of(seen),
        )
    return replace(
        seen,
        through=header.range.through,
        tally=header.total,
        given_up=tuple(sorted({*seen.given_up, *header.given_up})),
        path=tuple(dict.fromkeys((*seen.path, *header.path))),
        version=seen.version + 1,
    )


def _decide_replay(seen: Entry | None, replayed: int | None) -> Take | AlreadyThere:
    if seen is None or replayed is None or replayed > seen.through:
        raise Disagreement(
            LedgerBehind(
                "A row that was given up is sent again, and the ledger has not come so far.",
                hint="Nothing was stored. Send the chunks before it first.",
            ),
            state_of(seen),
        )
    if replayed not in seen.given_up:
        return AlreadyThere()
    left = tuple(seq for seq in seen.given_up if seq != replayed)
    return Take(replace(seen, given_up=left, version=seen.version + 1), seen.version)


def _behind(header: ChunkHeader, seen: Entry | None) -> Disagreement:
    end = state_of(seen).through
    return Disagreement(
        LedgerBehind(
            f"The ledger of this channel ends at {end}, and the chunk begins after {header.range.after}: "
            "rows in between would be missing.",
            hint="Nothing was stored. If the hub was restored from a backup, let the sender go back to its end.",
        ),
        state_of(seen),
    )
