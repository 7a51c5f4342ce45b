// Bare relays in the kernel: what XDP and tc can do when nothing but the payload is handled. A benchmark's lower bound
// for the server's own programs, and nothing else: IPv4 only, no permissions, no timers, no counters, no rate limits.
//
//   client | Ethernet | IPv4 | UDP | channel, length | payload |  ->  | Ethernet | IPv4 | UDP | payload | peer, and back
//
// One hash look-up per datagram, checksums patched and never recomputed, next hop from the entry. What it does not
// understand goes on to the stack, which has nothing listening.
#include "packet.h"

enum {
    HEADERS_BYTES = ETHERNET_BYTES + IPV4_BYTES + UDP_BYTES,
    SERVER_PORT = 3478,
    FRAGMENT_BITS = 0x3fff, // more fragments, or an offset
};

// As in the packet: all in network order.
struct flow_key {
    u32 remote;
    u16 remote_port;
    u16 local_port;
    u32 channel; // 0 for what comes from a peer
};

struct flow_exit {
    u32 source;
    u32 destination;
    u16 source_port;
    u16 destination_port;
    u32 interface;
    u8 destination_mac[6];
    u8 source_mac[6];
    u16 channel; // of the client; towards a peer unused
    u16 reserved;
};
_Static_assert(sizeof(struct flow_exit) == 32, "flow_exit");

struct {
    UINT(type, MAP_TYPE_HASH);
    TYPE(key, struct flow_key);
    TYPE(value, struct flow_exit);
    UINT(max_entries, 1); // set by the loader
} FLOWS SEC(".maps");

struct channel_header {
    u16 number;
    u16 length;
};

// Where the headers are in a packet that holds them all. Of a peer's datagram the last one is payload.
struct headers {
    struct ethernet *ethernet;
    struct ipv4 *ip;
    struct udp *udp;
    struct channel_header *channel;
};

INLINE int locate(void *data, void *end, struct headers *at)
{
    at->ethernet = data;
    at->ip = data + ETHERNET_BYTES;
    at->udp = data + ETHERNET_BYTES + IPV4_BYTES;
    at->channel = data + HEADERS_BYTES;
    return data + HEADERS_BYTES + CHANNEL_HEADER_BYTES <= end;
}

// What becomes of them.
struct rewritten {
    struct ipv4 ip;
    struct udp udp;
    struct channel_header channel;
};

// One's complement sums (RFC 1071): the byte order does not matter as long as all words have the same.
INLINE u16 fold(u64 sum)
{
    sum = (sum & 0xffffffff) + (sum >> 32);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    sum = (sum & 0xffff) + (sum >> 16);
    return sum;
}

// RFC 1624, equation 3: a checksum after the words summed in `out` have left and those in `in` have come.
INLINE u16 patched(u16 checksum, u64 out, u64 in)
{
    return ~fold((u64)(u16)~checksum + (u16)~fold(out) + fold(in));
}

// The entry for a datagram that a bare relay takes, and the way it goes.
INLINE struct flow_exit *find(const struct headers *from, u32 bytes, int *to_client)
{
    if (from->ethernet->type != be16(ETHERTYPE_IPV4) || from->ip->version_and_length != 0x45 ||
        from->ip->protocol != PROTOCOL_UDP || from->ip->fragment & be16(FRAGMENT_BITS) || from->ip->ttl <= 1)
        return 0;
    u32 udp_length = be16(from->udp->length);
    if (udp_length < UDP_BYTES + CHANNEL_HEADER_BYTES || ETHERNET_BYTES + IPV4_BYTES + udp_length > bytes)
        return 0;
    struct flow_key key = {from->ip->source, from->udp->source, from->udp->destination, 0};
    *to_client = from->udp->destination != be16(SERVER_PORT);
    if (!*to_client) {
        // RFC 8656 §12.4; padding is not for a floor to deal with.
        if (be16(from->channel->length) != udp_length - UDP_BYTES - CHANNEL_HEADER_BYTES)
            return 0;
        key.channel = from->channel->number;
    }
    return map_lookup(&FLOWS, &key);
}

