// Rewriting at tc. A packet whose checksum is complete is resized between its IP and UDP headers. One whose sender has left
// the checksum to hardware (CHECKSUM_PARTIAL) is not: the kernel remembers where the UDP header is and will sum from there
// on, and resizing does not tell it. So there the UDP header stays, the payload moves, and of the checksum field, which
// holds the sum over the pseudo header, only that part changes. Whether it is partial can only be guessed from the field;
// l4_csum_replace knows, and does right by both.
//
//   complete:  | IP | UDP | ChannelData | payload      ->      | IP | UDP | payload
//   partial:   | IP | UDP | ChannelData | payload      ->      | IP | UDP | payload |
//
// Only the first step can fail in a way that leaves the packet as it was; should a later one fail, for want of memory, the
// packet is dropped.
#pragma once
#include "relay_headers.h"

enum { HEADERS_MAX = ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES + CHANNEL_HEADER_BYTES, SCRATCH_BYTES = 9216, SCRATCH_MASK = 0x3fff };

struct scratch {
    u8 bytes[SCRATCH_BYTES];
};

// Where a payload waits while it is moved. A program at tc is not interrupted by itself.
struct {
    UINT(type, MAP_TYPE_PERCPU_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct scratch);
    UINT(max_entries, 1);
} SCRATCH SEC(".maps");

// What came of a step.
enum { STEP_DONE, STEP_REFUSED, STEP_BROKEN };

INLINE int store_headers(struct __sk_buff *packet, const struct decision *d, int v6)
{
    u64 room[HEADERS_MAX / 8 + 1] = {};
    void *headers = (void *)room + 2; // so that the IP header is aligned
    u32 length = header_bytes(v6, !!d->out.flow->channel);
    if (!write_headers(headers, headers + HEADERS_MAX, d, v6, 1) || length > HEADERS_MAX)
        return STEP_BROKEN;
    return skb_store_bytes(packet, 0, headers, length, RECOMPUTE_CSUM) ? STEP_BROKEN : STEP_DONE;
}

// From one family to the other: 20 bytes more or fewer in front of the UDP header, which stays where it is.
INLINE int change_family(struct __sk_buff *packet, const struct decision *d, int v6)
{
    if (v6 == d->v6)
        return STEP_DONE;
    return skb_change_proto(packet, v6 ? be16(ETHERTYPE_IPV6) : be16(ETHERTYPE_IPV4), 0) ? STEP_REFUSED : STEP_DONE;
}

// Room for what comes between the UDP header and the payload, or less of it.
INLINE int resize(struct __sk_buff *packet, const struct decision *d)
{
    int delta = (d->out.flow->channel ? CHANNEL_HEADER_BYTES : 0) - (d->framed ? CHANNEL_HEADER_BYTES : 0);
    if (!delta)
        return STEP_DONE;
    return skb_adjust_room(packet, delta, ADJUST_ROOM_NET, 0) ? STEP_REFUSED : STEP_DONE;
}

// The same by moving the payload. `at` is where it is to be.
INLINE int move_payload(struct __sk_buff *packet, const struct decision *d, u32 at)
{
    if (d->framed == !!d->out.flow->channel)
        return STEP_DONE;
    u32 zero = 0;
    u32 length = d->payload;
    struct scratch *scratch = map_lookup(&SCRATCH, &zero);
    if (!scratch || length > SCRATCH_BYTES)
        return STEP_REFUSED;
    u32 from = d->framed ? at + CHANNEL_HEADER_BYTES : at - CHANNEL_HEADER_BYTES;
    // The tail first: making room is what can fail.
    if (!d->framed && skb_change_tail(packet, at + length, 0))
        return STEP_REFUSED;
    if (!length)
        return STEP_DONE;
    // Verifiers before Linux 6.13 accept only a size whose lower bound is 1 in the register that holds it. They derive neither
    // from a comparison with 0, nor from one that the compiler made on a copy.
    u64 size = (length - 1) & SCRATCH_MASK;
    KEEP_IN_REGISTER(size);
    size++;
    KEEP_IN_REGISTER(size);
    if (size > SCRATCH_BYTES)
        return STEP_BROKEN;
    if (skb_load_bytes(packet, from, scratch->bytes, size) || skb_store_bytes(packet, at, scratch->bytes, size, RECOMPUTE_CSUM))
        return STEP_BROKEN;
    return STEP_DONE;
}

