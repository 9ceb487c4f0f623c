#!/usr/bin/env bash
# Lets Burn's features `cpu` and `cuda` build where CubeCL's own LLVM bundle cannot be downloaded.
#
# Both need `tracel-llvm-bundler`, whose build script downloads LLVM unless its install folder holds a finished
# install. It then runs that install's `bin/llvm-config` to learn what to link. Debian's LLVM serves as the install.
# Needs root; does nothing if the folder exists. Not needed on machines that can download the bundle.
set -euo pipefail

cd "$(dirname "$0")/.."
llvm=22
# The version of `tracel-llvm-bundler` in Cargo.lock names the folder.
version=$(awk '/^name = "tracel-llvm-bundler"/ { getline; gsub(/"/, "", $3); print $3 }' Cargo.lock)
folder="${XDG_DATA_HOME:-$HOME/.local/share}/tracel/tracel-llvm-$version"
if [ -e "$folder/.tracel-llvm-installed" ]; then
    exit 0
fi

export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends \
    "llvm-$llvm-dev" "llvm-$llvm" "libpolly-$llvm-dev" g++ \
    libz3-dev zlib1g-dev libzstd-dev libxml2-dev libffi-dev libncurses-dev >/dev/null

mkdir -p "$folder/bin"
find "/usr/lib/llvm-$llvm" -mindepth 1 -maxdepth 1 ! -name bin -exec ln -sfn -t "$folder" {} +
find "/usr/lib/llvm-$llvm/bin" -mindepth 1 -maxdepth 1 ! -name llvm-config -exec ln -sfn -t "$folder/bin" {} +
# Debian's llvm-config prints libz3 as a path, but the bundler reads only `-l` flags.
printf '#!/bin/sh\n"/usr/lib/llvm-%s/bin/llvm-config" "$@" | sed "s#[^ ]*/libz3\\.so#-lz3#g"\n' "$llvm" >"$folder/bin/llvm-config"
chmod +x "$folder/bin/llvm-config"
touch "$folder/.tracel-llvm-installed"
