// The admission filter of a SIP listener: in an overload, requests that begin something are dropped here, before they are queued.
//
// A keyed hash of source and first bytes decides, so a retransmission has the fate of the first attempt. The share that passes is that
// of the source's place, which the worker sets: a peer has its own, other sources share hashed ones. What was dropped is remembered in
// a Bloom filter. The worker limits how many retransmissions of it pass, so new requests come first after an overload. The program
// counts what each place asks for. The worker also says until when all this holds, so nothing outlives it. A request passes if it may
// belong to an existing dialog or transaction: a To tag, credentials, or any other method. Responses and possible emergency calls pass,
// too.
#include "packet.h"

enum {
    HASHED_PLACES = 1024,
    PLACES = HASHED_PLACES + 256, // and those of peers
    // Bytes that are hashed, and bytes within which To and credentials are looked for.
    HASHED = 256,
    LOOKED_AT = 1024,
    // The mandatory header fields (RFC 3261 section 8.1.1) make a request longer.
    LEAST = 64,
    // Bits of one generation of the Bloom filter, as a power of two, and its words.
    MEMORY_BITS = 24,
    MEMORY_WORDS = 1 << (MEMORY_BITS - 6),
    MEMORY_HASHES = 4,
};

struct rules {
    u64 key;
    u64 multiplier; // odd
    u64 until_ns; // CLOCK_MONOTONIC
    u16 has_peers;
    // The generation of the Bloom filter that is written, 0 or 1; both are read.
    u16 generation;
    // How many retransmissions of remembered requests may still pass. Each further processor that reads it at the same time may pass one
    // more.
    int retransmissions;
    // A request that was not dropped before passes if its hash is not above the threshold of its place: 65535 is everything.
    u16 pass[PLACES];
};
_Static_assert(sizeof(struct rules) == 32 + 2 * PLACES, "rules");

struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct rules);
    UINT(max_entries, 1);
} RULES SEC(".maps");

// The place of a peer, by prefix: an IPv6 address, to which IPv4 addresses are mapped.
struct network {
    u32 length;
    u32 address[4];
};

struct {
    UINT(type, MAP_TYPE_LPM_TRIE);
    TYPE(key, struct network);
    TYPE(value, u32);
    UINT(max_entries, PLACES - HASHED_PLACES);
    UINT(map_flags, MAP_NO_PREALLOC);
} PEERS SEC(".maps");

// Two generations of a Bloom filter with four hashes. Bits that get lost between processors are no harm.
struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, u64);
    UINT(max_entries, 2 * MEMORY_WORDS);
    UINT(map_flags, MAP_MMAPABLE);
} MEMORY SEC(".maps");

// New requests by place, and behind those how many the Bloom filter got to know: what two processors count at once may count once.
struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, u64);
    UINT(max_entries, PLACES + 1);
    UINT(map_flags, MAP_MMAPABLE);
} COUNTS SEC(".maps");

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

// The address that a datagram comes from; 0 if it is neither IPv4 nor IPv6.
INLINE int read_source(struct __sk_buff *packet, struct network *source)
{
    source->length = 128;
    if (packet->protocol == be16(ETHERTYPE_IPV4)) {
        source->address[0] = source->address[1] = 0;
        source->address[2] = be32(0xffff);
        return !skb_load_bytes_relative(packet, __builtin_offsetof(struct ipv4, source), &source->address[3], 4, HEADER_START_NET);
    }
    return packet->protocol == be16(ETHERTYPE_IPV6) &&
           !skb_load_bytes_relative(packet, __builtin_offsetof(struct ipv6, source), source->address, 16, HEADER_START_NET);
}

// A keyed hash of an IPv4 address or an IPv6 /64.
INLINE u64 hash_source(const struct rules *rules, const struct network *source)
{
    u64 prefix = (u64)source->address[1] << 32 | source->address[0];
    if (!prefix && source->address[2] == be32(0xffff))
        prefix = source->address[3];
    return (prefix + rules->key) * rules->multiplier;
}

// Where the source has its threshold and its count.
INLINE u32 find_place(const struct rules *rules, const struct network *source, u64 seed)
{
    u32 *peer = rules->has_peers ? map_lookup(&PEERS, source) : 0;
    return peer ? *peer : (u32)(seed >> 54);
}

// A keyed hash of the first whole words, which begins with that of the source.
INLINE u64 hash(const struct rules *rules, const struct text *text, u32 length, u64 sum)
{
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
    u64 *words[MEMORY_HASHES];
    u64 masks[MEMORY_HASHES];
};