// The sum of the pseudo header of the packet that leaves.
INLINE u16 pseudo_header_out(const struct decision *d, int v6)
{
    const struct flow *out = d->out.flow;
    u64 sum = (u64)out->source + out->destination;
    if (v6)
        sum += sum_words(d->tail->source, 3) + sum_words(d->tail->destination, 3);
    return fold_wide(sum + be16(PROTOCOL_UDP) + bswap16(udp_length_out(d)));
}

// The checksum field still is what it was; both parts of the change are applied to it.
INLINE int replace_checksum(struct __sk_buff *packet, const struct decision *d, int v6)
{
    u32 at = ETHERNET_BYTES + (v6 ? IPV6_BYTES : IPV4_BYTES) + __builtin_offsetof(struct udp, checksum);
    u16 before = d->old_checksum; // a partial checksum is the sum over the pseudo header
    u32 pseudo = (u32)pseudo_header_out(d, v6) + without(before);
    u32 rest = (u32)fold(d->difference) + without(fold(pseudo));
    if (l4_csum_replace(packet, at, 0, pseudo, PSEUDO_HEADER) ||
        l4_csum_replace(packet, at, 0, rest, MARK_MANGLED_0 | MARK_ENFORCE))
        return STEP_BROKEN;
    return STEP_DONE;
}

INLINE int rewrite_partial(struct __sk_buff *packet, struct decision *d, int v6)
{
    u32 payload_at = header_bytes(v6, !!d->out.flow->channel);
    int family = change_family(packet, d, v6);
    if (family != STEP_DONE)
        return family;
    int moved = move_payload(packet, d, payload_at);
    if (moved != STEP_DONE)
        return v6 == d->v6 ? moved : STEP_BROKEN;
    d->checksum = d->old_checksum;
    if (skb_change_tail(packet, payload_at + d->payload, 0) || store_headers(packet, d, v6))
        return STEP_BROKEN;
    return replace_checksum(packet, d, v6);
}

INLINE int rewrite_complete(struct __sk_buff *packet, const struct decision *d, int v6)
{
    int step = change_family(packet, d, v6);
    if (step != STEP_DONE)
        return step;
    step = resize(packet, d);
    if (step != STEP_DONE)
        return v6 == d->v6 ? step : STEP_BROKEN;
    u32 length = header_bytes(v6, !!d->out.flow->channel) + d->payload;
    if (UNLIKELY(packet->len != length) && skb_change_tail(packet, length, 0))
        return STEP_BROKEN;
    return store_headers(packet, d, v6);
}

INLINE int rewrite_tc(struct __sk_buff *packet, struct decision *d, struct totals *totals)
{
    int step;
    if (UNLIKELY(d->partial && d->payload > SCRATCH_BYTES)) {
        totals->of[PASS_ROOM]++;
        return TCX_NEXT;
    }
    if (d->tail)
        step = d->partial ? rewrite_partial(packet, d, 1) : rewrite_complete(packet, d, 1);
    else
        step = d->partial ? rewrite_partial(packet, d, 0) : rewrite_complete(packet, d, 0);
    if (step != STEP_DONE) {
        totals->of[PASS_ROOM]++;
        return step == STEP_REFUSED ? TCX_NEXT : TC_ACT_SHOT;
    }
    u32 interface = d->hop->interface;
    if (UNLIKELY(!is_still_valid(d))) {
        totals->of[DROP_CHANGED]++;
        return TC_ACT_SHOT;
    }
    account(d, totals);
    return (int)redirect(interface, 0);
}
