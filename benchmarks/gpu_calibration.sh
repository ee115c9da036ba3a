#!/usr/bin/env bash
# Calibrate the device at hand and judge the result on its own unseen points: measure, fit, evaluate, overlap, one table.
# Then serve a small real model live and hold it against its prediction (`membound validate --live`).
# Usage: benchmarks/gpu_calibration.sh [DEVICE] [BUDGET_SECONDS] [FOLDER] [LIVE_SECONDS]
#        default: cuda:0 300 out/gpu_calibration 120; LIVE_SECONDS 0 leaves the serving out
# A run that was stopped goes on where it was. `benchmarks/gpu_calibration.sh cpu 60` takes the same path without a GPU.
set -euo pipefail
cd "$(dirname "$0")/.."
python=.venv/bin/python
[ -x "$python" ] || make --silent .venv/.base-installed
"$python" -c 'import torch' 2>/dev/null || "$python" -m pip install --quiet --editable '.[calibrate]'
exec "$python" benchmarks/gpu_calibration.py "${1:-cuda:0}" "${2:-300}" "${3:-out/gpu_calibration}" "${4:-120}"
