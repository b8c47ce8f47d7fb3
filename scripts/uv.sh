#!/usr/bin/env bash
# Run uv: the one on PATH, else one installed into .bootstrap from a hashed lock file.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ -x .bootstrap/bin/uv ]; then exec .bootstrap/bin/uv "$@"; fi
if command -v uv >/dev/null 2>&1; then exec uv "$@"; fi
python=${PYTHON3:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "Error: Floodmark needs Python 3.11 or newer; '$python' is $("$python" --version 2>&1 || echo absent)." >&2
  echo "Try:   install it (Debian: apt-get install python3 python3-venv) or name one: PYTHON3=/path/to/python3 make setup" >&2
  exit 1
fi
if ! "$python" -m venv .bootstrap >&2; then
  rm -rf .bootstrap
  echo "Error: '$python -m venv' failed, so the installer cannot be set up." >&2
  echo "Try:   apt-get install python3-venv" >&2
  exit 1
fi
if ! .bootstrap/bin/python -m pip install --quiet --require-hashes -r scripts/bootstrap.lock >&2; then
  rm -rf .bootstrap
  echo "Error: uv could not be installed from the Python package index." >&2
  echo "Try:   check the network (or your pip index settings), then run the same command again." >&2
  exit 1
fi
exec .bootstrap/bin/uv "$@"
