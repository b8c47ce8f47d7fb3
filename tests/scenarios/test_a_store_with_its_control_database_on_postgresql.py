"""A store whose control records are in PostgreSQL works like any other; only the settings differ."""

from __future__ import annotations

import re
import uuid
from pathlib import Path

import pytest

from floodmark.errors import Corrupt, InvalidSetting, Permanent, Retryable, StoreExists
from floodmark.store import init, open_store, rebuild_records
from floodmark.testing import MemoryLake
from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture

pytestmark = pytest.mark.postgres


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:  # noqa: F811
    return postgres_server.create_schema()


def test_rows_are_captured_committed_and_delivered(url: str, tmp_path: Path) -> None:
    lake = MemoryLake()
    with init(tmp_path / "store", control=url, lake=lake) as store:
        store.add_dataset("rows", ["id"], schema={"id": "long"})
        store.add_sink("files", "blob", url=(tmp_path / "out").as_uri(), format="jsonl")
        store.capture("rows", [{"id": 1}, {"id": 2}, {"id": 1}])
        assert store.flush("rows").rows == 2
    with open_store(tmp_path / "store", lake=lake) as store:
        assert store.engine.database.dialect == "postgresql"
        assert store.export("files").rows == 2
        assert store.export("files").rows == 0
    assert not list((tmp_path / "store").glob("control.db*"))


def test_the_url_may_be_kept_in_the_environment_or_in_a_file(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_CONTROL", url)
    init(tmp_path / "store", control="env:SHOP_CONTROL", lake=MemoryLake()).close()
    settings = tmp_path / "store" / "floodmark.toml"
    assert url not in settings.read_text()
    open_store(tmp_path / "store", lake=MemoryLake()).close()
    (tmp_path / "secret").write_text(url + "\n")
    settings.write_text(settings.read_text().replace("env:SHOP_CONTROL", f"file:{tmp_path / 'secret'}"))
    open_store(tmp_path / "store", lake=MemoryLake()).close()


@pytest.mark.parametrize("used", [True, False])
def test_a_database_of_another_store_is_refused(url: str, tmp_path: Path, used: bool) -> None:
    with init(tmp_path / "first", control=url, lake=MemoryLake()) as first:
        if used:
            first.add_dataset("rows", schema={"id": "long"})
    with pytest.raises(StoreExists, match="belongs to a store already"):
        init(tmp_path / "second", control=url, lake=MemoryLake())
    assert not (tmp_path / "second" / "floodmark.toml").exists()
    with open_store(tmp_path / "first", lake=MemoryLake()) as first:
        assert [item.name for item in first.datasets()] == (["rows"] if used else [])


def test_settings_that_name_another_stores_database_do_not_open(url: str, tmp_path: Path) -> None:
    with init(tmp_path / "first", control=url, lake=MemoryLake()) as first:
        first.add_dataset("rows", schema={"id": "long"})
    init(tmp_path / "second", lake=MemoryLake()).close()
    settings = tmp_path / "second" / "floodmark.toml"
    settings.write_text(settings.read_text().replace('# url = ""', f'url = "{url}"'))
    with pytest.raises(Corrupt, match="belongs to the store"):
        open_store(tmp_path / "second", lake=MemoryLake())


def test_a_database_without_records_is_told(url: str, tmp_path: Path) -> None:
    init(tmp_path / "store", lake=MemoryLake()).close()
    settings = tmp_path / "store" / "floodmark.toml"
    settings.write_text(settings.read_text().replace('# url = ""', f'url = "{url}"'))
    with pytest.raises(Corrupt, match="has no tables"):
        open_store(tmp_path / "store", lake=MemoryLake())


def test_records_on_a_server_are_restored_from_its_own_backup(url: str, tmp_path: Path) -> None:
    init(tmp_path / "store", control=url, lake=MemoryLake()).close()
    with pytest.raises(Permanent, match="are in PostgreSQL"):
        rebuild_records(tmp_path / "store", lake=MemoryLake())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("mysql://host/records", "not the URL of a PostgreSQL database"),
        ("postgresql://host", "not the URL of a PostgreSQL database"),
        ("nonsense", "not the URL of a PostgreSQL database"),
        ("env:FLOODMARK_NO_SUCH_VARIABLE", "FLOODMARK_NO_SUCH_VARIABLE, which is not set"),
        ("file:/no/such/file", "a file that cannot be read"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_by_name(given: str, told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=told):
        init(tmp_path / "store", control=given, lake=MemoryLake())
    assert not (tmp_path / "store" / "floodmark.toml").exists()


def test_a_role_with_only_the_documented_rights_can_do_everything_but_change_tables(
    postgres_server: PostgresServer,  # noqa: F811
    tmp_path: Path,
) -> None:
    """The statements are those of the page, with names of this test's own."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "scale-out.md").read_text()
    statements = page.split("```sql\n")[1].split("```")[0]
    name = f"t{uuid.uuid4().hex}"
    for role in ("floodmark_owner", "floodmark_app", "floodmark"):
        statements = re.sub(rf"\b{role}\b", role.replace("floodmark", name), statements)
    for statement in filter(str.strip, statements.split(";")):
        postgres_server.execute(statement)

    def url(role: str) -> str:
        return f"postgresql://{name}_{role}@127.0.0.1:{postgres_server.port}/postgres?options=-csearch_path%3D{name}"

    lake = MemoryLake()
    init(tmp_path / "store", control=url("owner"), lake=lake).close()
    settings = tmp_path / "store" / "floodmark.toml"
    settings.write_text(settings.read_text().replace(f"{name}_owner", f"{name}_app"))
    with open_store(tmp_path / "store", lake=lake) as store:
        store.add_dataset("rows", ["id"], schema={"id": "long"})
        store.add_sink("files", "blob", url=(tmp_path / "out").as_uri(), format="jsonl")
        store.capture("rows", [{"id": 1}, {"id": 2}])
        assert store.flush("rows").rows == 2
        assert store.export("files").rows == 2
        store.compact("rows")
        store.retain("rows", keep_rows=1)
        assert store.audit("files", deep=True).sound
        assert store.fsck(deep=True).findings == ()
        with pytest.raises(Retryable, match=r"permission denied|must be owner"):
            store.engine.database.transact(lambda c: c.exec_driver_sql("DROP TABLE chunks"))
