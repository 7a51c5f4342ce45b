// Delivery counter: sits where the relayed datagrams arrive (tc ingress, or XDP), counts them, checks them, and
// takes them off the wire, so that no socket behind it has to be read.
//
// An interface counter would take a 64-segment packet for one; here every segment counts, and counts only when it
// is what the load sent: right length, magic and sequence complement, right flow between the right addresses, right
// channel; every so often the whole payload is compared. What is not part of the load (ARP, STUN answers for the
// allocating client) goes on to the stack untouched.
#include "packet.h"

enum count_mode {
    COUNT_NOTHING = 0, // everything passes
    COUNT_RAW = 1,     // the payload is the datagram: what a peer receives
    COUNT_CHANNEL = 2, // ChannelData: what a client receives
    COUNT_STUN = 3,    // Binding success responses: what a STUN client receives
};

enum {
    PAYLOAD_MAGIC = 0x6e707268, // "hrpn" on the wire
    MAX_SEGMENTS = 128, // UDP_MAX_SEGMENTS of the kernel (64 before 6.9)
    MAX_PAYLOAD = 1536,
    PAYLOAD_HEAD_BYTES = 16,
    CHUNK_BYTES = 16,
    MAX_ATTRIBUTES = 6,
    CLOCK_EVERY = 16, // reading the clock costs as much as a check
    PARSED_BYTES = ETHERNET_BYTES + IPV6_BYTES + UDP_BYTES,
    HEAD_BYTES = 32, // payload bytes that every check may look at; shorter datagrams are not part of any load
    SEEN_WORDS = 1 << 18, // 8,388,608 sequences: more than the generator sends in a second
};

struct settings {
    u32 mode;
    u32 first_port; // the load's destination ports: first_port .. first_port + ports
    u32 ports;
    u32 payload; // bytes behind the ChannelData header, 32..=1536; unused for STUN
    u32 flows;
    u32 verify_mask; // the whole payload is compared when (sequence & verify_mask) == 0
    u32 flow_mask; // the mask that the numbers of flows are XORed with; each run has its own
};

struct expected_flow {
    u32 source[4]; // IPv4: the first word
    u16 source_port;
    u16 destination_port;
    u16 channel;
    u16 reserved;
    u32 last_sequence; // one NAPI context per interface runs this program, so plain stores do
    u32 seen;
};

struct totals {
    u64 datagrams; // as sent, whole and where they belong
    u64 bytes;     // their payload
    u64 packets;   // packets or frames that carried them
    u64 aggregated; // packets of more than one datagram
    u64 corrupt;
    u64 misdirected;
    u64 reordered;
    u64 duplicated; // came again, or so late that nobody knows; not among the datagrams
    u64 verified; // datagrams whose whole payload was compared
    u64 last_ns;  // CLOCK_MONOTONIC at a recent datagram, at most CLOCK_EVERY - 1 before the last
};

struct {
    UINT(type, MAP_TYPE_ARRAY);
    UINT(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, struct settings);
} SETTINGS SEC(".maps");

struct {
    UINT(type, MAP_TYPE_ARRAY);
    UINT(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, struct expected_flow);
} EXPECTED SEC(".maps");

struct pattern {
    u8 bytes[MAX_PAYLOAD];
};

struct {
    UINT(type, MAP_TYPE_ARRAY);
    UINT(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, struct pattern);
} PATTERN SEC(".maps");

// Which of 32 sequences in a row have come.
struct seen {
    u32 block; // sequence / 32
    u32 bits;
};

// All flows share one numbering, which goes on from run to run. So one window for all of them does, and needs no clearing.
struct {
    UINT(type, MAP_TYPE_ARRAY);
    UINT(max_entries, SEEN_WORDS);
    TYPE(key, u32);
    TYPE(value, struct seen);
} SEEN SEC(".maps");

struct {
    UINT(type, MAP_TYPE_PERCPU_ARRAY);
    UINT(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, struct totals);
} TOTALS SEC(".maps");

// One packet, as far as its headers tell. Ports in host order, addresses as on the wire.
struct arrival {
    u32 source[4];
    u32 destination[4];
    u16 source_port;
    u16 destination_port;
    u32 payload_at; // offset of the UDP payload
    u32 payload;    // its bytes; of all segments together for an aggregate
};

struct payload_head {
    u32 magic;
    u32 flow;
    u32 sequence;
    u32 complement;
};

