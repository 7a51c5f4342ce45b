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
    LAST_SEEN_SHIFT = 30,
};

// Constants: the verifier leaves out what they rule out. Ports in network order, except for the range.
volatile const u16 LISTENER_PORTS[MAX_LISTENER_PORTS] SEC(".rodata") = {};
volatile const u32 LISTENER_PORT_COUNT SEC(".rodata") = 0;
volatile const u32 COUNTERS SEC(".rodata") = 0;
volatile const u32 PROCESSORS SEC(".rodata") = 0;
volatile const u32 RELAY_LOW SEC(".rodata") = 0;
volatile const u32 RELAY_HIGH SEC(".rodata") = 0;
volatile const u64 SEED[2] SEC(".rodata") = {};
// For CRC-32 four bytes at a time: the value of a byte with 0 to 3 bytes behind it.
volatile const u32 CRC_TABLE[4][256] SEC(".rodata") = {};

struct key_v4 {
    u32 remote;
    u32 local;
    u16 remote_port; // network order, like all of it
    u16 local_port;
    u16 channel; // 0: from a peer
    u16 zero;
};
_Static_assert(sizeof(struct key_v4) == 16, "key_v4");

struct key_v6 {
    u32 remote[4];
    u32 local[4];
    u16 remote_port;
    u16 local_port;
    u16 channel;
    u16 zero;
};
_Static_assert(sizeof(struct key_v6) == 40, "key_v6");

enum entry_flag { OUT_V6 = 1 << 24, OWN_RELAY = 1 << 25, SETTLED = 1 << 26, FLOW_LABEL = 0xfffff };

// What becomes of a flow's packets. Addresses and ports as they will be on the wire; an IPv4 address is the first word. The
// kernel puts it 72 bytes from the start of a cache line: what only IPv6 needs is last, so that IPv4 touches one line less.
struct entry {
    u64 deadline_ns;
    u16 source_port;
    u16 destination_port;
    u16 channel; // 0: the payload alone
    u16 difference; // of the checksum's sum, from what is constant in the flow
    u16 next_hop;
    u16 pseudo_header; // folded sum of the arriving packets' one, without the length
    u32 counter;
    u32 bucket; // NO_BUCKET: no limit
    u32 label_and_flags;
    u32 source[4];
    u32 destination[4];
};
_Static_assert(sizeof(struct entry) == 64, "entry");

enum hop_flag { USABLE_XDP = 1, USABLE_TC = 2 };

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

struct count {
    u64 bytes; // payload without TURN's framing
    u32 packets;
    u32 last_seen; // CLOCK_MONOTONIC in units of 2^30 ns, because a division costs as much as a look-up
};

struct bucket {
    u64 tat_ns;
    u32 scale; // nanoseconds per byte, in 1/1024; 0: no limit
    u32 burst_us;
    u64 dropped_packets;
    u64 dropped_bytes;
};
_Static_assert(sizeof(struct bucket) == 32, "bucket");

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
    u16 zero[3];
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
    TOTALS_COUNT,
};

struct totals {
    u64 of[TOTALS_COUNT];
};

enum path { PATH_XDP, PATH_TC };

// Never LRU: no entry gives way to another. Not preallocated: most are never needed, and only system calls insert.
struct {
    UINT(type, MAP_TYPE_HASH);
    TYPE(key, struct key_v4);
    TYPE(value, struct entry);
    UINT(max_entries, 1); // set by the loader, as wherever it is 1
    UINT(map_flags, MAP_NO_PREALLOC);
} FLOWS_V4 SEC(".maps");

struct {
    UINT(type, MAP_TYPE_HASH);
    TYPE(key, struct key_v6);
    TYPE(value, struct entry);
    UINT(max_entries, 1);
    UINT(map_flags, MAP_NO_PREALLOC);
} FLOWS_V6 SEC(".maps");

struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct next_hop);
    UINT(max_entries, 1);
} NEXT_HOPS SEC(".maps");

// Each processor has a stretch of COUNTERS of its own. (A per-CPU array would cost another cache miss, for its pointers.)
struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct count);
    UINT(max_entries, 1);
    UINT(map_flags, MAP_MMAPABLE);
} COUNTS SEC(".maps");

struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, struct bucket);
    UINT(max_entries, 1);
    UINT(map_flags, MAP_MMAPABLE);
} BUCKETS SEC(".maps");

// By counter: 0 for a flow that is settled, else how far it is (relay_settle.h).
struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, u64);
    UINT(max_entries, 1);
    UINT(map_flags, MAP_MMAPABLE);
} SETTLING SEC(".maps");

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
