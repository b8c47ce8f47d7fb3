#!/usr/bin/env bash
# What the tests need beside Python and Java: PostgreSQL's server programs and Chromium, from Debian's packages when
# absent. The tests start a private server and a private browser from them; nothing is left running.
set -euo pipefail
missing=()
if ! ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 && ! command -v initdb >/dev/null 2>&1; then missing+=(postgresql); fi
if [ ! -x "${CHROMIUM:-/usr/bin/chromium}" ]; then missing+=(chromium); fi
if [ ${#missing[@]} = 0 ]; then exit 0; fi
if ! command -v apt-get >/dev/null 2>&1 || [ "$(id -u)" != 0 ]; then
  echo "Error: the tests need PostgreSQL's server programs (initdb, postgres) and Chromium. Missing: ${missing[*]}." >&2
  echo "Try:   sudo apt-get install ${missing[*]}   (or your system's packages; CHROMIUM names another browser)" >&2
  exit 1
fi
echo "Installing ${missing[*]} for the tests …" >&2
export DEBIAN_FRONTEND=noninteractive
mkdir -p /etc/postgresql-common/createcluster.d
echo 'create_main_cluster = false' > /etc/postgresql-common/createcluster.d/floodmark.conf
apt-get update -qq >&2 && apt-get install -y -qq --no-install-recommends "${missing[@]}" >&2
