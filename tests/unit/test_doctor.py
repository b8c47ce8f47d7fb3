"""What the doctor makes of a disk: pure, for no test has every kind of disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.doctor import OK, WARNING, WRONG, file_system, judged_sync, sync_seconds

MOUNTS = """\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
23 22 0:20 / /mnt/far rw,relatime - nfs4 server:/x rw,vers=4.2
24 22 0:21 / /mnt/with\\040blank rw - xfs /dev/sdb rw,nobarrier
25 22 0:22 / /mnt/far/near rw - tmpfs tmpfs rw
nonsense
"""


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/srv/store", "ext4"),
        ("/mnt/far", "nfs4"),
        ("/mnt/far/x", "nfs4"),
        ("/mnt/farther", "ext4"),
        ("/mnt/far/near/x", "tmpfs"),
        ("/mnt/with blank/x", "xfs"),
    ],
)
def test_the_innermost_mount_says_which_file_system_it_is(path: str, kind: str) -> None:
    assert file_system(Path(path), MOUNTS)[0] == kind


def test_mount_options_of_both_halves_are_seen() -> None:
    assert file_system(Path("/mnt/with blank"), MOUNTS)[1] == {"rw", "nobarrier"}


@pytest.mark.parametrize(
    ("kind", "options", "seconds", "state"),
    [
        ("ext4", set(), 0.001, OK),
        ("ext4", set(), 0.000002, WARNING),
        ("ext4", set(), 0.2, WARNING),
        ("", set(), 0.001, OK),
        ("tmpfs", set(), 0.000001, WARNING),
        ("nfs4", set(), 0.001, WRONG),
        ("ext4", {"nobarrier"}, 0.001, WRONG),
    ],
)
def test_a_disk_is_judged_by_its_kind_its_options_and_its_speed(
    kind: str, options: set[str], seconds: float, state: str
) -> None:
    found = judged_sync(Path("/x"), kind, options, seconds)
    assert found.state == state
    assert bool(found.run) == (state != OK)


def test_a_library_that_swallows_fsync_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_PRELOAD", "/usr/lib/libeatmydata.so")
    assert judged_sync(Path("/x"), "ext4", set(), 0.001).state == WRONG


def test_the_measurement_leaves_nothing_behind(tmp_path: Path) -> None:
    assert sync_seconds(tmp_path) > 0
    assert list(tmp_path.iterdir()) == []
