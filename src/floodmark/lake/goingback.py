"""Going back over changes of a table whose files were lost: to the newest state of which every file is there.

A table's metadata names those before it, and the catalog names the one before the newest, so that the way back is known
even where the newest metadata itself never reached the disk. The catalog's pointer is moved by a guarded update: of two
processes that mend the same table one moves it, and a commit that came meanwhile stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from floodmark.commit import Snapshot, TableState
from floodmark.errors import FilesMissing
from floodmark.lake.catalog import Catalog, table_state
from floodmark.lake.durable import sync_commits

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from sqlalchemy import Connection

_HERE = "catalog_name = :catalog AND table_namespace = :namespace AND table_name = :table"
_POINTER = f"SELECT metadata_location, previous_metadata_location FROM iceberg_tables WHERE {_HERE}"  # noqa: S608 - constants
_MOVE_BACK = (
    "UPDATE iceberg_tables SET metadata_location = :previous, previous_metadata_location = NULL "  # noqa: S608 - constants
    f"WHERE {_HERE} AND metadata_location = :now"
)


def go_back(catalog: Catalog, table: str, *, durable: int | None, droppable: Callable[[Snapshot], bool]) -> bool:
    """Whether every file of the table's head is there now. Only for catalogs that are a SQL database."""
    from sqlalchemy import create_engine

    if catalog.python_settings.get("type") != "sql":
        return False
    engine = create_engine(catalog.python_settings["uri"])
    here = {"catalog": catalog.name, "namespace": catalog.namespace, "table": table}
    try:
        with engine.begin() as connection:
            return _go_back(connection, here, durable=durable, droppable=droppable)
    finally:
        engine.dispose()


def _go_back(
    connection: Connection, here: dict[str, str], *, durable: int | None, droppable: Callable[[Snapshot], bool]
) -> bool:
    from sqlalchemy import text

    row = connection.execute(text(_POINTER), here).one_or_none()
    if row is None:
        return False
    newest: TableState | None = None
    for loaded in _states(row.metadata_location, row.previous_metadata_location):
        state = table_state(here["table"], loaded)
        newest = newest or state
        left = {snapshot.id for snapshot in state.lineage}
        if state.since(durable) is None or not all(droppable(one) for one in newest.lineage if one.id not in left):
            return False
        if not _is_whole(loaded, state, durable):
            continue
        location = loaded.metadata_location
        if location == row.metadata_location:
            return True  # another process has mended it
        moved = connection.execute(text(_MOVE_BACK), {**here, "previous": location, "now": row.metadata_location})
        return moved.rowcount == 1
    return False


def _states(location: str, previous: str | None) -> Iterator[IcebergTable]:
    """The table as it was, from its newest metadata back, as far as they can be read."""
    waiting = [location, *([previous] if previous else [])]
    seen: set[str] = set()
    logged = False
    while waiting:
        location = waiting.pop(0)
        loaded = None if location in seen else _read(location)
        seen.add(location)
        if loaded is None:
            continue
        if not logged:  # the newest one that can be read knows all those before it
            waiting += [item.metadata_file for item in reversed(loaded.metadata.metadata_log)]
            logged = True
        yield loaded


def _read(location: str) -> IcebergTable | None:
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.table import StaticTable

    try:
        return StaticTable.from_metadata(location)
    except (OSError, ValueError, ValidationError):  # not there, or cut off
        return None


def _is_whole(loaded: IcebergTable, state: TableState, durable: int | None) -> bool:
    try:
        sync_commits(loaded, state, since=durable)
    except FilesMissing:
        return False
    return True
