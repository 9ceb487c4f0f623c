# Functions that `run.sh` and `gpu.sh` share: they run commands and write their output to the file `$out`.
# `$profile` holds cargo's profile flags; `$failed` becomes 1 if a command fails, `$cut_off` becomes true if one is
# stopped at the `$deadline` (a value of SECONDS; empty: never).
# shellcheck shell=bash disable=SC2034,SC2154

# Runs a command; writes it with its output and its seconds.
run() {
    local began=$SECONDS status=0 limit=()
    if [ -n "${deadline:-}" ]; then limit=(timeout -k 5 "$((deadline > SECONDS ? deadline - SECONDS : 1))"); fi
    echo "running: $*" >&2
    printf '`%s`\n\n```text\n' "$*" >>"$out"
    "${limit[@]}" "$@" >>"$out" 2>&1 </dev/null || status=$?
    printf '```\n\n%s s' "$((SECONDS - began))" >>"$out"
    if [ ${#limit[@]} -gt 0 ] && [ "$status" -eq 124 ]; then
        printf '; **cut off**' >>"$out"
        cut_off=true
    elif [ "$status" -ne 0 ]; then
        printf '; **failed, status %s**' "$status" >>"$out"
        echo "failed, status $status: $*" >&2
        failed=1
    fi
    printf '\n\n' >>"$out"
}

# Builds what a command runs, so that the command's seconds do not include the build. If the build fails, the
# command fails too and says why.
build() {
    local arguments=() argument
    for argument in "$@"; do
        if [ "$argument" = -- ]; then break; fi
        arguments+=("$argument")
    done
    echo "building: ${arguments[*]}" >&2
    "${arguments[@]}" >/dev/null 2>&1 </dev/null || true
}

bench() {
    build cargo bench -q "${profile[@]}" --no-run "$@"
    run cargo bench -q "${profile[@]}" "$@"
}
example() {
    build cargo build -q "${profile[@]:---release}" --example "$@"
    run cargo run -q "${profile[@]:---release}" --example "$@"
}
tests() {
    build cargo test -q --no-run "$@"
    run cargo test -q "$@"
}
has_mpi() { command -v mpirun >/dev/null; }

# Commit and compiler of what runs here.
built() {
    local changed=""
    git diff --quiet HEAD 2>/dev/null || changed=", with changes that are not committed"
    printf -- '- commit: `%s`%s\n' "$(git rev-parse HEAD 2>/dev/null || echo unknown)" "$changed"
    printf -- '- compiler: %s\n' "$(rustc --version)"
}

hardware() {
    local cpu memory
    cpu=$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo 2>/dev/null | head -n 1)
    memory=$(sed -nE 's/^MemTotal: *([0-9]+) kB/\1/p' /proc/meminfo 2>/dev/null)
    printf -- '- processor: %s, %s cores\n' "${cpu:-$(uname -m)}" "$(getconf _NPROCESSORS_ONLN)"
    printf -- '- memory: %s\n' "${memory:+$((memory / 1024 / 1024)) GiB}"
    printf -- '- system: %s; load when it began: %s\n' "$(uname -sr)" "$(cut -d ' ' -f 1-3 /proc/loadavg 2>/dev/null)"
}

# Writes date, commit and hardware.
head_of_file() {
    printf '# Measured on %s\n\n' "$(date -u '+%Y-%m-%d %H:%M UTC')"
    if [ -e built.md ]; then cat built.md; else built; fi
    hardware
    printf '\nEach block holds what the command above it printed.\n\n'
}
