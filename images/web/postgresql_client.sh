#!/bin/sh
# Copies PostgreSQL's client programs into a folder where they run on any system of this kind of processor: with the
# loader and the libraries that they were linked against, which another system's are not.
set -eu
to=$1
mkdir -p "$to"
for name in pg_dump pg_restore; do
  program=$(find /usr/lib/postgresql /usr/local/bin -name "$name" -type f | head -n 1)
  files=$(ldd "$program" | grep -o '/[^ ]*')
  loader=$(basename "$(echo "$files" | grep 'ld-')")
  cp "$program" "$to/$name.bin"
  for file in $files; do cp -L "$file" "$to/"; done
  printf '#!/bin/sh\nexec %s/%s --library-path %s %s/%s.bin "$@"\n' "$to" "$loader" "$to" "$to" "$name" >"$to/$name"
  chmod +x "$to/$name"
done
