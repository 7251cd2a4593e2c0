#!/bin/bash
# Bits and times of products on this machine's GPU, into the folder $1 (default: the current one).
#
#   cargo build --release --example products -p forerun-backend-cuda
#   crates/backend-cuda/examples/products/run.sh target/release/examples/products OUT
#
# The program needs libnvrtc.so.13 where the loader finds it, and for the comparison with the CPU g++ on any machine: the
# hashes of `products check emulated` may be made elsewhere and given as OUT/emulated.txt.
set -u
program=$1
out=${2:-.}
mkdir -p "$out"

[ -s "$out/emulated.txt" ] || "$program" check emulated > "$out/emulated.txt"
"$program" check > "$out/check.txt" 2> "$out/check.err"
echo "products check: $? ($(tail -n 1 "$out/check.txt"))"

# Lines of hashes that the GPU did not print: none.
hashes() { grep -v '^widths\| error \|unequal$' "$1" | sort; }
comm -23 <(hashes "$out/emulated.txt") <(hashes "$out/check.txt") | tee "$out/different.txt"
echo "hashes that differ from the CPU's: $(wc -l < "$out/different.txt")"

for format in bf16 fp8 u4 i8 i4 fp8-rows u4-nested i6-nested f16 f32; do
  "$program" bench "$format" > "$out/bench-$format.txt" 2> "$out/bench-$format.err"
  echo "products bench $format: $?"
done