// What one datagram turned out to be.
enum finding { VALID, CORRUPT, MISDIRECTED, DUPLICATE };

// The flow and the sequence number that the head of a datagram contains.
struct claim {
    struct expected_flow *flow;
    u32 sequence;
};

INLINE int parse(const void *data, struct arrival *out)
{
    const struct ethernet *ethernet = data;
    const struct udp *udp;
    if (ethernet->type == be16(ETHERTYPE_IPV4)) {
        const struct ipv4 *ip = data + ETHERNET_BYTES;
        if (ip->version_and_length != 0x45 || ip->protocol != PROTOCOL_UDP || ip->fragment & be16(0x3fff))
            return 0;
        udp = data + ETHERNET_BYTES + IPV4_BYTES;
        out->source[0] = ip->source;
        out->destination[0] = ip->destination;
        out->source[1] = out->source[2] = out->source[3] = 0;
        out->destination[1] = out->destination[2] = out->destination[3] = 0;
        out->payload_at = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES;
    } else if (ethernet->type == be16(ETHERTYPE_IPV6)) {
        const struct ipv6 *ip = data + ETHERNET_BYTES;
        if (ip->next_header != PROTOCOL_UDP)
            return 0;
        udp = data + ETHERNET_BYTES + IPV6_BYTES;
        __builtin_memcpy(out->source, ip->source, sizeof(out->source));
        __builtin_memcpy(out->destination, ip->destination, sizeof(out->destination));
        out->payload_at = PARSED_BYTES;
    } else {
        return 0;
    }
    out->source_port = be16(udp->source);
    out->destination_port = be16(udp->destination);
    out->payload = (u16)(be16(udp->length) - UDP_BYTES);
    return 1;
}

// Whether the datagram belongs to the load at all; only then can it be wrong.
INLINE int in_scope(const struct settings *settings, const struct arrival *arrival, u8 first, u8 second)
{
    if ((u32)arrival->destination_port - settings->first_port >= settings->ports)
        return 0;
    if (settings->mode == COUNT_CHANNEL)
        return (first & 0xc0) == 0x40;
    if (settings->mode == COUNT_STUN)
        return first == STUN_BINDING_SUCCESS >> 8 && second == (STUN_BINDING_SUCCESS & 0xff);
    return settings->mode == COUNT_RAW;
}

INLINE int same_source(const struct expected_flow *flow, const struct arrival *arrival)
{
    return flow->source[0] == arrival->source[0] && flow->source[1] == arrival->source[1] &&
           flow->source[2] == arrival->source[2] && flow->source[3] == arrival->source[3] &&
           flow->source_port == arrival->source_port && flow->destination_port == arrival->destination_port;
}

INLINE void note_order(struct expected_flow *flow, u32 sequence, struct totals *totals)
{
    int ahead = (int)(sequence - flow->last_sequence);
    if (flow->seen && ahead < 0)
        totals->reordered++;
    else
        flow->last_sequence = sequence;
    flow->seen = 1;
}

// Whether a sequence has come before, as far as the window reaches. Notes it.
INLINE int seen_before(u32 sequence)
{
    u32 block = sequence / 32;
    u32 number = block % SEEN_WORDS;
    u32 bit = 1U << (sequence % 32);
    struct seen *seen = map_lookup(&SEEN, &number);
    if (!seen)
        return 0;
    if (seen->block != block) {
        // A block has 27 bits: shifted up, the difference has its sign where an int has it.
        if ((int)((block - seen->block) << 5) < 0)
            return 1;
        seen->block = block;
        seen->bits = 0;
    }
    if (seen->bits & bit)
        return 1;
    seen->bits |= bit;
    return 0;
}

// Checks the payload head of any frame. `channel` is -1 outside ChannelData. Does not mark the sequence as seen:
// otherwise a datagram that follows a damaged copy of itself would count as a duplicate.
INLINE enum finding check_flow(const struct settings *settings, const struct arrival *arrival,
                               const struct payload_head *head, int channel, struct claim *claim)
{
    if (head->sequence != ~head->complement)
        return CORRUPT;
    u32 number = head->flow ^ settings->flow_mask;
    if (number >= settings->flows)
        return MISDIRECTED;
    struct expected_flow *flow = map_lookup(&EXPECTED, &number);
    if (!flow || !same_source(flow, arrival) || (channel >= 0 && channel != flow->channel))
        return MISDIRECTED;
    claim->flow = flow;
    claim->sequence = head->sequence;
    return VALID;
}

