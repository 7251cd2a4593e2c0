#!/usr/bin/env bash
# Makes what a release ships, in target/dist: an archive for a target, and for Linux a .deb. Both hold the program without its
# symbols, the bundled model, manual pages and completions.
#
#   deploy/release.sh                                this machine's target
#   deploy/release.sh aarch64-unknown-linux-gnu      another: its standard library and a cross compiler have to be there
#   deploy/release.sh formula URL ARCHIVE            Homebrew's formula for a source archive that will lie at URL
#
# FORERUN names a program that is built already, for the target; it is stripped. HOST_FORERUN names one that runs here and writes
# the manual pages where the target's does not.
set -euo pipefail
cd "$(dirname "$0")/.."

host=$(rustc -vV | sed -n 's/^host: //p')
version=$(sed -n 's/^version = "\(.*\)"/\1/p' Cargo.toml | head -n 1)
target_dir=${CARGO_TARGET_DIR:-target}
out=$target_dir/dist-packages
# The same commit gives the same archive.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || date +%s)}
export SOURCE_DATE_EPOCH

fail() {
  echo "deploy/release.sh: $1" >&2
  exit 1
}

sha256() { if command -v sha256sum >/dev/null; then sha256sum "$@"; else shasum -a 256 "$@"; fi; }

formula() {
  [ $# = 2 ] && [ -f "$2" ] || fail "usage: deploy/release.sh formula URL ARCHIVE"
  mkdir -p "$out"
  sed -e "s|@URL@|$1|" -e "s|@SHA256@|$(sha256 "$2" | cut -d' ' -f1)|" deploy/homebrew/forerun.rb.in >"$out/forerun.rb"
  echo "$out/forerun.rb"
}

# A cross compiler, for the program and for what of its dependencies is C.
cross() {
  case $target in
    "$host") ;;
    aarch64-unknown-linux-gnu)
      command -v aarch64-linux-gnu-gcc >/dev/null || fail "install aarch64-linux-gnu-gcc (Debian: gcc-aarch64-linux-gnu)"
      export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc CC_aarch64_unknown_linux_gnu=aarch64-linux-gnu-gcc
      ;;
    # Apple's compiler makes both of its architectures.
    *-apple-darwin) [ "$(uname)" = Darwin ] || fail "$target is built on a Mac" ;;
    *) fail "no cross compiler is known for $target" ;;
  esac
}

strip_tool() {
  case $target in
    aarch64-unknown-linux-gnu) [ "$host" = "$target" ] && echo strip || echo aarch64-linux-gnu-strip ;;
    *) echo strip ;;
  esac
}

# Prints the path of the program for the target.
program() {
  if [ -n "${FORERUN:-}" ]; then
    "$(strip_tool)" -o "$work/forerun" "$FORERUN" || fail "cannot strip $FORERUN"
    echo "$work/forerun"
    return
  fi
  cross
  cargo build --profile dist --locked -p forerun-cli --target "$target" >&2
  echo "$target_dir/$target/dist/forerun"
}

# Prints the path of a program that runs here.
runs_here() {
  if [ -n "${HOST_FORERUN:-}" ]; then
    echo "$HOST_FORERUN"
  elif [ "$target" = "$host" ]; then
    echo "$1"
  else
    cargo build --release --locked -p forerun-cli >&2
    echo "$target_dir/release/forerun"
  fi
}

# The files below a prefix such as /usr.
lay_out() {
  local prefix=$1 program=$2 tool=$3 doc=$1/share/doc/forerun
  mkdir -p "$prefix/bin" "$prefix/share/forerun/models" "$doc"
  install -m 755 "$program" "$prefix/bin/forerun"
  cp -R models/tales-28m "$prefix/share/forerun/models/"
  "$tool" man "$prefix/share/man/man1"
  mkdir -p "$prefix/share/bash-completion/completions" "$prefix/share/zsh/site-functions" "$prefix/share/fish/vendor_completions.d"
  "$tool" completions bash >"$prefix/share/bash-completion/completions/forerun"
  "$tool" completions zsh >"$prefix/share/zsh/site-functions/_forerun"
  "$tool" completions fish >"$prefix/share/fish/vendor_completions.d/forerun.fish"
  cp README.md CHANGELOG.md LICENSE-MIT LICENSE-APACHE "$doc/"
}

archive() {
  local name=forerun-$version-$target
  mv "$work/root" "$work/$name"
  local same=()
  tar --version 2>/dev/null | grep -q GNU && same=(--sort=name --owner=0 --group=0 --numeric-owner "--mtime=@$SOURCE_DATE_EPOCH")
  tar -C "$work" ${same[@]+"${same[@]}"} -cf - "$name" | gzip -n >"$out/$name.tar.gz"
  mv "$work/$name" "$work/root"
  echo "$out/$name.tar.gz"
}

# The oldest C library that has every symbol the program asks for.
glibc() {
  readelf -W --dyn-syms "$1" | grep -o 'GLIBC_[0-9.]*' | sed 's/GLIBC_//' | sort -uV | tail -n 1
}

deb() {
  local architecture=$1 root=$work/deb
  mkdir -p "$root/DEBIAN"
  cp -R "$work/root" "$root/usr"
  gzip -9n "$root"/usr/share/man/man1/*.1 "$root/usr/share/doc/forerun/CHANGELOG.md"
  mkdir -p "$root/usr/share/zsh/vendor-completions"
  mv "$root/usr/share/zsh/site-functions/_forerun" "$root/usr/share/zsh/vendor-completions/"
  rmdir "$root/usr/share/zsh/site-functions"
  {
    echo "forerun is licensed under MIT or Apache-2.0, at your choice."
    echo
    cat LICENSE-MIT
    echo
    echo "The Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0."
  } >"$root/usr/share/doc/forerun/copyright"
  rm "$root/usr/share/doc/forerun/LICENSE-MIT" "$root/usr/share/doc/forerun/LICENSE-APACHE"
  cat >"$root/DEBIAN/control" <<CONTROL
Package: forerun
Version: $version
Architecture: $architecture
Maintainer: ${DEB_MAINTAINER:-the forerun developers <forerun@localhost>}
Section: science
Priority: optional
Depends: libc6 (>= $(glibc "$root/usr/bin/forerun")), libgcc-s1
Installed-Size: $(du -sk "$root/usr" | cut -f1)
Description: inference engine for hybrid language models
 Runs and serves language models (Qwen3.5, Gemma, Llama and others) from
 safetensors and GGUF files, with speculation that changes no token. OpenAI's
 and Anthropic's APIs, a chat at the terminal and a page for the browser.
CONTROL
  chmod -R u=rwX,go=rX "$root"
  find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
  dpkg-deb --root-owner-group -Zgzip --build "$root" "$out/forerun_${version}_$architecture.deb" >/dev/null
  echo "$out/forerun_${version}_$architecture.deb"
}

if [ "${1:-}" = formula ]; then
  shift
  formula "$@"
  exit
fi
target=${1:-$host}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$out"
built=$(program)
tool=$(runs_here "$built")
lay_out "$work/root" "$built" "$tool"
made=("$(archive)")
case $target in
  x86_64-unknown-linux-gnu) made+=("$(deb amd64)") ;;
  aarch64-unknown-linux-gnu) made+=("$(deb arm64)") ;;
esac
for file in "${made[@]}"; do
  (cd "$(dirname "$file")" && sha256 "$(basename "$file")" >"$(basename "$file").sha256")
  echo "$file: $(du -k "$file" | cut -f1) KiB"
done
