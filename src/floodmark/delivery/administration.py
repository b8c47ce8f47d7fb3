"""Adding, changing and removing sinks: everything that can be refused is refused now, not at the first delivery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from floodmark.control import datasets, sinks
from floodmark.control.sinks import Sink
from floodmark.delivery.destination import Surroundings
from floodmark.delivery.kinds import checked, new_sink
from floodmark.errors import InvalidSetting
from floodmark.read import Reader
from floodmark.schema import check_sink_name
from floodmark.sequence import Cursor


@dataclass(frozen=True, slots=True)
class Sinks:
    """The sinks of one store."""

    surroundings: Surroundings
    reader: Reader

    def add(self, name: str, kind: str, settings: Mapping[str, Any]) -> None:
        """Add a destination under a name that no other has."""
        self.surroundings.functions.check(settings.get("function"))  # before it is imported
        sink = new_sink(check_sink_name(name), kind, settings, starts=self._starts)
        self._check_filter(sink)
        now = self.surroundings.clock.now()
        self.surroundings.database.transact(lambda c: sinks.insert(c, sink, now=now))

    def change(self, name: str, settings: Mapping[str, Any]) -> None:
        """Change settings, from the next range on."""
        sink = self._named(name)
        fixed = {"start"} | ({"where", "url", "origin"} if sink.kind == "forward" else set())
        refused = sorted(fixed & set(settings))
        if refused:
            raise InvalidSetting(
                f"{refused[0]!r} of sink {name!r} is fixed.", hint="Add another sink, and remove this one."
            )
        self.surroundings.functions.check(settings.get("function"))
        whole = checked(sink.kind, {**sink.settings, **settings, "start": "beginning"}) | {
            "start": sink.settings["start"]
        }
        self._check_filter(replace(sink, settings=whole))
        self.surroundings.database.transact(lambda c: sinks.change(c, sink.instance, whole))

    def remove(self, name: str) -> None:
        """Forget a destination; its name is free again."""
        sink = self._named(name)
        self.surroundings.database.transact(lambda c: sinks.set_state(c, sink.instance, state="removed", reason=None))

    def _named(self, name: str) -> Sink:
        return self.surroundings.database.read(lambda c: sinks.get(c, name))

    def _starts(self, settings: Mapping[str, Any]) -> list[list[Any]]:
        """Where a new sink begins, as numbers: what came before counts as passed."""
        start = settings["start"]
        if start == "beginning":
            return []
        if start == "now":
            return [[item.name, None, item.horizon] for item in self._taken(settings)]
        cursors = [start] if isinstance(start, str | Cursor) else list(start)
        parsed = [Cursor.parse(item) if isinstance(item, str) else item for item in cursors]
        views = {one.dataset: self.reader.view(one.dataset) for one in parsed}
        return [
            [one.dataset, one.partition, self.reader.position(views[one.dataset], one, partition=one.partition)]
            for one in parsed
        ]

    def _check_filter(self, sink: Sink) -> None:
        """Have the row filter evaluated once, against every dataset that it will meet."""
        if sink.settings["where"] is None:
            return
        for item in self._taken(sink.settings):
            self.surroundings.lake.check_filter(self.reader.view(item.name).table, sink.settings["where"])

    def _taken(self, settings: Mapping[str, Any]) -> list[datasets.Dataset]:
        declared = self.surroundings.database.read(datasets.everyone)
        return [item for item in declared if settings["datasets"] is None or item.name in settings["datasets"]]
