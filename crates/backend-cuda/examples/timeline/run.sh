#!/bin/bash
# Records a program's kernels on this machine's GPU and says what a step consists of.
#
#   crates/backend-cuda/examples/timeline/run.sh OUT forerun bench synth:qwen3.6-27b --layers 8 --dtype fp8 --device cuda
#
# CUPTI is part of the CUDA toolkit (CUDA_HOME, default /usr/local/cuda); a C compiler is needed.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
out=$1
shift
cupti=${CUDA_HOME:-/usr/local/cuda}
library=$(find -L "$cupti" -name libcupti.so -print -quit)
header=$(find -L "$cupti" -name cupti.h -print -quit)
mkdir -p "$out"
cc -O2 -shared -fPIC -I"$(dirname "$header")" -I"$cupti/include" "$here/timeline.c" -o "$out/timeline.so" "$library"
LD_LIBRARY_PATH=$(dirname "$library"):${LD_LIBRARY_PATH:-} CUDA_INJECTION64_PATH=$out/timeline.so \
  FORERUN_TIMELINE=$out/timeline.txt "$@" > "$out/output.txt"
python3 "$here/summary.py" "$out/timeline.txt" --order > "$out/summary.txt"
head -40 "$out/summary.txt"
