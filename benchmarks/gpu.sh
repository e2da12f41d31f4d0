#!/usr/bin/env bash
# What a GPU must show, in one call of under ten minutes:
#
#     bash benchmarks/gpu.sh                                        tests, then build/gpu.md
#     DEVICE=cpu SHAPES=tiny TRAIN_STEPS=1 OUT=build/gpu.md bash benchmarks/gpu.sh
#
# Needs torch, transformers, peft and pytest with CUDA, and the package's other dependencies. TRL
# and bitsandbytes are used where they are installed. PYTHON names the interpreter.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
export PYTHONPATH="src:.${PYTHONPATH:+:$PYTHONPATH}" ISENTROPE_DEVICE="${DEVICE:-cuda}"
python="${PYTHON:-python3}"
failed=0
# The whole call ends within $LIMIT seconds: what is not reached is named in the page.
limit="${LIMIT:-570}"
parallel=$("$python" -c 'import xdist; print("-n auto")' 2>/dev/null || true)
# Tests that hang leave two thirds of it to the table.
OMP_NUM_THREADS=1 timeout "$((limit / 3))" "$python" -m pytest $parallel -q -p no:cacheprovider -W default \
    -m gpu tests/gpu tests/second_device/test_verbs.py || failed=1
"$python" -m benchmarks.gpu --device "$ISENTROPE_DEVICE" --shapes ${SHAPES:-0.5B 1.5B 7B} \
    --train-steps "${TRAIN_STEPS:-5}" --seconds "$((limit - SECONDS))" --out "${OUT:-build/gpu.md}"
exit $failed
