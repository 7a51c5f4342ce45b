// Internet checksums (RFC 1071) and their incremental change (RFC 1624, equation 3: ~(~old + ~was + is)). Sums are of
// 16-bit words as they lie in memory, so no byte is swapped but those of lengths, which are computed.
#pragma once
#include "packet.h"

INLINE u16 fold(u32 sum)
{
    sum = (sum & 0xffff) + (sum >> 16);
    return (u16)(sum + (sum >> 16));
}

// Of 32-bit words.
INLINE u16 fold_wide(u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffffffff) + (sum >> 32);
    return fold((u32)(sum & 0xffff) + (u32)(sum >> 16));
}

// To be added for a word that is no longer there.
INLINE u32 without(u16 word)
{
    return (u16)~word;
}

// The field for a folded sum. RFC 768: a checksum that computes as zero is sent as all ones; zero means "none".
INLINE u16 udp_checksum(u16 folded)
{
    u16 field = (u16)~folded;
    return field ? field : 0xffff;
}

// Right when the sum over the header is all ones.
INLINE int ipv4_header_ok(const struct ipv4 *ip)
{
    const u32 *word = (const void *)ip;
    return fold_wide((u64)word[0] + word[1] + word[2] + word[3] + word[4]) == 0xffff;
}

INLINE u64 sum_words(const u32 *words, int count)
{
    u64 sum = 0;
#pragma unroll
    for (int i = 0; i < count; i++)
        sum += words[i];
    return sum;
}
