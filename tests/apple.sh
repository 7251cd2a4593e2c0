#!/usr/bin/env bash
# Checks the types of what macOS builds, for aarch64-apple-darwin, on a machine that is no Mac: the device of Metal and
# the crate that opens it. Nothing is linked and nothing runs.
#
# Needs the standard library for the target: from `rustup target add aarch64-apple-darwin`, or checked from its sources
# with Debian's compiler of the security suite, whose packages are unpacked into a folder of their own and not
# installed. Exit status 77 where neither can be had.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-apple-darwin
packages=(forerun-backend-wgpu forerun-devices)
mkdir -p "${CARGO_TARGET_DIR:-target}/apple"
work=$(cd "${CARGO_TARGET_DIR:-target}/apple" && pwd)

missing() {
    echo "tests/apple.sh: $1" >&2
    exit 77
}

# The dependency of a package that looks like this.
depends() {
    apt-cache depends "$1" 2>/dev/null | awk -v name="^$2\$" '$1 == "Depends:" && $2 ~ name { print $2; exit }'
}

# The compiler, its library and their sources, all of one version.
fetch() {
    local want="no standard library for $target: run \`rustup target add $target\`"
    local names=(rustc-web rust-web-src libstd-rust-web-dev) runtime llvm
    command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] || missing "$want"
    apt-get update -qq || missing "$want"
    # Their names hold versions.
    runtime=$(depends libstd-rust-web-dev 'libstd-rust-web-[0-9.]+')
    [ -n "$runtime" ] || missing "$want (Debian has no rustc-web)"
    llvm=$(depends "$runtime" 'libllvm[0-9]+')
    rm -rf "$work/packages" "$work/compiler.new"
    mkdir -p "$work/packages" "$work/compiler.new"
    (cd "$work/packages" && apt-get download -qq "${names[@]}" "$runtime" "$llvm") || missing "$want"
    for package in "$work"/packages/*.deb; do
        dpkg-deb -x "$package" "$work/compiler.new"
    done
    rm -r "$work/packages"
    mv "$work/compiler.new" "$work/compiler"
}

check=(cargo check --locked --target "$target" --target-dir "$work/target")
for package in "${packages[@]}"; do
    check+=(-p "$package")
done
if [ -d "$(rustc --print target-libdir --target $target)" ]; then
    "${check[@]}"
    exit
fi
[ -d "$work/compiler" ] || fetch
export RUSTC=$work/compiler/usr/bin/rustc RUSTC_BOOTSTRAP=1
export LD_LIBRARY_PATH=$work/compiler/usr/lib/x86_64-linux-gnu${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
"${check[@]}" -Zbuild-std=std,panic_abort
