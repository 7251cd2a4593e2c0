#!/usr/bin/env bash
# What deploy/release.sh makes for this machine is whole: the program runs from the unpacked archive and from the unpacked .deb,
# finds the bundled model there, has no symbols, and its manual pages and completions are those of this program.
#
#   tests/release.sh           packs FORERUN (default: target/release/forerun), about 10 seconds
#   tests/release.sh --made    looks at what deploy/release.sh has made already
set -euo pipefail
cd "$(dirname "$0")/.."

store=${CARGO_TARGET_DIR:-target}
FORERUN=${FORERUN:-$store/release/forerun}
made=$store/dist-packages
fail() {
  echo "tests/release.sh: $1" >&2
  exit 1
}

if [ "${1:-}" != --made ]; then
  rm -rf "$made"
  FORERUN=$FORERUN deploy/release.sh
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
version=$("$FORERUN" --version 2>/dev/null || true)

# A prefix such as /usr with everything below it.
looks_right() {
  local prefix=$1 program=$1/bin/forerun size answer
  size=$(stat -c %s "$program")
  [ "$size" -lt $((40 << 20)) ] || fail "$program has $size bytes, which is not stripped"
  if readelf -S "$program" | grep -q '\.symtab\|\.debug_info'; then fail "$program has symbols"; fi
  # From elsewhere, so that the model beside the program is the one that is found.
  answer=$(cd / && HOME=$work "$program" run --raw "Once upon a time" --max-tokens 8 --temperature 0 --json)
  [[ $answer == *'"completion_tokens":8'* && $answer == *"$prefix/share/forerun/models/tales-28m"* ]] || fail "$program says $answer"
  [ -z "$version" ] || [ "$("$program" --version)" = "$version" ] || fail "$program is another version"
  for command in run serve quantize; do
    ls "$prefix/share/man/man1/forerun-$command.1"* >/dev/null || fail "no manual page of $command"
  done
  bash -n "$prefix/share/bash-completion/completions/forerun" || fail "completions of bash"
  "$program" completions bash | cmp - "$prefix/share/bash-completion/completions/forerun" || fail "other completions"
  echo "$prefix: program of $((size >> 20)) MiB, $(ls "$prefix/share/man/man1" | wc -l) manual pages"
}

(cd "$made" && sha256sum --quiet -c ./*.sha256) || fail "sums"
tar -C "$work" -xzf "$made"/forerun-*.tar.gz
looks_right "$(echo "$work"/forerun-*)"
if command -v dpkg-deb >/dev/null && ls "$made"/*.deb >/dev/null 2>&1; then
  dpkg-deb -x "$made"/*.deb "$work/deb"
  looks_right "$work/deb/usr"
  dpkg-deb -f "$made"/*.deb | tee "$work/control"
  grep -q '^Depends: libc6 (>= 2\.[0-9]*)' "$work/control" || fail "the package does not say which C library it needs"
  ! dpkg-deb -c "$made"/*.deb | awk '{print $2}' | grep -vq '^root/root$' || fail "files that are not root's"
fi
tar -czf "$work/source.tar.gz" README.md
formula=$(deploy/release.sh formula https://example.org/source.tar.gz "$work/source.tar.gz")
grep -q "sha256 \"$(sha256sum "$work/source.tar.gz" | cut -d' ' -f1)\"" "$formula" || fail "the formula's sum"
if grep -q @ "$formula"; then fail "the formula has blanks"; fi
echo "what a release ships is whole"
