"""A secret by reference: its source, when it is read, and that it is never shown.

| given as      | the secret is                                 |
|---------------|-----------------------------------------------|
| `env:NAME`    | the value of the environment variable         |
| `file:/path`  | the file's content, without surrounding space |
| anything else | the text itself; refused for new sinks        |

It is read again for each use: a rotated secret needs no restart. The secret is in no message, `repr`, log or status;
it is removed from the messages of a destination before they are shown.
"""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path
from urllib.parse import quote, unquote

from floodmark.errors import InvalidSetting, Permanent, Retryable

HIDDEN = "•••"
_FILE_BYTES_MAX = 64 << 10
_PREFIX_CHARACTERS_MIN = 4
"""A prefix of a secret is hidden if it has at least this many characters."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What a header can contain as one word. Other characters could end the header and begin another one.
_WORD = re.compile(r"[!-~]+")


class Credential:
    """One secret. Safe to share between threads."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._known: list[str] = []
        """Every value it has had, the newest last: an old one must not be shown either."""

    def __repr__(self) -> str:
        return f"Credential({self.name})"

    __str__ = __repr__

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a credential cannot be pickled: pass its source, and read it there")

    @property
    def name(self) -> str:
        """Its source, for messages."""
        return self._source if self._source.startswith(("env:", "file:")) else "a text in the settings"

    def text(self) -> str:
        """The present secret. While its file is being replaced and missing, the previous one."""
        try:
            secret = self._read()
        except Retryable:
            with self._lock:
                if self._known:
                    return self._known[-1]
            raise
        with self._lock:
            self._known = [*(one for one in self._known if one != secret), secret]
        return secret

    def hide(self, text: str) -> str:
        """A foreign text without this secret, also if the text is cut off inside the secret."""
        with self._lock:
            known = list(self._known)
        spellings = {spelling for secret in known for spelling in (secret, quote(secret, safe=""))}
        for spelling in sorted(spellings, key=len, reverse=True):
            text = text.replace(spelling, HIDDEN)
            begun = (
                size
                for size in range(len(spelling) - 1, _PREFIX_CHARACTERS_MIN - 1, -1)
                if text.endswith(spelling[:size])
            )
            size = next(begun, 0)
            text = text[: len(text) - size] + HIDDEN if size else text
        return text

    def _read(self) -> str:
        kind, _, rest = self._source.partition(":")
        if kind == "env":
            secret = self._checked(os.environ.get(rest, ""))
        elif kind == "file":
            secret = self._checked(self._content(_path(self._source)))
        else:
            secret = self._source
        return secret

    def _content(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                return file.read(_FILE_BYTES_MAX).decode("ascii")
        except FileNotFoundError:
            return ""
        except UnicodeDecodeError:
            return "\0"  # refused below, like everything else that a header cannot contain
        except OSError as error:
            raise Permanent(
                f"The credential {self.name} cannot be read: {error.strerror}.",
                hint="Give the exporting process permission to read it.",
            ) from error

    def _checked(self, text: str) -> str:
        secret = text.strip()
        if not secret and self._source.startswith("file:"):
            # A file that is being replaced may be missing or empty for a moment.
            raise Retryable(
                f"The credential {self.name} is missing or empty.",
                hint="Put the secret there; the next attempt reads it.",
            )
        if not secret:
            raise Permanent(
                f"The credential {self.name} is not set.",
                hint="Set the variable in the environment of the process that delivers.",
            )
        if _WORD.fullmatch(secret) is None:
            raise Permanent(
                f"The credential {self.name} is not one word of printable ASCII.",
                hint="It is sent in an HTTP header: no spaces, line breaks or non-ASCII characters.",
            )
        return secret


def check_credential(key: str, source: object) -> None:
    """`InvalidSetting` for a setting that cannot be a credential. No message has its value."""
    if not isinstance(source, str):
        raise InvalidSetting(f"{key} is not a text.", hint="Give it as env:NAME, file:/path or the text itself.")
    if source.startswith("env:"):
        if _VARIABLE.fullmatch(source.removeprefix("env:")) is None:
            raise InvalidSetting(f"{key} names no environment variable.", hint="Write env: and the variable's name.")
    elif source.startswith("file:"):
        if not _path(source).is_absolute() or "\0" in source:
            raise InvalidSetting(f"{key} names no file.", hint="Write file: and an absolute path.")
    elif _WORD.fullmatch(source) is None:
        raise InvalidSetting(
            f"{key} is not one word of printable ASCII.",
            hint="It is sent in an HTTP header: no spaces, line breaks or non-ASCII characters.",
        )


def is_literal(source: object) -> bool:
    """Whether a setting is the secret itself, not a reference to it."""
    return isinstance(source, str) and not source.startswith(("env:", "file:"))


def check_reference(key: str, source: object) -> None:
    """`InvalidSetting` for a secret in the settings: those are in the control database and its backups."""
    if is_literal(source):
        raise InvalidSetting(
            f"{key} is the secret itself: every user could see it in the list of processes, and it would be stored "
            "in the control database and in every backup of it.",
            hint=f"Put it into a file that only you can read, and give `{key}` as file:/path; or into an environment "
            "variable, and give env:NAME.",
        )


def shown_url(url: object) -> str:
    """An address for a message, unless it may contain a password or a signature."""
    return repr(url)[:200] if isinstance(url, str) and not set("@?#") & set(unquote(url)) else "that was given"


def _path(source: str) -> Path:
    """`file:/path` is used unchanged, `file:///path` is parsed as a URL."""
    rest = source.removeprefix("file:")
    return Path(unquote(rest.removeprefix("//")) if rest.startswith("//") else rest)
