// Steering: which worker's socket of an SO_REUSEPORT group gets a datagram (or, later, a connection).
//
// Without an entry for its 5-tuple the kernel's hash decides, as it does without this program: whoever has not
// authenticated costs no entry. The server writes an entry when it places an allocation on another worker than the
// hash would choose, and deletes it when the allocation ends. This program only reads.
//
// During an upgrade two processes have sockets in each group. Then every allocation of the old process has an entry, and
// datagrams without an entry go to the sockets of the process that ACTIVE names.
#include "packet.h"

// Both addresses as they are on the wire; an IPv4 address is the first word, the others are 0.
struct flow {
    u32 remote[4];
    u32 local[4];
    u16 remote_port; // network order, as in the header
    u16 local_port;
    u8 protocol;
    u8 v6;
    u16 reserved;
};
_Static_assert(sizeof(struct flow) == 40, "flow");

// All sockets of all groups: the slot in an entry says which socket of which group.
struct {
    UINT(type, MAP_TYPE_REUSEPORT_SOCKARRAY);
    TYPE(key, u32);
    TYPE(value, u32);
    UINT(max_entries, 1); // set by the loader
} SOCKETS SEC(".maps");

// Never LRU: an entry that gave way to another would move a flow that lives. Not preallocated: most entries are never
// needed, and only system calls insert.
struct {
    UINT(type, MAP_TYPE_HASH);
    TYPE(key, struct flow);
    TYPE(value, u32);
    UINT(max_entries, 1); // set by the loader
    UINT(map_flags, MAP_NO_PREALLOC);
} FLOWS SEC(".maps");

// A listener's address: the one it is bound to. A wildcard address is 0.
struct local {
    u32 address[4];
    u16 port; // network order
    u8 v6;
    u8 reserved;
};
_Static_assert(sizeof(struct local) == 20, "local");

// The slots of a listener's sockets in one process: one per worker.
struct range {
    u32 first;
    u32 count; // 0: this process does not have the listener
};

// The sockets of each of the two processes.
struct listener {
    struct range of[2];
};

struct {
    UINT(type, MAP_TYPE_HASH);
    TYPE(key, struct local);
    TYPE(value, struct listener);
    UINT(max_entries, 1024);
    UINT(map_flags, MAP_NO_PREALLOC);
} LISTENERS SEC(".maps");

// Which process gets datagrams without an entry: 1 or 2; 0 leaves them to the kernel's hash.
struct {
    UINT(type, MAP_TYPE_ARRAY);
    TYPE(key, u32);
    TYPE(value, u32);
    UINT(max_entries, 1);
} ACTIVE SEC(".maps");

INLINE int read_addresses(struct sk_reuseport_md *packet, struct flow *flow)
{
    u32 addresses[8];
    if (packet->eth_protocol == be16(ETHERTYPE_IPV4)) {
        if (skb_load_bytes_relative(packet, __builtin_offsetof(struct ipv4, source), addresses, 8, HEADER_START_NET))
            return 0;
        flow->remote[0] = addresses[0];
        flow->local[0] = addresses[1];
        return 1;
    }
    if (packet->eth_protocol != be16(ETHERTYPE_IPV6))
        return 0;
    if (skb_load_bytes_relative(packet, __builtin_offsetof(struct ipv6, source), addresses, 32, HEADER_START_NET))
        return 0;
    __builtin_memcpy(flow->remote, addresses, 16);
    __builtin_memcpy(flow->local, addresses + 4, 16);
    flow->v6 = 1;
    return 1;
}

// Gives a datagram without an entry to a socket of the active process.
INLINE void select_active(struct sk_reuseport_md *packet, const struct flow *flow)
{
    u32 zero = 0;
    u32 *active = map_lookup(&ACTIVE, &zero);
    if (!active || !*active)
        return;
    struct local local = {.port = flow->local_port, .v6 = flow->v6};
    __builtin_memcpy(local.address, flow->local, 16);
    struct listener *listener = map_lookup(&LISTENERS, &local);
    if (!listener) {
        __builtin_memset(local.address, 0, 16);
        listener = map_lookup(&LISTENERS, &local);
    }
    if (!listener)
        return;
    struct range range = *active == 1 ? listener->of[0] : listener->of[1];
    if (!range.count)
        return;
    u32 index = range.first + packet->hash % range.count;
    select_reuseport(packet, &SOCKETS, &index, 0);
}

SEC("sk_reuseport") int steer(struct sk_reuseport_md *packet)
{
    struct flow flow = {};
    const u16 *ports = packet->data;
    if ((void *)(ports + 2) > packet->data_end || !read_addresses(packet, &flow))
        return SK_PASS;
    flow.remote_port = ports[0];
    flow.local_port = ports[1];
    flow.protocol = packet->ip_protocol;
    u32 *slot = map_lookup(&FLOWS, &flow);
    if (slot) {
        u32 index = *slot;
        if (!select_reuseport(packet, &SOCKETS, &index, 0))
            return SK_PASS;
        // The socket is closed by now.
    }
    // On failure nothing is chosen, and the kernel's hash decides.
    select_active(packet, &flow);
    return SK_PASS;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
