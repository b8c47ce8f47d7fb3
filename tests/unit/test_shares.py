"""H6: senders share what is bounded, and one that takes all it can get leaves something for everybody else."""

from __future__ import annotations

import random

import pytest

from floodmark.errors import SpoolFull
from floodmark.hub.shares import FILE_BYTES, GENERATIONS, Places, Room, Waiting
from seeds import SEED


def fill(places: Places, sender: str) -> int:
    """Take all there is to get."""
    taken = 0
    while places.take(sender):
        taken += 1
    return taken


@pytest.mark.parametrize("most", [1, 2, 3, 8, 64, 65])
def test_one_that_takes_all_it_can_get_leaves_half(most: int) -> None:
    places = Places(most, most_each=most)
    assert fill(places, "loud") == (most + 1) // 2
    assert places.take("quiet") is (most > 1)


def test_nobody_gets_more_than_one_may_have_at_all() -> None:
    assert fill(Places(64, most_each=5), "loud") == 5


@pytest.mark.parametrize("loud", [1, 2, 3, 7, 15])
def test_several_that_take_all_they_can_get_leave_as_much_as_each_of_them_has(loud: int) -> None:
    """… as soon as each has given back what it took while they were fewer."""
    places, chance = Places(64, most_each=64), random.Random(SEED)
    names = [f"loud {number}" for number in range(loud)]
    held = {name: fill(places, name) for name in names}
    for _ in range(2_000):  # requests end, and their senders send the next at once
        name = chance.choice([one for one in names if held[one]])
        places.leave(name)
        held[name] -= 1
        for one in chance.sample(names, len(names)):
            held[one] += fill(places, one)
    fair = 64 // (loud + 1)
    assert all(abs(count - fair) <= 1 for count in held.values()), held
    assert 64 - places.taken >= fair - 1


def test_the_last_place_goes_to_a_sender_that_has_none() -> None:
    """Whatever happened before: who holds nothing is refused only if nothing is free."""
    chance = random.Random(SEED)
    places, held = Places(16, most_each=16), dict.fromkeys("abcdefghijkl", 0)
    for _ in range(20_000):
        name = chance.choice(list(held))
        free = 16 - places.taken
        if held[name] and chance.random() < 0.4:
            places.leave(name)
            held[name] -= 1
        elif places.take(name):
            assert held[name] < free
            held[name] += 1
        else:
            assert held[name] or not free
    assert places.taken == sum(held.values())


def test_a_worker_forgets_senders_that_have_nothing() -> None:
    places = Places(8, most_each=8)
    assert places.take("a")
    places.leave("a")
    assert places == Places(8, most_each=8)


# ── room for rows that wait ──────────────────────────────────────────────────────────────────────────────────────────


def refused(room: Room, sender: str, *, waiting: int, most: int) -> bool:
    try:
        room.check("d", sender, waiting, most)
    except SpoolFull:
        return True
    return False


@pytest.mark.parametrize("workers", [1, 4])
def test_what_waits_is_shared_by_senders_and_one_leaves_room_for_the_others(workers: int) -> None:
    """Each worker knows only what came through itself, and how much waits in all."""
    most, rooms, waiting = 1000 * FILE_BYTES, [Room() for _ in range(workers)], 0
    for turn in range(10_000):
        room = rooms[turn % workers]
        if not refused(room, "loud", waiting=waiting, most=most):
            room.add("d", "loud", 0)
            waiting += FILE_BYTES
    assert most - waiting >= most // (workers + 1) - workers * FILE_BYTES
    assert not any(refused(room, "quiet", waiting=waiting, most=most) for room in rooms)


def test_what_is_committed_is_not_counted_any_more() -> None:
    room, most = Room(), 10 * FILE_BYTES
    assert not refused(room, "loud", waiting=0, most=most)
    room.add("d", "loud", 5 * FILE_BYTES)
    assert refused(room, "loud", waiting=6 * FILE_BYTES, most=most)
    assert not refused(room, "quiet", waiting=6 * FILE_BYTES, most=most)
    assert not refused(room, "loud", waiting=0, most=most)
    assert not refused(room, "loud", waiting=4 * FILE_BYTES, most=most), "those are others'"


def test_never_less_is_counted_than_waits_and_not_much_more() -> None:
    chance, most = random.Random(SEED), 10_000
    waiting: list[tuple[str, int]] = []
    counted = Waiting()
    for _ in range(5_000):
        total = sum(size for _, size in waiting)
        for name in "abc":
            really = sum(size for sender, size in waiting if sender == name)
            found = counted.of(name, waiting=total, most=most)
            assert really <= found <= really + most // GENERATIONS + 100
        if total < most and chance.random() < 0.7:
            one = (chance.choice("abc"), chance.randrange(1, 100))
            waiting.append(one)
            counted.add(*one)
        else:
            del waiting[: chance.randrange(len(waiting) + 1)]


def test_the_rows_of_each_dataset_wait_for_themselves() -> None:
    room = Room()
    room.check("d", "loud", 0, 1_000)
    room.add("d", "loud", 900)
    room.check("another", "loud", 0, 1_000)
    with pytest.raises(SpoolFull, match="of this sender wait"):
        room.check("d", "loud", 900, 1_000)
