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