// The last check, of a datagram that has passed all others.
INLINE enum finding admit(const struct claim *claim, struct totals *totals)
{
    if (!claim->flow)
        return CORRUPT;
    if (seen_before(claim->sequence))
        return DUPLICATE;
    note_order(claim->flow, claim->sequence, totals);
    return VALID;
}

// RFC 8489 §5: type, length, cookie, then the transaction id, of which the load uses 4 bytes for the flow and 8 for
// the sequence. The length must agree; XOR-MAPPED-ADDRESS is checked by its own walk.
INLINE enum finding check_stun(const struct settings *settings, const struct arrival *arrival, const u8 *head,
                               u32 length, struct claim *claim)
{
    const u16 *half = (const void *)head;
    const u32 *word = (const void *)head;
    if (word[1] != be32(STUN_MAGIC_COOKIE) || (u32)be16(half[1]) + STUN_HEADER_BYTES != length)
        return CORRUPT;
    struct payload_head id = {.flow = word[2], .sequence = word[3], .complement = word[4]};
    return check_flow(settings, arrival, &id, -1, claim);
}

INLINE enum finding check_relayed(const struct settings *settings, const struct arrival *arrival, const u8 *head,
                                  u32 length, struct claim *claim)
{
    const struct payload_head *payload = (const void *)head;
    int channel = -1;
    if (settings->mode == COUNT_CHANNEL) {
        // RFC 8656 §12.4: channel number and length of the application data; over UDP padding is optional.
        const u16 *half = (const void *)head;
        channel = be16(half[0]);
        if (be16(half[1]) != settings->payload || length < settings->payload + CHANNEL_HEADER_BYTES ||
            length > settings->payload + CHANNEL_HEADER_BYTES + 3)
            return CORRUPT;
        payload = (const void *)(head + CHANNEL_HEADER_BYTES);
    } else if (length != settings->payload) {
        return CORRUPT;
    }
    if (payload->magic != PAYLOAD_MAGIC)
        return CORRUPT;
    return check_flow(settings, arrival, payload, channel, claim);
}

INLINE enum finding check(const struct settings *settings, const struct arrival *arrival, const u8 *head, u32 length,
                          struct claim *claim)
{
    if (settings->mode == COUNT_STUN)
        return check_stun(settings, arrival, head, length, claim);
    return check_relayed(settings, arrival, head, length, claim);
}

INLINE void tally(struct totals *totals, enum finding finding, u32 bytes)
{
    if (finding == VALID) {
        if (totals->datagrams++ % CLOCK_EVERY == 0)
            totals->last_ns = ktime_get_ns();
        totals->bytes += bytes;
    } else if (finding == CORRUPT) {
        totals->corrupt++;
    } else if (finding == DUPLICATE) {
        totals->duplicated++;
    } else {
        totals->misdirected++;
    }
}

