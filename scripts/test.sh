#!/usr/bin/env bash
# All tests, in three lanes side by side: real processes and whole jobs on Spark; single steps on Spark, and then the
# simulation; everything else.
# Each waits for disks and processes half of its time: one after another they would leave the cores idle.
# The output of the second and third lane follows when all are done.
set -uo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
outputs=$(mktemp -d)
trap 'rm -rf "$outputs"' EXIT
# Tests sync thousands of small files. In memory that costs nothing, where there is enough of it.
if [ "$(df --output=avail -k /dev/shm 2>/dev/null | tail -1)" -gt $((4 << 20)) ] 2>/dev/null; then
  export PYTEST_DEBUG_TEMPROOT=/dev/shm
fi
# Most JVMs here live for seconds: making their code fast costs more than it saves, and so does loading Spark's classes.
export SPARK_SUBMIT_OPTS="-XX:TieredStopAtLevel=1 -XX:+UseSerialGC ${SPARK_SUBMIT_OPTS:-}"
$python -m floodmark.cli jars --archive >/dev/null || echo "The tests start Spark without a class archive." >&2
run() { $python -m pytest -p no:cacheprovider "$@"; }
run -m "not spark" --ignore=tests/acceptance --ignore=tests/simulation >"$outputs/plain" 2>&1 &
plain=$!
# Single steps have a few rows each: Spark interprets what it would otherwise compile for each of them. Whole jobs compile.
interpreted="-Dspark.sql.codegen.wholeStage=false -Dspark.sql.codegen.factoryMode=NO_CODEGEN"
steps() {
  local failed=0
  SPARK_SUBMIT_OPTS="$SPARK_SUBMIT_OPTS $interpreted" run -m spark --ignore=tests/acceptance || failed=1
  run tests/simulation || failed=1
  return "$failed"
}
steps >"$outputs/steps" 2>&1 &
steps=$!
failed=0
run tests/acceptance || failed=1
wait "$steps" || failed=1
wait "$plain" || failed=1
cat "$outputs/steps" "$outputs/plain"
if [ "$failed" != 0 ]; then echo "Error: some tests failed; see above." >&2; fi
exit "$failed"
