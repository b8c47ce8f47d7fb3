"""Whether a hub's ledger says what the records of a channel say. Pure."""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from floodmark.delivery.destination import Account, Discrepancy
from floodmark.delivery.outcomes import Holdings
from floodmark.sequence import SequenceRange, Tally

_BEHIND = (
    "Was the hub restored from a backup? Remove this sink and add it again: it asks the hub, and goes on where its "
    "ledger ends."
)
_PARTED = "Was one of the two restored from a backup, or this store copied? Audit the hub's own store as well."


def differences(held: Holdings, account: Account, where: str) -> Iterator[Discrepancy]:
    end, tally = held.end or 0, held.tally or Tally()
    pending = max((item.through for item in account.pending), default=account.watermark)
    if end < account.end:
        gap = SequenceRange(end, account.end)
        what = f"The hub's ledger ends at {end}, and everything up to {account.end} was acknowledged."
        yield Discrepancy("rows-missing", what, where, gap, _BEHIND)
    elif end > max(pending, account.watermark):
        what = f"The hub's ledger ends at {end}, and nothing above {pending} has left this store."
        yield Discrepancy("rows-extra", what, where, SequenceRange(account.watermark, end), _PARTED)
    elif end == account.end and tally != account.totals:
        yield _other_totals(tally, account, where)
    ours = sorted(account.given_up)
    never_got = held.given_up_rows - sum(1 for seq in ours if seq <= end)
    if never_got > 0:
        # Of a range that has some of ours it cannot be told which of its rows are meant.
        unknown = [span for span in held.given_up if not _any_within(ours, span)] or list(held.given_up)
        span = SequenceRange(unknown[0].after, unknown[-1].through) if unknown else SequenceRange(0, max(end, 1))
        what = (
            f"The hub says that it never got {never_got} rows of {span}, and the records say that they were delivered."
        )
        yield Discrepancy("rows-missing", what, where, span, _PARTED)


def _any_within(numbers: list[int], span: SequenceRange) -> bool:
    index = bisect.bisect_right(numbers, span.after)
    return index < len(numbers) and numbers[index] <= span.through


def _other_totals(tally: Tally, account: Account, where: str) -> Discrepancy:
    ours = account.totals
    if tally.rows == ours.rows:
        what, kind = (
            f"The hub counts {tally.rows} rows up to {account.end}, as many as left, and others.",
            "rows-altered",
        )
    else:
        kind = "rows-missing" if tally.rows < ours.rows else "rows-extra"
        what = f"The hub counts {tally.rows} rows up to {account.end}, and {ours.rows} left."
    return Discrepancy(kind, what, where, SequenceRange(0, account.end), _PARTED)