// Nonzero: none is missing.
INLINE int find_bits(u64 hash, u32 generation, struct bits *bits)
{
    u32 step = hash >> 32 | 1;
    for (u32 i = 0; i < MEMORY_HASHES; i++) {
        u32 bit = ((u32)hash + i * step) & ((1 << MEMORY_BITS) - 1);
        u32 word = (generation & 1) * MEMORY_WORDS + (bit >> 6);
        bits->words[i] = map_lookup(&MEMORY, &word);
        bits->masks[i] = 1ULL << (bit & 63);
        if (!bits->words[i])
            return 0;
    }
    return 1;
}

INLINE int is_remembered(u64 hash, u32 generation)
{
    struct bits bits;
    if (!find_bits(hash, generation, &bits))
        return 0;
    for (u32 i = 0; i < MEMORY_HASHES; i++) {
        if (!(*bits.words[i] & bits.masks[i]))
            return 0;
    }
    return 1;
}

INLINE void count(u32 at)
{
    u64 *counter = map_lookup(&COUNTS, &at);
    if (counter)
        *counter += 1;
}

INLINE void remember(u64 hash, u32 generation)
{
    struct bits bits;
    int is_new = 0;
    if (!find_bits(hash, generation, &bits))
        return;
    for (u32 i = 0; i < MEMORY_HASHES; i++) {
        // What is not written need not be fetched from another processor.
        if (!(*bits.words[i] & bits.masks[i])) {
            *bits.words[i] |= bits.masks[i];
            is_new = 1;
        }
    }
    if (is_new)
        count(PLACES);
}

// Whether credentials (the second half of a challenge) may begin with these four bytes, a line end and three letters: Authorization,
// Proxy-Authorization. User space knows which of them count.
INLINE int begins_credentials(u32 window)
{
    u32 lower = window | 0x202020;
    return lower == FOUR('\n', 'a', 'u', 't') || lower == FOUR('\n', 'p', 'r', 'o');
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
NOINLINE int judge_line(struct text *text, u32 window)
{
    u32 first = window >> 16 & 0xff;
    if (!text)
        return PASSES;
    if (first == '\r' || first == '\n')
        return text->seen_to ? BEGINS_SOMETHING : PASSES;
    // A line that begins with a blank continues the one before (RFC 3261 section 7.3.1).
    if (first == ' ' || first == '\t')
        return UNDECIDED;
    if (begins_credentials(window))
        return PASSES;
    text->in_to = begins_to(window);
    text->seen_to |= text->in_to;
    return UNDECIDED;
}

// The eight bytes at `at`, one by one. Not static for the same reason.
NOINLINE int judge_word(struct text *text, u32 at, u32 length)
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
            int judgement = judge_line(text, window);
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

// Whether the request surely begins something: its To, which is there, has no tag, and there are no credentials.
INLINE int begins_something(struct text *text, u32 length)
{
    text->in_to = 0;
    text->seen_to = 0;
    for (u32 i = 0; i < LOOKED_AT / 8; i++) {
        if (i * 8 >= length)
            return text->seen_to;
        if (!has_line_end(text->words[i]) && !text->in_to)
            continue;
        int judgement = judge_word(text, i * 8, length);
        if (judgement != UNDECIDED)
            return judgement == BEGINS_SOMETHING;
    }
    return 0;
}

// Nonzero: the request is dropped.
INLINE int drops(struct __sk_buff *packet, struct rules *rules, struct text *text)
{
    struct network source;
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
    if (!begins_something(text, length))
        return 0;
    u64 seed = hash_source(rules, &source);
    u64 sum = hash(rules, text, length, seed);
    // Other bits than those that are compared.
    u64 other = (sum ^ sum >> 29) * rules->multiplier;
    if (is_remembered(other, 0) || is_remembered(other, 1)) {
        if (rules->retransmissions > 0) {
            __sync_fetch_and_add(&rules->retransmissions, -1);
            return 0;
        }
    } else {
        u32 place = find_place(rules, &source, seed);
        if (place >= PLACES)
            return 0;
        count(place);
        if (sum >> 48 <= rules->pass[place])
            return 0;
    }
    remember(other, rules->generation);
    return 1;
}

SEC("socket") int sip_admission_filter(struct __sk_buff *packet)
{
    u32 zero = 0;
    struct rules *rules = map_lookup(&RULES, &zero);
    if (!rules || !rules->until_ns || packet->len < UDP_BYTES + LEAST || rules->until_ns < ktime_get_coarse_ns())
        return packet->len;
    struct text *text = map_lookup(&TEXT, &zero);
    u64 *dropped = map_lookup(&DROPPED, &zero);
    if (!text || !dropped || !drops(packet, rules, text))
        return packet->len;
    *dropped += 1;
    return 0;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
