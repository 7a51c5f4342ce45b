// What becomes of a packet: the same code for XDP and tc. Nothing here writes to the packet, and nothing but counters and
// buckets is written at all; a bucket is charged when every other check has passed.
//
//   Ethernet | IPv4 20 or IPv6 40 | UDP 8 | [ChannelData 4] | payload | [padding 0..3] | [the frame's own padding]
//
// The order: is it UDP to a port of ours (cheap, and all that other traffic costs) -> whole and consistent -> an entry for
// exactly these addresses and ports, which proves that it is to this machine -> alive, next hop known, TTL, size -> rate.
#pragma once
#include "relay_bucket.h"
#include "relay_checksum.h"
#include "relay_settle.h"

// What is to be done, besides a reason to pass (>= 0, enum total). FAILED: the packet could not be finished; there is no
// known way to get there.
enum { NOT_OURS = -1, RELAY = -2, ANSWER = -3, DROP = -4, DROP_BINDING = -5, FAILED = -6 };

// The verifier accepts offsets into a frame up to this.
enum { FRAME_MAX = 0xffff - ETHERNET_BYTES };

// A packet as far as it is in one piece of memory, and how long it is as a whole.
struct view {
    void *context;
    const void *data;
    const void *end;
    u32 length;
    enum path path;
    u32 device; // XDP only: the interface that the frame came by, or the bond above it
};

// What was decided, with all that the rewriting needs to know.
struct decision {
    struct found in;  // the flow of the packet as it came
    struct found out; // as it leaves: another flow between two relays of this server
    const struct flow_tail *tail; // of `out`, if the packet leaves over IPv6; else none
    const struct next_hop *hop;
    u64 now;
    u32 number; // of packets counted before this one
    u32 payload; // bytes without framing and padding
    u32 difference; // of the UDP checksum's sum
    u16 udp_length; // as it came, in network order
    u16 checksum; // of the packet that leaves; 0: none
    u16 old_checksum;
    u8 padding;
    u8 tos;
    u8 ttl;
    u8 v6; // as it came
    u8 framed; // as it came: with a ChannelData header
    u8 partial; // the checksum field looks as if its sender left the rest to hardware
    u8 between; // two relays of this server
};

INLINE int is_listener_port(u16 port)
{
    int found = port == LISTENER_PORTS[0];
#pragma unroll
    for (u32 i = 1; i < MAX_LISTENER_PORTS; i++)
        if (i < LISTENER_PORT_COUNT)
            found |= port == LISTENER_PORTS[i];
    return found;
}

INLINE int is_relay_port(u16 port)
{
    u32 number = be16(port);
    return number >= RELAY_LOW && number <= RELAY_HIGH;
}

// Whether the IP header is one that is dealt with here; the UDP header's place is known then. NOT_OURS also for what is cut
// short so early that nothing can be said about it.
INLINE int check_ipv4(const struct view *view)
{
    const struct ipv4 *ip = view->data + ETHERNET_BYTES;
    if (view->data + ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES > view->end || ip->protocol != PROTOCOL_UDP)
        return NOT_OURS;
    if (UNLIKELY(ip->version_and_length != 0x45))
        return PASS_OPTIONS;
    // All but DF: also the reserved bit, which means nothing good.
    if (UNLIKELY(ip->fragment & be16(0xbfff)))
        return PASS_FRAGMENT;
    return RELAY;
}

INLINE int check_ipv6(const struct view *view)
{
    const struct ipv6 *ip = view->data + ETHERNET_BYTES;
    if (view->data + ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES > view->end)
        return NOT_OURS;
    if (ip->next_header != PROTOCOL_UDP)
        return ip->next_header == PROTOCOL_FRAGMENT ? PASS_FRAGMENT : NOT_OURS;
    return (ip->version_class_label & be32(0xf0000000)) == be32(0x60000000) ? RELAY : NOT_OURS;
}

// The datagram is whole, and both headers say the same length; the frame may be longer (Ethernet's minimum).
INLINE int check_lengths(const struct view *view, const struct udp *udp, int v6)
{
    u32 udp_length = be16(udp->length);
    u32 ip_payload;
    if (v6) {
        const struct ipv6 *ip = view->data + ETHERNET_BYTES;
        ip_payload = be16(ip->payload_length);
        if (UNLIKELY(!udp->checksum))
            return PASS_CHECKSUM; // RFC 8200 §8.1: IPv6 wants one
    } else {
        const struct ipv4 *ip = view->data + ETHERNET_BYTES;
        ip_payload = (u32)be16(ip->total_length) - IPV4_BYTES;
        if (UNLIKELY(!ipv4_header_ok(ip)))
            return PASS_CHECKSUM;
    }
    u32 headers = ETHERNET_BYTES + (v6 ? IPV6_BYTES : IPV4_BYTES);
    if (UNLIKELY(udp_length != ip_payload || udp_length < UDP_BYTES || headers + udp_length > view->length))
        return PASS_LENGTH;
    return RELAY;
}