INLINE void rewrite(const struct headers *from, const struct flow_exit *exit, int to_client, struct rewritten *to)
{
    u16 old_length = be16(from->udp->length);
    u16 new_length = to_client ? old_length + CHANNEL_HEADER_BYTES : old_length - CHANNEL_HEADER_BYTES;
    to->channel.number = to_client ? exit->channel : from->channel->number;
    to->channel.length = to_client ? be16((u16)(old_length - UDP_BYTES)) : from->channel->length;
    to->ip = *from->ip;
    to->ip.source = exit->source;
    to->ip.destination = exit->destination;
    to->ip.total_length = be16((u16)(new_length + IPV4_BYTES));
    to->ip.ttl = from->ip->ttl - 1;
    u64 out = (u64)from->ip->source + from->ip->destination;
    u64 in = (u64)exit->source + exit->destination;
    // The hop limit is the first byte of its word on the wire, the low one of it here.
    to->ip.checksum = patched(from->ip->checksum, out + from->ip->total_length + from->ip->ttl,
                              in + to->ip.total_length + to->ip.ttl);
    // The length is in the header and in the pseudo-header.
    out += (u64)from->udp->source + from->udp->destination + 2 * (u64)from->udp->length;
    in += (u64)exit->source_port + exit->destination_port + 2 * (u64)be16(new_length);
    u64 header = (u64)to->channel.number + to->channel.length;
    u16 checksum = from->udp->checksum;
    if (checksum) {
        checksum = patched(checksum, to_client ? out : out + header, to_client ? in + header : in);
        checksum = checksum ? checksum : 0xffff;
    }
    to->udp.source = exit->source_port;
    to->udp.destination = exit->destination_port;
    to->udp.length = be16(new_length);
    to->udp.checksum = checksum;
}

INLINE void write(const struct headers *at, const struct flow_exit *exit, int to_client, const struct rewritten *to)
{
    __builtin_memcpy(at->ethernet->destination, exit->destination_mac, 6);
    __builtin_memcpy(at->ethernet->source, exit->source_mac, 6);
    at->ethernet->type = be16(ETHERTYPE_IPV4);
    *at->ip = to->ip;
    *at->udp = to->udp;
    if (to_client)
        *at->channel = to->channel;
}

SEC("xdp") int floor_relay_xdp(struct xdp_md *packet)
{
    void *data = (void *)(long)packet->data;
    void *end = (void *)(long)packet->data_end;
    int to_client;
    struct headers at;
    struct rewritten to;
    if (!locate(data, end, &at))
        return XDP_PASS;
    struct flow_exit *exit = find(&at, end - data, &to_client);
    if (!exit)
        return XDP_PASS;
    rewrite(&at, exit, to_client, &to);
    if (xdp_adjust_head(packet, to_client ? -CHANNEL_HEADER_BYTES : CHANNEL_HEADER_BYTES))
        return XDP_PASS;
    if (!locate((void *)(long)packet->data, (void *)(long)packet->data_end, &at))
        return XDP_DROP;
    write(&at, exit, to_client, &to);
    return redirect(exit->interface, 0);
}

SEC("classifier") int floor_relay_tc(struct __sk_buff *packet)
{
    int to_client;
    struct headers at;
    struct rewritten to;
    if (!locate((void *)(long)packet->data, (void *)(long)packet->data_end, &at)) {
        if (skb_pull_data(packet, HEADERS_BYTES + CHANNEL_HEADER_BYTES) ||
            !locate((void *)(long)packet->data, (void *)(long)packet->data_end, &at))
            return TC_ACT_OK;
    }
    if (packet->gso_segs > 1)
        return TC_ACT_OK;
    struct flow_exit *exit = find(&at, packet->len, &to_client);
    if (!exit)
        return TC_ACT_OK;
    rewrite(&at, exit, to_client, &to);
    // The room is made, or taken away, behind the IP header; what moves is overwritten below.
    if (skb_adjust_room(packet, to_client ? CHANNEL_HEADER_BYTES : -CHANNEL_HEADER_BYTES, ADJUST_ROOM_NET, 0))
        return TC_ACT_OK;
    if (!locate((void *)(long)packet->data, (void *)(long)packet->data_end, &at))
        return TC_ACT_SHOT;
    write(&at, exit, to_client, &to);
    return redirect(exit->interface, 0);
}

