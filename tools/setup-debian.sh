#!/usr/bin/env bash
# Installs what fp8attn needs to build on Debian 12 (Ubuntu names the packages alike). Safe to run again. It does not
# install CUDA: for the CUDA backend put nvcc 12.8 or newer on PATH (or in /usr/local/cuda); without it only the CPU
# backend is built.
set -euo pipefail

packages=(
  cmake ninja-build g++    # g++ brings OpenMP's runtime
  libfmt-dev               # messages
  libcli11-dev             # the program's command line
  nlohmann-json3-dev       # its --json output, and .safetensors headers
  libgtest-dev             # tests
  python3                  # the scripts in tools/ and the machine-code test
  git clang-format         # version 14 on Debian 12; for tools/check_format.sh
)

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if (( ${#missing[@]} == 0 )); then
  echo "setup-debian: nothing to install"
  exit 0
fi

as_root=()
if (( EUID != 0 )); then
  command -v sudo >/dev/null || { echo "setup-debian: run this as root, or install sudo" >&2; exit 1; }
  as_root=(sudo)
fi
echo "setup-debian: installing ${missing[*]}"
"${as_root[@]}" apt-get update -q
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
