"""A daemon that is stepped, and a destination with a hand on what it does."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from floodmark.control.deliveries import Channel
from floodmark.daemon.events import Event
from floodmark.daemon.loop import Daemon
from floodmark.daemon.plan import Work
from floodmark.delivery.destination import Delivered, Destination, Kind, Parcel
from floodmark.delivery.outcomes import Holdings
from floodmark.engine import Engine
from floodmark.store import Store
from floodmark.testing import ManualClock

PATIENCE_SECONDS = 30
"""How long a test waits for a thread before it fails; none of them waits for time to pass."""


@dataclass
class Stepped:
    """One daemon on one store, driven by hand."""

    store: Store
    clock: ManualClock
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.daemon = Daemon(self.store, self.events.append)

    def settle(self) -> None:
        """Step until nothing is under way and nothing is due."""
        for _ in range(100):
            self.daemon.step()
            if not self.daemon.under_way:
                return
            assert self.daemon.take(PATIENCE_SECONDS), f"nothing came of {self.daemon.under_way}"
        raise AssertionError("it never came to rest")

    def until(self, condition: Callable[[], bool]) -> None:
        """Step until something is so, whatever else is still under way."""
        for _ in range(PATIENCE_SECONDS * 20):
            self.daemon.step()
            if condition():
                return
            self.daemon.take(0.05)
        raise AssertionError("it never came to that")

    def after(self, seconds: float) -> None:
        """Let time pass, and what is due happen."""
        self.clock.advance(seconds)
        self.settle()

    def said(self, name: str) -> list[str]:
        return [event.text for event in self.events if event.name == name]

    @property
    def under_way(self) -> list[Work]:
        return self.daemon.under_way


@dataclass
class Places:
    """The destinations of the kind `test`, by their names, and what they hold."""

    rows: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    seen: dict[str, set[tuple[str, str, int, int]]] = field(default_factory=lambda: defaultdict(set))
    on_open: dict[str, Callable[[], None]] = field(default_factory=dict)
    on_deliver: dict[str, Callable[[], None]] = field(default_factory=dict)
    at_once: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def kind(self) -> Kind:
        return Kind(
            name="test",
            defaults={"chunk_rows": 2, "wait_seconds_max": 0},
            required=("url",),
            check=lambda settings: None,
            connect=self._connect,
            probe=lambda _engine, _sink: "",
            pinned=("url", "chunk_rows"),
        )

    def _connect(self, _engine: Engine, _channel: Channel, settings: Mapping[str, Any]) -> Destination:
        return _Place(self, settings["url"])


@dataclass
class _Place:
    places: Places
    name: str

    def open(self) -> None:
        self.places.on_open.get(self.name, lambda: None)()

    def held(self, channel: Channel, *, after: int) -> Holdings:
        return Holdings()

    def deliver(self, parcel: Parcel) -> Delivered:
        with self.places.lock:
            self.places.at_once[self.name] += 1
            assert self.places.at_once[self.name] == 1, "two ticks of one sink at once"
        try:
            self.places.on_deliver.get(self.name, lambda: None)()
            key = (parcel.channel.dataset, parcel.channel.partition, parcel.range.after, parcel.range.through)
            if key not in self.places.seen[self.name]:  # as a server that honours keys does
                self.places.seen[self.name].add(key)
                self.places.rows[self.name] += parcel.rows["n"].to_pylist()
        finally:
            self.places.at_once[self.name] -= 1
        return Delivered(bytes=1)

    def close(self) -> None:
        pass
