#!/usr/bin/env bash
# Installs Open MPI with its headers, and libclang, which reads them when the crate `mpi` is built, from Debian's
# packages. Needs root; does nothing if both are installed.
set -euo pipefail

if command -v mpirun >/dev/null && command -v mpicc >/dev/null && ls /usr/lib/llvm-*/lib/libclang*.so* >/dev/null 2>&1; then
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends libopenmpi-dev openmpi-bin libclang-dev >/dev/null
