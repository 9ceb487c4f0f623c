#!/usr/bin/env bash
# Installs Chromium, which the tests of the report page use, from Debian's package. Needs root; does nothing if it
# is installed.
set -euo pipefail

if command -v "${CHROMIUM:-chromium}" >/dev/null; then
    exit 0
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
apt-get install -y -qq --no-install-recommends chromium >/dev/null
