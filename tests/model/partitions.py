"""Two partitions of one dataset on one sink: each has a watermark of its own, and one of them does not get through.

Rows 1 and 3 belong to partition `a`, row 2 to `b`; row 4, also `b`'s, arrives later. Every tick goes through both channels, with
one look at the horizon. The destination takes what comes for `b`; for `a` it does not answer, or refuses for good, until
somebody has seen to it. An intent of either reaches up to the horizon, over numbers that are the other's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Bug, Model, Step, put, with_one, without

ROWS = {"a": (1, 3), "b": (2, 4)}
NAMES = ("a", "b")


class Channel(NamedTuple):
    watermark: int = 0
    intent: tuple[int, int] | None = None


class Exporter(NamedTuple):
    at: str = "idle"
    horizon: int = 0
    place: int = 0
    """Which of the channels is its turn."""
    intent: tuple[int, int] | None = None
    failed: bool = False


class Parcel(NamedTuple):
    partition: str
    after: int
    through: int

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(row for row in ROWS[self.partition] if self.after < row <= self.through)


class State(NamedTuple):
    horizon: int
    channels: tuple[Channel, ...]
    exporters: tuple[Exporter, ...]
    there: tuple[Parcel, ...]
    late: tuple[Parcel, ...]
    failing: bool
    blocked: bool
    left: tuple[int, ...]


class PartitionsModel(Model):
    """Two exporters, two channels, one of which fails."""

    name = "several partitions"
    about = (
        "Two exporters on two partitions of one sink, one of which fails until somebody sees to it, perhaps never; rows of "
        "both arriving; requests late, crashes. The other partition is delivered all the same."
    )
    bounds = {"trouble": 3, "crash": 1, "late": 1, "repaired": 1}
    large = {"trouble": 5, "crash": 2, "late": 2}
    bugs = {
        "one watermark for the sink": Bug("the partitions of a sink share a watermark", ("D2",)),
        "a failing channel ends the tick": Bug(
            "what comes behind a channel that fails is not tried", ("progress",), {"trouble": 1}
        ),
        "a blocked sink is not tried": Bug("one channel that is refused for good stops the other", ("progress",)),
        "an intent ends at its partition's last row": Bug(
            "the watermark of one partition is taken from the figures of the other", ("D2",)
        ),
    }  # fmt: skip

    def initial(self) -> State:
        return State(3, (Channel(), Channel()), (Exporter(), Exporter()), (), (), True, False, self.plenty())

    def same(self, state: State) -> State:
        one, other = (((e.at, e.horizon, e.place, e.intent or (), e.failed)) for e in state.exporters)
        return state if one <= other else state._replace(exporters=state.exporters[::-1])

    def steps(self, state: State) -> Iterator[Step]:
        if state.horizon < 4:
            yield "row 4 arrives", state._replace(horizon=4)
        if state.failing and (poorer := self.spend(state, "repaired")) is not None:
            yield "somebody sees to partition a", poorer._replace(failing=False)
        for index, exporter in enumerate(state.exporters):
            for label, reached in self._exporter(state, index, exporter):
                yield f"exporter {label}", reached
        for parcel in dict.fromkeys(state.late):
            taken = state._replace(late=without(state.late, parcel))
            if not (state.failing and parcel.partition == "a"):
                yield f"a late request for {parcel} arrives", _stored(taken, parcel)
            else:
                yield f"a late request for {parcel} is refused", taken

    def _exporter(self, state: State, index: int, exporter: Exporter) -> Iterator[Step]:
        def to(new: Exporter, now: State = state) -> State:
            return now._replace(exporters=put(now.exporters, index, new))

        name = NAMES[exporter.place]
        match exporter.at:
            case "idle":
                barred = state.blocked and self.bug == "a blocked sink is not tried"
                if any(self._lags(state, place) for place in range(2)) and not barred:
                    yield f"begins a tick, up to {state.horizon}", to(Exporter("pinning", state.horizon))
            case "pinning":
                yield from self._pin(state, exporter, to)
            case "sending":
                parcel = Parcel(name, *exporter.intent)
                yield from self._send(state, exporter, parcel, to)
            case "acknowledging":
                yield f"acknowledges {name} {exporter.intent}", self._acknowledge(state, exporter, to)
        if exporter.at != "idle" and (poorer := self.spend(state, "crash")) is not None:
            yield "dies", to(Exporter(), poorer)

    def _place(self, place: int) -> int:
        return 0 if self.bug == "one watermark for the sink" else place

    def _lags(self, state: State, place: int) -> bool:
        """Rows behind the watermark, by the partition's own figures, or an intent that is open."""
        channel = state.channels[self._place(place)]
        return channel.intent is not None or any(channel.watermark < row <= state.horizon for row in ROWS[NAMES[place]])

    def _pin(self, state: State, exporter: Exporter, to) -> Iterator[Step]:
        """One transaction on this channel alone: adopt its intent, else pin up to the horizon."""
        place = self._place(exporter.place)
        channel = state.channels[place]
        if channel.intent is None and (not self._lags(state, exporter.place) or channel.watermark >= exporter.horizon):
            yield f"has nothing for {NAMES[exporter.place]}", to(_onward(exporter))
            return
        intent = channel.intent or (channel.watermark, exporter.horizon)
        pinned = put(state.channels, place, channel._replace(intent=intent))
        sending = exporter._replace(at="sending", intent=intent)
        yield f"pins {intent} for {NAMES[exporter.place]}", to(sending, state._replace(channels=pinned))

    def _send(self, state: State, exporter: Exporter, parcel: Parcel, to) -> Iterator[Step]:
        if state.failing and parcel.partition == "a" and parcel.rows:
            failed = _onward(exporter._replace(failed=True))
            if self.bug == "a failing channel ends the tick":
                failed = Exporter()
            yield "gets an error for a", to(failed)
            yield "is refused for good for a", to(failed, state._replace(blocked=True))
            return
        acknowledging = exporter._replace(at="acknowledging")
        yield f"sends {parcel}", to(acknowledging, _stored(state, parcel))
        if (poorer := self.spend(state, "late")) is not None:
            late = poorer._replace(late=with_one(poorer.late, parcel))
            yield "gives up waiting, its request is late", to(_onward(exporter), late)

    def _acknowledge(self, state: State, exporter: Exporter, to) -> State:
        """One transaction: only while the intent is open."""
        place = self._place(exporter.place)
        channel = state.channels[place]
        if channel.intent != exporter.intent:
            return to(_onward(exporter))
        moved = state._replace(channels=put(state.channels, place, Channel(exporter.intent[1])))
        if self.bug == "an intent ends at its partition's last row":
            other = moved.channels[1 - place]
            if other.intent is None:
                moved = moved._replace(channels=put(moved.channels, 1 - place, Channel(exporter.intent[1])))
        return to(_onward(exporter), moved)

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    def broken(self, state: State) -> str | None:
        for place, name in enumerate(NAMES):
            delivered = [row for parcel in state.there if parcel.partition == name for row in parcel.rows]
            for row in ROWS[name]:
                if delivered.count(row) > 1:
                    return f"D3 row {row} is there twice"
                if row <= state.channels[self._place(place)].watermark and row not in delivered:
                    return f"D2 the watermark of {name} passed row {row}, which is not there"
        return None

    def done(self, state: State) -> bool:
        """`b` is delivered, also while `a` fails; `a` too, once it does not."""
        ends = [not any(self._lags(state, place) for place in ([1] if state.failing else [0, 1]))]
        return all(ends) and state.horizon == 4 and all(exporter.at == "idle" for exporter in state.exporters)


def _onward(exporter: Exporter) -> Exporter:
    """The next channel; behind the last one the tick ends."""
    if exporter.place == 0:
        return Exporter("pinning", exporter.horizon, 1, failed=exporter.failed)
    return Exporter()


def _stored(state: State, parcel: Parcel) -> State:
    """Under the name of partition and range: created only if absent; a range without rows has no object."""
    if not parcel.rows or parcel in state.there:
        return state
    return state._replace(there=with_one(state.there, parcel))
