"""Access logs become one row per request, once, however often they are rotated."""

from __future__ import annotations

import gzip
import random
from pathlib import Path

import pytest

import floodmark
from floodmark import providers
from floodmark.schema import Schema

FIXTURE = Path(__file__).parents[2] / "fixtures" / "access_logs" / "access.log"


@pytest.fixture
def logs():
    return providers.find("access-logs")


def read(provider, location):
    return [item for unit in provider.plan(str(location)) for item in provider.read(unit)]


def rows(provider, location):
    items = read(provider, location)
    assert [item.problem for item in items if item.problem] == []
    return [dict(item.row) for item in items]


def line(number: int, agent: str = "probe") -> str:
    minute, second = divmod(number, 60)
    return (
        f'192.0.2.1 - - [03/Feb/2026:09:{minute:02d}:{second:02d} +0000] "GET /{number} HTTP/1.1" 200 5 "-" "{agent}"\n'
    )


def test_a_request_becomes_a_row(logs):
    found = rows(logs, FIXTURE)
    post = found[2]
    assert post["time"].isoformat() == "2026-02-03T10:30:00+01:30"
    assert (post["client"], post["user"], post["status"], post["bytes"]) == ("2001:db8::17", "ada lovelace", 201, 8421)
    assert (post["method"], post["path"], post["protocol"]) == ("POST", '/tides?at="noon"', "HTTP/2.0")
    assert (post["referrer"], post["user_agent"]) == ("https://example.org/?q=ä", 'Mozilla/5.0 ("quoted")')
    assert post["source"] == f"{FIXTURE}:3"


def test_what_is_not_given_is_null_and_what_is_no_request_is_kept_as_it_came(logs):
    binary, common = rows(logs, FIXTURE)[3:]
    assert (binary["request"], binary["method"], binary["bytes"], binary["referrer"]) == (
        "\x16\x03\x01",
        None,
        None,
        None,
    )
    assert (common["path"], common["status"], common["user_agent"]) == ("/", 304, None)


def test_two_equal_requests_in_one_second_are_two_rows(logs):
    first, second = rows(logs, FIXTURE)[:2]
    assert {**first, "line_id": "", "source": ""} == {**second, "line_id": "", "source": ""}
    assert first["line_id"] != second["line_id"]


def test_every_row_fits_the_dataset_that_the_provider_suggests(logs, tmp_path):
    declared = logs.declaration
    found = rows(logs, FIXTURE)
    assert {name for row in found for name in row} == set(Schema.declare(declared.schema).names)
    with floodmark.init(tmp_path / "store") as store:
        store.add_dataset("requests", declared.identity[0], event_time=declared.event_time, schema=declared.schema)
        receipt = store.capture("requests", found)
    assert (receipt.rows, receipt.quarantined) == (len(found), 0)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("not a log line", "not in the combined log format"),
        (line(1).replace("Feb", "Brr"), "is not a time such as"),
        (line(1).replace("03/Feb", "31/Feb"), "is not a time"),
        (line(1).replace("+0000", "+9900"), "is not a time"),
        (line(1).replace(" 200 ", " ok "), "not in the combined log format"),
    ],
)
def test_a_bad_line_is_told_with_its_place_and_its_neighbours_are_rows(logs, tmp_path, text, reason):
    path = tmp_path / "access.log"
    path.write_text(line(0) + text.rstrip("\n") + "\n" + line(2))
    first, bad, last = read(logs, path)
    assert (first.row["path"], last.row["path"]) == ("/0", "/2")
    assert reason in bad.problem
    assert (bad.provenance, bad.content) == (f"{path}:2", text.rstrip("\n"))


def test_bytes_that_are_no_text_do_not_stop_a_line(logs, tmp_path):
    (tmp_path / "access.log").write_bytes(line(1, "caf\xe9").encode("latin-1"))
    assert rows(logs, tmp_path)[0]["user_agent"] == "caf\\xe9"


# ---- rotation ----


def rotate(directory: Path) -> None:
    """What logrotate does: each file moves on by one, and from the second on they are compressed."""
    for number in range(30, 1, -1):
        old = directory / f"access.log.{number}.gz"
        if old.exists():
            old.rename(directory / f"access.log.{number + 1}.gz")
    first = directory / "access.log.1"
    if first.exists():
        (directory / "access.log.2.gz").write_bytes(gzip.compress(first.read_bytes()))
        first.unlink()
    if (directory / "access.log").exists():
        (directory / "access.log").rename(first)


