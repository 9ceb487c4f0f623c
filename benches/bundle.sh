# A folder for a machine with a GPU but without cargo: how it is made, and how programs run from it.
# shellcheck shell=bash disable=SC2034,SC2154

# Builds programs (cargo's kind and name of each) with the current `flags` and `prefix`, each into
# FOLDER/programs/PREFIXkind-name.
gather() {
    local program targets=() path
    for program in "$@"; do targets+=(--"${program% *}" "${program#* }"); done
    cargo test --no-run "${flags[@]}" "${targets[@]}" || return
    for program in "$@"; do
        path=$(cargo test --no-run "${flags[@]}" --"${program% *}" "${program#* }" 2>&1 |
            sed -nE 's/^ *Executable .*\((.*)\)$/\1/p')
        strip -o "$folder/programs/$prefix${program/ /-}" "$path" || return
    done
}

# Packs all programs into one archive. Most of each is LLVM and Burn, the same in all of them: a dictionary that
# holds several programs makes the second and later ones small. Needs 8 GB of memory here, and 800 MB there.
pack() {
    tar -C "$folder/programs" -c . | xz -T1 --lzma2=preset=6,dict=768MiB >"$folder/programs.tar.xz" || return
    rm -r "$folder/programs"
}

# Makes the folder for the wanted sections: their programs, the scripts, PyTorch's side, and what is known of the build.
bundle() {
    local name began=$SECONDS plain fused
    for name in "${wanted[@]}"; do section "$name"; done
    rm -rf "$folder/programs"
    mkdir -p "$folder/programs" "$folder/pytorch"
    cp benches/gpu.sh benches/report.sh benches/bundle.sh "$folder"
    cp benches/pytorch/device.py "$folder/pytorch"
    mapfile -t plain < <(printf '%s\n' "${needed[@]}" | grep -v '^fused-' | sort -u)
    mapfile -t fused < <(printf '%s\n' "${needed[@]}" | sed -n 's/^fused-//p' | sort -u)
    prefix=""
    flags nccl
    if [ -n "${plain[*]}" ]; then gather "${plain[@]}" || return; fi
    fuse
    if [ -n "${fused[*]}" ]; then gather "${fused[@]}" || return; fi
    pack || return
    built >"$folder/built.md"
    printf '%s\n' "${wanted[@]}" >"$folder/sections"
    # CubeCL's default allocator waits for the whole device when it frees memory.
    printf '[memory.cuda]\nallocator = "async"\n' >"$folder/cubecl.toml"
    echo "$folder: $(du -sm "$folder" | cut -f 1) MB, built and packed in $((SECONDS - began)) s" >&2
}

# Unpacks the programs of the folder, unless they are there.
unpack() {
    [ -d programs ] && return
    mkdir -p unpacking && xz -dc programs.tar.xz | tar -C unpacking -x && mv unpacking programs
}

# Links what programs open at run time to where they look for it: NCCL (PyTorch's copy), libdevice (Triton's).
libraries() {
    local found
    mkdir -p lib/nvvm/libdevice
    found=$("$python" -c 'import nvidia.nccl as m; print(list(m.__path__)[0])' 2>/dev/null) &&
        ln -sf "$found/lib/libnccl.so.2" lib/libnccl.so
    export LD_LIBRARY_PATH=$PWD/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
    [ -e "${CUDA_PATH:-/usr/local/cuda}/nvvm/libdevice/libdevice.10.bc" ] && return
    found=$("$python" -c 'import triton as m; print(list(m.__path__)[0])' 2>/dev/null) &&
        ln -sf "$found/backends/nvidia/lib/libdevice.10.bc" lib/nvvm/libdevice &&
        export CUDA_PATH=$PWD/lib
}

# Runs the sections, each into results/NAME.md. Sections that an earlier call finished are left out. One that is cut
# off by the time limit is begun again by the next call, unless it was the first of its call: then it needs more time
# than a call has, and what it printed stays.
slices() {
    local name first=true
    mkdir -p results
    for name in "${wanted[@]}"; do
        [ -e "results/$name.md" ] && continue
        if [ -n "$deadline" ] && ((deadline - SECONDS < 30)); then break; fi
        out=results/$name.part cut_off=false
        described "$name"
        section "$name"
        if $cut_off && ! $first; then break; fi
        mv "$out" "results/$name.md"
        first=false
    done
    for name in "${wanted[@]}"; do
        [ -e "results/$name.md" ] || { echo "call again: $name and what follows are left" >&2; return; }
    done
    echo "all sections have run" >&2
}
