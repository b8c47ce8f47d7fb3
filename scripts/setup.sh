#!/usr/bin/env bash
# Make .venv with exactly the locked packages, and Floodmark itself in editable form.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON3:-python3}
echo "Setting up .venv (packages from requirements.lock) …" >&2
scripts/uv.sh venv --quiet --allow-existing --python "$python" .venv
if ! scripts/uv.sh pip sync --quiet --compile-bytecode --require-hashes --python .venv/bin/python requirements.lock; then
  echo "Error: the locked packages could not be installed." >&2
  echo "Try:   check the network (or your package index settings), then run the same command again." >&2
  exit 1
fi
scripts/uv.sh pip install --quiet --no-deps --python .venv/bin/python --editable .
