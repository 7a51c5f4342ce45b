// A flow moves from user space to the kernel without overtaking itself: what came before its entry was made may still wait in a
// socket's buffer there. So a new entry is used only after a pause in the flow that is longer than user space needs. A flow
// without a pause uses it after 0.2 s. Then its datagrams may be reordered once.
#pragma once
#include "relay_flows.h"

// In units of 1,024 ns, which fit 32 bits for more than an hour.
enum { SETTLE_PAUSE = 2000, SETTLE_AT_LAST = 200000 };

// In `settling`: that no packet of the flow has been seen yet; later, when the first and the last of those that passed to
// user space were, in its upper and lower half.
enum { SETTLE_FRESH = 1 };

// Whether the flow may be used. Its packets mostly come in on one processor; where they do not, the worst is a pause unnoticed.
static NOINLINE int settle(struct flow *flow, u32 index)
{
    struct flow_tail *tail = map_lookup(&FLOW_TAILS, &index);
    if (!flow || !tail)
        return 0;
    u64 was = tail->settling;
    // Never 0, so that no time looks settled or fresh.
    u32 now = (u32)(ktime_get_ns() >> 10) | 1;
    u32 first = was >> 32, last = (u32)was;
    if (was == SETTLE_FRESH) {
        tail->settling = (u64)now << 32 | now;
        return 0;
    }
    if (was && now - last <= SETTLE_PAUSE && now - first <= SETTLE_AT_LAST) {
        tail->settling = (u64)first << 32 | now;
        return 0;
    }
    tail->settling = 0;
    // User space may be writing the other flags.
    __sync_fetch_and_or(&flow->label_and_flags, SETTLED);
    return 1;
}

INLINE int is_settled(const struct found *found)
{
    return found->flow->label_and_flags & SETTLED ? 1 : settle(found->flow, found->index);
}
