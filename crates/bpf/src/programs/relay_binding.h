// STUN Binding requests (RFC 8489 §12) that need nothing but the address they come from, answered as user space answers
// them, byte for byte. All else is for user space: other methods and classes, attributes that have to be understood
// (integrity among them), a FINGERPRINT that does not fit, odd lengths.
//
//   | 0x0101, length | cookie | transaction id | XOR-MAPPED-ADDRESS 12 or 24 | [FINGERPRINT 8] |
//
// The UDP checksum of the answer is the request's, changed by what differs: a request that was damaged on the way gets an
// answer that nobody accepts, which is what not answering is.
#pragma once
#include "relay_decide.h"

enum {
    ATTRIBUTES_MAX_BYTES = 256, // longer requests are for user space
    ATTRIBUTES_MAX = 16,
    ATTRIBUTE_HEADER_BYTES = 4,
    FINGERPRINT_BYTES = 8,
    COMPREHENSION_OPTIONAL = 0x8000,
    ANSWER_TTL = 64,
    MAPPED_V4_WORDS = 3,
    MAPPED_V6_WORDS = 6,
    HEADER_WORDS = STUN_HEADER_BYTES / 4,
    MESSAGE_WORDS_MAX = HEADER_WORDS + MAPPED_V6_WORDS + 2,
    ANSWER_WORDS_MAX = (IPV6_BYTES + UDP_BYTES) / 4 + MESSAGE_WORDS_MAX,
};

// A request, as far as the answer depends on it. It is in a map because the verifier knows nothing about values from a map.
// So the verifier checks each loop once, not once per possible length.
struct question {
    u32 attributes; // bytes
    u32 fingerprint_at; // offset among the attributes, if there is one
    u32 fingerprinted;
    u32 attribute_sum; // of their 16-bit words, folded
};

struct {
    UINT(type, MAP_TYPE_PERCPU_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct question);
    UINT(max_entries, 1);
} QUESTION SEC(".maps");

// An answer without its Ethernet header.
struct answer {
    u32 word[ANSWER_WORDS_MAX];
    u32 bytes;
};

// CRC-32 of one word more (slicing by 4).
INLINE u32 crc_word(u32 crc, u32 word)
{
    crc ^= word;
    return CRC_TABLE[3][crc & 0xff] ^ CRC_TABLE[2][(crc >> 8) & 0xff] ^ CRC_TABLE[1][(crc >> 16) & 0xff] ^
           CRC_TABLE[0][crc >> 24];
}

// RFC 8489 §14.7, in network order.
INLINE u32 fingerprint(u32 crc)
{
    return be32(~crc ^ STUN_FINGERPRINT_XOR);
}

// Walks over the attributes. None may need to be understood, and FINGERPRINT must be the last.
INLINE int read_attributes(const struct view *view, const void *attributes, volatile struct question *question)
{
    u32 offset = 0;
#pragma clang loop unroll(disable)
    for (int i = 0; i < ATTRIBUTES_MAX; i++) {
        if (offset >= question->attributes || offset > ATTRIBUTES_MAX_BYTES)
            break;
        const u16 *attribute = attributes + offset;
        if ((const void *)(attribute + 2) > view->end)
            return PASS_STUN;
        u32 type = be16(attribute[0]);
        u32 next = offset + ATTRIBUTE_HEADER_BYTES + ((be16(attribute[1]) + 3) & 0x1fffc);
        if (type < COMPREHENSION_OPTIONAL)
            return PASS_STUN;
        if (type == STUN_FINGERPRINT) {
            if (be16(attribute[1]) != 4 || next != question->attributes)
                return PASS_STUN;
            question->fingerprinted = 1;
            question->fingerprint_at = offset;
        }
        offset = next;
    }
    return offset == question->attributes ? ANSWER : PASS_STUN;
}

// Sums the attributes, and checks the FINGERPRINT if there is one.
INLINE int check_attributes(const struct view *view, const u32 *message, volatile struct question *question)
{
    u32 words = HEADER_WORDS + question->attributes / 4;
    u32 covered = question->fingerprinted ? HEADER_WORDS + question->fingerprint_at / 4 : 0;
    u32 crc = 0xffffffff;
    u64 sum = 0;
    u32 last = 0;
#pragma clang loop unroll(disable)
    for (u32 i = 0; i < HEADER_WORDS + ATTRIBUTES_MAX_BYTES / 4; i++) {
        if (i >= words)
            break;
        if ((const void *)(message + i + 1) > view->end)
            return PASS_STUN;
        last = message[i];
        if (i < covered)
            crc = crc_word(crc, last);
        if (i >= HEADER_WORDS)
            sum += last;
    }
    question->attribute_sum = fold_wide(sum);
    return !question->fingerprinted || last == fingerprint(crc) ? ANSWER : PASS_STUN;
}

