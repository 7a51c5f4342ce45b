// The headers of a packet that leaves, whichever program sends it: written as a whole, from the entry and what was decided.
#pragma once
#include "relay_decide.h"

INLINE u32 header_bytes(int v6, int framed)
{
    return ETHERNET_BYTES + (v6 ? IPV6_BYTES : IPV4_BYTES) + UDP_BYTES + (framed ? CHANNEL_HEADER_BYTES : 0);
}

// The link-layer addresses of a next hop lie as they do in the frame. In a frame they are copied in two words; in a buffer
// on the stack, where the IP header is aligned instead, the verifier wants them copied in halves.
INLINE void write_ethernet(void *data, const struct next_hop *hop, u16 type, int on_stack)
{
    struct ethernet *ethernet = data;
    if (on_stack) {
        const u16 *from = (const void *)hop->destination;
        u16 *to = data;
#pragma unroll
        for (int i = 0; i < 6; i++)
            to[i] = from[i];
    } else {
        *(u64 *)data = *(const u64 *)hop->destination;
        *(u32 *)(data + 8) = *(const u32 *)(hop->destination + 8);
    }
    ethernet->type = type;
}

// RFC 8656 §14: DF is clear and the identification our own, as in the datagrams of user space. Numbers of one flow follow
// each other; those of others start elsewhere.
INLINE void write_ipv4(void *at, const struct decision *d, u16 udp_length)
{
    const struct flow *out = d->out.flow;
    struct ipv4 *ip = at;
    u32 *word = at;
    u16 total = udp_length + IPV4_BYTES;
    u16 number = (u16)(d->number + out->source_port * 0x9e37 + out->destination_port);
    u16 id = bswap16(number);
    u32 first = 0x45 | (u32)d->tos << 8 | (u32)bswap16(total) << 16;
    u32 third = (u32)(u8)(d->ttl - 1) | PROTOCOL_UDP << 8;
    u64 sum = (u64)first + id + third + out->source + out->destination;
    word[0] = first;
    word[1] = id;
    word[2] = third | (u32)(u16)~fold_wide(sum) << 16;
    ip->source = out->source;
    ip->destination = out->destination;
}

INLINE void write_ipv6(void *at, const struct decision *d, u16 udp_length)
{
    const struct flow *out = d->out.flow;
    struct ipv6 *ip = at;
    ip->version_class_label = be32(6 << 28 | (u32)d->tos << 20 | (out->label_and_flags & FLOW_LABEL));
    ip->payload_length = bswap16(udp_length);
    ip->next_header = PROTOCOL_UDP;
    ip->hop_limit = d->ttl - 1;
    ip->source[0] = out->source;
    ip->destination[0] = out->destination;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        ip->source[1 + i] = d->tail->source[i];
        ip->destination[1 + i] = d->tail->destination[i];
    }
}

INLINE void write_udp(void *at, const struct decision *d, u16 udp_length, u16 checksum)
{
    struct udp *udp = at;
    __builtin_memcpy(udp, &d->out.flow->source_port, 4);
    udp->length = bswap16(udp_length);
    udp->checksum = checksum;
}

INLINE void write_channel(void *at, const struct decision *d)
{
    u16 *head = at;
    u16 length = (u16)d->payload;
    head[0] = d->out.flow->channel;
    head[1] = bswap16(length);
}

INLINE u16 udp_length_out(const struct decision *d)
{
    return (u16)(d->payload + UDP_BYTES + (d->out.flow->channel ? CHANNEL_HEADER_BYTES : 0));
}

// Everything in front of the payload. Returns whether it fits between `data` and `end`, which it does.
INLINE int write_headers(void *data, const void *end, const struct decision *d, int v6, int on_stack)
{
    u16 udp_length = udp_length_out(d);
    void *udp = data + ETHERNET_BYTES + (v6 ? IPV6_BYTES : IPV4_BYTES);
    if (udp + UDP_BYTES > end)
        return 0;
    write_ethernet(data, d->hop, v6 ? be16(ETHERTYPE_IPV6) : be16(ETHERTYPE_IPV4), on_stack);
    if (v6)
        write_ipv6(data + ETHERNET_BYTES, d, udp_length);
    else
        write_ipv4(data + ETHERNET_BYTES, d, udp_length);
    write_udp(udp, d, udp_length, d->checksum);
    if (!d->out.flow->channel)
        return 1;
    if (udp + UDP_BYTES + CHANNEL_HEADER_BYTES > end)
        return 0;
    write_channel(udp + UDP_BYTES, d);
    return 1;
}