// The two ways to read packet bytes; everything that compares in bulk is written once over them. Each is a global
// function, so that the verifier looks at its loop once and not once per segment and path.
#define LOAD_PAYLOAD_CHECKS(kind, context, load_bytes)                                                                 \
    /* Compares `length` payload bytes at `at` with the pattern; 1 when equal. */                                     \
    NOINLINE int kind##_payload_matches(context *packet, u32 at, u32 length)                                          \
    {                                                                                                                  \
        u32 zero = 0;                                                                                                  \
        struct pattern *pattern = map_lookup(&PATTERN, &zero);                                                         \
        /* 64 bits throughout: Linux 6.1 does not carry what a comparison of 32 bits tells over to the register. */    \
        u64 end = length;                                                                                              \
        KEEP_IN_REGISTER(end);                                                                                         \
        if (!pattern || end < PAYLOAD_HEAD_BYTES + CHUNK_BYTES || end > MAX_PAYLOAD)                                   \
            return 0;                                                                                                  \
        u64 last = end - CHUNK_BYTES;                                                                                  \
        for (u64 next = CHUNK_BYTES; next < MAX_PAYLOAD; next += CHUNK_BYTES) {                                        \
            u64 offset = next < last ? next : last; /* the last chunk overlaps the one before */                       \
            KEEP_IN_REGISTER(offset);                                                                                  \
            u64 found[2];                                                                                              \
            if (offset > MAX_PAYLOAD - CHUNK_BYTES || load_bytes(packet, at + offset, found, sizeof(found)))           \
                return 0;                                                                                              \
            const u64 *wanted = (const void *)(pattern->bytes + offset);                                               \
            if (found[0] != wanted[0] || found[1] != wanted[1])                                                        \
                return 0;                                                                                              \
            if (next >= last)                                                                                          \
                return 1;                                                                                              \
        }                                                                                                              \
        return 1;                                                                                                      \
    }                                                                                                                  \
    /* Finds XOR-MAPPED-ADDRESS (RFC 8489 §14.2) behind the header at `at` and compares it with the receiver. */      \
    NOINLINE int kind##_mapped_address_matches(context *packet, u32 at, u32 length, struct arrival *arrival)           \
    {                                                                                                                  \
        u32 offset = STUN_HEADER_BYTES;                                                                                \
        if (!arrival)                                                                                                  \
            return 0;                                                                                                  \
        for (int i = 0; i < MAX_ATTRIBUTES; i++) {                                                                     \
            u16 attribute[6];                                                                                          \
            if (offset > length || load_bytes(packet, at + offset, attribute, sizeof(attribute)))                      \
                return 0;                                                                                              \
            if (attribute[0] == be16(STUN_XOR_MAPPED_ADDRESS)) {                                                       \
                if (be16(attribute[3]) != (arrival->destination_port ^ (STUN_MAGIC_COOKIE >> 16)))                     \
                    return 0;                                                                                          \
                if (arrival->payload_at != PARSED_BYTES)                                                               \
                    return attribute[1] == be16(8) && (attribute[2] & be16(0xff)) == be16(1) &&                        \
                           (attribute[4] | (u32)attribute[5] << 16) ==                                                 \
                               (arrival->destination[0] ^ be32(STUN_MAGIC_COOKIE));                                    \
                /* IPv6: the whole address, with the cookie and the transaction id. */                                 \
                u32 found[4], id[4];                                                                                   \
                if (attribute[1] != be16(20) || (attribute[2] & be16(0xff)) != be16(2) ||                              \
                    load_bytes(packet, at + offset + 8, found, sizeof(found)) ||                                       \
                    load_bytes(packet, at + 4, id, sizeof(id)))                                                        \
                    return 0;                                                                                          \
                return found[0] == (arrival->destination[0] ^ id[0]) &&                                                \
                       found[1] == (arrival->destination[1] ^ id[1]) &&                                                \
                       found[2] == (arrival->destination[2] ^ id[2]) && found[3] == (arrival->destination[3] ^ id[3]); \
            }                                                                                                          \
            offset += 4 + (((u32)be16(attribute[1]) + 3) & 0xfffc);                                                    \
        }                                                                                                              \
        return 0;                                                                                                      \
    }                                                                                                                  \
    /* What is too dear for the inlined check: every answer's address, and the sampled payload. */                    \
    INLINE enum finding kind##_check_further(context *packet, const struct settings *settings,                        \
                                             struct arrival *arrival, const struct claim *claim, u32 at, u32 length,   \
                                             struct totals *totals)                                                    \
    {                                                                                                                  \
        if (settings->mode == COUNT_STUN)                                                                              \
            return kind##_mapped_address_matches(packet, at, length, arrival) ? VALID : CORRUPT;                       \
        if (claim->sequence & settings->verify_mask)                                                                   \
            return VALID;                                                                                              \
        totals->verified++;                                                                                            \
        u32 skip = settings->mode == COUNT_CHANNEL ? CHANNEL_HEADER_BYTES : 0;                                         \
        return kind##_payload_matches(packet, at + skip, settings->payload) ? VALID : CORRUPT;                         \
    }

LOAD_PAYLOAD_CHECKS(xdp, struct xdp_md, xdp_load_bytes)
LOAD_PAYLOAD_CHECKS(skb, struct __sk_buff, skb_load_bytes)

