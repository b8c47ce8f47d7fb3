"""A secret by reference: where it comes from, when it is read, and that it is never shown.

| given as      | the secret is                                 |
|---------------|-----------------------------------------------|
| `env:NAME`    | the value of the environment variable         |
| `file:/path`  | what the file holds, without blanks around it |
| anything else | the text itself; no longer taken for new sinks |

It is read anew for each use: a secret that is rotated outside needs no restart. Its own text stands in no message,
`repr`, log or status; what a destination says is searched for it before anybody sees it.
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
_TELLING = 4
"""The beginning of a secret is hidden from this many characters on."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# What a header can carry as one word. Anything else could end the header and begin another one.
_WORD = re.compile(r"[!-~]+")


class Credential:
    """One secret. Safe to share between threads."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._known: list[str] = []
        """Every text it has had, the newest last: an old one is not to be shown either."""

    def __repr__(self) -> str:
        return f"Credential({self.name})"

    __str__ = __repr__

    def __reduce__(self) -> str | tuple[object, ...]:
        raise TypeError("a credential cannot be pickled: pass its source, and read it there")

    @property
    def name(self) -> str:
        """Where it comes from, in words that may be shown."""
        return self._source if self._source.startswith(("env:", "file:")) else "a text in the settings"

    def text(self) -> str:
        """The secret as its source has it now. While that is being replaced, and away, the one before."""
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
        """A text of somebody else's, with this secret made unreadable in it, also where the text ends in its middle."""
        with self._lock:
            known = list(self._known)
        spellings = {spelling for secret in known for spelling in (secret, quote(secret, safe=""))}
        for spelling in sorted(spellings, key=len, reverse=True):
            text = text.replace(spelling, HIDDEN)
            begun = (size for size in range(len(spelling) - 1, _TELLING - 1, -1) if text.endswith(spelling[:size]))
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
            return "\0"  # refused below, in the words for everything that a header cannot carry
        except OSError as error:
            raise Permanent(
                f"The credential {self.name} cannot be read: {error.strerror}.",
                hint="Give the exporting process permission to read it.",
            ) from error

    def _checked(self, text: str) -> str:
        secret = text.strip()
        if not secret and self._source.startswith("file:"):
            # A file that is being replaced may be away, or empty, for a moment.
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
    """`InvalidSetting` for a setting that can be no credential. Its value is in no message."""
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
    """Whether a setting is the secret itself, and not the place where it stands."""
    return isinstance(source, str) and not source.startswith(("env:", "file:"))


def check_reference(key: str, source: object) -> None:
    """`InvalidSetting` for a secret that stands in the settings: those are in the control database and its backups."""
    if is_literal(source):
        raise InvalidSetting(
            f"{key} is the secret itself: every user could see it in the list of processes, and it would be stored "
            "in the control database and in every backup of it.",
            hint=f"Put it into a file that only you can read, and give `{key}` as file:/path; or into an environment "
            "variable, and give env:NAME.",
        )


def shown_url(url: object) -> str:
    """An address in a message, unless it holds more than a place: then it may hold a password or a signature."""
    return repr(url)[:200] if isinstance(url, str) and not set("@?#") & set(unquote(url)) else "that was given"


def _path(source: str) -> Path:
    """`file:/path` is taken as it stands, `file:///path` as the URL that it is."""
    rest = source.removeprefix("file:")
    return Path(unquote(rest.removeprefix("//")) if rest.startswith("//") else rest)
