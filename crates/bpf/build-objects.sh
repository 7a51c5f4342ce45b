#!/bin/sh
# Builds crates/bpf/objects/*.o from src/programs/*.bpf.c, or with --check: rebuilds and compares.
#
# Nobody needs clang to build hairpin: the objects are committed. Whoever changes a program runs this script and
# commits both. The bytes depend on the compiler, so only the one of the committed objects writes and compares them. With
# --check, another one of the range below shows that the programs compile without a warning, and nothing is compared.
#   exit 0  built, or the same     exit 1  differs (or does not compile)     exit 2  compiled, not compared
#   exit 3  the compiler is missing
set -eu
cd "$(dirname "$0")"
wanted=14 # Debian 12
range="14 15 16 17 18 19" # Debian 13 has 19

# The first of the named programs with this major version.
find_version() {
    for candidate in "$1-$2" "$1"; do
        if command -v "$candidate" >/dev/null && "$candidate" --version | grep -q "version $2\."; then
            echo "$candidate"
            return
        fi
    done
}

if [ $# -gt 1 ] || [ "${1:---check}" != --check ]; then
    echo "usage: build-objects.sh [--check]" >&2
    exit 1
fi
for version in $range; do
    clang=$(find_version clang "$version")
    strip=$(find_version llvm-strip "$version")
    if [ -n "$clang" ] && [ -n "$strip" ]; then
        break
    fi
done
if [ -z "$clang" ] || [ -z "$strip" ]; then
    echo "build-objects.sh: clang and llvm-strip of one version from 14 to 19 are missing (Debian: apt-get install clang llvm)" >&2
    exit 3
fi
if [ "$version" != "$wanted" ] && [ $# -eq 0 ]; then
    echo "build-objects.sh: the objects to commit come from clang $wanted (Debian 12: apt-get install clang llvm); here is $version" >&2
    exit 3
fi

to=objects
if [ "${1:-}" = --check ]; then
    to=$(mktemp -d)
    trap 'rm -rf "$to"' EXIT
fi

status=0
for source in src/programs/*.bpf.c; do
    object=$(basename "$source" .bpf.c).o
    # -g is for BTF, which describes the maps and the functions; the strip keeps that and drops DWARF. The line table
    # stays, so an edited comment changes the object too: verifier messages quote the source.
    "$clang" -target bpfel -mcpu=v3 -O2 -g -std=gnu11 -fno-strict-aliasing -Wall -Wextra -Werror \
        -ffile-prefix-map="$PWD=." -fdebug-compilation-dir=. -c "$source" -o "$to/$object"
    "$strip" --strip-debug --remove-section=.llvm_addrsig "$to/$object"
    if [ "$to" != objects ] && [ "$version" = "$wanted" ] && ! cmp -s "$to/$object" "objects/$object"; then
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
if [ "$status" = 0 ] && [ "$version" != "$wanted" ]; then
    echo "  SKIP  objects: compiled with clang $version; only clang $wanted makes the committed bytes, so nothing was compared"
    exit 2
fi
exit $status
