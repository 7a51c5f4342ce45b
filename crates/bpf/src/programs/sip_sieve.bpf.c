// The sieve of a SIP listener: in an overload, requests that begin something are dropped here, before they are queued.
//
// Whether a request stays is decided by a hash of its first bytes, so a retransmission meets the same fate as the first
// try. The share that stays is that of its source's place in a table which the worker writes. What was dropped is remembered in a
// Bloom filter: its retransmissions have a share of their own, which the worker raises last, for in a calm after an overload they
// are many times what comes anew. The worker also says until when all this holds, so nothing outlives it. Never held back is what may belong to something
// that was begun (a To tag, credentials, any other method, a response) or may be an emergency call; when in doubt it passes.
#include "packet.h"

enum {
    PLACES = 1024,
    // Bytes that are hashed, and bytes within which From, To and credentials are looked for.
    HASHED = 256,
    LOOKED_AT = 1024,
    // Shorter than any request.
    LEAST = 64,
    // Bits of one generation of the Bloom filter, as a power of two, and its words.
    STALE_BITS = 24,
    STALE_WORDS = 1 << (STALE_BITS - 6),
    STALE_HASHES = 4,
};

// Flags of `rules`.
enum {
    // Requests with Authorization or Proxy-Authorization pass: the second half of a challenge.
    SPARE_CREDENTIALS = 1,
    // Requests with Priority or Resource-Priority pass: user space knows which values count.
    SPARE_PRIORITY = 2,
};

struct rules {
    u64 key;
    u64 multiplier; // odd
    u64 until_ns; // CLOCK_MONOTONIC
    u32 flags;
    // The generation of the Bloom filter that is written, 0 or 1; both are read.
    u16 generation;
    // A request whose hash is not above its threshold passes: 65535 is everything. This is that of what was dropped before ..
    u16 stale;
    // .. and these are those of the others, by place.
    u16 pass[PLACES];
};
_Static_assert(sizeof(struct rules) == 32 + 2 * PLACES, "rules");

struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct rules);
    UINT(max_entries, 1);
} RULES SEC(".maps");

// Two generations of a Bloom filter with four hashes. Bits that get lost between processors are no harm.
struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, u64);
    UINT(max_entries, 2 * STALE_WORDS);
    UINT(map_flags, MAP_MMAPABLE);
} STALE SEC(".maps");

// Datagrams dropped.
struct {
    UINT(type, MAP_TYPE_PERCPU_ARRAY);
    TYPE(key, u32);
    TYPE(value, u64);
    UINT(max_entries, 1);
} DROPPED SEC(".maps");

struct text {
    union {
        // A line end and what is compared after it may be beyond what is looked at.
        u8 bytes[LOOKED_AT + 8];
        u64 words[LOOKED_AT / 8 + 1];
    };
    // What has been seen of To.
    u32 in_to;
    u32 seen_to;
};

struct {
    UINT(type, MAP_TYPE_PERCPU_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct text);
    UINT(max_entries, 1);
} TEXT SEC(".maps");

// Four bytes, the first of them on top.
#define FOUR(a, b, c, d) ((u32)(a) << 24 | (u32)(b) << 16 | (u32)(c) << 8 | (u32)(d))
// Eight bytes as a load finds them in memory.
#define EIGHT(a, b, c, d, e, f, g, h) \
    ((u64)(h) << 56 | (u64)(g) << 48 | (u64)(f) << 40 | (u64)(e) << 32 | (u64)(d) << 24 | (u64)(c) << 16 | (u64)(b) << 8 | (u64)(a))
#define SEVEN 0x00ffffffffffffffULL

// Where the Request-URI begins if the method begins something; else 0.
INLINE u32 uri_of_new_work(u64 first)
{
    if ((first & SEVEN) == EIGHT('I', 'N', 'V', 'I', 'T', 'E', ' ', 0))
        return 7;
    if (first == EIGHT('R', 'E', 'G', 'I', 'S', 'T', 'E', 'R'))
        return 9;
    if (first == EIGHT('O', 'P', 'T', 'I', 'O', 'N', 'S', ' '))
        return 8;
    if (first == EIGHT('S', 'U', 'B', 'S', 'C', 'R', 'I', 'B'))
        return 10;
    if (first == EIGHT('M', 'E', 'S', 'S', 'A', 'G', 'E', ' '))
        return 8;
    if (first == EIGHT('P', 'U', 'B', 'L', 'I', 'S', 'H', ' '))
        return 8;
    return 0;
}

