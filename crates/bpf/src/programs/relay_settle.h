// A flow moves from user space to the kernel without overtaking itself: what came before its entry was made may still wait in a
// socket's buffer there. So a new entry is used only after a pause in the flow that is longer than user space takes; of a flow
// that makes none, after a while all the same, and then what waits is overtaken, once.
#pragma once
#include "relay_maps.h"

// In units of 1,024 ns, which fit 32 bits for more than an hour.
enum { SETTLE_PAUSE = 2000, SETTLE_AT_LAST = 200000 };

// In a slot of SETTLING: that no packet of the flow has been seen yet; later, when the first and the last of those that passed
// to user space were, in its upper and lower half.
enum { SETTLE_FRESH = 1 };

// Whether the entry may be used. Its packets mostly come in on one processor; where they do not, the worst is a pause unnoticed.
static NOINLINE int settle(struct entry *entry)
{
    if (!entry)
        return 0;
    u32 counter = entry->counter;
    u64 *slot = map_lookup(&SETTLING, &counter);
    if (!slot)
        return 0;
    u64 was = *slot;
    // Never 0, so that no time looks settled or fresh.
    u32 now = (u32)(ktime_get_ns() >> 10) | 1;
    u32 first = was >> 32, last = (u32)was;
    if (was == SETTLE_FRESH) {
        *slot = (u64)now << 32 | now;
        return 0;
    }
    if (was && now - last <= SETTLE_PAUSE && now - first <= SETTLE_AT_LAST) {
        *slot = (u64)first << 32 | now;
        return 0;
    }
    *slot = 0;
    entry->label_and_flags |= SETTLED;
    return 1;
}

INLINE int is_settled(const struct entry *entry)
{
    return entry->label_and_flags & SETTLED ? 1 : settle((struct entry *)entry);
}
