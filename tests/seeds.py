"""Where chance comes from in the tests: one seed for each release, the same in every ordinary run.

So a run that fails says something of the change that it is a run of, and fails again. `TEST_SEED=fresh` takes another
seed, as `make soak` does, and `TEST_SEED=<number>` that one again; pytest's header says which it is.
"""

from __future__ import annotations

import os
import secrets
import zlib
from importlib.metadata import version

RELEASE = version("floodmark")
ASKED = os.environ.get("TEST_SEED", "")
FIXED = not ASKED
SEED = secrets.randbelow(10**9) if ASKED == "fresh" else int(ASKED or zlib.crc32(RELEASE.encode()))

if ASKED:
    os.environ["TEST_SEED"] = str(SEED)  # the same for the processes that tests start


def header() -> str:
    """What pytest prints at the top of a run."""
    if FIXED:
        return f"seed of random tests: {SEED}, that of release {RELEASE} (TEST_SEED=fresh for another)"
    return f"seed of random tests: {SEED} (again with TEST_SEED={SEED})"
