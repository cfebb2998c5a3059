#!/usr/bin/env bash
# gpu.sh [TEST OPTIONS]: compares the tensor operations on a GPU with the CPU kernels, for every preset: logits and the
# gradient of every parameter. wgpu chooses the device; CUBECL_WGPU_DEFAULT_DEVICE overrides its choice. Without a GPU,
# use Mesa's software Vulkan: apt-get install mesa-vulkan-drivers libvulkan1
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo test --release -p falcon-nn --features wgpu --test engines -- "$@"
