#!/usr/bin/env bash
# Measures all allocators on a machine with a card: run_on_gpu.sh FOLDER, from the repository.
#
# Needs g++, nvcc and python3 there, and the wheels of vramkit, rmm-cu13, librmm-cu13, rapids-logger
# and whatever else that python3 lacks in .gpu. Builds in .gpu/build, takes at most 420 s (seconds
# can be set as the second argument), and writes FOLDER/allocators.json, rmm_NAME.json for each
# resource of RMM, python.json and log.txt. A part that fails or times out is noted in the log and
# never tried again; the others go on. Status 0: every part went well.
set -u
cd "$(dirname "$0")/.." || exit 2
if [ $# -lt 1 ]; then
    echo "usage: benchmarks/run_on_gpu.sh FOLDER [SECONDS]" >&2
    exit 2
fi
mkdir -p "$1" || exit 2
out=$(cd "$1" && pwd)
limit=${2:-420}
site=.gpu/site
build=.gpu/build
kernels=src/vramkit/driver/kernels.ptx
failed=0
SECONDS=0

say() { echo "==> ${SECONDS} s: $*"; }

# part NAME MOST COMMAND...: at most MOST seconds, and never past the limit of the whole. In the
# command @LIMIT@ becomes two seconds less than that, for a program that ends itself in good order.
part() {
    local name=$1 most=$2 left=$((limit - SECONDS - 2))
    shift 2
    if [ "$left" -lt "$most" ]; then most=$left; fi
    if [ "$most" -lt 5 ]; then
        say "no time left for $name"
        failed=1
        return 1
    fi
    say "$name (at most $most s)"
    timeout -k 2 "$most" "${@//@LIMIT@/$((most - 2))}" </dev/null
    local status=$?
    [ $status -eq 0 ] && return 0
    say "$name ended with status $status"
    failed=1
    return $status
}

unpack() {
    rm -rf "$site"
    mkdir -p "$site"
    for wheel in .gpu/*.whl; do python3 -m zipfile -e "$wheel" "$site" || return 1; done
}

# All sources at once, each to its own object; the link of one program does not need the other's.
compile() {
    rm -rf "$build"
    mkdir -p "$build"
    local common="-std=c++20 -O2 -DNDEBUG -Inative -Ibenchmarks/native"
    local rmm="-I$site/librmm/include -I$site/librmm/include/rapids -I$site/rapids_logger/include"
    {
        # The slowest first.
        echo "nvcc -std=c++20 -O2 -DNDEBUG $rmm -c benchmarks/native/rmm_peer/rmm_resources.cpp" \
            "-o $build/rmm_resources.o"
        for source in benchmarks/native/rmm_peer/rmm_allocators.cpp benchmarks/native/allocators.cpp \
            $(find native/base native/driver native/pool -name "*.cpp"); do
            echo "g++ $common -c $source -o $build/$(echo "${source%.cpp}" | tr / _).o"
        done
    } | xargs -P "$(nproc)" -I{} sh -c '{} || { echo "failed: {}"; exit 1; }'
}

link_ours() {
    g++ "$build"/native_*.o "$build/benchmarks_native_allocators.o" -ldl -lpthread \
        -o "$build/allocators"
}

link_rmm() {
    local folders="$PWD/$site/librmm/lib64:$PWD/$site/rapids_logger/lib64"
    nvcc "$build"/native_driver_*.o "$build/benchmarks_native_rmm_peer_rmm_allocators.o" \
        "$build/rmm_resources.o" "-L$site/librmm/lib64" "-L$site/rapids_logger/lib64" \
        -lrmm -lrapids_logger -ldl -lpthread -Xlinker "-rpath,$folders" -o "$build/rmm_allocators"
}

# Ours first, then the peers from Python, each of which has a limit of its own, then RMM's resources
# from the quickest to the slowest.
measure() {
    nvidia-smi --query-gpu=name,driver_version,memory.used,clocks.sm --format=csv,noheader
    nproc
    part "unpacking the wheels" 30 bash -c "site=$site; $(declare -f unpack); unpack"
    part "compiling" 75 bash -c "site=$site; build=$build; $(declare -f compile); compile"
    if part "linking ours" 10 bash -c "build=$build; $(declare -f link_ours); link_ours"; then
        part "our pool" 100 "$build/allocators" --driver cuda --kernels "$kernels" \
            --time-limit @LIMIT@ --json "$out/allocators.json"
    fi
    part "Python" 130 env PYTHONPATH="$PWD/$site" PYTHONUNBUFFERED=1 \
        python3 benchmarks/python_allocators.py --time-limit @LIMIT@ --output "$out/python.json"
    if part "linking RMM's" 20 \
        bash -c "site=$site; build=$build; $(declare -f link_rmm); link_rmm"; then
        for name in binning async arena pool; do
            part "RMM's $name" 45 "$build/rmm_allocators" --driver cuda --kernels "$kernels" \
                --only "rmm_$name/*" --time-limit @LIMIT@ --json "$out/rmm_$name.json"
        done
    fi
    say "done"
    return $failed
}

set -o pipefail
measure 2>&1 | tee "$out/log.txt"
