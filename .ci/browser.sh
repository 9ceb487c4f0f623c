#!/usr/bin/env bash
# Chromium, in which the report page is tested. Debian's package; needs root; does nothing where it is there.
set -euo pipefail

if command -v "${CHROMIUM:-chromium}" >/dev/null; then
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium >/dev/null
