// What the relay's programs share with user space: constants set when they are loaded, and maps (src/relay/layout.rs has
// the same layouts).
#pragma once
#include "packet.h"

enum {
    MAX_LISTENER_PORTS = 8,
    INTERFACE_SLOTS = 256,
    BINDING_BUCKETS_COUNT = 65536,
    MAX_LISTENERS = 1024,
    NO_BUCKET = 0xffffffff,
    // Shifts, because a division costs as much as a look-up.
    LAST_SEEN_SHIFT = 30, // about a second
    DEADLINE_SHIFT = 28, // about a quarter of a second, for 36 years
    FLOW_PROBES = 16, // places that a search looks at, at most; the time that the verifier takes grows with it
};

// Constants: the verifier leaves out what they rule out. Ports in network order, except for the range.
volatile const u16 LISTENER_PORTS[MAX_LISTENER_PORTS] SEC(".rodata") = {};
volatile const u32 LISTENER_PORT_COUNT SEC(".rodata") = 0;
volatile const u32 FLOW_MASK SEC(".rodata") = 0; // places in FLOWS less 1
volatile const u32 RELAY_LOW SEC(".rodata") = 0;
volatile const u32 RELAY_HIGH SEC(".rodata") = 0;
volatile const u64 SEED[2] SEC(".rodata") = {};
volatile const u32 IS_IN_FRONT SEC(".rodata") = 0; // of the XDP program in BEHIND
// For CRC-32 four bytes at a time: the value of a byte with 0 to 3 bytes behind it.
volatile const u32 CRC_TABLE[4][256] SEC(".rodata") = {};

enum flow_flag {
    FLOW_LABEL = 0xfffff,
    OUT_V6 = 1 << 24,
    OWN_RELAY = 1 << 25,
    SETTLED = 1 << 26,
    IN_V6 = 1 << 27,
    IN_USE = 1 << 28,
    REMOVED = 1 << 29, // a search goes on behind this place
};

// One direction of a channel: what its packets look like as they arrive, what becomes of them, and how many there were.
// User space finds a place for it (src/relay/table.rs): the first free one from where its hash points. All that an IPv4
// packet needs is in one cache line, because with many flows every line is a cache miss. Addresses and ports as they are on
// the wire; of an IPv6 address this is the first word.
struct flow {
    u32 version; // odd while user space writes
    u32 label_and_flags; // 0: the place was never used, and a search ends
    u32 deadline; // CLOCK_MONOTONIC in units of 2^DEADLINE_SHIFT ns
    u32 bucket; // NO_BUCKET: no rate limit
    u16 remote_port;
    u16 local_port;
    u16 key_channel; // as it arrives; 0: from a peer
    u16 next_hop;
    u16 source_port;
    u16 destination_port;
    u16 channel; // as it leaves; 0: the payload alone
    u16 difference; // of the checksum's sum, from what is constant in the flow
    u32 remote;
    u32 local;
    u32 source;
    u32 destination;
    u64 bytes; // payload without TURN's framing
    u32 packets;
    u32 last_seen; // CLOCK_MONOTONIC in units of 2^LAST_SEEN_SHIFT ns
};
_Static_assert(sizeof(struct flow) == 64, "flow");

// The rest of a flow, at the same index: what only IPv6 needs, and what only new flows need.
struct flow_tail {
    u32 remote[3];
    u32 local[3];
    u32 source[3];
    u32 destination[3];
    u64 settling; // 0 for a flow that is settled, else how far it is (relay_settle.h)
    u64 zero;
};
_Static_assert(sizeof(struct flow_tail) == 64, "flow_tail");

enum hop_flag { USABLE_XDP = 1, USABLE_TC = 2, USABLE_XDP_TX = 4 };

struct next_hop {
    u64 good_until_ns;
    u32 interface;
    u16 mtu;
    u8 flags;
    u8 zero;
    u8 destination[6];
    u8 source[6];
};
_Static_assert(sizeof(struct next_hop) == 32, "next_hop");

// An allocation's source, user, realm, and the whole server.
enum { BUCKET_GROUPS = 4 };

