"""Catalogs of the settings file: what is written once is what Spark and PyIceberg both get."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from floodmark import config
from floodmark.errors import InvalidSetting
from floodmark.lake.catalog import Catalog
from floodmark.lake.catalogs import attach_described, configured


def catalogs(tmp_path: Path, text: str) -> dict[str, config.CatalogSettings]:
    file = tmp_path / config.FILE_NAME
    file.write_text(f'store_id = "s"\n{text}')
    return config.load(file).catalogs


def catalog(tmp_path: Path, text: str) -> Catalog:
    found = catalogs(tmp_path, f"[catalogs.central]\n{text}")
    return configured("central", found["central"], namespace="copies")


def test_a_store_has_no_other_catalogs_until_it_says_so(tmp_path: Path) -> None:
    assert catalogs(tmp_path, "") == {}


def test_a_rest_catalog_is_the_same_for_both(tmp_path: Path) -> None:
    found = catalog(tmp_path, 'type = "rest"\nuri = "https://c.example"\nwarehouse = "w"\ntoken = "t"\n')
    wanted = {"type": "rest", "uri": "https://c.example", "warehouse": "w", "token": "t"}
    assert found.spark_settings == wanted
    assert found.python_settings == wanted
    assert found.spark_name("events") == "`central`.`copies`.`events`"


@pytest.mark.parametrize("kind", ["sql", "jdbc"])
def test_a_catalog_on_sqlite(tmp_path: Path, kind: str) -> None:
    found = catalog(tmp_path, f'type = "{kind}"\nuri = "sqlite:////srv/c.db"\nwarehouse = "file:///srv/w"\n')
    assert found.spark_settings == {
        "type": "jdbc",
        "jdbc.schema-version": "V1",
        "uri": "jdbc:sqlite:/srv/c.db?busy_timeout=60000",
        "warehouse": "file:///srv/w",
    }
    assert found.python_settings == {"type": "sql", "uri": "sqlite:////srv/c.db", "warehouse": "file:///srv/w"}


def test_a_catalog_on_postgresql(tmp_path: Path) -> None:
    uri = "postgresql://me:p%40ss@db.example:6000/catalog"
    found = catalog(tmp_path, f'type = "sql"\nuri = "{uri}"\nwarehouse = "s3://w"\n')
    assert found.spark_settings["uri"] == "jdbc:postgresql://db.example:6000/catalog"
    assert (found.spark_settings["jdbc.user"], found.spark_settings["jdbc.password"]) == ("me", "p@ss")
    assert found.python_settings["uri"] == "postgresql+psycopg://me:p%40ss@db.example:6000/catalog"


def test_further_properties_go_to_both_or_to_the_one_they_name(tmp_path: Path) -> None:
    found = catalog(
        tmp_path,
        'type = "rest"\nuri = "https://u"\ns3.endpoint = "e"\n"s3.region" = "r"\n'
        'spark.io-impl = "S3"\npython.ssl.cabundle = "c"\n',
    )
    shared = {"type": "rest", "uri": "https://u", "s3.endpoint": "e", "s3.region": "r"}
    assert found.spark_settings == {**shared, "io-impl": "S3", "client.region": "r"}
    assert found.python_settings == {**shared, "ssl.cabundle": "c"}


def test_what_follows_the_address_of_a_database_is_told_to_both_drivers(tmp_path: Path) -> None:
    uri = "postgresql://me@db.example/c?sslmode=require&options=-csearch_path%3Dlake&connect_timeout=3"
    found = catalog(tmp_path, f'type = "sql"\nuri = "{uri}"\nwarehouse = "s3://w"\n')
    base, _, query = found.spark_settings["uri"].partition("?")
    assert base == "jdbc:postgresql://db.example:5432/c"
    assert set(query.split("&")) == {"sslmode=require", "options=-csearch_path%3Dlake", "connectTimeout=3"}


@pytest.mark.parametrize(
    ("warehouse", "name"), [("s3://w", "S3FileIO"), ("gs://w", "GCSFileIO"), ("abfss://c@a/w", "ADLSFileIO")]
)
def test_the_scheme_of_the_warehouse_says_how_spark_reads_it(tmp_path: Path, warehouse: str, name: str) -> None:
    found = catalog(tmp_path, f'type = "sql"\nuri = "sqlite:////c"\nwarehouse = "{warehouse}"\n')
    assert found.spark_settings["io-impl"].endswith(f".{name}")
    assert "io-impl" not in found.python_settings
    text = f'type = "sql"\nuri = "sqlite:////c"\nwarehouse = "{warehouse}"\nspark.io-impl = "mine"\n'
    assert catalog(tmp_path, text).spark_settings["io-impl"] == "mine"


def test_secrets_stand_in_files_as_well(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("hush\n")
    found = catalog(tmp_path, f'type = "rest"\nuri = "https://u"\ntoken = "file:{tmp_path}/secret"\n')
    assert found.spark_settings["token"] == found.python_settings["token"] == "hush"
    with pytest.raises(InvalidSetting, match=r"catalogs\.central\.token names a file that cannot be read"):
        catalog(tmp_path, f'type = "rest"\nuri = "https://u"\ntoken = "file:{tmp_path}/none"\n')


def test_secrets_stand_in_the_environment_and_are_not_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = '[catalogs.central]\ntype = "rest"\nuri = "env:WHERE"\ntoken = "env:CENTRAL_TOKEN"\ncredential = "seen"\n'
    settings = catalogs(tmp_path, text)["central"]
    assert "seen" not in repr(settings)
    monkeypatch.setenv("WHERE", "https://c.example")
    with pytest.raises(InvalidSetting, match="CENTRAL_TOKEN"):
        configured("central", settings, namespace="n")
    monkeypatch.setenv("CENTRAL_TOKEN", "secret")
    found = configured("central", settings, namespace="n")
    assert found.python_settings["token"] == "secret"
    assert found.spark_settings["uri"] == "https://c.example"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("catalogs = 1", "a catalog is a section"),
        ("[catalogs]\ncentral = 1", "a catalog is a section"),
        ('[catalogs."a b"]\ntype = "rest"', "is not a valid catalog name"),
        ("[catalogs.central]", r"catalogs\.central\.type is missing or unknown"),
        ('[catalogs.central]\ntype = "hive"', r"catalogs\.central\.type is missing or unknown"),
        ('[catalogs.central]\ntype = "rest"', r"catalogs\.central\.uri is missing"),
        ('[catalogs.central]\ntype = "sql"\nuri = "sqlite:////c"', r"catalogs\.central\.warehouse is missing"),
        ('[catalogs.central]\ntype = "rest"\nuri = 7', r"catalogs\.central\.uri is of type int"),
        ('[catalogs.central]\ntype = "rest"\nuri = "u"\ns3.port = 9', r"catalogs\.central\.s3\.port is of type int"),
    ],
)
def test_what_cannot_be_a_catalog_is_told_with_its_key(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(InvalidSetting, match=words):
        catalogs(tmp_path, text)


@pytest.mark.parametrize("uri", ["mysql://h/d", "nonsense", "sqlite://", "jdbc:sqlite:/c.db", "postgresql:///d"])
def test_a_database_that_cannot_be_a_catalog_is_refused(tmp_path: Path, uri: str) -> None:
    with pytest.raises(InvalidSetting, match=r"catalogs\.central\.uri"):
        catalog(tmp_path, f'type = "sql"\nuri = "{uri}"\nwarehouse = "w"\n')


def test_a_session_learns_of_the_catalog_whose_table_is_read_and_of_no_other(tmp_path: Path) -> None:
    described = catalogs(
        tmp_path,
        '[catalogs.central]\ntype = "rest"\nuri = "https://c.example"\n'
        '[catalogs.other]\ntype = "rest"\nuri = "https://o.example"\n',
    )
    known: dict[str, str] = {}
    session: Any = SimpleNamespace(conf=SimpleNamespace(set=known.__setitem__))
    attach_described(session, "unknown.chat.messages", described)
    assert known == {}
    attach_described(session, "central.chat.messages", described)
    assert known["spark.sql.catalog.central.uri"] == "https://c.example"
    assert known["spark.sql.catalog.central.cache-enabled"] == "false"
    assert not any("other" in key for key in known)


@pytest.mark.parametrize(
    "text",
    [
        'type = "rest"\nuri = "http://user:hush/hush@host"',
        'type = "rest"\nuri = "hush"',
        'type = "sql"\nuri = "postgresql://user:hush@host:port/x"\nwarehouse = "w"',
    ],
)
def test_an_address_that_is_none_is_told_and_not_repeated(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidSetting, match="is not the address") as caught:
        catalog(tmp_path, text + "\n")
    assert "hush" not in str(caught.value)


def test_a_catalog_does_not_show_its_settings(tmp_path: Path) -> None:
    assert "hush" not in repr(catalog(tmp_path, 'type = "rest"\nuri = "https://c"\ntoken = "hush"\n'))
