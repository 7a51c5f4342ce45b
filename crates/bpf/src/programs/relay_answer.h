// Sending the answer to a Binding request back to where the request came from, by the link it came by.
#pragma once
#include "relay_binding.h"

struct turned {
    u16 half[6]; // link-layer addresses, exchanged
};

INLINE void turn_around(struct turned *to, const void *data)
{
    const u16 *half = data;
#pragma unroll
    for (int i = 0; i < 3; i++) {
        to->half[i] = half[3 + i];
        to->half[3 + i] = half[i];
    }
}

// Every byte of the answer is written, so it takes the end of the frame, and the head moves: that needs no room behind it,
// which not every driver has.
INLINE int answer_xdp(struct xdp_md *packet, struct view *view, const volatile struct question *question, struct decision *d, int v6)
{
    const struct udp *udp = view->data + ETHERNET_BYTES + (v6 ? IPV6_BYTES : IPV4_BYTES);
    if (view->data + ETHERNET_BYTES + (v6 ? IPV6_BYTES : IPV4_BYTES) + UDP_BYTES + STUN_HEADER_BYTES > view->end)
        return PASS_STUN;
    struct answer answer = {};
    struct turned turned;
    write_answer(&answer, view, udp, question, d, v6);
    turn_around(&turned, view->data);
    int delta = (int)view->length - (int)(ETHERNET_BYTES + answer.bytes);
    if (xdp_adjust_head(packet, delta))
        return PASS_ROOM;
    void *data = (void *)(long)packet->data;
    void *end = (void *)(long)packet->data_end;
    u32 least = ETHERNET_BYTES + (v6 ? IPV6_BYTES + UDP_BYTES + (HEADER_WORDS + MAPPED_V6_WORDS) * 4
                                     : IPV4_BYTES + UDP_BYTES + (HEADER_WORDS + MAPPED_V4_WORDS) * 4);
    if (data + least > end)
        return FAILED;
    u16 *half = data;
    u32 *word = data + ETHERNET_BYTES;
#pragma unroll
    for (int i = 0; i < 6; i++)
        half[i] = turned.half[i];
    half[6] = v6 ? be16(ETHERTYPE_IPV6) : be16(ETHERTYPE_IPV4);
    u32 words = (least - ETHERNET_BYTES) / 4;
#pragma unroll
    for (u32 i = 0; i < ANSWER_WORDS_MAX - 2; i++)
        if (i < words)
            word[i] = answer.word[i];
    if (question->fingerprinted && (void *)(word + words + 2) <= end) {
        word[words] = answer.word[words];
        word[words + 1] = answer.word[words + 1];
    }
    return ANSWER;
}

// The UDP header stays where it is, so that a partial checksum stays one (see relay_rewrite_tc.h).
INLINE int answer_tc(struct __sk_buff *packet, const struct view *view, const volatile struct question *question,
                     struct decision *d, int v6)
{
    const struct udp *udp = view->data + ETHERNET_BYTES + (v6 ? IPV6_BYTES : IPV4_BYTES);
    if (view->data + ETHERNET_BYTES + (v6 ? IPV6_BYTES : IPV4_BYTES) + UDP_BYTES + STUN_HEADER_BYTES > view->end)
        return PASS_STUN;
    struct answer answer = {};
    struct turned turned;
    write_answer(&answer, view, udp, question, d, v6);
    turn_around(&turned, view->data);
    u32 checksum_at = (v6 ? IPV6_BYTES : IPV4_BYTES) + __builtin_offsetof(struct udp, checksum);
    if (d->partial) {
        u32 at = checksum_at / 4;
        answer.word[at] = (answer.word[at] & 0xffff) | (u32)d->old_checksum << 16;
    }
    u32 bytes = answer.bytes;
    u16 length = (u16)(bytes - (v6 ? IPV6_BYTES : IPV4_BYTES));
    if (bytes < IPV4_BYTES || bytes > sizeof(answer.word))
        return PASS_STUN;
    if (skb_change_tail(packet, ETHERNET_BYTES + bytes, 0))
        return PASS_ROOM;
    if (skb_store_bytes(packet, 0, turned.half, sizeof(turned.half), RECOMPUTE_CSUM) ||
        skb_store_bytes(packet, ETHERNET_BYTES, answer.word, bytes, RECOMPUTE_CSUM))
        return FAILED;
    if (!d->partial)
        return ANSWER;
    u32 pseudo = without(d->udp_length) + bswap16(length);
    if (l4_csum_replace(packet, ETHERNET_BYTES + checksum_at, 0, pseudo, PSEUDO_HEADER) ||
        l4_csum_replace(packet, ETHERNET_BYTES + checksum_at, 0, d->difference, MARK_MANGLED_0 | MARK_ENFORCE))
        return FAILED;
    return ANSWER;
}