SEC("xdp")
int count_xdp(struct xdp_md *packet)
{
    u32 zero = 0;
    struct settings *settings = map_lookup(&SETTINGS, &zero);
    struct totals *totals = map_lookup(&TOTALS, &zero);
    void *data = (void *)(long)packet->data;
    void *end = (void *)(long)packet->data_end;
    struct arrival arrival;
    if (!settings || !totals || data + PARSED_BYTES > end || !parse(data, &arrival))
        return XDP_PASS;
    const u8 *head = data + arrival.payload_at;
    if ((void *)head + HEAD_BYTES > end || !in_scope(settings, &arrival, head[0], head[1]))
        return XDP_PASS;
    enum finding finding = CORRUPT;
    struct claim claim = {};
    if ((void *)head + arrival.payload <= end)
        finding = check(settings, &arrival, head, arrival.payload, &claim);
    if (finding == VALID)
        finding = xdp_check_further(packet, settings, &arrival, &claim, arrival.payload_at, arrival.payload, totals);
    if (finding == VALID)
        finding = admit(&claim, totals);
    totals->packets++;
    tally(totals, finding, arrival.payload);
    return XDP_DROP;
}

// One segment of a packet whose bytes are not all in the linear part; all segments share the headers.
NOINLINE int count_segment(struct __sk_buff *packet, struct arrival *arrival, u32 at, u32 length)
{
    u32 zero = 0;
    struct settings *settings = map_lookup(&SETTINGS, &zero);
    struct totals *totals = map_lookup(&TOTALS, &zero);
    u8 head[HEAD_BYTES] __attribute__((aligned(8)));
    if (!settings || !totals || !arrival)
        return 0;
    enum finding finding = CORRUPT;
    struct claim claim = {};
    if (length >= HEAD_BYTES && !skb_load_bytes(packet, at, head, sizeof(head)))
        finding = check(settings, arrival, head, length, &claim);
    if (finding == VALID)
        finding = skb_check_further(packet, settings, arrival, &claim, at, length, totals);
    if (finding == VALID)
        finding = admit(&claim, totals);
    tally(totals, finding, length);
    return 0;
}

INLINE void count_segments(struct __sk_buff *packet, struct arrival *arrival, struct totals *totals)
{
    u32 at = arrival->payload_at;
    u32 stride = packet->gso_size;
    u32 left = packet->len - at;
    totals->aggregated++;
    for (int i = 0; i < MAX_SEGMENTS; i++) {
        if (!left)
            break;
        u32 length = left < stride ? left : stride;
        count_segment(packet, arrival, at, length);
        at += length;
        left -= length;
    }
    if (left)
        totals->corrupt++; // never counted silently as fewer
}

// Runs in the time of whoever receives here, and on a veth that is the sender: the common case, one datagram in the
// linear part, reads the packet in place.
SEC("classifier")
int count_tc(struct __sk_buff *packet)
{
    u32 zero = 0;
    struct settings *settings = map_lookup(&SETTINGS, &zero);
    struct totals *totals = map_lookup(&TOTALS, &zero);
    struct arrival arrival = {};
    if (!settings || !totals || settings->mode == COUNT_NOTHING)
        return TC_ACT_OK;
    void *data = (void *)(long)packet->data;
    void *end = (void *)(long)packet->data_end;
    if (data + PARSED_BYTES > end && packet->len >= PARSED_BYTES) {
        if (skb_pull_data(packet, PARSED_BYTES))
            return TC_ACT_OK;
        data = (void *)(long)packet->data;
        end = (void *)(long)packet->data_end;
    }
    if (data + PARSED_BYTES > end || !parse(data, &arrival))
        return TC_ACT_OK;
    u32 at = arrival.payload_at;
    const u8 *head = data + at;
    if (packet->gso_segs <= 1 && (void *)head + HEAD_BYTES <= end) {
        if (!in_scope(settings, &arrival, head[0], head[1]))
            return TC_ACT_OK;
        totals->packets++;
        enum finding finding = CORRUPT;
        struct claim claim = {};
        if (at + arrival.payload <= packet->len)
            finding = check(settings, &arrival, head, arrival.payload, &claim);
        if (finding == VALID)
            finding = skb_check_further(packet, settings, &arrival, &claim, at, arrival.payload, totals);
        if (finding == VALID)
            finding = admit(&claim, totals);
        tally(totals, finding, arrival.payload);
        return TC_ACT_SHOT;
    }
    u8 first[2];
    if (skb_load_bytes(packet, at, first, 2) || !in_scope(settings, &arrival, first[0], first[1]))
        return TC_ACT_OK;
    totals->packets++;
    if (packet->gso_segs > 1)
        count_segments(packet, &arrival, totals);
    else
        count_segment(packet, &arrival, at, arrival.payload);
    return TC_ACT_SHOT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
