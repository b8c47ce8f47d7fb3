"""What a new user gets wrong in the first hours: each is refused with a message, or quarantined with its line.

For every one: the exit code, a message that names the thing, a way out, no stack trace; and the good rows of the same
input are stored.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from cli_input import lines

GOOD = {"id": "good", "total": 1}


@dataclass(frozen=True)
class Refused:
    """A command that fails as a whole."""

    arguments: tuple[str, ...]
    names: str
    """The thing that the message names."""
    code: int = 1
    files: dict[str, bytes] = field(default_factory=dict)
    """`{name}` in the arguments is the path of such a file."""
    hint: bool = True


REFUSED: dict[str, Refused] = {
    "a dataset that does not exist": Refused(("capture", "nope"), "nope"),
    "a dataset name that is a path": Refused(("dataset", "add", "../x"), "../x"),
    "an identity that is declared differently": Refused(("dataset", "add", "orders", "--identity", "total"), "orders"),
    "a column type that does not exist": Refused(("dataset", "add", "new", "--column", "a:number"), "number"),
    "a file that does not exist": Refused(("capture", "orders", "/no/such.jsonl"), "/no/such.jsonl", 2, hint=False),
    "a directory in place of a file": Refused(("capture", "orders", "/tmp"), "/tmp", 2, hint=False),
    "text that claims to be Parquet": Refused(
        ("capture", "orders", "{a.parquet}"), "parquet", files={"a.parquet": b"no"}
    ),
    "a truncated gzip file": Refused(
        ("capture", "orders", "{a.jsonl.gz}"), "a.jsonl.gz", files={"a.jsonl.gz": gzip.compress(b'{"id":"a"}\n')[:-6]}
    ),
    "an unknown format": Refused(("capture", "orders", "{a.xlsx}", "--format", "excel"), "excel", 2, hint=False),
    "a backfill from nowhere": Refused(("backfill", "orders", "--from", "/no/such/*.jsonl"), "/no/such"),
    "an unknown sink": Refused(("export", "nope"), "nope"),
    "an unknown kind of sink": Refused(("sink", "add", "out", "ftp"), "ftp", 2, hint=False),
    "a sink without its URL": Refused(("sink", "add", "out", "blob"), "url"),
    "a sink with an unknown setting": Refused(
        ("sink", "add", "out", "blob", "--url", "file:///tmp/x", "--set", "colour=red"), "colour"
    ),
    "a sink for a dataset that does not exist": Refused(
        ("sink", "add", "out", "blob", "--url", "file:///tmp/x", "--datasets", "nope"), "nope"
    ),
    "a filter with an unknown column": Refused(
        ("sink", "add", "out", "blob", "--url", "file:///tmp/x", "--where", "nope = 1"), "nope"
    ),
    "a filter that calls Java": Refused(
        ("sink", "add", "out", "blob", "--url", "file:///tmp/x", "--where", "`reflect`('a', 'b') = 1"), "reflect"
    ),
    "a hub URL with a password in it": Refused(
        ("sink", "add", "hub", "forward", "--url", "http://me:secret@127.0.0.1:9"), "url"
    ),
    "a cursor of another store": Refused(("read", "orders", "--since", "nonsense"), "cursor"),
    "an age that is no age": Refused(("retain", "orders", "--older-than", "soon"), "soon"),
    "a purge with a broken condition": Refused(("purge", "orders", "--where", "total >"), "total >"),
    "an entry of the quarantine that does not exist": Refused(("quarantine", "show", "nope"), "nope"),
    "a second init": Refused(("init",), "already"),
    "a column that is declared twice": Refused(
        ("dataset", "add", "new", "--column", "a:long", "--column", "a:string"), "'a' is given twice", 2, hint=False
    ),
    "two types for one column": Refused(
        ("dataset", "change", "orders", "--type", "total=int", "--type", "total=long"), "'total'", 2, hint=False
    ),
    "an identity that ends with a comma": Refused(("dataset", "add", "new", "--identity", "id,"), "empty"),
    "a partition column that is a number with a fraction": Refused(
        ("dataset", "add", "new", "--partition-by", "x", "--column", "x:double"), "'x'"
    ),
    "a decimal of too many digits": Refused(("dataset", "add", "new", "--column", "a:decimal(99,2)"), "decimal(99,2)"),
    "an event time that is a text": Refused(
        ("dataset", "add", "new", "--column", "at:string", "--event-time", "at"), "'at'"
    ),
    "a removal without a word of consent": Refused(("dataset", "remove", "orders"), "--yes", 2, hint=False),
    "a setting that is given twice": Refused(
        ("sink", "add", "out", "blob", "--url", "file:///tmp/x", "--set", "chunk_rows=1", "--set", "chunk_rows=2"),
        "'chunk_rows' is given twice",
        2,
        hint=False,
    ),
    "a setting that is also an option": Refused(
        ("sink", "add", "out", "blob", "--url", "file:///tmp/x", "--set", "url=file:///tmp/y"), "'url'", 2, hint=False
    ),
    "a path in place of a URL": Refused(("sink", "add", "out", "blob", "--url", "some/where"), "some/where"),
    "chunks of no rows": Refused(
        ("sink", "add", "out", "blob", "--url", "file:///tmp/x", "--set", "chunk_rows=0"), "chunk_rows"
    ),
    "a schedule that never comes": Refused(
        ("sink", "add", "out", "blob", "--url", "file:///tmp/x", "--cron", "0 0 30 2 *"), "0 0 30 2 *"
    ),
    "a filter that is a number": Refused(
        ("sink", "add", "out", "blob", "--url", "file:///tmp/x", "--where", "1"), "not a condition"
    ),
    "a purge of a sum": Refused(("purge", "orders", "--where", "total + 1"), "not a condition"),
    "a hub on a port that does not exist": Refused(
        ("sink", "add", "hub", "forward", "--url", "http://127.0.0.1:99999"), "99999"
    ),
    "a token in the command line": Refused(
        ("sink", "add", "hub", "forward", "--url", "http://127.0.0.1:9", "--token", "secret"), "token"
    ),
    "a function that the settings do not allow": Refused(
        ("sink", "add", "p", "projection", "--function", "os:system"), "'os'"
    ),
    "a table without a namespace": Refused(("sink", "add", "t", "table", "--table", "x"), "'x'"),
    "a rewind of a sink that does not exist": Refused(("sink", "rewind", "nope", "--beginning"), "nope"),
    "a skip in a sink that does not exist": Refused(("sink", "skip", "nope"), "nope"),
    "a column that is read twice": Refused(("read", "orders", "--columns", "id,id"), "'id'", 2, hint=False),
    "a cursor file in no directory": Refused(("read", "orders", "--cursor-file", "/no/such/c"), "/no/such/c"),
    "a backup into the store": Refused(("backup", "{store/inside}"), "inside"),
    "a restore of what is no backup": Refused(("restore", "/tmp", "{restored}"), "backup.json"),
    "a control database of another kind": Refused(("move", "--control", "mysql://x"), "PostgreSQL"),
    "a token for a dataset that does not exist": Refused(
        ("token", "add", "t", "--capture", "--datasets", "nope"), "nope"
    ),
    "a token that expires in the past": Refused(
        ("token", "add", "t", "--capture", "--any-dataset", "--expires", "-1d"), "-1d", 2, hint=False
    ),
    "a hub for everybody without tokens": Refused(("hub", "--host", "0.0.0.0"), "token"),
    "a certificate without its key": Refused(("hub", "--tls-cert", "/a"), "--tls-key", 2, hint=False),
    "a CSV file that is separated by semicolons": Refused(
        ("capture", "orders", "{a.csv}"), "';'", files={"a.csv": b"id;total\n1;2\n"}
    ),
    "a history that is separated by tabs": Refused(
        ("backfill", "orders", "--from", "{a.csv}"), "'\\t'", files={"a.csv": b"id\ttotal\n1\t2\n"}
    ),
    "a CSV file with two columns of one name": Refused(
        ("capture", "orders", "{a.csv}"), "'id'", files={"a.csv": b"id,id\n1,2\n"}
    ),
    "a log that is not there": Refused(("log", "feed", "/no/such", "orders"), "/no/such"),
    "settings that are not UTF-8": Refused(
        ("status",), "line 2: it is not UTF-8", files={"store/floodmark.toml": b"# a\n# \xff\n"}
    ),
}
"""Those that fail as a whole."""

QUARANTINED: dict[str, bytes] = {
    "a line that is not JSON": b"not json\n",
    "half a line": b'{"id": "a", "tot',
    "a number in place of an object": b"17\n",
    "a list of rows in one line": b'[{"id": "a"}]\n',
    "a text in a number column": b'{"id": "a", "total": "many"}\n',
    "a number that is too large": b'{"id": "a", "total": 18446744073709551617}\n',
    "a column name with a zero byte": b'{"id": "a", "b\\u0000": 1}\n',
    "a column without a name": b'{"id": "a", "": 1}\n',
    "a line that is not UTF-8": b'{"id": "\xff\xfe"}\n',
    "deep nesting": b'{"id": ' + b"[" * 5000 + b"]" * 5000 + b"}\n",
}
"""Lines of a stream. Each goes to quarantine, and the good line beside it is stored."""


def check_message(err: str) -> None:
    assert "Traceback" not in err
    assert re.search(r"^(Error|Stopped|Quarantined|standard input)", err, re.MULTILINE), err


@pytest.mark.parametrize("name", REFUSED)
def test_a_wrong_command_is_refused_by_name_with_a_way_out(shop: Callable, tmp_path: Path, name: str) -> None:
    item = REFUSED[name]
    shop("capture", "orders", stdin=lines(GOOD))
    shop("flush")
    for file, content in item.files.items():
        (tmp_path / file).write_bytes(content)
    arguments = [re.sub(r"^\{(.+)\}$", lambda found: str(tmp_path / found[1]), text) for text in item.arguments]
    done = shop(*arguments)
    assert done.code == item.code, done
    check_message(done.err)
    assert item.names in done.err
    assert ("Try:" in done.err) or not item.hint, done.err


@pytest.mark.parametrize("name", QUARANTINED)
def test_a_bad_line_is_quarantined_and_the_good_line_beside_it_is_stored(shop: Callable, name: str) -> None:
    done = shop("capture", "orders", "--json", stdin=lines(GOOD) + QUARANTINED[name])
    assert (done.code, done.json["rows"], done.json["quarantined"]) == (1, 1, 1), done
    assert "line 2" in done.json["problems"][0]
    assert "Traceback" not in done.err
    assert shop("flush").code == 0
    assert [row["id"] for row in shop("read", "orders").rows] == ["good"]
    held = shop("quarantine", "list", "--json").json
    assert len(held) == 1, "the line is kept, with its reason"
