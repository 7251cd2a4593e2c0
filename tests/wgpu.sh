#!/usr/bin/env bash
# The device of Metal, Vulkan and DX12 on Mesa's software adapter: kernels against the reference, whole models, the
# host's part, and the program with `--device wgpu`. No adapter is a failure. On Debian the adapter is installed when
# root runs this. Then the types of what macOS builds, where its standard library can be had.
set -euo pipefail
cd "$(dirname "$0")/.."

driver() {
    ls /usr/share/vulkan/icd.d/lvp_icd*.json /usr/local/share/vulkan/icd.d/lvp_icd*.json 2>/dev/null | head -1 || true
}

if [ -z "$(driver)" ]; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends mesa-vulkan-drivers libvulkan1 >/dev/null
fi
# No other driver, so that figures and failures are of this one.
VK_ICD_FILENAMES=$(driver)
[ -n "$VK_ICD_FILENAMES" ] || {
    echo "tests/wgpu.sh: there is no software adapter: install mesa-vulkan-drivers" >&2
    exit 1
}
export VK_ICD_FILENAMES VK_DRIVER_FILES=$VK_ICD_FILENAMES
# Mesa's layer that sorts devices looks for a screen, and complains where there is none.
export NODEVICE_SELECT=1

# What was compiled for the adapter is kept from one program to the next.
export MESA_SHADER_CACHE_DIR=${CARGO_TARGET_DIR:-$PWD/target}/shaders
mkdir -p "$MESA_SHADER_CACHE_DIR"

# The same packages and features each time: other ones would have wgpu and all above it built again.
parts=(-p forerun-backend-wgpu -p forerun-devices -p forerun-doctor)
features=forerun-backend-wgpu/device,forerun-devices/wgpu
all=(--release --locked "${parts[@]}" -p forerun-cli --features "$features,forerun-cli/wgpu")
cargo clippy --release --locked "${parts[@]}" --features "$features" --all-targets -- -D warnings
tests=(conform kernels models bounded partitions dispatches host)
cargo test "${all[@]}" --lib "${tests[@]/#/--test=}"
cargo test "${all[@]}" --test cli wgpu::

tests/apple.sh || {
    [ $? = 77 ] || exit 1
    echo "tests/wgpu.sh: the types of the build for macOS were NOT checked" >&2
}