INLINE struct flow *find(const struct view *view, const struct udp *udp, u16 channel, int v6, struct found *found)
{
    if (v6) {
        const struct ipv6 *ip = view->data + ETHERNET_BYTES;
        struct key_v6 key = {.remote_port = udp->source, .local_port = udp->destination, .channel = channel};
        __builtin_memcpy(key.remote, ip->source, 32);
        return find_v6(&key, found);
    }
    const struct ipv4 *ip = view->data + ETHERNET_BYTES;
    struct key_v4 key = {.remote = ip->source, .local = ip->destination, .remote_port = udp->source,
                         .local_port = udp->destination, .channel = channel};
    return find_v4(&key, found);
}

// Between two relays of this server: the sender's flow names the receiver's, as if the datagram had come from the network.
INLINE struct flow *find_next(const struct found *from, struct found *found)
{
    const struct flow *flow = from->flow;
    if (flow->label_and_flags & OUT_V6) {
        const struct flow_tail *tail = map_lookup(&FLOW_TAILS, &from->index);
        if (!tail)
            return 0;
        struct key_v6 key = {.remote_port = flow->source_port, .local_port = flow->destination_port};
        u32 *remote = (void *)key.remote;
        u32 *local = (void *)key.local;
        remote[0] = flow->source;
        local[0] = flow->destination;
#pragma unroll
        for (int i = 0; i < 3; i++) {
            remote[1 + i] = tail->source[i];
            local[1 + i] = tail->destination[i];
        }
        return find_v6(&key, found);
    }
    struct key_v4 key = {.remote = flow->source, .local = flow->destination,
                         .remote_port = flow->source_port, .local_port = flow->destination_port};
    return find_v4(&key, found);
}

// The pseudo header's sum without the length. With it, it is what a sender leaves in the field when hardware is to compute
// the rest.
INLINE u16 pseudo_header_of(const struct view *view, int v6)
{
    const void *ip = view->data + ETHERNET_BYTES;
    return fold_wide((v6 ? sum_words(ip + 8, 8) : sum_words(ip + 12, 2)) + be16(PROTOCOL_UDP));
}

// One byte of the packet. XDP reads the frame itself: its helper for that came with Linux 5.18.
INLINE int load_byte(const struct view *view, u32 at, u8 *byte)
{
    if (view->path != PATH_XDP)
        return !skb_load_bytes(view->context, at, byte, 1);
    u64 offset = at;
    KEEP_IN_REGISTER(offset);
    if (offset > FRAME_MAX)
        return 0;
    const u8 *place = view->data + offset;
    if ((const void *)(place + 1) > view->end)
        return 0;
    *byte = *place;
    return 1;
}

// RFC 8656 §12.5 allows up to 3 bytes behind the payload. They are in the checksum until they are cut off. Their place in a
// 16-bit word follows from the payload's length.
INLINE int sum_padding(const struct view *view, u32 from, const struct decision *d, u32 *sum)
{
#pragma unroll
    for (u32 i = 0; i < 3; i++) {
        u8 byte = 0;
        if (i >= d->padding)
            break;
        if (!load_byte(view, from + i, &byte))
            return 0;
        *sum += without((d->payload + i) & 1 ? (u16)(byte << 8) : byte);
    }
    return 1;
}

// By how much the sum changes with the lengths in the pseudo header, the UDP header and the ChannelData header, and with
// padding; what is constant is in the entries.
INLINE int settle_checksum(const struct view *view, const struct udp *udp, struct decision *d)
{
    u32 sum = d->in.flow->difference;
    if (d->between)
        sum += d->out.flow->difference;
    if (UNLIKELY(d->padding)) {
        u32 at = ETHERNET_BYTES + (d->v6 ? IPV6_BYTES : IPV4_BYTES) + UDP_BYTES + CHANNEL_HEADER_BYTES + d->payload;
        u16 twice = 2 * d->padding;
        sum += without(be16(twice));
        if (!sum_padding(view, at, d, &sum))
            return 0;
    }
    u16 length = (u16)(d->payload + 8);
    if (!d->framed)
        sum += bswap16(length); // 4 more, twice, and a length field of payload bytes
    else if (!d->out.flow->channel)
        sum += without(bswap16(length));
    d->difference = sum;
    d->old_checksum = udp->checksum;
    d->checksum = udp->checksum ? udp_checksum(fold(sum + without(udp->checksum))) : 0;
    return 1;
}

