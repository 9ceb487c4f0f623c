#!/usr/bin/env bash
# Installs Mesa's software Vulkan, on which wgpu runs without a GPU, from Debian's packages. Needs root; does
# nothing if it is installed.
set -euo pipefail

if ls /usr/share/vulkan/icd.d/lvp_icd*.json >/dev/null 2>&1; then
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends mesa-vulkan-drivers libvulkan1 >/dev/null
