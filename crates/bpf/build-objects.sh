#!/bin/sh
# Builds crates/bpf/objects/*.o from src/programs/*.bpf.c, or with --check: rebuilds and compares.
#
# Nobody needs clang to build hairpin: the objects are committed. Whoever changes a program runs this script and
# commits both. The bytes depend on the compiler, so both modes insist on the one the committed objects come from.
#   exit 0  built, or the same     exit 1  differs (or does not compile)     exit 3  the compiler is missing
set -eu
cd "$(dirname "$0")"
wanted=14 # Debian 12

for candidate in "clang-$wanted" clang; do
    if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q "version $wanted\."; then
        clang=$candidate
        break
    fi
done
for candidate in "llvm-strip-$wanted" llvm-strip; do
    if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q "version $wanted\."; then
        strip=$candidate
        break
    fi
done
if [ -z "${clang:-}" ] || [ -z "${strip:-}" ]; then
    echo "build-objects.sh: clang $wanted and llvm-strip $wanted are needed (Debian 12: apt-get install clang llvm)" >&2
    exit 3
fi

to=objects
if [ "${1:-}" = --check ]; then
    to=$(mktemp -d)
    trap 'rm -rf "$to"' EXIT
elif [ $# -gt 0 ]; then
    echo "usage: build-objects.sh [--check]" >&2
    exit 1
fi

status=0
for source in src/programs/*.bpf.c; do
    object=$(basename "$source" .bpf.c).o
    # -g is for BTF, which describes the maps and the functions; the strip keeps that and drops DWARF. The line table
    # stays, so an edited comment changes the object too: verifier messages quote the source.
    "$clang" -target bpfel -mcpu=v3 -O2 -g -std=gnu11 -Wall -Wextra -Werror \
        -ffile-prefix-map="$PWD=." -fdebug-compilation-dir=. -c "$source" -o "$to/$object"
    "$strip" --strip-debug --remove-section=.llvm_addrsig "$to/$object"
    if [ "$to" != objects ] && ! cmp -s "$to/$object" "objects/$object"; then
        echo "build-objects.sh: objects/$object is not what $source compiles to; run crates/bpf/build-objects.sh and commit it" >&2
        status=1
    fi
done
if [ "$to" != objects ]; then
    for object in objects/*.o; do
        if [ ! -e "src/programs/$(basename "$object" .o).bpf.c" ]; then
            echo "build-objects.sh: $object has no source" >&2
            status=1
        fi
    done
fi
exit $status