INLINE int is_expired(const struct decision *d, const struct flow *flow)
{
    return (u32)(d->now >> DEADLINE_SHIFT) >= flow->deadline;
}

// The flow is alive, and so is the one that it leads to.
INLINE int follow(struct decision *d)
{
    if (UNLIKELY(is_expired(d, d->in.flow)))
        return PASS_EXPIRED;
    d->out = d->in;
    d->between = 0;
    d->number = *(volatile u32 *)&d->in.flow->packets;
    if (d->in.flow->label_and_flags & OWN_RELAY) {
        struct flow *out = find_next(&d->in, &d->out);
        if (!out || out->label_and_flags & OWN_RELAY || !out->channel)
            return PASS_MISS;
        if (is_expired(d, out))
            return PASS_EXPIRED;
        d->between = 1;
    }
    d->tail = 0;
    if (d->out.flow->label_and_flags & OUT_V6) {
        d->tail = map_lookup(&FLOW_TAILS, &d->out.index);
        if (!d->tail)
            return PASS_MISS;
    }
    return RELAY;
}

// Out of the interface that a frame came by any driver sends (XDP_TX). To be redirected to, it needs ndo_xdp_xmit.
INLINE u8 usable_for(const struct view *view, const struct next_hop *hop)
{
    if (view->path != PATH_XDP)
        return USABLE_TC;
    return hop->interface == view->device ? USABLE_XDP_TX : USABLE_XDP;
}

INLINE int check_next_hop(const struct view *view, struct decision *d)
{
    u32 index = d->out.flow->next_hop;
    d->hop = map_lookup(&NEXT_HOPS, &index);
    if (!d->hop || !(d->hop->flags & usable_for(view, d->hop)) || d->now >= d->hop->good_until_ns)
        return PASS_NEXT_HOP;
    u32 bytes = d->payload + UDP_BYTES + (d->out.flow->channel ? CHANNEL_HEADER_BYTES : 0) +
                (d->tail ? IPV6_BYTES : IPV4_BYTES);
    return bytes > d->hop->mtu ? PASS_MTU : RELAY;
}

// Only the next hop on loopback has no link-layer address. A packet on loopback has the route of its sender, which has the
// same family and delivers locally. Without a route, the stack treats a source address of this host as forged. So what is on
// loopback stays there in its own family, and what comes from elsewhere is left to user space.
INLINE int check_loopback(const struct view *view, const struct decision *d)
{
    const u32 *head = (const void *)d->hop->destination;
    const u16 *tail = (const void *)(d->hop->destination + 4);
    if (view->path != PATH_TC || *head || *tail)
        return RELAY;
    const struct __sk_buff *packet = view->context;
    int same_family = d->v6 == !!d->tail;
    return packet->ifindex == d->hop->interface && same_family ? RELAY : PASS_NEXT_HOP;
}

INLINE void read_ip(const struct view *view, int v6, struct decision *d)
{
    d->v6 = v6;
    if (v6) {
        const struct ipv6 *ip = view->data + ETHERNET_BYTES;
        d->tos = (u8)(be32(ip->version_class_label) >> 20);
        d->ttl = ip->hop_limit;
    } else {
        const struct ipv4 *ip = view->data + ETHERNET_BYTES;
        d->tos = ip->tos;
        d->ttl = ip->ttl;
    }
}

// A datagram with this channel number in front of the payload, or without one (0), whose lengths are in `d`.
INLINE int decide_relay(const struct view *view, const struct udp *udp, u16 channel, int v6, struct decision *d)
{
    u32 zero = 0;
    const struct settings *settings = map_lookup(&SETTINGS, &zero);
    if (UNLIKELY(!settings || !(settings->flags & RELAYING)))
        return PASS_OFF;
    if (!find(view, udp, channel, v6, &d->in))
        return PASS_MISS;
    d->now = ktime_get_coarse_ns();
    d->udp_length = udp->length;
    d->partial = udp->checksum == fold((u32)pseudo_header_of(view, v6) + udp->length);
    if (UNLIKELY(d->partial && view->path == PATH_XDP))
        return PASS_PARTIAL;
    int why = follow(d);
    if (UNLIKELY(why != RELAY))
        return why;
    read_ip(view, v6, d);
    if (UNLIKELY(d->ttl <= 1))
        return PASS_TTL;
    why = check_next_hop(view, d);
    if (UNLIKELY(why != RELAY))
        return why;
    why = check_loopback(view, d);
    if (UNLIKELY(why != RELAY))
        return why;
    // Only now, as what user space relays for another reason is no pause. Both flows see each packet.
    int settled = is_settled(&d->in);
    if (d->between)
        settled &= is_settled(&d->out);
    if (UNLIKELY(!settled))
        return PASS_SETTLING;
    // Without a checksum there is none to hand on, and IPv6 wants one.
    if (UNLIKELY(!udp->checksum && d->tail))
        return PASS_CHECKSUM;
    if (UNLIKELY(!settle_checksum(view, udp, d)))
        return PASS_LENGTH;
    if (over_rate(d->in.flow->bucket, d->now, d->payload) ||
        (d->between && over_rate(d->out.flow->bucket, d->now, d->payload)))
        return DROP;
    return RELAY;
}

