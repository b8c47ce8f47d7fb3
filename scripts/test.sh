#!/usr/bin/env bash
# All tests, in two lanes side by side: what needs Spark or real processes, and everything else.
# A lane alone leaves one of two cores idle most of the time. The second lane's output follows when both are done.
set -uo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
other=$(mktemp)
trap 'rm -f "$other"' EXIT
$python -m pytest -p no:cacheprovider -m "not spark" --ignore=tests/acceptance >"$other" 2>&1 &
lane=$!
failed=0
$python -m pytest -p no:cacheprovider tests/acceptance || failed=1
$python -m pytest -p no:cacheprovider -m spark --ignore=tests/acceptance || failed=1
wait "$lane" || failed=1
cat "$other"
if [ "$failed" != 0 ]; then echo "Error: some tests failed; see above." >&2; fi
exit "$failed"
