#!/usr/bin/env bash
# Installs what tests of several machines need, `ip` and `sshd`, from Debian's packages. Needs root. Fails where
# networks cannot be created.
set -euo pipefail

if ! command -v ip >/dev/null || ! [ -x /usr/sbin/sshd ] || ! command -v ssh >/dev/null; then
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends iproute2 openssh-server openssh-client >/dev/null
fi
unshare --net --mount --pid --fork --kill-child ip link add name probe0 type bridge