// A Binding success response with nothing but XOR-MAPPED-ADDRESS (RFC 8489 §14.2); of a request only the header.
struct binding {
    u16 type;
    u16 length;
    u32 cookie;
    u32 transaction[3];
    u16 attribute;
    u16 attribute_length;
    u16 family;
    u16 port;
    u32 address;
};
enum { ATTRIBUTE_BYTES = sizeof(struct binding) - STUN_HEADER_BYTES, BINDING_REQUEST = 0x0001 };
_Static_assert(ATTRIBUTE_BYTES == 12, "binding");

// Whether it is a request without attributes.
INLINE int is_bare_request(const struct headers *from, const struct binding *request, u32 bytes)
{
    return from->ethernet->type == be16(ETHERTYPE_IPV4) && from->ip->version_and_length == 0x45 &&
           from->ip->protocol == PROTOCOL_UDP && !(from->ip->fragment & be16(FRAGMENT_BITS)) &&
           from->udp->destination == be16(SERVER_PORT) && from->udp->length == be16(UDP_BYTES + STUN_HEADER_BYTES) &&
           bytes >= HEADERS_BYTES + STUN_HEADER_BYTES && request->type == be16(BINDING_REQUEST) &&
           request->length == 0 && request->cookie == be32(STUN_MAGIC_COOKIE);
}

INLINE void turn_around(struct ethernet *ethernet, struct ipv4 *ip)
{
    u8 mac[6];
    __builtin_memcpy(mac, ethernet->destination, 6);
    __builtin_memcpy(ethernet->destination, ethernet->source, 6);
    __builtin_memcpy(ethernet->source, mac, 6);
    u32 client = ip->source;
    ip->source = ip->destination;
    ip->destination = client;
    u16 total = be16(IPV4_BYTES + UDP_BYTES + STUN_HEADER_BYTES + ATTRIBUTE_BYTES);
    ip->checksum = patched(ip->checksum, (u64)ip->total_length + ip->ttl, (u64)total + 64);
    ip->total_length = total;
    ip->ttl = 64;
}

// Turns the request, with room behind it, into its answer. Swapping addresses and ports leaves sums as they are.
INLINE void answer(const struct headers *at, struct binding *message)
{
    turn_around(at->ethernet, at->ip);
    struct udp *udp = at->udp;
    u16 client_port = udp->source;
    udp->source = udp->destination;
    udp->destination = client_port;
    message->type = be16(STUN_BINDING_SUCCESS);
    message->length = be16(ATTRIBUTE_BYTES);
    message->attribute = be16(STUN_XOR_MAPPED_ADDRESS);
    message->attribute_length = be16(8);
    message->family = be16(1);
    message->port = client_port ^ be16(STUN_MAGIC_COOKIE >> 16);
    message->address = at->ip->destination ^ be32(STUN_MAGIC_COOKIE);
    u16 length = be16(UDP_BYTES + STUN_HEADER_BYTES + ATTRIBUTE_BYTES);
    if (udp->checksum) {
        u64 out = (u64)be16(BINDING_REQUEST) + 2 * (u64)udp->length;
        u64 in = (u64)message->type + message->length + message->attribute + message->attribute_length +
                 message->family + message->port + message->address + 2 * (u64)length;
        u16 checksum = patched(udp->checksum, out, in);
        udp->checksum = checksum ? checksum : 0xffff;
    }
    udp->length = length;
}

SEC("xdp") int floor_stun_xdp(struct xdp_md *packet)
{
    void *data = (void *)(long)packet->data;
    void *end = (void *)(long)packet->data_end;
    struct headers at;
    if (!locate(data, end, &at) || data + HEADERS_BYTES + STUN_HEADER_BYTES > end ||
        !is_bare_request(&at, data + HEADERS_BYTES, end - data))
        return XDP_PASS;
    // A frame may be longer than its datagram.
    if (xdp_adjust_tail(packet, HEADERS_BYTES + (int)sizeof(struct binding) - (int)(end - data)))
        return XDP_PASS;
    data = (void *)(long)packet->data;
    end = (void *)(long)packet->data_end;
    if (data + HEADERS_BYTES + sizeof(struct binding) > end || !locate(data, end, &at))
        return XDP_DROP;
    answer(&at, data + HEADERS_BYTES);
    return XDP_TX;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
