//! What an allocation costs in user memory, and that it is given back.
//!
//! The allocator counts for the whole process, so the tests here take turns, on one thread, with a server that runs on
//! it, too.

mod common;

use common::local::Crowd;
use common::{measure_alone, resident};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// Bytes per allocation, with a permission and a channel, when there are so many: of heap as it was asked for, and of
/// resident memory, in which the allocator's own share and whole pages count.
fn bytes_per_allocation(count: usize) -> (isize, u64) {
    let mut crowd = Crowd::new();
    let mut held = 0;
    let before = resident();
    crowd.allocate(0..count, &mut |turn| {
        let region = Region::new(ALLOCATOR);
        turn();
        let change = region.change();
        held += change.bytes_allocated as isize - change.bytes_deallocated as isize;
    });
    let grown = resident().saturating_sub(before);
    assert_eq!(crowd.server.stats().engine.channels, count as u64);
    (held / count as isize, grown / count as u64)
}

/// The answers kept for retransmissions are part of it; 40 seconds later it would be a quarter less.
#[test]
fn an_allocation_with_a_permission_and_a_channel_takes_at_most_600_bytes() {
    let _alone = measure_alone();
    for count in [1_000, 10_000] {
        let (heap, resident) = bytes_per_allocation(count);
        println!("{count} allocations: {heap} bytes of heap each, {resident} resident");
        assert!(heap <= 600, "{heap}");
        // The worker's own buffers are touched page by page as more arrives at a time, a few hundred kilobytes in all:
        // too much to tell apart from a thousand allocations.
        assert!(count < 10_000 || resident <= 620, "{resident}");
    }
}

#[test]
fn memory_is_flat_when_allocations_come_and_go() {
    const AT_ONCE: usize = 500;
    let _alone = measure_alone();
    let mut crowd = Crowd::new();
    let mut rounds = |count: usize| {
        for _ in 0..count {
            crowd.allocate(0..AT_ONCE, &mut |turn| turn());
            crowd.release(0..AT_ONCE, &mut |turn| turn());
        }
        crowd.server.stats()
    };
    // By then as many answers wait for retransmissions as ever will.
    rounds(12);
    let before = resident();
    let stats = rounds(40);
    let grown = resident().saturating_sub(before);
    println!("20,000 allocations have come and gone: {grown} bytes more");
    assert_eq!((stats.relays_open, stats.engine.allocations), (0, 0));
    assert!(grown <= 1 << 20, "{grown}");
}
