#!/usr/bin/env bash
# Makes every golden checkpoint and what the reference implementations compute on it, and packs them for the repository.
#
#   run_all.sh WORK [TRACKED]
#
# WORK takes the whole folders (about 100 MB). With TRACKED, the folders are packed there: crates/testkit/goldens.
# TORCH_PY, MLX_PY and LCPP_PY name the Python interpreters of the three environments (README.md); without MLX_PY or
# LCPP_PY the folders of that peer are left out.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$1 tracked=${2:-}
mkdir -p "$work"
work=$(cd "$work" && pwd)
first=$work/0 second=$work/5 odd=$work/31
export HF_HUB_OFFLINE=1 TRANSFORMERS_VERBOSITY=error
torch() { "$TORCH_PY" "$here/$@"; }

torch make_tiny.py --out "$first" --seed 0 --arch llama qwen3 qwen3_moe qwen3_fp8 qwen3_next qwen3_5 qwen3_5_moe \
  gemma4_e gemma4_dense gemma4_moe gemma4_assistant qwen3_5_wide
torch make_tiny.py --out "$second" --seed 5 --shapes "$here/second.json" \
  --arch gemma3 qwen3_yarn gemma4_dense gemma4_assistant
torch make_tiny.py --out "$odd" --seed 31 --shapes "$here/odd.json" --arch qwen3_5

for folder in "$first"/*/; do
  case $(basename "$folder") in qwen3_5_wide | mlx_* | gguf_*) continue ;; esac
  torch golden.py "$folder" --seed 0
done
for name in gemma3 qwen3_yarn gemma4_dense gemma4_assistant; do torch golden.py "$second/$name" --seed 5; done
torch golden.py "$odd/qwen3_5" --seed 31

packed=()
if [ -n "${MLX_PY:-}" ]; then
  "$MLX_PY" "$here/make_mlx.py" --src "$first" --out "$first" --seed 0
  "$MLX_PY" "$here/check_formats.py" mlx --out "$work/formats"
  packed+=("$first"/mlx_*)
fi
if [ -n "${LCPP_PY:-}" ]; then
  "$LCPP_PY" "$here/make_gguf.py" --src "$first" --out "$first" --seed 0
  "$LCPP_PY" "$here/check_formats.py" ggml --out "$work/formats"
  packed+=("$first"/gguf_*)
  for name in qwen3_5 qwen3_5_moe qwen3_next; do
    "$LCPP_PY" "$here/check_mtp_llamacpp.py" "$first/$name" --out "$work/mtp.safetensors"
    torch check_mtp_llamacpp.py "$first/$name" --compare "$work/mtp.safetensors"
  done
fi
[ ${#packed[@]} = 0 ] || torch verify_quant.py --src "$first" "${packed[@]}"
torch tokenizer_cases.py --out "$work/tokenizer"

[ -n "$tracked" ] || exit 0
sources=()
for name in llama qwen3 qwen3_moe qwen3_next qwen3_5 qwen3_5_moe gemma4_e gemma4_dense gemma4_moe; do
  sources+=(--source "$name=$first/$name")
done
pack() { torch pack.py "$1" "$tracked/$2" "${sources[@]}" "${@:3}"; }
for folder in "$first"/*/; do
  name=$(basename "$folder")
  case $name in
    qwen3_5_wide) ;;
    qwen3_5) pack "$folder" "$name" --all-rows ;;
    *) pack "$folder" "$name" ;;
  esac
done
for name in gemma3 qwen3_yarn; do pack "$second/$name" "$name"; done
for name in gemma4_dense gemma4_assistant; do pack "$second/$name" "${name}_2"; done
pack "$odd/qwen3_5" qwen3_5_odd
