"""Whether a hub's ledger says what the records of a channel say. Pure."""

from __future__ import annotations

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
    for seq in sorted(held.given_up - account.given_up):
        if seq <= account.end:
            what = f"The hub says that it never got row {seq}, and the records say that it was delivered."
            yield Discrepancy("rows-missing", what, where, SequenceRange(seq - 1, seq), _PARTED)


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
