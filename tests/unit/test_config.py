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
    with pytest.raises(InvalidSetting, match="not valid TOML"):
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
