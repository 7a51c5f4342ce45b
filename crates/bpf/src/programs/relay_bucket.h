// Rate limits by the generic cell rate algorithm: one number says when all that was let through would have gone at the
// allowed rate; what comes more than a burst before that is over the rate.
#pragma once
#include "relay_maps.h"

enum { BUCKET_TRIES = 4 };

// Charges one bucket. Returns whether the packet may pass. After so many lost races it passes uncharged.
INLINE int charge(struct bucket *bucket, u64 now, u32 bytes)
{
    if (!bucket->scale)
        return 1;
    u64 cost = ((u64)bytes * bucket->scale) >> 10;
    u64 limit = now + (u64)bucket->burst_us * 1000;
    u64 tat = *(volatile u64 *)&bucket->tat_ns;
#pragma clang loop unroll(disable)
    for (int i = 0; i < BUCKET_TRIES; i++) {
        if (tat > limit)
            return 0;
        u64 seen = __sync_val_compare_and_swap(&bucket->tat_ns, tat, (tat > now ? tat : now) + cost);
        if (seen == tat)
            return 1;
        tat = seen;
    }
    return 1;
}

// Charges an allocation's bucket and the buckets of its groups, which user space charges too (src/relay/buckets.rs has the same
// steps). Returns whether the packet is over one of the rates. Then the allocation's bucket has counted it as dropped.
INLINE int over_rate(u32 index, u64 now, u32 bytes)
{
    if (index == NO_BUCKET)
        return 0;
    struct bucket *bucket = map_lookup(&BUCKETS, &index);
    if (!bucket)
        return 0;
    int passes = charge(bucket, now, bytes);
#pragma clang loop unroll(disable)
    for (int i = 0; passes && i < BUCKET_GROUPS; i++) {
        u32 number = bucket->groups[i];
        if (!number)
            break;
        struct bucket *group = map_lookup(&BUCKETS, &number);
        passes = !group || charge(group, now, bytes);
    }
    if (passes)
        return 0;
    __sync_fetch_and_add(&bucket->dropped_packets, 1);
    __sync_fetch_and_add(&bucket->dropped_bytes, bytes);
    return 1;
}

// Charges one Binding request to its source's prefix. Neighbours in the table are unlikely to be neighbours in address,
// and nobody can choose who shares a place with whom: the seeds are secret.
INLINE int binding_over_rate(const struct settings *settings, u64 prefix, u64 now)
{
    u64 hash = (prefix ^ SEED[0]) * 0x9e3779b97f4a7c15ULL;
    hash = (hash ^ (hash >> 32)) * (SEED[1] | 1);
    u32 index = (u32)(hash >> 48);
    u64 *tat = map_lookup(&BINDING_BUCKETS, &index);
    if (!tat)
        return 1;
    u64 at = *(volatile u64 *)tat;
    if (at > now + settings->binding_burst_ns)
        return 1;
    // A lost race lets one more pass.
    __sync_val_compare_and_swap(tat, at, (at > now ? at : now) + settings->binding_cost_ns);
    return 0;
}