// To a relay's port: the payload is the datagram.
INLINE int decide_from_peer(const struct view *view, const struct udp *udp, int v6, struct decision *d)
{
    d->framed = 0;
    d->padding = 0;
    d->payload = (u32)be16(udp->length) - UDP_BYTES;
    return decide_relay(view, udp, 0, v6, d);
}

// To a listener's port: by the first byte (RFC 8656 §12, RFC 7983).
INLINE int decide_from_client(const struct view *view, const struct udp *udp, int v6, struct decision *d)
{
    const u16 *head = (const void *)(udp + 1);
    if ((const void *)(head + 2) > view->end || be16(udp->length) < UDP_BYTES + CHANNEL_HEADER_BYTES)
        return PASS_LENGTH;
    u8 first = *(const u8 *)head;
    if ((first & 0xc0) == 0)
        return ANSWER;
    if ((first & 0xc0) != 0x40)
        return PASS_NEITHER;
    d->framed = 1;
    d->payload = be16(head[1]);
    u32 padding = (u32)be16(udp->length) - UDP_BYTES - CHANNEL_HEADER_BYTES - d->payload;
    if (UNLIKELY(padding > 3))
        return PASS_LENGTH;
    d->padding = (u8)padding;
    return decide_relay(view, udp, head[0], v6, d);
}

// `to_us` is whether the frame is to this machine's link-layer address, `tagged` whether it has a VLAN tag that is not in the
// data, `several` whether it holds more than one datagram.
struct wrapping {
    int to_us;
    int tagged;
    int several;
    int unknown; // XDP only: the frame came by an interface that has no slot
};

INLINE int decide_family(const struct view *view, const struct wrapping *wrapping, int v6, struct decision *d)
{
    const struct udp *udp = view->data + ETHERNET_BYTES + (v6 ? IPV6_BYTES : IPV4_BYTES);
    int from_client = is_listener_port(udp->destination);
    if (!from_client && !is_relay_port(udp->destination))
        return NOT_OURS;
    if (UNLIKELY(wrapping->tagged))
        return PASS_VLAN;
    if (UNLIKELY(wrapping->several))
        return PASS_GSO;
    if (UNLIKELY(!wrapping->to_us))
        return wrapping->unknown ? PASS_INTERFACE : PASS_LINK;
    int why = check_lengths(view, udp, v6);
    if (UNLIKELY(why != RELAY))
        return why;
    return from_client ? decide_from_client(view, udp, v6, d) : decide_from_peer(view, udp, v6, d);
}

// One packet more. Atomic: another processor may count for the same flow.
INLINE void count_packet(struct flow *flow, const struct decision *d)
{
    __sync_fetch_and_add(&flow->bytes, d->payload);
    __sync_fetch_and_add(&flow->packets, 1);
    flow->last_seen = (u32)(d->now >> LAST_SEEN_SHIFT);
}

// Counts what was relayed.
INLINE void account(const struct decision *d, struct totals *totals)
{
    count_packet(d->in.flow, d);
    if (d->between) {
        count_packet(d->out.flow, d);
        totals->of[RELAY_TO_RELAY]++;
        totals->of[RELAY_TO_RELAY_BYTES] += d->payload;
    } else if (d->framed) {
        totals->of[TO_PEER]++;
        totals->of[TO_PEER_BYTES] += d->payload;
    } else {
        totals->of[TO_CLIENT]++;
        totals->of[TO_CLIENT_BYTES] += d->payload;
    }
}

// Whether the packet that was written belongs to the flows that it was written from. If not, it must not leave.
INLINE int is_still_valid(const struct decision *d)
{
    return is_unchanged(&d->in) && (!d->between || is_unchanged(&d->out));
}