struct bucket {
    u64 tat_ns;
    u32 scale; // nanoseconds per byte, in 1/1024; 0: no limit
    u32 burst_us;
    u64 dropped_packets;
    u64 dropped_bytes;
    u32 groups[BUCKET_GROUPS]; // further buckets that limit the same traffic; the first 0 ends the list
};
_Static_assert(sizeof(struct bucket) == 48, "bucket");

enum setting { RELAYING = 1, BINDING = 2, DROP_EXCESS = 4 };

// What may change while the programs run.
struct settings {
    u32 flags;
    u32 binding_cost_ns;
    u64 binding_burst_ns;
};

struct interface {
    u32 index;
    u8 address[6];
    u16 zero;
    u32 device; // what holds the addresses and sends: this interface, or the bond that it is a lower device of
    u64 partial; // frames passed because their checksum looked partial
};
_Static_assert(sizeof(struct interface) == 24, "interface");

struct listener {
    u32 address[4];
    u16 port;
    u8 v6;
    u8 zero;
};
_Static_assert(sizeof(struct listener) == 20, "listener");

// In the order of `PathTotals` (src/relay/totals.rs), where each is explained.
enum total {
    TO_PEER,
    TO_PEER_BYTES,
    TO_CLIENT,
    TO_CLIENT_BYTES,
    RELAY_TO_RELAY,
    RELAY_TO_RELAY_BYTES,
    BINDING_ANSWERED,
    BINDING_OVER_RATE,
    RATE_DROPPED,
    PASS_MISS,
    PASS_EXPIRED,
    PASS_TTL,
    PASS_MTU,
    PASS_OPTIONS,
    PASS_FRAGMENT,
    PASS_LENGTH,
    PASS_NEXT_HOP,
    PASS_PARTIAL,
    PASS_GSO,
    PASS_CHECKSUM,
    PASS_NEITHER,
    PASS_STUN,
    PASS_VLAN,
    PASS_LINK,
    PASS_ROOM,
    PASS_OFF,
    PASS_SETTLING,
    PASS_INTERFACE,
    DROP_CHANGED,
    TOTALS_COUNT,
};

struct totals {
    u64 of[TOTALS_COUNT];
};

enum path { PATH_XDP, PATH_TC };

// The table of flows. No flow gives way to another. User space writes it through shared memory, without a system call.
struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct flow);
    UINT(max_entries, 1); // set by the loader, as wherever it is 1
    UINT(map_flags, MAP_MMAPABLE);
} FLOWS SEC(".maps");

struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct flow_tail);
    UINT(max_entries, 1);
    UINT(map_flags, MAP_MMAPABLE);
} FLOW_TAILS SEC(".maps");

struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct next_hop);
    UINT(max_entries, 1);
} NEXT_HOPS SEC(".maps");

struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct bucket);
    UINT(max_entries, 1);
    UINT(map_flags, MAP_MMAPABLE);
} BUCKETS SEC(".maps");

// When all that this prefix was answered would have been answered at the allowed rate.
struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, u64);
    UINT(max_entries, BINDING_BUCKETS_COUNT);
} BINDING_BUCKETS SEC(".maps");

struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct settings);
    UINT(max_entries, 1); // exactly one
} SETTINGS SEC(".maps");

// By the low bits of the index.
struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct interface);
    UINT(max_entries, INTERFACE_SLOTS);
} INTERFACES SEC(".maps");

// The addresses that Binding requests are answered for.
struct {
    UINT(type, MAP_TYPE_HASH);
    TYPE(key, struct listener);
    TYPE(value, u32);
    UINT(max_entries, MAX_LISTENERS);
    UINT(map_flags, MAP_NO_PREALLOC);
} LISTENERS SEC(".maps");

struct {
    UINT(type, MAP_TYPE_PERCPU_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct totals);
    UINT(max_entries, 2); // one for each of enum path
} TOTALS SEC(".maps");

// The XDP program of another process of this server, during an upgrade: it gets the packets that are not this one's.
struct {
    UINT(type, MAP_TYPE_PROG_ARRAY);
    TYPE(key, u32);
    TYPE(value, u32);
    UINT(max_entries, 1); // exactly one
} BEHIND SEC(".maps");
