#!/usr/bin/env bash
# Lints the CPU device for aarch64 and runs its tests under emulation, on a machine of another
# architecture. Arguments go to `cargo test`: tests/aarch64.sh --test linear
#
# Needs a cross compiler and qemu; on Debian they are installed when root runs this. Needs the standard
# library for the target: from `rustup target add`, or built once from its sources, which come from
# `rustup component add rust-src` or from the Debian package of the compiler's own version. Exit status 77 where one of
# these cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."

target=aarch64-unknown-linux-gnu
release=$(rustc -vV | sed -n 's/^release: //p')
mkdir -p "${CARGO_TARGET_DIR:-target}/aarch64"
work=$(cd "${CARGO_TARGET_DIR:-target}/aarch64" && pwd)
packages=(gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user)

missing() {
    echo "tests/aarch64.sh: $1" >&2
    exit 77
}

tools() {
    command -v aarch64-linux-gnu-gcc >/dev/null && command -v qemu-aarch64 >/dev/null &&
        [ -e /usr/aarch64-linux-gnu/lib/libc.so.6 ]
}

install_tools() {
    command -v apt-get >/dev/null && [ "$(id -u)" = 0 ] &&
        apt-get update -qq && apt-get install -y -qq --no-install-recommends "${packages[@]}" ||
        missing "install aarch64-linux-gnu-gcc with its C library, and qemu-aarch64 (Debian: ${packages[*]})"
}

# A later Debian has the sources of a compiler that this one may not have. Its lists are kept apart
# from the system's, and nothing of it is installed.
fetch_sources() {
    local want="no standard library for $target: run \`rustup target add $target\` or \`rustup component add rust-src\`"
    local apt=$work/apt key=/usr/share/keyrings/debian-archive-keyring.gpg site version
    command -v apt-get >/dev/null && [ -e $key ] || missing "$want"
    read -r site < <(apt-get indextargets --format '$(SITE)' 'Created-By: Packages' 'Label: Debian') ||
        missing "$want"
    mkdir -p "$apt"/etc/apt/{apt.conf.d,preferences.d} "$apt"/var/{lib/apt/lists,cache/apt/archives}/partial
    : >"$apt/status"
    for suite in trixie-backports trixie; do
        echo "deb [signed-by=$key] $site $suite main"
    done >"$apt/etc/apt/sources.list"
    cat >"$apt/apt.conf" <<CONF
Dir "$apt";
Dir::State::status "$apt/status";
Acquire::Languages "none";
APT::Sandbox::User "root";
CONF
    APT_CONFIG=$apt/apt.conf apt-get update -qq || missing "$want"
    version=$(APT_CONFIG=$apt/apt.conf apt-cache madison rust-src |
        awk -v release="$release+" 'index($3, release) == 1 { print $3; exit }')
    [ -n "$version" ] || missing "$want (Debian has no rust-src $release)"
    (cd "$apt" && APT_CONFIG=$apt/apt.conf apt-get download -qq "rust-src=$version") || missing "$want"
    rm -rf "$work/src"
    dpkg-deb -x "$apt"/rust-src_*.deb "$apt/src"
    mv "$apt/src" "$work/src"
    rm -r "$apt"
}

# The standard library as `x.py` builds it, but for a folder of our own. It may use what only the
# compiler's own parts may; the project itself is compiled without that leave.
build_std() {
    local library
    library=$(rustc --print sysroot)/lib/rustlib/src/rust/library
    if [ ! -d "$library" ]; then
        library=$work/src/usr/src/rustc-$release/library
        [ -d "$library" ] || fetch_sources
    fi
    echo "building the standard library of $release for $target"
    RUSTC_BOOTSTRAP=1 RUSTFLAGS="-Zforce-unstable-if-unmarked -Cembed-bitcode=yes --cap-lints=allow" \
        CARGO_TARGET_DIR=$work/std cargo build --quiet --release --locked --target $target \
        --manifest-path "$library/sysroot/Cargo.toml" --features backtrace
    mkdir -p "$sysroot.new/lib/rustlib/$target/lib"
    cp "$work/std/$target/release/deps"/*.rlib "$sysroot.new/lib/rustlib/$target/lib"
    mv "$sysroot.new" "$sysroot"
    rm -r "$work/std"
    rm -rf "$work/src"
}

tools || install_tools
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
if [ ! -d "$(rustc --print target-libdir --target $target)" ]; then
    sysroot=$work/sysroot-$release
    [ -d "$sysroot" ] || build_std
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTFLAGS="--sysroot=$sysroot"
    export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUSTDOCFLAGS="--sysroot=$sysroot"
fi

cargo clippy --release --locked --target $target -p forerun-backend-cpu --all-targets -- -D warnings
cargo test --release --locked --target $target -p forerun-backend-cpu "$@"
