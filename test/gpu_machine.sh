#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Everything that needs a GPU, on a machine that has one: test/gpu_machine.sh RESULTS [build] [test] [sanitize] [conflicts]
#   [examples] [frameworks] [bench]
#
# Builds in $BUILD (default: a folder beside RESULTS) for the GPU that is there, runs the GPU tests with GIWA_REQUIRE_GPU=1,
# then the same tests under each tool of compute-sanitizer with small sizes, counts bank conflicts with Nsight Compute, and runs
# the examples, those in Python whose framework is installed for $PYTHON (default: python3), and the benchmarks
# (bench/report.py). Logs, JUnit and the report go to RESULTS; a summary is printed last. Without a list of steps it runs all.
set -u
cd "$(dirname "$0")/.."
results=$(mkdir -p "${1:?where the results go}" && cd "$1" && pwd); shift
build=${BUILD:-$results/build}
steps=" ${*:-build test sanitize conflicts examples frameworks bench} "
for s in $steps; do
  case $s in build|test|sanitize|conflicts|examples|frameworks|bench) ;; *) echo "gpu_machine.sh: no step $s" >&2; exit 2;; esac
done
failed=0
summary=()
step() { # name, log, command
  local name=$1 log=$results/$2.log; shift 2
  local begin=$SECONDS
  if timeout "${STEP_SECONDS:-900}" "$@" >"$log" 2>&1; then
    summary+=("ok      $name ($((SECONDS - begin)) s): $(grep -E 'tests passed|tests failed' "$log" | tail -n 1)")
  else
    summary+=("FAILED  $name ($((SECONDS - begin)) s), see $log")
    failed=1
    grep -nE 'error|FAILED|Failed|\*\*\*|=========' "$log" | head -n 40
    tail -n 25 "$log"
  fi
}
wants() { [[ $steps == *" $1 "* ]]; }

if wants build; then
  generator=(); command -v ninja >/dev/null && generator=(-G Ninja)
  step configure configure cmake -S . -B "$build" "${generator[@]}" -DGIWA_TEST_LAUNCHER= -DGIWA_TEST_ALL_PAIRS=ON
  step build build cmake --build "$build" -j "$(nproc)" -- -k 0
fi
export GIWA_REQUIRE_GPU=1
if wants test; then
  step "GPU tests" test ctest --test-dir "$build" -L gpu --output-on-failure --no-tests=error \
    --output-junit "$results/gpu_tests.xml"
fi
if wants sanitize; then
  for tool in memcheck initcheck racecheck synccheck; do
    if ! cmake -S . -B "$build" "-DGIWA_TEST_LAUNCHER=compute-sanitizer;--tool;$tool;--report-api-errors;no;--error-exitcode;9" >/dev/null; then
      summary+=("FAILED  compute-sanitizer $tool: CMake did not put it before the tests"); failed=1
      continue
    fi
    leave_out=(); [ "$tool" = racecheck ] && leave_out=(-LE no_racecheck)
    GIWA_TEST_SMALL=1 step "compute-sanitizer $tool" "$tool" \
      ctest --test-dir "$build" -L gpu "${leave_out[@]}" -j 4 --output-on-failure --no-tests=error
  done
  cmake -S . -B "$build" -DGIWA_TEST_LAUNCHER= >/dev/null
fi
if wants conflicts && command -v ncu >/dev/null; then
  step "bank conflicts" bank_conflicts python3 test/gpu/tile/bank_conflicts.py "$build/test/bank_conflicts"
  cat "$results/bank_conflicts.log"
fi
if wants examples; then
  for example in "$build"/examples/example_*; do
    [ -x "$example" ] && [ -f "$example" ] && step "$(basename "$example")" "$(basename "$example")" "$example"
  done
fi
if wants frameworks; then
  python=${PYTHON:-python3}
  export TORCH_EXTENSIONS_DIR=${TORCH_EXTENSIONS_DIR:-$build/torch_extensions} GIWA_JAX_CACHE=${GIWA_JAX_CACHE:-$build/jax}
  for script in pytorch/test_giwa_torch:torch pytorch/test_giwa_torch_flash:torch pytorch/test_giwa_torch_ring:torch pytorch/test_language_model:torch pytorch/test_giwa_transformers:transformers jax/test_giwa_jax:jax python/cupy_kernel:cupy python/numba_kernel:cupy; do
    name=$(basename "${script%:*}")
    if "$python" -c "import ${script#*:}" 2>/dev/null; then
      step "$name" "$name" "$python" "examples/${script%:*}.py"
      cat "$results/$name.log"
    else
      summary+=("left out $name: no ${script#*:} for $python")
    fi
  done
fi
if wants bench; then
  STEP_SECONDS=${STEP_SECONDS:-1800} step benchmarks benchmarks python3 bench/report.py "$results" --build "$build"
  cat "$results/benchmarks.log"
fi
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null
git log -1 --format='commit %h %cd' 2>/dev/null
if wants conflicts && ! command -v ncu >/dev/null; then summary+=("left out bank conflicts: no ncu"); fi
if [ ${#summary[@]} -eq 0 ]; then summary+=("FAILED  nothing was run"); failed=1; fi
printf '%s\n' "${summary[@]}"
exit $failed
