#!/bin/bash
# Tests and times the CUDA backend on a machine that has a Hopper GPU but need not have a compiler.
#
#   tools/gpu.sh stage [build folder]     build (if there is no build yet) and collect in stage/ what the GPU machine needs
#   tools/gpu.sh run [bench arguments]    there: correctness first, then timing. Logs and JSON go to ${OUT:-stage/out}
#
# GTEST_FILTER restricts the tests, CASES=<file> picks the benchmark (default bench/cases/quick.json), SANITIZE=1 adds the
# compute-sanitizer matrix, SKIP_TESTS=1 and SKIP_BENCH=1 leave a part out.
set -euo pipefail
cd "$(dirname "$0")/.."

stage() {
  local build=${1:-build}
  [ -f "$build/CMakeCache.txt" ] || cmake -S . -B "$build" -G Ninja
  cmake --build "$build" --target fp8attn_cli fp8attn_cuda_tests
  mkdir -p stage
  find "$build" -type f -perm -u+x \( -name fp8attn -o -name fp8attn_cuda_tests \) -exec cp {} stage/ \;
  cp bench/cases/*.json stage/
  ldd stage/fp8attn stage/fp8attn_cuda_tests
}

run() {
  local out=${OUT:-stage/out} failed=0
  mkdir -p "$out"
  nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,power.limit --format=csv | tee "$out/machine.txt"
  if [ -z "${SKIP_TESTS:-}" ]; then
    stage/fp8attn_cuda_tests --gtest_brief=1 >"$out/tests.log" 2>&1 || failed=1
    grep -E '^\[ +FAILED|Failure|^class|passed|PASSED|skipped' "$out/tests.log" | tail -60
  fi
  if [ -n "${SANITIZE:-}" ]; then
    for tool in memcheck racecheck initcheck synccheck; do
      echo "== compute-sanitizer $tool"
      # docs/kernels/mla_decode.md, "What is left", says what these two report of MLA decode.
      case "$tool" in racecheck | synccheck) filter='*Sanitizer*:-*Mla*' ;; *) filter='*Sanitizer*' ;; esac
      compute-sanitizer --tool "$tool" --error-exitcode 1 stage/fp8attn_cuda_tests --gtest_brief=1 \
        --gtest_filter="$filter" >"$out/$tool.log" 2>&1 || failed=1
      tail -n 2 "$out/$tool.log"
    done
  fi
  if [ -z "${SKIP_BENCH:-}" ]; then
    stage/fp8attn bench --cases "stage/$(basename "${CASES:-quick.json}")" --json "$out/bench.json" "$@" || failed=1
  fi
  return $failed
}

case "${1:-}" in
  stage) shift; stage "$@" ;;
  run) shift; run "$@" ;;
  *) sed -n '2,9p' "$0"; exit 2 ;;
esac