// Whether an answer to this source could be wanted: no multicast, no unspecified address, loopback only at home.
INLINE int source_ok(const struct view *view, const struct udp *udp, int v6)
{
    if (!udp->source)
        return 0;
    if (v6) {
        const struct ipv6 *ip = view->data + ETHERNET_BYTES;
        const u8 *first = (const void *)ip->source;
        // All that starts with 64 zeroes: ::, ::1, IPv4 in IPv6's clothes.
        int special = !ip->source[0] && !ip->source[1];
        int home = !ip->destination[0] && !ip->destination[1];
        return *first != 0xff && (!special || (home && ip->source[3]));
    }
    const struct ipv4 *ip = view->data + ETHERNET_BYTES;
    u8 first = (u8)ip->source;
    return first && first < 224 && (first != 127 || (u8)ip->destination == 127);
}

INLINE int is_listener(const struct view *view, const struct udp *udp, int v6)
{
    struct listener key = {.port = udp->destination, .v6 = v6};
    if (v6) {
        const struct ipv6 *ip = view->data + ETHERNET_BYTES;
        __builtin_memcpy(key.address, ip->destination, 16);
    } else {
        const struct ipv4 *ip = view->data + ETHERNET_BYTES;
        key.address[0] = ip->destination;
    }
    return !!map_lookup(&LISTENERS, &key);
}

INLINE u16 pseudo_header_in(const struct view *view, const struct udp *udp, int v6)
{
    const void *ip = view->data + ETHERNET_BYTES;
    u64 sum = v6 ? sum_words(ip + 8, 8) : sum_words(ip + 12, 2);
    return fold_wide(sum + be16(PROTOCOL_UDP) + udp->length);
}

// The prefix that answers are counted for: /24, or /56.
INLINE u64 prefix_of(const struct view *view, int v6)
{
    if (v6) {
        const struct ipv6 *ip = view->data + ETHERNET_BYTES;
        return ((u64)ip->source[1] << 32 | ip->source[0]) & 0x00ffffffffffffffULL;
    }
    const struct ipv4 *ip = view->data + ETHERNET_BYTES;
    return 1ULL << 63 | (ip->source & 0x00ffffff);
}

// Whether to answer. The UDP header and the lengths have been checked.
INLINE int decide_binding(const struct view *view, const struct udp *udp, int v6, volatile struct question *question,
                          struct decision *d)
{
    u32 zero = 0;
    const struct settings *settings = map_lookup(&SETTINGS, &zero);
    const u32 *message = (const void *)(udp + 1);
    u32 bytes = (u32)be16(udp->length) - UDP_BYTES;
    if (!settings || !(settings->flags & BINDING) || (const void *)(message + HEADER_WORDS) > view->end ||
        bytes < STUN_HEADER_BYTES || bytes > STUN_HEADER_BYTES + ATTRIBUTES_MAX_BYTES || bytes & 3)
        return PASS_STUN;
    u32 attributes = bytes - STUN_HEADER_BYTES;
    question->attributes = attributes;
    question->fingerprinted = 0;
    question->attribute_sum = 0;
    u32 first = (u32)be16(STUN_BINDING_REQUEST) | (u32)bswap16((u16)attributes) << 16;
    if (message[0] != first || message[1] != be32(STUN_MAGIC_COOKIE))
        return PASS_STUN;
    d->partial = udp->checksum == pseudo_header_in(view, udp, v6);
    if (d->partial && view->path == PATH_XDP)
        return PASS_PARTIAL;
    if (!source_ok(view, udp, v6) || !is_listener(view, udp, v6))
        return PASS_STUN;
    if (attributes) {
        int why = read_attributes(view, message + HEADER_WORDS, question);
        if (why != ANSWER)
            return why;
        why = check_attributes(view, message, question);
        if (why != ANSWER)
            return why;
    }
    d->now = ktime_get_coarse_ns();
    if (binding_over_rate(settings, prefix_of(view, v6), d->now))
        return settings->flags & DROP_EXCESS ? DROP_BINDING : BINDING_OVER_RATE;
    return ANSWER;
}

// RFC 8489 §14.2: the port and the first word are XORed with the cookie, the rest of an IPv6 address with the id.
INLINE void write_mapped(u32 *to, const u32 *source, u16 port, const u32 *id, int v6)
{
    to[0] = (u32)be16(STUN_XOR_MAPPED_ADDRESS) | (u32)be16(v6 ? 20 : 8) << 16;
    to[1] = (u32)be16(v6 ? 2 : 1) | (u32)(u16)(port ^ be16(STUN_MAGIC_COOKIE >> 16)) << 16;
    to[2] = source[0] ^ be32(STUN_MAGIC_COOKIE);
    if (v6) {
#pragma unroll
        for (int i = 0; i < 3; i++)
            to[3 + i] = source[1 + i] ^ id[i];
    }
}

