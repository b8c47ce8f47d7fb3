"""Adding, changing and removing sinks: everything that can be refused is refused now, not at the first delivery."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import Connection

from floodmark.control import datasets, sinks
from floodmark.control.sinks import Sink
from floodmark.delivery.credentials import check_reference, is_literal
from floodmark.delivery.destination import Surroundings
from floodmark.delivery.kinds import checked, new_sink
from floodmark.delivery.occupancy import inside_the_store, meet
from floodmark.delivery.scope import Scope
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
        check_reference("token", sink.settings.get("token"))
        self._check_filter(sink)
        now = self.surroundings.clock.now()

        def work(connection: Connection) -> None:
            sinks.insert(connection, sink, now=now)
            self._check_scope(connection, sink)
            self._check_place(connection, sink)

        self.surroundings.database.transact(work)

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
        check_reference("token", whole.get("token"))
        changed = replace(sink, settings=whole)
        self._check_filter(changed)

        def work(connection: Connection) -> None:
            if {"datasets", "partitions"} & set(settings):
                self._check_scope(connection, changed)
            self._check_place(connection, changed)
            sinks.change(connection, sink.instance, whole)

        self.surroundings.database.transact(work)

    def remove(self, name: str) -> None:
        """Forget a destination; its name is free again."""
        sink = self._named(name)

        def work(connection: Connection) -> None:
            sinks.set_state(connection, sink.instance, state="removed", reason=None)
            if is_literal(sink.settings.get("token")):  # of a time when that was allowed
                sinks.change(connection, sink.instance, {**sink.settings, "token": None})

        self.surroundings.database.transact(work)
        if is_literal(sink.settings.get("token")):
            self.surroundings.database.forget_freed()

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

    def _check_scope(self, connection: Connection, sink: Sink) -> None:
        """A name that nothing has is refused: the sink would deliver nothing, and nobody would notice."""
        declared = datasets.everyone(connection)
        missing = Scope.of(sink.settings).missing(declared)
        if missing and not sink.settings["later"]:
            known = ", ".join(
                f"{item.name} (by {', '.join(item.partition_by)})" if item.partition_by else item.name
                for item in declared
            )
            raise InvalidSetting(
                missing[0],
                hint=f"There are: {known or 'none yet'}. Correct the name; or add it first; or, if it is to be added "
                "later, say so with --later (in Python, later=True).",
            )

    def _check_place(self, connection: Connection, sink: Sink) -> None:
        """Two sinks at one place block each other; in the store's own files a sink destroys what it delivers from."""
        around = self.surroundings
        for other in sinks.everyone(connection):
            if other.instance != sink.instance and meet(sink, other, store_id=around.store_id):
                raise InvalidSetting(
                    f"Sink {other.name!r} delivers there already, above it or below it.",
                    hint="Give every sink a place of its own: another prefix, table or namespace, or hub.",
                )
        if around.root is not None and inside_the_store(
            sink,
            root=around.root,
            store_id=around.store_id,
            datasets=datasets.everyone(connection),
            catalogs=around.catalogs,
        ):
            raise InvalidSetting(
                "That place is inside the store itself.", hint="Deliver to a directory, bucket or table outside it."
            )

    def _check_filter(self, sink: Sink) -> None:
        """Have the row filter evaluated once, against every dataset that it will meet."""
        if sink.settings["where"] is None:
            return
        for item in self._taken(sink.settings):
            self.surroundings.lake.check_filter(self.reader.view(item.name).table, sink.settings["where"])

    def _taken(self, settings: Mapping[str, Any]) -> list[datasets.Dataset]:
        declared = self.surroundings.database.read(datasets.everyone)
        return [item for item in declared if settings["datasets"] is None or item.name in settings["datasets"]]