// The first 32 bits of an IPv4 address, the first 64 of an IPv6 address.
INLINE int read_source(struct __sk_buff *packet, u64 *source)
{
    if (packet->protocol == be16(ETHERTYPE_IPV4)) {
        u32 v4;
        if (skb_load_bytes_relative(packet, __builtin_offsetof(struct ipv4, source), &v4, 4, HEADER_START_NET))
            return 0;
        *source = v4;
        return 1;
    }
    return packet->protocol == be16(ETHERTYPE_IPV6) &&
           !skb_load_bytes_relative(packet, __builtin_offsetof(struct ipv6, source), source, 8, HEADER_START_NET);
}

// A keyed hash of the first whole words.
INLINE u64 hash(const struct rules *rules, const struct text *text, u32 length)
{
    u64 sum = rules->key;
    for (u32 i = 0; i < HASHED / 8; i++) {
        if (i * 8 + 8 > length)
            break;
        sum = (sum ^ text->words[i]) * rules->multiplier;
        sum ^= sum >> 32;
    }
    return sum * rules->multiplier;
}

// Where the bits of a hash are in a generation of the Bloom filter.
struct bits {
    u64 *words[STALE_HASHES];
    u64 masks[STALE_HASHES];
};

// Nonzero: none is missing.
INLINE int find_bits(u64 hash, u32 generation, struct bits *bits)
{
    u32 step = hash >> 32 | 1;
    for (u32 i = 0; i < STALE_HASHES; i++) {
        u32 bit = ((u32)hash + i * step) & ((1 << STALE_BITS) - 1);
        u32 word = (generation & 1) * STALE_WORDS + (bit >> 6);
        bits->words[i] = map_lookup(&STALE, &word);
        bits->masks[i] = 1ULL << (bit & 63);
        if (!bits->words[i])
            return 0;
    }
    return 1;
}

INLINE int is_stale(u64 hash, u32 generation)
{
    struct bits bits;
    if (!find_bits(hash, generation, &bits))
        return 0;
    for (u32 i = 0; i < STALE_HASHES; i++) {
        if (!(*bits.words[i] & bits.masks[i]))
            return 0;
    }
    return 1;
}

INLINE void remember(u64 hash, u32 generation)
{
    struct bits bits;
    if (!find_bits(hash, generation, &bits))
        return;
    for (u32 i = 0; i < STALE_HASHES; i++) {
        // What is not written need not be fetched from another processor.
        if (!(*bits.words[i] & bits.masks[i]))
            *bits.words[i] |= bits.masks[i];
    }
}

// Whether a header that spares the request begins with these four bytes: a line end and three letters.
INLINE int spares(u32 window, u32 flags)
{
    u32 lower = window | 0x202020;
    if ((flags & SPARE_CREDENTIALS) && (lower == FOUR('\n', 'a', 'u', 't') || lower == FOUR('\n', 'p', 'r', 'o')))
        return 1;
    return (flags & SPARE_PRIORITY) && (lower == FOUR('\n', 'p', 'r', 'i') || lower == FOUR('\n', 'r', 'e', 's'));
}

// "\nTo:", "\nt:" and what else may stand before the colon.
INLINE int begins_to(u32 window)
{
    u32 second = window >> 8 & 0xff, third = window & 0xff;
    if ((window >> 16 & 0xdf) != 'T')
        return 0;
    if ((second & 0xdf) == 'O')
        return third == ':' || third == ' ' || third == '\t';
    return second == ':' || second == ' ' || second == '\t';
}

enum judgement { UNDECIDED, PASSES, BEGINS_SOMETHING };

// A line end, and three more bytes. Not static: so the verifier looks at it by itself, and not once for every place where a line
// may end.
NOINLINE int judge_line(struct text *text, u32 window, u32 flags)
{
    u32 first = window >> 16 & 0xff;
    if (!text)
        return PASSES;
    if (first == '\r' || first == '\n')
        return text->seen_to ? BEGINS_SOMETHING : PASSES;
    // A line that begins with a blank continues the one before (RFC 3261 section 7.3.1).
    if (first == ' ' || first == '\t')
        return UNDECIDED;
    if (text->seen_to && !flags)
        return BEGINS_SOMETHING;
    if (spares(window, flags))
        return PASSES;
    text->in_to = begins_to(window);
    text->seen_to |= text->in_to;
    return UNDECIDED;
}

