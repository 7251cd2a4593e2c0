#!/usr/bin/env bash
# Compiles every CUDA kernel for each architecture with the NVRTC of PyPI and shows registers and spills; then runs the kernels
# on the CPU. No GPU is needed; g++, Python and venv are.
#
# tests/cuda.sh              everything
# tests/cuda.sh --kernels    only compile: the tests of the workspace run the kernels on the CPU too
set -euo pipefail
cd "$(dirname "$0")/.."

archs=(sm_80 sm_86 sm_89 sm_90a sm_100 sm_120)
tools=target/cuda-tools
if [ ! -e "$tools/installed" ]; then
    rm -rf "$tools"
    python3 -m venv "$tools"
    "$tools/bin/pip" install --quiet 'nvidia-cuda-nvrtc==13.0.*' 'nvidia-cuda-cuobjdump==13.*'
    touch "$tools/installed"
fi
libraries=$(dirname "$(find "$tools" -name 'libnvrtc.so.13' | head -1)")
cuobjdump=$(find "$tools" -name cuobjdump -type f | head -1)

code=target/cuda-code
rm -rf "$code"
mkdir -p "$code"
cargo build --release --locked -p forerun-backend-cuda --example compile
# The compiler uses one core.
compile=(env LD_LIBRARY_PATH="$libraries" target/release/examples/compile --keep "$code")
"${compile[@]}" "${archs[@]:0:4}" &
others=$!
"${compile[@]}" "${archs[@]:4}"
wait "$others"

# Registers of the architecture with most of them in use, and kernels that spill: slow, not wrong.
chmod +x "$cuobjdump"
for file in "$code"/sm_90a-*.cubin; do
    "$cuobjdump" -res-usage "$file" 2>&1
done | awk '/Function/ { name = $2; sub(/:$/, "", name) } / REG:/ {
    match($0, /REG:[0-9]+/); registers = substr($0, RSTART + 4, RLENGTH - 4) + 0
    match($0, /STACK:[0-9]+/); stack = substr($0, RSTART + 6, RLENGTH - 6) + 0
    kernels++
    if (registers > most) { most = registers; at = name }
    if (stack > 0) print "  " name " " registers " registers, stack of " stack " bytes"
} END { print kernels + 0 " kernels for sm_90a, at most " most + 0 " registers (" at ")"; exit kernels == 0 }'

if [ "${1:-}" != --kernels ]; then
    cargo test --release --locked -p forerun-backend-cuda --features emulated
fi
