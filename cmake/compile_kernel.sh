#!/bin/sh
# Runs nvcc and fails where the machine code is not what the kernels were written for: a register spilled to memory, a
# chain of wgmma serialised, a register budget ignored. ptxas only mentions these.
log=$(mktemp) || exit 1
trap 'rm -f "$log"' EXIT
"$@" >"$log" 2>&1
status=$?
grep -vE '^ptxas info|bytes stack frame, ' "$log" >&2
if [ "$status" -ne 0 ]; then
  exit "$status"
fi
if grep -E 'C7508|C7510|C7511|C7512|C7514|C7517|C7518|C7519|C7520|Potential Performance Loss' "$log" >&2 ||
  grep -E '[1-9][0-9]* bytes spill (stores|loads)' "$log" >&2; then
  grep 'Compiling entry function' "$log" >&2
  echo "error: the kernel above spills registers, or its wgmma or setmaxnreg was not honoured" >&2
  exit 1
fi
