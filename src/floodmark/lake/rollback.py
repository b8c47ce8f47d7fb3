"""Going back over changes of a table whose files were lost: to the newest state of which every file is there.

A table's metadata names those before it, and the catalog names the one before the newest, so that the way back is known
even where the newest metadata itself never reached the disk. Where neither of the two did, the table's directory is
searched for what is known to be on the disk: nothing newer is believed there, for not every file in it was ever
committed. The catalog's pointer is moved by a guarded update: of two
processes that repair the same table one moves it, and a commit that came in between stays.

A REST catalog moves its pointer itself. There the newest commits are removed from the table by another commit, which is
guarded by the head that was looked at.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from floodmark.commit.protocol import Snapshot, TableState
from floodmark.errors import FilesMissing, Retryable, reason_of
from floodmark.lake.catalog import Catalog, table_state
from floodmark.lake.durable import sync_commits
from floodmark.lake.files import local_location
from floodmark.lake.places import check_answered, files_below

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from sqlalchemy import Connection

_HERE = "catalog_name = :catalog AND table_namespace = :namespace AND table_name = :table"
_POINTER = f"SELECT metadata_location, previous_metadata_location FROM iceberg_tables WHERE {_HERE}"  # noqa: S608 - constants
_MOVE_BACK = (
    "UPDATE iceberg_tables SET metadata_location = :previous, previous_metadata_location = NULL "  # noqa: S608 - constants
    f"WHERE {_HERE} AND metadata_location = :now"
)


def rollback(catalog: Catalog, table: str, *, durable: int | None, droppable: Callable[[Snapshot], bool]) -> bool:
    """Whether every file of the table's head is there now."""
    from sqlalchemy import create_engine

    if catalog.python_settings.get("type") != "sql":
        return _removed_by_commit(catalog, table, durable=durable, droppable=droppable)
    engine = create_engine(catalog.python_settings["uri"])
    here = {"catalog": catalog.name, "namespace": catalog.namespace, "table": table}
    try:
        with engine.begin() as connection:
            return _rollback(connection, catalog, here, durable=durable, droppable=droppable)
    finally:
        engine.dispose()


def _rollback(
    connection: Connection,
    catalog: Catalog,
    here: dict[str, str],
    *,
    durable: int | None,
    droppable: Callable[[Snapshot], bool],
) -> bool:
    from sqlalchemy import text

    row = connection.execute(text(_POINTER), here).one_or_none()
    if row is None:
        return False
    known = list(_states(catalog, row.metadata_location, row.previous_metadata_location))
    found = _newest_whole(known, here["table"], durable, droppable) if known else None
    if not known:
        listed = _listed(catalog, row.metadata_location)
        found = next((one for one in listed if _is_at(one, here["table"], durable)), None)
    if found is None:
        return False
    location = found.metadata_location
    if location == row.metadata_location:
        return True  # another process has mended it
    moved = connection.execute(text(_MOVE_BACK), {**here, "previous": location, "now": row.metadata_location})
    return moved.rowcount == 1


def _removed_by_commit(
    catalog: Catalog, table: str, *, durable: int | None, droppable: Callable[[Snapshot], bool]
) -> bool:
    loaded = catalog.table(table)
    if loaded is None:
        return False
    newest = table_state(table, loaded)
    for count in range(len(newest.lineage) + 1):
        gone, left = newest.lineage[:count], newest.lineage[count:]
        if not all(droppable(one) for one in gone[-1:]) or (not left and gone and gone[-1].parent is not None):
            return False
        state = replace(newest, lineage=left)
        if state.since(durable) is None:
            return False
        if _is_whole(loaded, state, durable):
            return not gone or _remove(catalog, loaded, gone, head=state.head)
    return False


def _remove(catalog: Catalog, loaded: IcebergTable, gone: tuple[Snapshot, ...], *, head: int | None) -> bool:
    """Whether the newest commits are removed, and another is the head."""
    from pyiceberg.exceptions import CommitFailedException, RESTError
    from pyiceberg.table.refs import SnapshotRefType
    from pyiceberg.table.update import (
        AssertRefSnapshotId,
        AssertTableUUID,
        RemoveSnapshotRefUpdate,
        RemoveSnapshotsUpdate,
        SetSnapshotRefUpdate,
        TableUpdate,
    )

    main = "main"
    moved: TableUpdate = RemoveSnapshotRefUpdate(ref_name=main)
    if head is not None:
        moved = SetSnapshotRefUpdate(ref_name=main, type=SnapshotRefType.BRANCH, snapshot_id=head)
    unchanged = (
        AssertTableUUID(uuid=loaded.metadata.table_uuid),
        AssertRefSnapshotId(ref=main, snapshot_id=gone[0].id),
    )
    try:
        catalog.python.commit_table(
            loaded, unchanged, (moved, RemoveSnapshotsUpdate(snapshot_ids=[one.id for one in gone]))
        )
    except CommitFailedException:
        return False  # another process has mended it, or committed
    except (RESTError, OSError) as error:
        raise Retryable(f"It is not known whether the table went back: {reason_of(error)}.") from error
    return True


def _newest_whole(
    known: list[IcebergTable], name: str, durable: int | None, droppable: Callable[[Snapshot], bool]
) -> IcebergTable | None:
    """The first of a table's states, from the newest back, of which every file is there; None if too much would go."""
    newest = table_state(name, known[0])
    for loaded in known:
        state = table_state(name, loaded)
        left = {snapshot.id for snapshot in state.lineage}
        if state.since(durable) is None or not all(droppable(one) for one in newest.lineage if one.id not in left):
            return None
        if _is_whole(loaded, state, durable):
            return loaded
    return None


def _listed(catalog: Catalog, location: str) -> Iterator[IcebergTable]:
    """All metadata in the directory of a file that can be read, newest first."""
    below = files_below(catalog.file_io(location), location.rpartition("/")[0])
    files = [found.location for found in below if found.location.endswith(".metadata.json")]
    for file in sorted(files, key=lambda item: item.rpartition("/")[2], reverse=True):  # names begin with a number
        loaded = _read(catalog, local_location(file) if file.startswith("/") else file)
        if loaded is not None:
            yield loaded


def _is_at(loaded: IcebergTable, name: str, durable: int | None) -> bool:
    state = table_state(name, loaded)
    return state.since(durable) == () and _is_whole(loaded, state, durable)


def _states(catalog: Catalog, location: str, previous: str | None) -> Iterator[IcebergTable]:
    """The table as it was, from its newest metadata back, as far as they can be read."""
    waiting = [location, *([previous] if previous else [])]
    seen: set[str] = set()
    logged = False
    while waiting:
        location = waiting.pop(0)
        loaded = None if location in seen else _read(catalog, location)
        seen.add(location)
        if loaded is None:
            continue
        if not logged:  # the newest one that can be read knows all those before it
            waiting += [item.metadata_file for item in reversed(loaded.metadata.metadata_log)]
            logged = True
        yield loaded


def _read(catalog: Catalog, location: str) -> IcebergTable | None:
    from pyiceberg.exceptions import ValidationError
    from pyiceberg.table import StaticTable

    try:
        return StaticTable.from_metadata(location, dict(catalog.python_settings))
    except (OSError, ValueError, ValidationError) as error:  # not there, or cut off
        check_answered(location, error)
        return None


def _is_whole(loaded: IcebergTable, state: TableState, durable: int | None) -> bool:
    try:
        sync_commits(loaded, state, since=durable)
    except FilesMissing:
        return False
    return True
