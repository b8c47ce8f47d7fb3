"""Other users of the machine read nothing of a store: neither rows, nor settings, nor secrets."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from floodmark.errors import InvalidSetting
from floodmark.store import init
from floodmark.testing import ManualClock, MemoryLake


@pytest.fixture
def wide():
    """The usual umask of a shared machine, and wider."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): oct(path.stat().st_mode & 0o777) for path in [root, *root.rglob("*")]}


@pytest.mark.usefixtures("wide")
def test_files_of_a_store_are_for_its_owner_alone(tmp_path):
    root = tmp_path / "store"
    with init(root, lake=MemoryLake(), clock=ManualClock()) as store:
        store.add_dataset("orders", schema={"id": "long not null", "note": "string"})
        store.capture("orders", [{"id": 1}, {"id": None, "note": "x" * 100_000}])  # a landing file, a payload
        import pyarrow as pa

        store.capture("orders", pa.table({"id": [2]}))  # a segment
        found = modes(root)
        store.flush("orders")
        found |= modes(root)
    kinds = {Path(name).suffix for name in found}
    assert {".db", ".db-wal", ".toml", ".jsonl", ".parquet", ".lock"} <= kinds, found
    for name, mode in found.items():
        assert mode == ("0o700" if (root / name).is_dir() else "0o600"), name


@pytest.mark.usefixtures("wide")
def test_a_directory_that_was_there_keeps_its_mode(tmp_path):
    root = tmp_path / "store"
    root.mkdir(0o755)
    init(root, lake=MemoryLake(), clock=ManualClock()).close()
    assert oct(root.stat().st_mode & 0o777) == "0o755"
    assert oct((root / "control.db").stat().st_mode & 0o777) == "0o600"
    assert oct((root / "spool").stat().st_mode & 0o777) == "0o700"


# ── secrets ──────────────────────────────────────────────────────────────────────────────────────────────────────────

SECRET = "fmk_do-not-keep-me"


def stored(store) -> bytes:
    return b"".join(path.read_bytes() for path in store.path.glob("control.db*"))


def test_a_token_itself_is_no_setting_of_a_sink(store):
    store.add_dataset("orders")
    with pytest.raises(InvalidSetting, match="token is the secret itself") as refused:
        store.add_sink("hub", "forward", url="https://hub.example", token=SECRET)
    assert "file:/path" in refused.value.hint
    assert SECRET not in str(refused.value) + str(refused.value.hint)
    store.add_sink("hub", "forward", url="https://hub.example", token="env:HUB_TOKEN")
    with pytest.raises(InvalidSetting, match="token is the secret itself"):
        store.change_sink("hub", token=SECRET)
    assert SECRET.encode() not in stored(store)


def test_a_token_that_stands_in_the_records_goes_with_its_sink(store, monkeypatch):
    """Older stores may have one."""
    store.add_dataset("orders")
    monkeypatch.setattr("floodmark.delivery.administration.check_reference", lambda *_: None)
    store.add_sink("hub", "forward", url="https://hub.example", token=SECRET)
    assert SECRET.encode() in stored(store)
    store.remove_sink("hub")
    assert SECRET.encode() not in stored(store)
