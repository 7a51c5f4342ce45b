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

// A packet as far as it is in one piece of memory, and how long it is as a whole.
struct view {
    void *context;
    const void *data;
    const void *end;
    u32 length;
    enum path path;
};

// What was decided, with all that the rewriting needs to know.
struct decision {
    const struct entry *in;  // of the packet as it came
    const struct entry *out; // as it leaves: another one between two relays of this server
    const struct next_hop *hop;
    struct count *count;
    struct count *second; // between two relays: of the receiving side
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

INLINE const struct entry *find(const struct view *view, const struct udp *udp, u16 channel, int v6)
{
    if (v6) {
        const struct ipv6 *ip = view->data + ETHERNET_BYTES;
        struct key_v6 key = {.remote_port = udp->source, .local_port = udp->destination, .channel = channel};
        __builtin_memcpy(key.remote, ip->source, 32);
        return map_lookup(&FLOWS_V6, &key);
    }
    const struct ipv4 *ip = view->data + ETHERNET_BYTES;
    struct key_v4 key = {.remote = ip->source, .local = ip->destination, .remote_port = udp->source,
                         .local_port = udp->destination, .channel = channel};
    return map_lookup(&FLOWS_V4, &key);
}

// Between two relays of this server: the sender's entry names the receiver's, as if the datagram had come from the network.
INLINE const struct entry *find_next(const struct entry *entry)
{
    if (entry->label_and_flags & OUT_V6) {
        struct key_v6 key = {.remote_port = entry->source_port, .local_port = entry->destination_port};
        __builtin_memcpy(key.remote, entry->source, 32);
        return map_lookup(&FLOWS_V6, &key);
    }
    struct key_v4 key = {.remote = entry->source[0], .local = entry->destination[0],
                         .remote_port = entry->source_port, .local_port = entry->destination_port};
    return map_lookup(&FLOWS_V4, &key);
}

// Bytes behind the payload (RFC 8656 §12.5 allows up to 3) are in the checksum until they are cut off. Their place in a
// 16-bit word follows from the payload's length.
INLINE int sum_padding(const struct view *view, u32 from, const struct decision *d, u32 *sum)
{
#pragma unroll
    for (u32 i = 0; i < 3; i++) {
        u8 byte = 0;
        if (i >= d->padding)
            break;
        long failed = view->path == PATH_XDP ? xdp_load_bytes(view->context, from + i, &byte, 1)
                                             : skb_load_bytes(view->context, from + i, &byte, 1);
        if (failed)
            return 0;
        *sum += without((d->payload + i) & 1 ? (u16)(byte << 8) : byte);
    }
    return 1;
}

// By how much the sum changes with the lengths in the pseudo header, the UDP header and the ChannelData header, and with
// padding; what is constant is in the entries.
INLINE int settle_checksum(const struct view *view, const struct udp *udp, struct decision *d)
{
    u32 sum = d->in->difference;
    if (d->second)
        sum += d->out->difference;
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
    else if (!d->out->channel)
        sum += without(bswap16(length));
    d->difference = sum;
    d->old_checksum = udp->checksum;
    d->checksum = udp->checksum ? udp_checksum(fold(sum + without(udp->checksum))) : 0;
    return 1;
}

// This processor's.
INLINE struct count *count_of(u32 counter)
{
    u32 here = processor();
    u32 index = here * COUNTERS + counter;
    return here < PROCESSORS && counter < COUNTERS ? map_lookup(&COUNTS, &index) : 0;
}

// The entry is alive, and so is the one that it leads to.
INLINE int follow(struct decision *d)
{
    if (UNLIKELY(d->now >= d->in->deadline_ns))
        return PASS_EXPIRED;
    d->out = d->in;
    d->second = 0;
    d->count = count_of(d->in->counter);
    if (!d->count)
        return PASS_MISS;
    // Read early, so that waiting for this memory and for the bucket's is one wait.
    d->number = *(volatile u32 *)&d->count->packets;
    if (!(d->in->label_and_flags & OWN_RELAY))
        return RELAY;
    d->out = find_next(d->in);
    if (!d->out || d->out->label_and_flags & OWN_RELAY || !d->out->channel)
        return PASS_MISS;
    if (d->now >= d->out->deadline_ns)
        return PASS_EXPIRED;
    d->second = count_of(d->out->counter);
    return d->second ? RELAY : PASS_MISS;
}

INLINE int check_next_hop(struct decision *d, enum path path)
{
    u32 index = d->out->next_hop;
    d->hop = map_lookup(&NEXT_HOPS, &index);
    if (!d->hop || !(d->hop->flags & (path == PATH_XDP ? USABLE_XDP : USABLE_TC)) || d->now >= d->hop->good_until_ns)
        return PASS_NEXT_HOP;
    u32 bytes = d->payload + UDP_BYTES + (d->out->channel ? CHANNEL_HEADER_BYTES : 0) +
                (d->out->label_and_flags & OUT_V6 ? IPV6_BYTES : IPV4_BYTES);
    return bytes > d->hop->mtu ? PASS_MTU : RELAY;
}

// Only the next hop on loopback has no link-layer address. A packet there carries the route that its sender looked up, which
// is of its family and delivers locally; without one, the stack takes an address of this host as source for a forgery. So
// what is on loopback stays there in its own family, and what comes from elsewhere is left to user space.
INLINE int check_loopback(const struct view *view, const struct decision *d)
{
    const u32 *head = (const void *)d->hop->destination;
    const u16 *tail = (const void *)(d->hop->destination + 4);
    if (view->path != PATH_TC || *head || *tail)
        return RELAY;
    const struct __sk_buff *packet = view->context;
    int same_family = d->v6 == !!(d->out->label_and_flags & OUT_V6);
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
    d->in = find(view, udp, channel, v6);
    if (!d->in)
        return PASS_MISS;
    d->now = ktime_get_coarse_ns();
    d->udp_length = udp->length;
    d->partial = udp->checksum == fold((u32)d->in->pseudo_header + udp->length);
    if (UNLIKELY(d->partial && view->path == PATH_XDP))
        return PASS_PARTIAL;
    int why = follow(d);
    if (UNLIKELY(why != RELAY))
        return why;
    read_ip(view, v6, d);
    if (UNLIKELY(d->ttl <= 1))
        return PASS_TTL;
    why = check_next_hop(d, view->path);
    if (UNLIKELY(why != RELAY))
        return why;
    why = check_loopback(view, d);
    if (UNLIKELY(why != RELAY))
        return why;
    // Only now, as what user space relays for another reason is no pause. Both entries see each packet.
    int settled = is_settled(d->in);
    if (d->second)
        settled &= is_settled(d->out);
    if (UNLIKELY(!settled))
        return PASS_SETTLING;
    // Without a checksum there is none to hand on, and IPv6 wants one.
    if (UNLIKELY(!udp->checksum && d->out->label_and_flags & OUT_V6))
        return PASS_CHECKSUM;
    if (UNLIKELY(!settle_checksum(view, udp, d)))
        return PASS_LENGTH;
    if (over_rate(d->in->bucket, d->now, d->payload) || (d->second && over_rate(d->out->bucket, d->now, d->payload)))
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
        return PASS_LINK;
    int why = check_lengths(view, udp, v6);
    if (UNLIKELY(why != RELAY))
        return why;
    return from_client ? decide_from_client(view, udp, v6, d) : decide_from_peer(view, udp, v6, d);
}

// Counts what was relayed.
INLINE void account(const struct decision *d, struct totals *totals)
{
    u32 units = (u32)(d->now >> LAST_SEEN_SHIFT);
    d->count->bytes += d->payload;
    d->count->packets = d->number + 1;
    d->count->last_seen = units;
    if (d->second) {
        d->second->bytes += d->payload;
        d->second->packets++;
        d->second->last_seen = units;
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
