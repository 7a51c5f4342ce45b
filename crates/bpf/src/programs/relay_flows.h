// Finding a flow: open addressing with linear probing, in an array that user space fills (src/relay/table.rs has the same
// hash and the same order of places).
//
// User space may remove a flow, and give its place to another, while a packet of the old one is being rewritten. It changes
// the version first. So a program that has written a packet from a flow compares the version again, and drops the packet if it is
// not what it was.
#pragma once
#include "relay_maps.h"

struct key_v4 {
    u32 remote;
    u32 local;
    u16 remote_port; // network order, like all of it
    u16 local_port;
    u16 channel; // 0: from a peer
    u16 zero;
};
_Static_assert(sizeof(struct key_v4) == 16, "key_v4");

struct key_v6 {
    u64 remote[2];
    u64 local[2];
    u16 remote_port;
    u16 local_port;
    u16 channel;
    u16 zero;
};
_Static_assert(sizeof(struct key_v6) == 40, "key_v6");

// A flow that was found, and where.
struct found {
    struct flow *flow;
    u32 index;
    u32 version;
};

INLINE u64 mix(u64 hash, u64 word)
{
    hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
    return hash ^ hash >> 32;
}

// Seeded, so that nobody can choose addresses that fall on the same place.
INLINE u32 place_of(u64 hash)
{
    return (u32)(hash * (SEED[1] | 1) >> 32);
}

INLINE u32 place_v4(const struct key_v4 *key)
{
    const u64 *word = (const void *)key;
    return place_of(mix(mix(SEED[0], word[0]), word[1]));
}

INLINE u32 place_v6(const struct key_v6 *key)
{
    const u64 *word = (const void *)key;
    u64 hash = SEED[0];
#pragma unroll
    for (int i = 0; i < 5; i++)
        hash = mix(hash, word[i]);
    return place_of(hash);
}

INLINE int is_flow_v4(const struct flow *flow, const struct key_v4 *key)
{
    return flow->remote == key->remote && flow->local == key->local && flow->remote_port == key->remote_port &&
           flow->local_port == key->local_port && flow->key_channel == key->channel &&
           (flow->label_and_flags & (IN_USE | IN_V6)) == IN_USE;
}

INLINE int is_flow_v6(const struct flow *flow, const struct key_v6 *key, u32 index)
{
    const u32 *remote = (const void *)key->remote;
    const u32 *local = (const void *)key->local;
    if (flow->remote != remote[0] || flow->local != local[0] || flow->remote_port != key->remote_port ||
        flow->local_port != key->local_port || flow->key_channel != key->channel ||
        (flow->label_and_flags & (IN_USE | IN_V6)) != (IN_USE | IN_V6))
        return 0;
    const struct flow_tail *tail = map_lookup(&FLOW_TAILS, &index);
    if (!tail)
        return 0;
    u32 differs = 0;
#pragma unroll
    for (int i = 0; i < 3; i++)
        differs |= (tail->remote[i] ^ remote[1 + i]) | (tail->local[i] ^ local[1 + i]);
    return !differs;
}

// Looks at one place. Returns whether the search is over: the flow is there, or there was never any.
INLINE int look(struct found *found, u32 index, const struct key_v4 *v4, const struct key_v6 *v6)
{
    found->index = index;
    found->flow = map_lookup(&FLOWS, &found->index);
    if (!found->flow)
        return 1;
    found->version = *(volatile u32 *)&found->flow->version;
    if (v4 ? is_flow_v4(found->flow, v4) : is_flow_v6(found->flow, v6, index)) {
        if (found->version & 1)
            found->flow = 0;
        return 1;
    }
    int over = !found->flow->label_and_flags;
    found->flow = 0;
    return over;
}

// The places behind the first, which few searches reach.
static NOINLINE struct flow *search_v4(const struct key_v4 *key, u32 place, struct found *found)
{
#pragma clang loop unroll(disable)
    for (u32 i = 1; i < FLOW_PROBES; i++)
        if (look(found, (place + i) & FLOW_MASK, key, 0))
            return found->flow;
    return 0;
}

static NOINLINE struct flow *search_v6(const struct key_v6 *key, u32 place, struct found *found)
{
#pragma clang loop unroll(disable)
    for (u32 i = 1; i < FLOW_PROBES; i++)
        if (look(found, (place + i) & FLOW_MASK, 0, key))
            return found->flow;
    return 0;
}

INLINE struct flow *find_v4(const struct key_v4 *key, struct found *found)
{
    u32 place = place_v4(key);
    if (!look(found, place & FLOW_MASK, key, 0))
        found->flow = search_v4(key, place, found);
    return found->flow;
}

INLINE struct flow *find_v6(const struct key_v6 *key, struct found *found)
{
    u32 place = place_v6(key);
    if (!look(found, place & FLOW_MASK, 0, key))
        found->flow = search_v6(key, place, found);
    return found->flow;
}

// Whether the flow is still the one that was found. What was read from it before was its own then.
INLINE int is_unchanged(const struct found *found)
{
    __asm__ volatile("" ::: "memory");
    return *(volatile u32 *)&found->flow->version == found->version;
}
