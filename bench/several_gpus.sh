#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything of attention on several GPUs, on a machine that has them: bench/several_gpus.sh RESULTS [build] [check] [time] [channels] [torch]
#
# Builds in $BUILD (default: RESULTS/build) with NCCL of $NCCL_ROOT, or of the package that PyTorch brings. `check` runs
# bench/ring_attention check with $REPEATS delayed runs of each case and rank (default 100), the test gpu.multi.ring and the test of
# giwa_torch.ring; `time` all cases of docs/several_gpus.md; `channels` those of long rings with 8 and 4 channels of NCCL; `torch`
# PyTorch's context_parallel compared with giwa_torch.ring. Each step writes RESULTS/STEP.txt, in the form of docs/results. Not run
# on four GPUs yet; $TOKENS (default "131072 32768 8192") and $CALLS (of a measurement) make it shorter.
set -u
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:?where the results go}" && cd "$1" && pwd); shift
build=${BUILD:-$results/build}
steps=" ${*:-build check time channels torch} "
wants() { [[ $steps == *" $1 "* ]]; }
python=${PYTHON:-python3}
nccl=${NCCL_ROOT:-$($python -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null)}
[ -n "$nccl" ] || { echo "several_gpus.sh: no NCCL: set NCCL_ROOT, or install PyTorch" >&2; exit 2; }
export LD_LIBRARY_PATH=$nccl/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} GIWA_REQUIRE_GPU=1
export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0} TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$build/torch_extensions}
gpus=$(nvidia-smi -L | wc -l)
failed=0
ran() { # name, log, command: its output in the log, after the command
  local name=$1 log=$results/$2.txt; shift 2
  echo "# $name: $*" | sed "s#$build/##g" >>"$log"
  timeout "${STEP_SECONDS:-300}" "$@" >>"$log" 2>&1 || { echo "# FAILED ($?)" >>"$log"; echo "FAILED $name: see $log"; failed=1; }
}
if wants build; then
  mkdir -p "$build"
  nvcc -std=c++20 -O3 -gencode arch=compute_90a,code=sm_90a -DWITH_NCCL -Iinclude -Itest -I"$nccl/include" bench/ring_attention.cu \
    -L"$nccl/lib" -l:libnccl.so.2 -o "$build/ring_attention" &
  { cmake -S . -B "$build/tests" -DCMAKE_CUDA_ARCHITECTURES=90a-real -DNCCL_ROOT="$nccl" >"$results/build.txt" &&
    cmake --build "$build/tests" -j "$(nproc)" --target gpu.multi.ring >>"$results/build.txt" 2>&1; } || { echo "FAILED build of gpu.multi.ring"; failed=1; }
  wait $! || { echo "FAILED build of ring_attention"; exit 1; }
fi
ring=$build/ring_attention
shapes() { # the arguments of a case: heads, kv heads, mask
  printf '%s\n' "16 16 causal" "16 16 full" "32 8 causal"
}
if wants check; then
  rm -f "$results/check.txt"
  ran "ring, head-parallel, mesh" check "$ring" check "${REPEATS:-100}"
  ran gpu.multi.ring check "$build/tests/test/gpu.multi.ring"
  ran test_giwa_torch_ring check "$python" examples/pytorch/test_giwa_torch_ring.py
fi
if wants time; then
  rm -f "$results/time.txt"
  { nvidia-smi --query-gpu=name,driver_version --format=csv,noheader; date -u +%F; } | sed 's/^/# /' >"$results/time.txt"
  ran link time "$ring" link
  for tokens in ${TOKENS:-131072 32768 8192}; do
    while read -r heads kv mask; do ran time time "$ring" time "$tokens" "$heads" "$kv" "$mask" "${CALLS:-0}"; done < <(shapes)
    ran steps time "$ring" steps "$tokens" 16
  done
fi
if wants channels; then
  rm -f "$results/channels.txt"
  for channels in 8 4; do
    for tokens in ${TOKENS:-131072 32768}; do
      NCCL_MAX_NCHANNELS=$channels ran "$channels channels" channels "$ring" time "$tokens" 16 16 causal "${CALLS:-0}"
    done
  done
fi
if wants torch; then
  rm -f "$results/torch.txt"
  peer() { ran context_parallel torch "$python" -m torch.distributed.run --nproc-per-node "$gpus" bench/torch/context_parallel.py "$@" --backward; }
  peer ${TOKENS:-131072 32768 8192} --heads 16
  peer ${TOKENS:-131072 32768 8192} --heads 16 --full --no-flash
  peer ${TOKENS:-131072 32768 8192} --heads 32 --kv-heads 8 --no-flash
fi
[ -f "$results/time.txt" ] && "$python" bench/ring_model.py "$results/time.txt" | tee "$results/model.txt"
grep -h FAILED "$results"/*.txt
exit $failed
