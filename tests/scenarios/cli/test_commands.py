"""What each verb reports, for people and for programs."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_input import lines

from floodmark.cli.demo.story import Claim, Story


def test_init_refuses_an_existing_store_and_leaves_it_as_it_is(cli, tmp_path: Path):
    made = cli("init", "--json")
    assert made.code == 0
    before = (tmp_path / "store" / "floodmark.toml").read_bytes()
    again = cli("init")
    assert again.code == 1
    assert again.err.startswith("Error: There is a store at")
    assert "\nTry:   " in again.err
    assert (tmp_path / "store" / "floodmark.toml").read_bytes() == before


def test_a_place_without_a_store_is_told_with_the_way_to_make_one(cli):
    for command in (["status"], ["flush"], ["dataset", "list"], ["capture", "orders"], ["quarantine", "list"]):
        done = cli(*command)
        assert done.code == 1
        assert "There is no store at" in done.err
        assert "init`" in done.err


def test_a_columns_type_is_corrected_and_what_identifies_a_row_keeps_its_own(cli):
    """U42"""
    cli("init")
    cli("dataset", "add", "orders", "--identity", "id", "--column", "id:long", "--column", "price:string")
    done = cli("dataset", "change", "orders", "--type", "price=decimal(12,2)")
    assert (done.code, done.out) == (0, "Dataset orders: price is decimal(12,2).\n")
    assert cli("dataset", "list", "--json").json[0]["columns"]["price"] == "decimal(12,2)"
    bad = cli("dataset", "change", "orders", "--type", "price")
    assert (bad.code, "is not COLUMN=TYPE" in bad.err) == (2, True)
    fixed = cli("dataset", "change", "orders", "--type", "id=string")
    assert (fixed.code, "it is part of the identity" in fixed.err) == (1, True)


def test_a_dataset_is_declared_with_everything_it_can_have(cli):
    cli("init")
    done = cli(
        "dataset", "add", "messages", "--identity", "part_id", "--identity", "message_id,part_index",
        "--event-time", "ts", "--partition-by", "source", "--column", "tokens:long", "--column", "cost:decimal(12,6)",
        "--json",
    )  # fmt: skip
    assert done.code == 0
    assert done.json["identity"] == [["part_id"], ["message_id", "part_index"]]
    assert done.json["columns"]["cost"] == "decimal(12,6)"
    assert done.json["partition_by"] == ["source"]
    assert "part_id, else message_id+part_index" in cli("dataset", "list").out
    assert cli("dataset", "list", "--json").json == [done.json]


@pytest.mark.parametrize("bad", ["total", ":long", "total:"])
def test_a_column_that_is_not_name_and_type_is_a_usage_error(shop, bad: str):
    done = shop("dataset", "add", "other", "--column", bad)
    assert done.code == 2
    assert "NAME:TYPE" in done.err


def test_declaring_a_dataset_differently_is_refused(shop):
    assert shop("dataset", "add", "orders", "--identity", "id").code == 0
    done = shop("dataset", "add", "orders", "--identity", "other")
    assert done.code == 1
    assert "declared differently" in done.err


def test_flush_reports_what_it_committed_and_dropped(shop):
    shop("capture", "orders", stdin=lines({"id": "a"}, {"id": "a"}, {"id": "b"}))
    done = shop("flush", "--json")
    assert done.json == [
        {
            "dataset": "orders",
            "rows": 2,
            "duplicates": 1,
            "block": {"after": 0, "through": 3},
            "snapshot_id": done.json[0]["snapshot_id"],
            "blocks": 1,
            "quarantined": 0,
            "expired": 0,
            "dropped": 0,
            "settle_problem": None,
            "problems": [],
        }
    ]
    assert "nothing new" in shop("flush", "orders").out


def test_status_counts_what_is_committed_what_waits_and_what_is_held(shop):
    shop("capture", "orders", stdin=lines({"id": "a", "total": 1}, {"id": "b", "total": "x"}))
    waiting = shop("status", "--json").json["datasets"][0]
    assert (waiting["rows"], waiting["horizon"], waiting["quarantined"]) == (0, 0, 1)
    assert waiting["spool"]["landing_bytes"] > 0
    assert "landed" in shop("status").out
    shop("flush")
    done = shop("status", "--json").json["datasets"][0]
    assert (done["rows"], done["horizon"], done["quarantined"]) == (1, 1, 1)
    assert done["spool"].pop("since") is None
    assert set(done["spool"].values()) == {0}


# ── quarantine ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def held(shop):
    """`orders` with two rows in quarantine."""
    shop(
        "capture", "orders", stdin=lines({"id": "a", "total": 1}, {"id": "b", "total": "x"}, {"id": "c", "total": "y"})
    )
    shop("flush")
    return shop


def test_quarantine_lists_and_shows_with_the_reason(held):
    entries = held("quarantine", "list", "orders", "--json").json
    assert [entry["state"] for entry in entries] == ["held", "held"]
    assert "column 'total' is long" in held("quarantine", "list").out
    shown = held("quarantine", "show", entries[0]["id"][:8])
    assert '"rows":[["b","x"]]' in shown.out
    assert "reason:" in shown.err
    assert held("quarantine", "show", entries[0]["id"], "--json").json["entry"] == entries[0]


def test_replaying_what_still_does_not_fit_keeps_it_and_fails(held):
    done = held("quarantine", "replay", "--all", "--json")
    assert done.code == 1
    assert (done.json["rows"], len(done.json["refused"])) == (0, 2)
    assert len(held("quarantine", "list", "--json").json) == 2


def test_a_dry_run_discards_nothing_and_a_discarded_entry_is_gone_from_the_list(held):
    first, second = (entry["id"] for entry in held("quarantine", "list", "--json").json)
    assert held("quarantine", "discard", "--all", "--dry-run", "--json").json["discarded"] == [first, second]
    assert len(held("quarantine", "list", "--json").json) == 2
    assert held("quarantine", "discard", first).out == "Discarded 1 of 1 entries.\n"
    assert [entry["id"] for entry in held("quarantine", "list", "--json").json] == [second]
    assert held("quarantine", "discard", first).out == "Discarded 0 of 1 entries.\n"


def test_an_unknown_id_among_several_stops_before_anything_is_decided(held):
    first = held("quarantine", "list", "--json").json[0]["id"]
    done = held("quarantine", "discard", first, "zzz")
    assert done.code == 1
    assert "Nothing was changed" in done.err
    assert len(held("quarantine", "list", "--json").json) == 2


def test_quarantine_of_an_unknown_dataset_is_an_error(held):
    assert held("quarantine", "list", "nope").code == 1


@pytest.mark.parametrize("arguments", [(), ("--all", "x"), ("x", "--dataset", "orders")])
def test_ids_and_all_exclude_each_other(held, arguments):
    assert held("quarantine", "replay", *arguments).code == 2


def test_a_claim_of_the_demo_that_fails_is_told_by_the_exit_code(cli, monkeypatch: pytest.MonkeyPatch):
    claims = [Claim("rows sent", wanted=3, found=3), Claim("rows committed", wanted=3, found=2)]
    monkeypatch.setattr(Story, "run", lambda story: story.claims.extend(claims))
    done = cli("demo")
    assert done.code == 1
    assert [line.split()[-1] for line in done.out.splitlines() if line.startswith("rows ")] == ["yes", "NO"]
    assert "A check failed" in done.out
