"""Settings files, sinks, declarations and the environment: each is used as it is written, or refused by name."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise import HALVES, JSON, TEXTS, altered, mutated
from trying import TRIED, Stand, fresh, inputs, refusal, scratch, scratch_store

from floodmark import config
from floodmark.errors import FloodmarkError
from floodmark.lake.catalogs import configured
from floodmark.schema import parse_type
from floodmark.store import Store, init, open_store
from floodmark.testing import MemoryLake

WHOLE = (
    config.initial_text("4ea7ac9e-e236-403a-9d9c-13659cdc30ac")
    .replace("# ", "")
    .replace("A Floodmark", "# A Floodmark")
    + """
[spark.settings]
"spark.sql.shuffle.partitions" = "4"

[catalogs.central]
type = "sql"
uri = "sqlite:////nowhere/catalog.db"
warehouse = "s3://central/warehouse"
s3.endpoint = "https://objects.example"
"""
).encode()
TREE = {
    "store_id": "4ea7ac9e",
    "flush": {"rows_max": 10},
    "spark": {"master": "local[1]", "settings": {"a": "b"}},
    "catalogs": {"central": {"type": "rest", "uri": "http://x", "s3": {"endpoint": "http://y"}}},
}


def toml(value: Any, path: tuple[str, ...] = ()) -> str:
    """A tree as TOML, as well as it can be had."""
    lines, tables = [], []
    for key, item in value.items():
        if isinstance(item, dict):
            tables.append((key, item))
        elif item is not None:
            lines.append(f"{quoted(key)} = {literal(item)}")
    text = "\n".join(lines) + "\n"
    for key, item in tables:
        name = ".".join(quoted(part) for part in (*path, key))
        text += f"[{name}]\n{toml(item, (*path, key))}"
    return text


def quoted(text: str) -> str:
    safe = "".join(c if c.isprintable() and c not in '"\\' else f"\\u{ord(c) & 0xFFFF:04x}" for c in text)
    return f'"{safe}"'


def literal(item: Any) -> str:
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        return quoted(item)
    if isinstance(item, list):
        return "[" + ", ".join(literal(part) for part in item if part is not None) + "]"
    if isinstance(item, dict):
        return "{" + ", ".join(f"{quoted(key)} = {literal(part)}" for key, part in item.items()) + "}"
    return str(item)


FILES = st.one_of(
    mutated(WHOLE),
    altered(TREE).filter(lambda tree: isinstance(tree, dict)).map(lambda tree: toml(tree).encode()),
    st.sampled_from(
        [
            b"store_id = " + b"9" * 5000,
            b"store_id = 'x'\nflush.rows_max = " + b"9" * 5000,
            b"a=" + b"[" * 5000,
            b"a=" + b"{a=" * 3000,
            b"store_id = 'x'\nflush.rows_max = inf",
            b"store_id = 'x'\nflush.rows_max = 10000000000000000000000",
            b"store_id = 2026-01-01",
            b"store_id = 'x'\n[catalogs.c]\ntype = []\nuri = ''",
            b"store_id = 'x'\n[catalogs]\nc = 1",
            b"\xef\xbb\xbfstore_id = 'x'",
            b"store_id = '\\u0000'",
            b"",
        ]
    ),
)


@given(content=FILES)
@inputs(25)
def test_a_settings_file_is_read_or_refused_by_its_name(content: bytes) -> None:
    with scratch() as place:
        file = place / config.FILE_NAME
        file.write_bytes(content)
        settings, error = refusal("settings files", lambda: config.load(file))
        if error is not None:
            assert config.FILE_NAME in error.message
            return
        assert settings is not None
        for name, catalog in settings.catalogs.items():
            refusal("settings files", lambda name=name, catalog=catalog: configured(name, catalog, namespace="n"))


@pytest.mark.parametrize("made", ["directory", "file above", "nothing", "unreadable link", "name too long", "no text"])
def test_a_store_that_cannot_be_opened_is_told(made: str) -> None:
    with scratch() as place:
        path = place / "store"
        if made == "directory":
            (path / config.FILE_NAME).mkdir(parents=True)
        elif made == "file above":
            path.write_bytes(b"")
        elif made == "unreadable link":
            path.mkdir()
            (path / config.FILE_NAME).symlink_to(path / config.FILE_NAME)
        elif made == "name too long":
            path = place / ("x" * 300)
        elif made == "no text":
            path = place / "\udcff"
        for given_path in (path, path / config.FILE_NAME):
            _, error = refusal("settings files", lambda given_path=given_path: open_store(given_path))
            assert error is not None


@given(content=st.data())
@inputs(6)
def test_a_control_database_of_noise_is_told(content: st.DataObject) -> None:
    with scratch() as place:
        with init(place, lake=MemoryLake()) as store:
            store.add_dataset("events", ["id"])
            store.capture("events", [{"id": 1}])
            store.seal("events")
        (place / "control.db-wal").unlink(missing_ok=True)
        whole = (place / "control.db").read_bytes()
        (place / "control.db").write_bytes(content.draw(mutated(whole)))

        def used() -> None:
            with open_store(place, lake=MemoryLake()) as store:
                store.status()
                store.flush()
                list(store.read_since("events"))
                store.fsck()

        refusal("control databases", used)


# ── the environment ──────────────────────────────────────────────────────────────────────────────────────────────────


def command(*arguments: str, **environment: str | bytes) -> subprocess.CompletedProcess[bytes]:
    """The real program, in a process of its own."""
    TRIED["environment variables"] += 1
    whole: dict[Any, Any] = {
        **{key: value for key, value in os.environ.items() if not key.startswith("FLOODMARK_")},
        **environment,
    }
    return subprocess.run(
        [sys.executable, "-m", "floodmark.cli", *arguments], env=whole, capture_output=True, timeout=60, check=False
    )


@pytest.mark.parametrize(
    "environment",
    [
        {"FLOODMARK_STORE": "/nowhere/at/all"},
        {"FLOODMARK_STORE": b"/tmp/\xff\xfe"},
        {"FLOODMARK_STORE": "/dev/null"},
        {"FLOODMARK_FAULT": "no.such.point"},
        {"FLOODMARK_FAULT": "flush.appended:many"},
    ],
    ids=str,
)
def test_a_variable_that_makes_no_sense_is_told_in_a_sentence(environment: Any) -> None:
    done = command("status", **environment)
    assert done.returncode in {1, 2}
    assert b"Traceback" not in done.stderr
    assert b"unexpected" not in done.stderr
    assert b"Error: " in done.stderr


# ── sinks ────────────────────────────────────────────────────────────────────────────────────────────────────────────

SINKS: dict[str, dict[str, Any]] = {
    "blob": {
        "url": "file:///nowhere",
        "format": "jsonl",
        "chunk_rows": 10,
        "chunk_bytes": 1000,
        "concurrency": 2,
        "every": "30s",
        "datasets": ["shop"],
        "partitions": {"site": ["a"]},
        "start": "beginning",
    },
    "forward": {
        "url": "https://hub.example/path",
        "token": "env:TOKEN",
        "origin": "me",
        "timeout_seconds": 5,
        "wait_seconds_max": 1.5,
        "accept": "status",
        "cron": "*/5 * * * *",
        "start": "now",
    },
    "table": {"table": "central.events", "chunk_rows": 10, "where": "id > 3", "datasets": "shop"},
    "projection": {"function": "json:dumps", "transactional": False},
}
REMOTE = {
    "url": "s3://bucket/prefix",
    "region": "eu",
    "endpoint": "http://host:9000",
    "access_key_id": "env:KEY",
    "secret_access_key": "file:/secret",
}
URLS = st.sampled_from(
    [
        "file://",
        "file:///" + "x" * 5000,
        "file:///a\0b",
        "file:///%00",
        "file:///%ff",
        "s3://",
        "s3://b",
        "s3://[::1",
        "gs://bucket/../..",
        "az://c/%2e%2e",
        "http://",
        "http://[",
        "http://x:99999",
        "http://x:port",
        "https://é.example",
        "https://" + "x" * 300 + ".example",
        "https://xn--\u0080",
        "http://a b",
        "HTTP://X",
        "mailto:x",
        "//x",
    ]
)
CRONS = st.text(alphabet="0123456789*/,-LW# ²\n", max_size=16)
VALUES = JSON | URLS | CRONS | HALVES


def check_sink(store: Store, kind: str, settings: Any) -> None:
    name = fresh("sink")
    if not isinstance(settings, dict) or not all(isinstance(key, str) for key in settings):
        return
    clean = {
        key: value for key, value in settings.items() if key.isidentifier() and key not in {"name", "kind", "self"}
    }
    _, error = refusal("sink settings", lambda: store.add_sink(name, kind, **clean))
    known = {sink.name for sink in store.sinks()}
    assert (name in known) == (error is None)
    if error is None:
        refusal("sink settings", lambda: store.forecast_export(name))
        store.status()
        store.remove_sink(name)


@pytest.fixture(scope="module")
def shop() -> Iterator[Store]:
    with scratch_store() as store:
        store.add_dataset("shop", ["id"], partition_by=["site"])
        yield store


@pytest.mark.parametrize("kind", list(SINKS))
@given(data=st.data())
@inputs(8)
def test_a_sink_is_added_as_it_is_set_or_not_at_all(shop: Store, kind: str, data: st.DataObject) -> None:
    whole = {**SINKS[kind], **(REMOTE if kind == "blob" and data.draw(st.booleans()) else {})}
    check_sink(shop, kind, data.draw(altered(whole, VALUES)))


@given(data=st.data())
@inputs(8)
def test_a_sink_is_changed_as_it_is_told_or_not_at_all(shop: Store, data: st.DataObject) -> None:
    kind = data.draw(st.sampled_from(list(SINKS)))
    name = fresh("changed")
    key = data.draw(st.sampled_from([*SINKS[kind], *REMOTE, "datasets", "nothing"]))
    value = data.draw(VALUES)  # all is drawn before there is a sink: an example may end in the middle of a draw
    shop.add_sink(name, kind, **{key: value for key, value in SINKS[kind].items() if key != "where"})
    before = next(sink.settings for sink in shop.sinks() if sink.name == name)
    _, error = refusal("sink settings", lambda: shop.change_sink(name, **{key: value}))
    after = next(sink.settings for sink in shop.sinks() if sink.name == name)
    assert error is None or after == before
    shop.status()
    shop.remove_sink(name)


@given(name=TEXTS | HALVES, kind=TEXTS | HALVES | st.sampled_from(list(SINKS)))
@inputs(6)
def test_names_and_kinds_of_sinks_are_those_that_there_are(shop: Store, name: str, kind: str) -> None:
    refusal("sink settings", lambda: shop.add_sink(name, kind, **SINKS.get(kind, {})))
    refusal("sink settings", lambda: shop.remove_sink(name))
    for ask in (shop.export, shop.replay, shop.skip, shop.forecast_export, shop.rows_waiting):
        _, error = refusal("sink settings", lambda ask=ask: ask(name))
        assert isinstance(error, FloodmarkError)


# ── datasets ─────────────────────────────────────────────────────────────────────────────────────────────────────────

DECLARED = {
    "name": "orders",
    "identity": [["id"], ["text", "at"]],
    "event_time": "at",
    "partition_by": ["site"],
    "schema": {"id": "long not null", "price": "decimal(12,2)", "tags": "list<struct<a:string,b:json>>"},
}
TYPES = st.one_of(
    mutated(b"list<struct<a:decimal(12,2),b:list<string>>> not null").map(lambda t: t.decode("utf-8", "replace")),
    st.sampled_from(
        [
            "list<" * 500 + "long" + ">" * 500,
            "struct<" + ",".join(f"a{n}:long" for n in range(3000)) + ">",
            "decimal(" + "9" * 5000 + ",2)",
            "decimal(²,1)",
            "decimal(0,0)",
            "decimal(5,9)",
            "not null",
            "LONG NOT NULL",
            "struct<`a`:long>",
            "struct<a:long,A:long>",
            "list<>",
        ]
    ),
    TEXTS,
)


@given(text=TYPES)
@inputs(20)
def test_a_type_is_one_or_is_refused(text: str) -> None:
    kind, _ = refusal("types", lambda: parse_type(text))
    if kind is not None:
        assert parse_type(str(kind)) == kind


@given(declared=altered(DECLARED, JSON | TYPES | HALVES))
@inputs(25)
def test_a_declaration_is_taken_or_refused(stands: Stand, declared: Any) -> None:
    stand = stands.again()
    if not isinstance(declared, dict):
        return
    name = declared.pop("name", fresh("declared"))
    known = {key: declared[key] for key in ("identity", "event_time", "partition_by", "schema") if key in declared}
    if name == "orders":
        name = fresh("declared")
    _, error = refusal("declarations", lambda: stand.add_dataset(name, known.pop("identity", None), **known))
    there = {item.name for item in stand.datasets()}
    if error is None:
        assert name in there
        assert refusal("declarations", lambda: stand.capture(name, [{"id": 1, "text": "x", "site": "a"}]))
        assert refusal("declarations", lambda: stand.flush(name))[0] is not None
        stand.status()


@given(name=TEXTS | HALVES)
@inputs(6)
def test_a_dataset_that_there_is_not_is_told(stands: Stand, name: str) -> None:
    stand = stands.again()
    for ask in (
        lambda: stand.capture(name, [{"id": 1}]),
        lambda: stand.flush(name),
        lambda: stand.seal(name),
        lambda: list(stand.read_since(name)),
        lambda: stand.cursor(name),
        lambda: stand.retain(name, keep_rows=1),
        lambda: stand.compact(name),
        lambda: stand.rebuild(name),
        lambda: stand.quarantine.show(name),
        lambda: stand.quarantine.replay(name),
        lambda: stand.quarantine.discard(name),
    ):
        _, error = refusal("names", ask)
        assert error is not None
