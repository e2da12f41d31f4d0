#!/usr/bin/env bash
# Costs on a GPU, as ratios to plain passes there: bash benchmarks/gpu.sh [FILE]
# Needs torch, transformers and peft with CUDA, and this package importable (PYTHONPATH=src).
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-docs/results/cost_gpu.md}
PYTHONPATH=src:. python3 -m benchmarks.cost --device "${DEVICE:-cuda}" --n 512 --repetitions 9 --out "$out"
