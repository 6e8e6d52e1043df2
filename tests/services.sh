#!/usr/bin/env bash
# Installs what the full tests talk to, where it is missing and where we may: Debian or Ubuntu, as root.
set -euo pipefail
cd "$(dirname "$0")/.."
# A container engine with the public base images, or stand-ins of them where no registry is reached.
if ! docker info >/dev/null 2>&1 && [[ -f ../shared/tools/docker-up.sh ]]; then
  bash ../shared/tools/docker-up.sh python redis postgres17
fi
missing=()
command -v redis-server >/dev/null || missing+=(redis-server)
compgen -G '/usr/lib/postgresql/*/bin/initdb' >/dev/null || missing+=(postgresql)
command -v chromium >/dev/null || missing+=(chromium)
((${#missing[@]})) || exit 0
if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "Missing for the full tests: ${missing[*]}. Install them, or run 'make check'." >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
# Debian starts what it installs; the tests start their own.
service redis-server stop >/dev/null 2>&1 || true
service postgresql stop >/dev/null 2>&1 || true
