"""`floodmark.toml`: every key has a default, and every mistake is told with its key and what is allowed there."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import pytest

from floodmark import config
from floodmark.errors import InvalidSetting, StoreMissing


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / config.FILE_NAME


def test_what_init_writes_means_the_defaults(file: Path) -> None:
    file.write_text(config.initial_text("an-id"))
    assert config.load(file) == config.Settings("an-id")


def test_what_init_writes_shows_every_setting_with_its_default(file: Path) -> None:
    """Uncommented, each of its lines is a valid setting, and the same store."""
    text = config.initial_text("an-id")
    head, _, rest = text.partition("[")
    file.write_text(head + "[" + rest.replace("# ", ""))
    assert config.load(file) == config.Settings("an-id")
    for kind in (config.SpoolSettings, config.FlushSettings):
        assert all(f"# {item.name} = " in text for item in fields(kind))


def test_settings_are_taken(file: Path) -> None:
    file.write_text(
        'store_id = "s"\n[spool]\nbacklog_bytes_max = 5\n[flush]\nrows_max = 7\n'
        '[spark]\nmaster = "local[1]"\n[spark.settings]\n"spark.ui.enabled" = "true"\n'
    )
    found = config.load(file)
    assert found.spool.backlog_bytes_max == 5
    assert found.flush.rows_max == 7
    assert found.flush.bytes_max == config.FlushSettings().bytes_max
    assert found.spark.master == "local[1]"
    assert found.spark.settings == {"spark.ui.enabled": "true"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "store_id is missing"),
        ("store_id = 7", "store_id is missing"),
        ('store_id = ""', "store_id is missing"),
        ("store_id = ", "not valid TOML"),
        ('store_id = "s"\nmore = 1', "unknown key 'more'"),
        ('store_id = "s"\n[more]', "unknown key 'more'"),
        ('store_id = "s"\nspool = 1', "spool is a section"),
        ('store_id = "s"\n[spool]\nmore = 1', r"unknown key spool\.more"),
        ('store_id = "s"\n[spool]\nbacklog_bytes_max = "1"', r"spool\.backlog_bytes_max is of type str"),
        ('store_id = "s"\n[spool]\nbacklog_bytes_max = 0', r"spool\.backlog_bytes_max is 0"),
        ('store_id = "s"\n[spool]\nbacklog_bytes_max = -5', r"spool\.backlog_bytes_max is -5"),
        ('store_id = "s"\n[flush]\nrows_max = true', r"flush\.rows_max is true"),
        ('store_id = "s"\n[run]\nflush_seconds = 0', r"run\.flush_seconds is 0. It must be a number above zero"),
        ('store_id = "s"\n[run]\nflush_seconds = inf', r"run\.flush_seconds is inf"),
        ('store_id = "s"\n[run]\nflush_seconds = nan', r"run\.flush_seconds is nan"),
        ('store_id = "s"\n[run]\nflush_seconds = "1s"', r"run\.flush_seconds is of type str"),
        ('store_id = "s"\n[run]\ncompact = 1', r"run\.compact is 1. It must be true or false"),
        ('store_id = "s"\n[flush]\nrows_max = 1.5', r"flush\.rows_max is 1\.5"),
        ('store_id = "s"\n[spark]\nmaster = 1', r"spark\.master is of type int"),
        ('store_id = "s"\n[spark.settings]\na = 1', r"spark\.settings is"),
        ('store_id = "s"\n[spark]\ndriver_memory = "lots"', r"spark\.driver_memory is not a valid JVM memory size"),
        ('store_id = "s"\n[spark]\ndriver_memory = ""', r"spark\.driver_memory is not a valid JVM memory size"),
        ('store_id = "s"\n[spark]\ndriver_memory = "1"', r"spark\.driver_memory is not a valid JVM memory size"),
        ('store_id = "s"\n[spark]\ndriver_memory = "1.5g"', r"spark\.driver_memory is not a valid JVM memory size"),
        ('store_id = "s"\n[spark]\ndriver_memory = "1gb"', r"spark\.driver_memory is not a valid JVM memory size"),
        ('store_id = "s"\n[spark]\ndriver_memory = "-1g"', r"spark\.driver_memory is not a valid JVM memory size"),
        ('store_id = "s"\n[spark]\ndriver_memory = "100m"', r"spark\.driver_memory is not a valid JVM memory size"),
        (
            'store_id = "s"\n[spark.settings]\n"spark.driver.memory" = "lots"',
            r"driver\.memory\" is not a valid JVM memory size",
        ),
        ('store_id = "s"\n[spark]\nmaster = "everywhere"', r"spark\.master is not the address"),
        ('store_id = "s"\n[spark]\nmaster = "local[many]"', r"spark\.master is not the address"),
    ],
)
def test_a_mistake_is_told_with_its_key_and_a_hint(file: Path, text: str, words: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidSetting, match=words) as caught:
        config.load(file)
    assert str(file) in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("size", ["512m", "600M", "1g", "2G", "1t", "1048576k"])
def test_a_heap_of_every_size_that_spark_starts_with_is_taken(file: Path, size: str) -> None:
    file.write_text(f'store_id = "s"\n[spark]\ndriver_memory = "{size}"')
    assert config.load(file).spark.driver_memory == size


@pytest.mark.parametrize(
    "master", ["local", "local[*]", "local[2]", "local[2, 3]", "yarn", "spark://a:7077,b:7077", "k8s://https://h:443"]
)
def test_every_kind_of_spark_master_is_taken(file: Path, master: str) -> None:
    file.write_text(f'store_id = "s"\n[spark]\nmaster = "{master}"')
    assert config.load(file).spark.master == master


def test_bytes_that_are_no_text_are_told_too(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InvalidSetting, match="line 1: it is not UTF-8"):
        config.load(file)


def test_a_missing_store_is_told_with_the_way_to_make_one(file: Path) -> None:
    with pytest.raises(StoreMissing, match=str(file.parent)) as caught:
        config.load(file)
    assert "init" in (caught.value.hint or "")


@pytest.mark.parametrize(
    "text", ["store_id = " + "9" * 5000, "a = " + "[" * 5000, 'store_id = "s"\n[flush]\nrows_max = ' + "9" * 5000]
)
def test_numbers_and_nestings_beyond_all_bounds_are_no_toml(file: Path, text: str) -> None:
    file.write_text(text)
    with pytest.raises(InvalidSetting, match="not valid TOML"):
        config.load(file)


def test_a_directory_in_the_files_place_is_told(file: Path) -> None:
    file.mkdir()
    with pytest.raises(StoreMissing, match="cannot be read"):
        config.load(file)


@pytest.mark.parametrize(
    "text",
    [
        '[spark.settings]\n"spark.hadoop.fs.s3a.secret.key" = "hush"\n"spark.x" = 5',
        '[catalogs.central]\ntype = "rest"\nuri = ["hush"]',
        '[flush]\nrows_max = "hush"',
    ],
)
def test_a_value_of_the_wrong_kind_is_not_repeated_for_it_may_be_a_secret(file: Path, text: str) -> None:
    file.write_text(f'store_id = "s"\n{text}')
    with pytest.raises(InvalidSetting) as caught:
        config.load(file)
    assert "hush" not in str(caught.value)


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_line_of_every_key_is_known_in_every_way_of_writing_it() -> None:
    text = (
        '# head\n\nstore_id = "s"\n[functions]\nallow = [\n  "a",\n  # run = 1\n  "b",\n]\n\n'
        '[spark]\nsettings = {"spark.ui.enabled" = "false"}\n[catalogs.far]\ntype = "rest"\ns3.endpoint = "x"\n'
        "uri = '''\nwarehouse = 1'''\n[run]\n\"flush_seconds\" = 1\nstop_seconds_max=2"
    )
    assert config.key_lines(text) == {
        "store_id": 3,
        "functions": 4,
        "functions.allow": 5,
        "spark": 11,
        "spark.settings": 12,
        "spark.settings.spark.ui.enabled": 12,
        "catalogs": 13,
        "catalogs.far": 13,
        "catalogs.far.type": 14,
        "catalogs.far.s3": 15,
        "catalogs.far.s3.endpoint": 15,
        "catalogs.far.uri": 16,
        "run": 18,
        "run.flush_seconds": 19,
        "run.stop_seconds_max": 20,
    }


def test_every_mistake_of_a_file_is_found_with_its_line(file: Path) -> None:
    file.write_text('store_id = "s"\nmore = 1\n[run]\nflush_secondz = 1\nflush_bytes = 0\n[catalogs.a]\nuri = "x"\n')
    found = config.examine(file, {})
    assert found.settings is None
    assert {(one.key, one.line) for one in found.problems} == {
        ("more", 2),
        ("run.flush_secondz", 4),
        ("run.flush_bytes", 5),
        ("catalogs.a.type", None),
    }
    assert "Did you mean flush_seconds?" in next(one.hint for one in found.problems if one.line == 4)
    with pytest.raises(InvalidSetting, match="`floodmark config check` lists 3 more"):
        config.load(file, {})


# ── the environment ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_environment_replaces_every_key_of_every_section(file: Path) -> None:
    """Also of the sections and keys that are added after this test."""
    file.write_text('store_id = "s"\n')
    texts = {
        int: ("17", 17),
        float: ("0.25", 0.25),
        bool: ("false", False),
        dict: ('{"spark.a" = "b"}', {"spark.a": "b"}),
    }
    texts |= {str: ("text", "text"), list: ("one, two", ["one", "two"])}
    special = {
        "spool.segments": ("s3://b/p", "s3://b/p"),
        "spark.remote": ("sc://host:1", "sc://host:1"),
        "spark.master": ("yarn", "yarn"),
        "spark.driver_memory": ("3g", "3g"),
    }
    for section, kind in config.SECTIONS.items():
        for item in fields(kind):
            text, value = special.get(f"{section}.{item.name}") or texts[type(getattr(kind(), item.name))]
            variable = f"FLOODMARK_{section}__{item.name}".upper()
            assert variable in config.variables()
            found = config.load(file, {variable: text})
            assert getattr(getattr(found, section), item.name) == value, variable


def test_the_environment_wins_over_the_file_and_the_other_values_stay(file: Path) -> None:
    file.write_text('store_id = "s"\n[run]\nflush_seconds = 5\nexport_seconds = 7\n')
    found = config.load(file, {"FLOODMARK_RUN__FLUSH_SECONDS": " 1 ", "FLOODMARK_STORE": "x", "HOME": "/"})
    assert (found.run.flush_seconds, found.run.export_seconds) == (1.0, 7)


def test_the_environment_replaces_and_adds_properties_of_catalogs(file: Path) -> None:
    file.write_text('store_id = "s"\n[catalogs.Far-away]\ntype = "rest"\nuri = "http://a"\ns3.access-key-id = "a"\n')
    found = config.load(
        file,
        {
            "FLOODMARK_CATALOGS__FAR_AWAY__URI": "http://b",
            "FLOODMARK_CATALOGS__FAR_AWAY__S3__ACCESS_KEY_ID": "b",
            "FLOODMARK_CATALOGS__FAR_AWAY__S3__PATH_STYLE_ACCESS": "true",
            "FLOODMARK_CATALOGS__NEAR__TYPE": "sql",
            "FLOODMARK_CATALOGS__NEAR__URI": "sqlite:////x",
            "FLOODMARK_CATALOGS__NEAR__WAREHOUSE": "/y",
        },
    ).catalogs
    assert found == {
        "Far-away": config.CatalogSettings(
            "rest", "http://b", None, {"s3.access-key-id": "b", "s3.path-style-access": "true"}
        ),
        "near": config.CatalogSettings("sql", "sqlite:////x", "/y", {}),
    }


def test_single_settings_of_spark_come_from_the_environment_in_their_own_case(file: Path) -> None:
    file.write_text('store_id = "s"\n[spark.settings]\n"spark.a" = "1"\n')
    found = config.load(file, {"FLOODMARK_SPARK__SETTINGS__spark__driver__extraClassPath": "/x"})
    assert found.spark.settings == {"spark.a": "1", "spark.driver.extraClassPath": "/x"}


@pytest.mark.parametrize(
    ("variable", "text", "words"),
    [
        ("FLOODMARK_RUN__FLUSH_SECOND", "1", "no such setting. Did you mean FLOODMARK_RUN__FLUSH_SECONDS"),
        ("FLOODMARK_RUNS__FLUSH_SECONDS", "1", "no such setting. Did you mean FLOODMARK_RUN__FLUSH_SECONDS"),
        ("FLOODMARK_RUN__FLUSH__SECONDS", "1", "no such setting. Did you mean FLOODMARK_RUN__FLUSH_SECONDS"),
        ("FLOODMARK_RUN_FLUSH_SECONDS", "1", r"no effect. Did you mean FLOODMARK_RUN__FLUSH_SECONDS\?"),
        ("FLOODMARK_ZZ__QQ", "1", "no such setting"),
        ("FLOODMARK_RUN__FLUSH_SECONDS", "hush", "run.flush_seconds is of type str. It must be a number above zero"),
        ("FLOODMARK_RUN__FLUSH_SECONDS", "0", "run.flush_seconds is 0.0"),
        ("FLOODMARK_RUN__FLUSH_SECONDS", "nan", "run.flush_seconds is nan"),
        ("FLOODMARK_RUN__FLUSH_BYTES", "1.5", "It must be a whole number above zero"),
        ("FLOODMARK_RUN__FLUSH_BYTES", "9" * 5000, "It must be a whole number above zero"),
        ("FLOODMARK_RUN__COMPACT", "yes", "It must be true or false"),
        ("FLOODMARK_SPARK__SETTINGS", "hush", "It must be a table of strings"),
        ("FLOODMARK_SPARK__SETTINGS__SPARK__UI", "hush", "does not end with a key of Spark"),
        ("FLOODMARK_SPARK__MASTER", "hush", "spark.master is not the address"),
        ("FLOODMARK_CATALOGS__FAR__URI", "hush", "catalogs.far.type is missing"),
    ],
)
def test_a_variable_that_means_nothing_is_told_with_the_near_ones_and_without_its_value(
    file: Path, variable: str, text: str, words: str
) -> None:
    file.write_text('store_id = "s"\n')
    with pytest.raises(InvalidSetting, match=words) as caught:
        config.load(file, {variable: text})
    assert variable in caught.value.message
    assert "hush" not in str(caught.value)


def test_a_variable_that_the_file_names_as_a_secret_may_have_any_name(file: Path) -> None:
    file.write_text('store_id = "s"\n[control]\nurl = "env:FLOODMARK_CONTROL_URL"\n')
    assert config.load(file, {"FLOODMARK_CONTROL_URL": "x"}).control.url == "env:FLOODMARK_CONTROL_URL"


# ── what is shown ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_value_is_shown_with_where_it_comes_from(file: Path) -> None:
    file.write_text('store_id = "s"\n[run]\nflush_seconds = 5\n')
    found = {one.key: one for one in config.examine(file, {"FLOODMARK_RUN__FLUSH_BYTES": "9"}).values}
    assert found["run.flush_seconds"] == config.Value(
        "run.flush_seconds", 5, config.Origin("file", 3), "a number above zero"
    )
    assert found["run.flush_bytes"].origin == config.Origin("environment", variable="FLOODMARK_RUN__FLUSH_BYTES")
    assert found["run.compact"].origin == config.Origin("default")
    every = {f"{name}.{item.name}" for name, kind in config.SECTIONS.items() for item in fields(kind)}
    assert set(found) == every | {"store_id"}


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("url", "postgresql://me:hu/sh@host:5432/db?sslpassword=hush", "•••"),
        ("url", "postgresql://me:hu/sh@host:5432/db?sslmode=require", "postgresql://•••@host:5432/db?•••"),
        ("url", "host=db password=hush", "•••"),
        ("url", "env:CONTROL", "env:CONTROL"),
        ("uri", "https://catalog.example/v1", "https://catalog.example/v1"),
        ("s3.secret-access-key", "hush", "•••"),
        ("spark.hadoop.fs.s3a.secret.key", "hush", "•••"),
        ("header.X-Api", "hush", "•••"),
        ("spark.driver.extraJavaOptions", "-Dstore.password=hush", "•••"),
        ("spark.ui.enabled", "false", "false"),
    ],
)
def test_a_secret_is_never_shown(key: str, value: str, shown: str) -> None:
    assert config.without_secrets(key, value) == shown


def test_a_reference_that_leads_nowhere_is_found_by_a_check_and_not_by_opening(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NOT_THERE", raising=False)
    file.write_text(
        'store_id = "s"\n[control]\nurl = "env:NOT_THERE"\n[catalogs.a]\ntype="rest"\nuri="env:NOT_THERE"\n'
    )
    assert [(one.key, one.line) for one in config.examine(file).problems] == [("control.url", 3), ("catalogs.a.uri", 6)]
    assert config.load(file).control.url == "env:NOT_THERE"


def test_the_lake_has_the_keys_of_a_catalog_and_may_be_in_the_directory_in_part(file: Path) -> None:
    file.write_text('store_id = "s"\n[lake]\nwarehouse = "s3://b/w"\ns3.endpoint = "https://o"\n')
    wanted = config.CatalogSettings("sql", "", "s3://b/w", {"s3.endpoint": "https://o"})
    assert config.load(file, {}).lake == wanted
    found = config.load(file, {"FLOODMARK_LAKE__S3__ENDPOINT": "http://e", "FLOODMARK_LAKE__URI": "sqlite:////c"})
    assert found.lake == config.CatalogSettings("sql", "sqlite:////c", "s3://b/w", {"s3.endpoint": "http://e"})
    file.write_text('store_id = "s"\n[lake]\n')
    assert config.load(file, {}).lake is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("lake = 1", "lake is a section"),
        ('[lake]\ntype = "hive"', r"lake\.type is unknown"),
        ('[lake]\ntype = "rest"', r"lake\.uri is missing"),
        ('[lake]\nwarehouse = "somewhere"', r"lake\.warehouse is not a URL"),
        ('[lake]\nnamespace = "a b"', r"lake\.namespace is not a name"),
        ("[lake]\nuri = 7", r"lake\.uri is of type int"),
        ('[spool]\nsegments = "/tmp/here"', r"spool\.segments is not a place"),
        ('[spark]\nremote = "http://x"', r"spark\.remote is not the address"),
    ],
)
def test_what_cannot_be_a_lake_is_told_with_its_key(file: Path, text: str, words: str) -> None:
    file.write_text(f'store_id = "s"\n{text}\n')
    with pytest.raises(InvalidSetting, match=words):
        config.load(file, {})


def test_what_init_was_told_is_read_back_as_it_was(file: Path) -> None:
    lake = {"type": "rest", "uri": "https://c", "warehouse": "w", "s3.endpoint": 'a "b" \\ c', "token": "env:T"}
    spark = {"master": "spark://h:1", "settings": {"spark.a.b": "1"}}
    file.write_text(config.initial_text("s", control="env:C", lake=lake, segments="s3://b/p", spark=spark))
    found = config.load(file, {})
    rest = {"s3.endpoint": lake["s3.endpoint"], "token": "env:T"}
    assert found.lake == config.CatalogSettings("rest", "https://c", "w", rest)
    assert (found.control.url, found.spool.segments) == ("env:C", "s3://b/p")
    assert (found.spark.master, found.spark.settings) == ("spark://h:1", {"spark.a.b": "1"})