// The message; returns how many words it has.
INLINE u32 write_message(u32 *to, const u32 *request, const u32 *source, u16 port, const volatile struct question *question, int v6)
{
    u32 words = HEADER_WORDS + (v6 ? MAPPED_V6_WORDS : MAPPED_V4_WORDS);
    u32 attributes = (v6 ? MAPPED_V6_WORDS : MAPPED_V4_WORDS) * 4 + (question->fingerprinted ? FINGERPRINT_BYTES : 0);
    to[0] = (u32)be16(STUN_BINDING_SUCCESS) | (u32)bswap16((u16)attributes) << 16;
#pragma unroll
    for (int i = 1; i < HEADER_WORDS; i++)
        to[i] = request[i];
    write_mapped(to + HEADER_WORDS, source, port, request + 2, v6);
    if (!question->fingerprinted)
        return words;
    u32 crc = 0xffffffff;
#pragma unroll
    for (u32 i = 0; i < HEADER_WORDS + MAPPED_V6_WORDS; i++)
        if (i < words)
            crc = crc_word(crc, to[i]);
    to[words] = (u32)be16(STUN_FINGERPRINT) | (u32)be16(4) << 16;
    to[words + 1] = fingerprint(crc);
    return words + 2;
}

// As a socket of user space would send it: DF clear, and where it is clear an identification, here of the transaction's
// randomness.
INLINE void write_answer_ip(u32 *to, const struct view *view, u16 udp_length, u32 randomness, int v6)
{
    if (v6) {
        const struct ipv6 *ip = view->data + ETHERNET_BYTES;
        to[0] = be32(0x60000000);
        to[1] = bswap16(udp_length) | PROTOCOL_UDP << 16 | ANSWER_TTL << 24;
        __builtin_memcpy(to + 2, ip->destination, 16);
        __builtin_memcpy(to + 6, ip->source, 16);
        return;
    }
    const struct ipv4 *ip = view->data + ETHERNET_BYTES;
    u16 total = udp_length + IPV4_BYTES;
    to[0] = 0x45 | (u32)bswap16(total) << 16;
    to[1] = randomness & 0xffff;
    to[2] = ANSWER_TTL | PROTOCOL_UDP << 8;
    to[3] = ip->destination;
    to[4] = ip->source;
    to[2] |= (u32)(u16)~fold_wide(sum_words(to, 5)) << 16;
}

// By how much the checksum's sum changes, but for the length in the pseudo header: what the request does not have, less
// what the answer does not.
INLINE u16 answer_difference(const u32 *request, const u32 *message, u32 words, const volatile struct question *question, u16 was, u16 is)
{
    u64 sum = (u64)message[0] + is + (u16)~was + (u32)~request[0] + without((u16)question->attribute_sum);
#pragma unroll
    for (u32 i = HEADER_WORDS; i < MESSAGE_WORDS_MAX; i++)
        if (i < words)
            sum += message[i];
    return fold_wide(sum);
}

// The whole answer but for the Ethernet header. `d` gets what is needed to change a partial checksum.
INLINE void write_answer(struct answer *answer, const struct view *view, const struct udp *udp,
                         const volatile struct question *question, struct decision *d, int v6)
{
    const u32 *request = (const void *)(udp + 1);
    const u32 *source = view->data + ETHERNET_BYTES + (v6 ? 8 : 12);
    u32 ip_words = (v6 ? IPV6_BYTES : IPV4_BYTES) / 4;
    u32 *udp_out = answer->word + ip_words;
    u32 *message = udp_out + UDP_BYTES / 4;
    u32 words = write_message(message, request, source, udp->source, question, v6);
    u16 udp_length = (u16)(UDP_BYTES + words * 4);
    u16 length = bswap16(udp_length);
    write_answer_ip(answer->word, view, udp_length, request[4], v6);
    d->udp_length = udp->length;
    d->old_checksum = udp->checksum;
    d->difference = answer_difference(request, message, words, question, udp->length, length);
    u32 sum = d->difference + without(udp->length) + length;
    if (udp->checksum)
        sum += without(udp->checksum);
    else
        // There is nothing to change: all of it. The difference contains what is there no longer, so that goes back in.
        sum += (u32)pseudo_header_in(view, udp, v6) + udp->source + udp->destination + udp->length +
               fold_wide(sum_words(request, HEADER_WORDS)) + question->attribute_sum;
    d->checksum = udp_checksum(fold(sum));
    udp_out[0] = (u32)udp->destination | (u32)udp->source << 16;
    udp_out[1] = (u32)length | (u32)d->checksum << 16;
    answer->bytes = ip_words * 4 + UDP_BYTES + words * 4;
}
