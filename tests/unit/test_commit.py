"""The verdict on a block, from one load of the table's metadata: the whole table of cases."""

from __future__ import annotations

import itertools

import pytest

from floodmark.commit.protocol import Base, Snapshot, TableState, Verdict, verdict

BLOCK = "ours"


def snapshot(id: int, operation: str = "append", *, files: int = 1, block: str | None = None) -> Snapshot:
    return Snapshot(
        id=id, parent=None if id == 1 else id - 1, operation=operation, added_files=files, added_rows=1, block=block
    )


def table(*lineage: Snapshot, uuid: str = "u") -> TableState:
    """Oldest first, as one tells it."""
    return TableState(name="t", uuid=uuid, lineage=tuple(reversed(lineage)), columns=())


def judge(
    state: TableState | None, *, base: int | None = 1, fenced: bool = False, visible: bool = False, uuid: str = "u"
) -> Verdict:
    return verdict(block=BLOCK, base=Base(uuid, 1, base), fenced=fenced, state=state, row_visible=visible)


ONE = snapshot(1)
CASES = {
    "nothing happened since the base": (table(ONE), {}, Verdict.OPEN),
    "our snapshot is there": (table(ONE, snapshot(2, block=BLOCK)), {}, Verdict.LANDED),
    "ours, and others after it": (
        table(ONE, snapshot(2, block=BLOCK), snapshot(3, block="x"), snapshot(4, "replace")),
        {},
        Verdict.LANDED,
    ),
    "ours, and it is fenced by now": (table(ONE, snapshot(2, block=BLOCK)), {"fenced": True}, Verdict.LANDED),
    "another append came first": (table(ONE, snapshot(2, block="x")), {}, Verdict.VOID),
    "a foreign append without a block came first": (table(ONE, snapshot(2)), {}, Verdict.VOID),
    "an append, then a compaction that hides it": (table(ONE, snapshot(2), snapshot(3, "replace")), {}, Verdict.VOID),
    "a compaction alone is no obstacle": (table(ONE, snapshot(2, "replace")), {}, Verdict.OPEN),
    "a delete alone is no obstacle": (table(ONE, snapshot(2, "delete", files=0)), {}, Verdict.OPEN),
    "an overwrite that only deleted is none": (table(ONE, snapshot(2, "overwrite", files=0)), {}, Verdict.OPEN),
    "an overwrite that added files is one": (table(ONE, snapshot(2, "overwrite")), {}, Verdict.VOID),
    "fenced and nothing happened": (table(ONE), {"fenced": True}, Verdict.VOID),
    "the table is gone": (None, {}, Verdict.VOID),
    "another table of the same name": (table(ONE, uuid="v"), {}, Verdict.VOID),
    "another table, and our commit is in it": (table(ONE, snapshot(2, block=BLOCK), uuid="v"), {}, Verdict.LANDED),
    "the base has expired, its child has not": (table(snapshot(2, "replace")), {}, Verdict.OPEN),
    "history no longer reaches the base": (table(snapshot(5), snapshot(6)), {}, Verdict.VOID),
    "history is cut, and ours is in what is left": (table(snapshot(5, block=BLOCK)), {}, Verdict.LANDED),
    "history is cut, and a row of ours is visible": (table(snapshot(5)), {"visible": True}, Verdict.LANDED),
    "a row of ours is visible after a compaction": (
        table(ONE, snapshot(2, "replace")),
        {"visible": True},
        Verdict.LANDED,
    ),
    "a table without a snapshot, still without": (table(), {"base": None}, Verdict.OPEN),
    "a table without a snapshot, ours came": (table(snapshot(1, block=BLOCK)), {"base": None}, Verdict.LANDED),
    "a table without a snapshot, another came": (table(snapshot(1, block="x")), {"base": None}, Verdict.VOID),
    "a table without a snapshot, history is cut": (table(snapshot(3, "replace")), {"base": None}, Verdict.VOID),
    "a base that a recreated table does not have": (table(), {}, Verdict.VOID),
}


@pytest.mark.parametrize("case", CASES)
def test_the_tables_own_history_decides(case: str) -> None:
    """I4: no error, time-out or conflict has a say."""
    state, changed, expected = CASES[case]
    assert judge(state, **changed) is expected


def test_at_most_one_of_two_requests_for_a_block_can_land() -> None:
    """I4: `OPEN` is said only of states in which the compare-and-swap on the base would still succeed."""
    kinds = [("append", 1), ("overwrite", 1), ("overwrite", 0), ("delete", 0), ("replace", 1)]
    for length in range(4):
        for chosen in itertools.product(kinds, repeat=length):
            later = [snapshot(2 + at, operation, files=files) for at, (operation, files) in enumerate(chosen)]
            state = table(ONE, *later)
            assert (judge(state) is Verdict.OPEN) == state.may_append_on(Base("u", 1, 1))
            assert (judge(state) is Verdict.OPEN) == all(not item.brought_rows for item in later)


def test_a_landed_block_stays_landed_whatever_comes_after() -> None:
    """I4: the verdict never changes from one look to the next."""
    kinds = ["append", "overwrite", "delete", "replace"]
    for chosen in itertools.product(kinds, repeat=3):
        later = [snapshot(3 + at, operation) for at, operation in enumerate(chosen)]
        assert judge(table(ONE, snapshot(2, block=BLOCK), *later)) is Verdict.LANDED


def test_history_since_a_base_is_told_or_unknown() -> None:
    state = table(ONE, snapshot(2), snapshot(3))
    assert [item.id for item in state.since(1) or ()] == [3, 2]
    assert state.since(3) == ()
    assert state.since(9) is None
    assert [item.id for item in state.since(None) or ()] == [3, 2, 1]
    assert table(snapshot(2)).since(None) is None
    assert table().since(None) == ()
    assert (state.head, table().head) == (3, None)