@pytest.mark.parametrize("seed", range(20))
def test_however_a_log_is_rotated_each_line_is_one_identity(logs, tmp_path, seed):
    chance = random.Random(seed)
    stored: dict[str, str] = {}
    done: set[str] = set()
    written: list[int] = []
    second = 0

    def load():
        for unit in logs.plan(str(tmp_path)):
            if unit.id not in done:
                stored.update({item.row["line_id"]: item.row["path"] for item in logs.read(unit)})
                done.add(unit.id)

    for _ in range(30):
        match chance.choice(["write", "write", "rotate", "load"]):
            case "write":
                with (tmp_path / "access.log").open("a") as file:
                    for _ in range(chance.randint(1, 4)):
                        # Equal requests follow each other, as they do under load.
                        second += chance.random() < 0.3
                        file.write(line(second))
                        written.append(second)
            case "rotate":
                rotate(tmp_path)
                second += 1
            case "load" if written:
                load()
    load()
    assert sorted(stored.values()) == sorted(f"/{number}" for number in written)


def test_a_file_that_was_only_renamed_or_compressed_is_the_same_unit(logs, tmp_path):
    (tmp_path / "access.log").write_text(line(1) + line(2))
    (unit,) = logs.plan(str(tmp_path))
    for _ in range(3):
        rotate(tmp_path)
        assert [again.id for again in logs.plan(str(tmp_path))] == [unit.id]


def test_one_content_under_two_names_in_the_middle_of_a_rotation_is_read_once(logs, tmp_path):
    (tmp_path / "access.log.1").write_text(line(1))
    (tmp_path / "access.log.2.gz").write_bytes(gzip.compress(line(1).encode()))
    assert len(rows(logs, tmp_path)) == 1


def test_equal_beginnings_of_two_logs_stay_apart(logs, tmp_path):
    for host in ("a", "b"):
        (tmp_path / host).mkdir()
        (tmp_path / host / "access.log").write_text(line(0) * 2)
    assert len({row["line_id"] for row in rows(logs, tmp_path)}) == 4


def test_a_row_has_one_identity_whether_its_file_or_its_directory_is_named(logs, tmp_path):
    (tmp_path / "access.log").write_text(line(0) + line(1))
    whole = [row["line_id"] for row in rows(logs, tmp_path)]
    assert [row["line_id"] for row in rows(logs, tmp_path / "access.log")] == whole
    assert [row["line_id"] for row in rows(logs, tmp_path / "*.log*")] == whole


def test_the_oldest_rotation_comes_first(logs, tmp_path):
    for number, name in enumerate(
        ["access.log.10.gz", "access.log.2.gz", "access.log.1", "access.log"],
    ):
        content = line(number).encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    for number, name in enumerate(["site-access.log-20260101.gz", "site-access.log-20260102", "site-access.log"], 4):
        content = line(number).encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert [row["path"] for row in rows(logs, tmp_path)] == [f"/{number}" for number in range(7)]
    assert len({row["log"] for row in rows(logs, tmp_path)}) == 2


def test_a_line_that_is_still_being_written_comes_with_the_next_run(logs, tmp_path):
    path = tmp_path / "access.log"
    path.write_text(line(0) + line(1)[:30])
    assert [row["path"] for row in rows(logs, path)] == ["/0"]
    path.write_text(line(0) + line(1))
    assert [row["path"] for row in rows(logs, path)] == ["/0", "/1"]


def test_a_compressed_file_that_ends_early_gives_its_lines_and_says_so(logs, tmp_path):
    text = "".join(line(number, str(random.Random(number).random())) for number in range(600)).encode()
    path = tmp_path / "access.log.2.gz"
    path.write_bytes(gzip.compress(text)[:-2000])
    (unit,) = logs.plan(str(tmp_path))
    *whole, torn = logs.read(unit)
    assert len(whole) > 100
    assert all(item.row for item in whole)
    assert "the compressed file is incomplete" in torn.problem
    path.write_bytes(gzip.compress(text))
    (again,) = logs.plan(str(tmp_path))
    assert again.id != unit.id
    assert [item.row["line_id"] for item in logs.read(again)][: len(whole)] == [item.row["line_id"] for item in whole]


def test_a_file_that_is_no_gzip_is_reported(logs, tmp_path):
    (tmp_path / "access.log.2.gz").write_bytes(b"plain after all\n")
    (item,) = read(logs, tmp_path)
    assert "cannot be read" in item.problem


def test_a_location_is_needed_and_must_lead_somewhere(logs, tmp_path):
    with pytest.raises(floodmark.ProviderFailed, match="needs a location"):
        logs.plan()
    with pytest.raises(floodmark.ProviderFailed, match="no file at"):
        logs.plan(str(tmp_path / "nowhere*"))


def test_memory_follows_a_line_and_not_the_log(logs, tmp_path):
    import tracemalloc

    path = tmp_path / "access.log.1.gz"
    with gzip.open(path, "wt") as file:
        file.writelines(line(number % 3600) for number in range(10_000))
    (unit,) = logs.plan(str(tmp_path))
    tracemalloc.start()
    try:
        count = sum(1 for _ in logs.read(unit))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert count == 10_000
    assert peak < 1 << 20
