#!/usr/bin/env bash
# Writes .env for compose.yaml where there is none: .env.example with secrets of its own, readable for its owner only.
set -euo pipefail
cd "$(dirname "$0")/.."
[[ ! -e ${COMPOSE_ENV_FILES:-.env} ]] || exit 0
secret() { od -An -tx1 -N24 /dev/urandom | tr -d ' \n'; }
socket=/var/run/docker.sock
# Asked inside a container: on some machines the engine is in a virtual machine and the socket has another group there.
group=$(docker run --rm --network none --volume "$socket:$socket" "dare-web:${DARE_VERSION:-0.1.0}" stat -c %g "$socket")
umask 077
new=$(mktemp .env.XXXXXX)
trap 'rm -f "$new"' EXIT
while IFS= read -r line; do
  case $line in
    DARE_SOCKET_GROUP=*) line="DARE_SOCKET_GROUP=$group" ;;
    *=change-me) line="${line%change-me}$(secret)" ;;
  esac
  printf '%s\n' "$line"
done <.env.example >"$new"
ln "$new" .env  # fails where somebody was quicker, and then theirs holds
echo "Wrote .env with secrets of its own. Keep it: the database's password is in no backup."
