#!/usr/bin/env bash
# Lints and tests the CPU device with its tile instructions emulated, on a machine whose processor has none.
# Arguments go to `cargo test`: tests/tiles.sh --test linear
#
# Exit status 77 where the processor lacks what is around the tiles: AVX-512 with dot products of bytes and bfloat16.
set -euo pipefail
cd "$(dirname "$0")/.."

has() {
    grep -qw "$1" /proc/cpuinfo
}

if has amx_int8 && has amx_bf16; then
    echo "tests/tiles.sh: this processor has tiles, so the other tests use them" >&2
    exit 0
fi
if ! has avx512_vnni || ! has avx512_bf16; then
    echo "tests/tiles.sh: needs a processor with avx512_vnni and avx512_bf16" >&2
    exit 77
fi
cargo clippy --release --locked -p forerun-backend-cpu --features emulated-tiles --all-targets -- -D warnings
cargo test --release --locked -p forerun-backend-cpu --features emulated-tiles "${@:---tests}"
