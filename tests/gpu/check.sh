#!/usr/bin/env bash
# Compares the masks that logits_processors writes on a CUDA device with those that it writes on the CPU, and shows how long
# they take. Needs a Python (PYTHON, or python3) with torch for CUDA, Triton, nanobind, scikit-build-core, cmake and
# ninja, and g++; no network, and no vLLM. Installs nothing: builds into a folder of its own, and removes it.
set -euo pipefail
root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
python="${PYTHON:-python3}"

work="$(mktemp -d)"
trap 'rm -rf "$work"' EXIT
cp -r "$root/logits_processors" "$work/source"
timeout 120 "$python" -m pip install --quiet --no-index --no-build-isolation --no-deps --target "$work/site" "$work/source"
cd "$work"
export PYTHONPATH="$work/site" TRITON_CACHE_DIR="$work/triton"
timeout 170 "$python" "$root/tests/gpu/cuda_against_cpu.py"
