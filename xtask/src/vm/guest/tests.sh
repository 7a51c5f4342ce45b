#!/bin/busybox sh
# tests.sh BINARY [ARGUMENT..]: runs a test binary. A test that skips itself is no success here: this machine has all it needs.
binary=$1; shift
export HAIRPIN_TESTS_SKIPPED=/tmp/skipped
export HAIRPIN_TEST_DATAGRAMS=1200 # of the test data_paths: its own number takes minutes without KVM
export HAIRPIN_TEST_ALLOCATIONS=100
rm -f /tmp/skipped
"$binary" --list "$@" | sed -n 's/^\(.*\): test$/@test \1/p'
"$binary" --test-threads=2 "$@" 2>&1
status=$?
# A reason may have many lines; the name is before the first one.
[ -f /tmp/skipped ] && sed -n "s/^$binary: /@skipped /p" /tmp/skipped
exit $status