// The eight bytes at `at`, one by one. Not static for the same reason.
NOINLINE int judge_word(struct text *text, u32 at, u32 length, u32 flags)
{
    if (!text || at > LOOKED_AT - 8)
        return PASSES;
    for (u32 i = 0; i < 8; i++, at++) {
        u8 byte = text->bytes[at];
        if (byte != '\n' && !text->in_to)
            continue;
        // The end of the datagram, where nothing is left to look at, or of what is looked at, where there may be a tag.
        if (at + 3 >= length)
            return text->seen_to && length < LOOKED_AT ? BEGINS_SOMETHING : PASSES;
        u32 window = FOUR(byte, text->bytes[at + 1], text->bytes[at + 2], text->bytes[at + 3]);
        if (byte == '\n') {
            int judgement = judge_line(text, window, flags);
            if (judgement != UNDECIDED)
                return judgement;
        } else if ((window | 0x20202000) == FOUR('t', 'a', 'g', '=')) {
            return PASSES;
        }
    }
    return UNDECIDED;
}

// Nonzero if there may be a line end among eight bytes, and if there is one for certain.
INLINE u64 has_line_end(u64 word)
{
    u64 zero = word ^ 0x0a0a0a0a0a0a0a0aULL;
    return (zero - 0x0101010101010101ULL) & ~zero & 0x8080808080808080ULL;
}

// Whether the request surely begins something: its To, which is there, has no tag, and nothing spares it.
INLINE int begins_something(struct text *text, u32 length, u32 flags)
{
    text->in_to = 0;
    text->seen_to = 0;
    for (u32 i = 0; i < LOOKED_AT / 8; i++) {
        if (i * 8 >= length)
            return text->seen_to;
        if (!has_line_end(text->words[i]) && !text->in_to)
            continue;
        int judgement = judge_word(text, i * 8, length, flags);
        if (judgement != UNDECIDED)
            return judgement == BEGINS_SOMETHING;
    }
    return 0;
}

// Nonzero: the request is dropped.
INLINE int holds_back(struct __sk_buff *packet, const struct rules *rules, struct text *text)
{
    u64 source;
    u32 length = packet->len - UDP_BYTES;
    if (length > LOOKED_AT)
        length = LOOKED_AT;
    if (length < LEAST || skb_load_bytes(packet, UDP_BYTES, text->bytes, length))
        return 0;
    u32 uri = uri_of_new_work(text->words[0]);
    if (!uri || uri > LEAST - 4 || !read_source(packet, &source))
        return 0;
    // urn:service:sos (RFC 5031).
    if ((text->bytes[uri] & 0xdf) == 'U' && (text->bytes[uri + 1] & 0xdf) == 'R' && text->bytes[uri + 3] == ':')
        return 0;
    u64 sum = hash(rules, text, length);
    // Other bits than those that are compared, and others for each source.
    u64 other = (sum ^ sum >> 29 ^ source) * rules->multiplier;
    u32 place = (source + rules->key) * rules->multiplier >> 54;
    u32 threshold = is_stale(other, 0) || is_stale(other, 1) ? rules->stale : rules->pass[place % PLACES];
    if (sum >> 48 <= threshold || !begins_something(text, length, rules->flags))
        return 0;
    remember(other, rules->generation);
    return 1;
}

SEC("socket") int sip_sieve(struct __sk_buff *packet)
{
    u32 zero = 0;
    struct rules *rules = map_lookup(&RULES, &zero);
    if (!rules || !rules->until_ns || packet->len < UDP_BYTES + LEAST || rules->until_ns < ktime_get_coarse_ns())
        return packet->len;
    struct text *text = map_lookup(&TEXT, &zero);
    u64 *dropped = map_lookup(&DROPPED, &zero);
    if (!text || !dropped || !holds_back(packet, rules, text))
        return packet->len;
    *dropped += 1;
    return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
