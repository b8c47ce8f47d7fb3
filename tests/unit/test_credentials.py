"""A secret comes from where it is said to be, is read anew for each use, and is never shown."""

from __future__ import annotations

import copy
import pickle
import threading
import traceback
from pathlib import Path

import pytest

from floodmark.delivery.credentials import HIDDEN, Credential, check_credential
from floodmark.errors import FloodmarkError, InvalidSetting, Permanent, Retryable

SECRET = "s3cr3t-Token/with+signs="


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{SECRET}\n")
    return path


def test_a_text_is_the_secret_itself() -> None:
    assert Credential(SECRET).text() == SECRET


def test_a_variable_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_TOKEN", SECRET)
    assert Credential("env:HUB_TOKEN").text() == SECRET


@pytest.mark.parametrize("form", ["file:{}", "file://{}"])
def test_a_file_is_read_without_its_line_end(file: Path, form: str) -> None:
    assert Credential(form.format(file)).text() == SECRET


def test_a_secret_is_read_anew_for_each_use(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HUB_TOKEN", "old")
    kept, named = Credential(f"file:{file}"), Credential("env:HUB_TOKEN")
    assert (kept.text(), named.text()) == (SECRET, "old")
    file.write_text("rotated")
    monkeypatch.setenv("HUB_TOKEN", "new")
    assert (kept.text(), named.text()) == ("rotated", "new")


def test_while_a_file_is_being_replaced_the_secret_before_it_counts(file: Path) -> None:
    credential = Credential(f"file:{file}")
    credential.text()
    file.write_text("")
    assert credential.text() == SECRET
    file.unlink()
    assert credential.text() == SECRET


def test_threads_share_one_secret(file: Path) -> None:
    credential = Credential(f"file:{file}")
    found: list[str] = []
    threads = [threading.Thread(target=lambda: found.append(credential.text())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [SECRET] * 8


def test_a_file_that_is_away_or_empty_for_a_moment_is_tried_again(tmp_path: Path) -> None:
    credential = Credential(f"file:{tmp_path / 'token'}")
    with pytest.raises(Retryable, match="missing or empty"):
        credential.text()
    (tmp_path / "token").touch()
    with pytest.raises(Retryable, match="missing or empty"):
        credential.text()
    (tmp_path / "token").write_text(SECRET)
    assert credential.text() == SECRET


def test_a_variable_that_is_not_set_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HUB_TOKEN", raising=False)
    with pytest.raises(Permanent, match="env:HUB_TOKEN is not set") as refused:
        Credential("env:HUB_TOKEN").text()
    assert refused.value.hint


def test_a_directory_is_no_secret(tmp_path: Path) -> None:
    with pytest.raises(Permanent, match="cannot be read"):
        Credential(f"file:{tmp_path}").text()


@pytest.mark.parametrize("content", [b"two words", b"line\r\nX-Evil: 1", b"\xff\xfe", "schlüssel".encode(), b"a\0b"])
def test_what_could_end_a_header_is_no_secret_and_is_not_shown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(Permanent, match="one word of printable ASCII") as refused:
        Credential(f"file:{file}").text()
    assert "Evil" not in str(refused.value)


@pytest.mark.parametrize(
    "source", ["env:", "env:1X", "env:A B", "file:", "file:relative", "two words", "a\nb", "ä", "", 7]
)
def test_a_setting_that_can_be_no_credential_is_refused_without_showing_it(source: object) -> None:
    with pytest.raises(InvalidSetting, match=r"^token ") as refused:
        check_credential("token", source)
    assert refused.value.hint
    assert not source or repr(source) not in str(refused.value)


@pytest.mark.parametrize("source", ["env:HUB_TOKEN", "file:/run/secrets/hub", "file:///run/secrets/hub", SECRET])
def test_good_settings_pass(source: str) -> None:
    check_credential("token", source)


def test_it_is_never_shown(file: Path) -> None:
    for source in (SECRET, f"file:{file}"):
        credential = Credential(source)
        credential.text()
        shown = [repr(credential), str(credential), f"{credential}", credential.name, repr([credential])]
        assert [text for text in shown if SECRET in text] == []
        for copying in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError):
                copying(credential)


def test_an_error_of_reading_holds_nothing_of_it(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(f"{SECRET} {SECRET}")
    try:
        Credential(f"file:{file}").text()
    except FloodmarkError:
        assert SECRET not in traceback.format_exc()
    else:
        pytest.fail("two words were taken for one")


def test_it_is_hidden_in_what_others_say_however_they_spell_it_and_so_is_the_one_before(file: Path) -> None:
    credential = Credential(f"file:{file}")
    credential.text()
    file.write_text("newer-secret")
    credential.text()
    said = "got Bearer s3cr3t-Token/with+signs= and s3cr3t-Token%2Fwith%2Bsigns%3D, not newer-secret"
    assert credential.hide(said) == f"got Bearer {HIDDEN} and {HIDDEN}, not {HIDDEN}"


def test_it_is_hidden_where_a_text_ends_in_its_middle(file: Path) -> None:
    credential = Credential(f"file:{file}")
    credential.text()
    assert credential.hide(f"you sent {SECRET[:9]}") == f"you sent {HIDDEN}"
    assert credential.hide("a class") == "a class"
