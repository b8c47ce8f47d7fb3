#!/usr/bin/env bash
# All tests, as six jobs of which three run at a time: the next begins when one ends, so both cores are busy until the
# last. Each job waits for disks and processes part of its time. What a job printed follows when it has ended.
set -uo pipefail
cd "$(dirname "$0")/.."
outputs=$(mktemp -d)
trap 'rm -rf "$outputs"' EXIT
export outputs
# Tests sync thousands of small files. In memory that costs nothing, where there is enough of it.
if [ "$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)" -gt $((4 << 20)) ] 2>/dev/null; then
  export PYTEST_DEBUG_TEMPROOT=/dev/shm
fi
# Hundreds of processes import the same modules: each of them would compile them again.
unset PYTHONDONTWRITEBYTECODE
# Most JVMs here live for seconds: making their code fast costs more than it saves, and so does loading Spark's classes.
# Their code needs more room than such a JVM has by itself; without it, code is dropped and compiled again.
export SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=256m -XX:+UseSerialGC ${SPARK_SUBMIT_OPTS:-}"
.venv/bin/python -m floodmark.cli jars --archive >/dev/null || echo "The tests start Spark without a class archive." >&2
.venv/bin/python tests/rest.py || echo "The REST catalog server of the tests was not fetched: tests that need it will fail." >&2
# Single steps have a few rows each: compiling and planning anew costs more than running them. Whole jobs do both.
export SMALL_JOBS="-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
SMALL_JOBS+=" -Dspark.sql.adaptive.enabled=false"
run() { .venv/bin/python scripts/measured.py "$name" "$outputs/table" .venv/bin/python -m pytest -p no:cacheprovider "$@"; }
job() {
  export name=$1
  case "$1" in
    acceptance) run tests/acceptance ;;
    steps) SPARK_SUBMIT_OPTS="$SPARK_SUBMIT_OPTS $SMALL_JOBS" run -m spark tests/contracts tests/docs tests/scenarios ;;
    scenarios) run -m "not spark" tests/scenarios ;;
    simulation) run tests/simulation ;;
    browser) run tests/browser ;;
    rest) run -m "not spark" --ignore=tests/acceptance --ignore=tests/browser --ignore=tests/scenarios --ignore=tests/simulation ;;
  esac >"$outputs/$1" 2>&1
  local status=$?
  cat "$outputs/$1"
  return "$status"
}
export -f run job
# The longest first, so that none of them runs alone in the end.
printf '%s\n' acceptance steps scenarios rest browser simulation | xargs -P 3 -I{} bash -c 'job {}'
status=$?
.venv/bin/python scripts/measured.py --table "$outputs/table"
if [ "$status" != 0 ]; then
  echo "Error: some tests failed; see above." >&2
  exit 1
fi
