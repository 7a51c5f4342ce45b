// The part of the kernel's BPF interface that hairpin's programs use, so that neither libbpf's nor the
// distribution's kernel headers are needed and the objects do not change when those do. Every number and offset
// here is stable kernel ABI (include/uapi/linux/bpf.h); nothing in this file is specific to one program.
#pragma once

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed long long s64;

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define NOINLINE __attribute__((noinline))
// The compiler may assume nothing about the value from here on, so a check that follows is made on this register, where the
// verifier sees it.
#define KEEP_IN_REGISTER(value) __asm__ volatile("" : "+r"(value))
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)

// BTF map definitions: the loader reads the numbers back from the array dimensions.
#define UINT(name, value) int(*name)[value]
#define TYPE(name, value) typeof(value) *name

enum map_type {
    MAP_TYPE_HASH = 1,
    MAP_TYPE_ARRAY = 2,
    MAP_TYPE_PROG_ARRAY = 3,
    MAP_TYPE_PERCPU_ARRAY = 6,
    MAP_TYPE_LPM_TRIE = 11,
    MAP_TYPE_DEVMAP = 14,
    MAP_TYPE_REUSEPORT_SOCKARRAY = 20,
};

// Map flags.
enum { MAP_NO_PREALLOC = 1, MAP_MMAPABLE = 1 << 10 };

// Verdicts of an XDP program.
enum xdp_action { XDP_ABORTED, XDP_DROP, XDP_PASS, XDP_TX, XDP_REDIRECT };

// Verdicts of a classifier in direct-action mode. TCX knows the same numbers; "unspecified" lets the next program run.
enum tc_action { TCX_NEXT = -1, TC_ACT_OK = 0, TC_ACT_SHOT = 2, TC_ACT_REDIRECT = 7 };

// Flags of skb_store_bytes and l4_csum_replace. PSEUDO_HEADER: the change is of the pseudo header, so it counts even if
// the rest of the checksum is yet to be computed. MANGLED_0 writes a sum of 0 as 0xffff, ENFORCE takes 0 for a sum.
enum skb_flag { RECOMPUTE_CSUM = 1, PSEUDO_HEADER = 1 << 4, MARK_MANGLED_0 = 1 << 5, MARK_ENFORCE = 1 << 6 };

// Verdicts of a program that chooses a socket. Without a chosen one, SK_PASS leaves the choice to the kernel's hash.
enum sk_action { SK_DROP, SK_PASS };

// What a packet of the stack is to this machine: only this one is meant for it.
enum { PACKET_HOST = 0 };

struct xdp_md {
    u32 data;
    u32 data_end;
    u32 data_meta;
    u32 ingress_ifindex;
    u32 rx_queue_index;
    u32 egress_ifindex;
};

struct __sk_buff {
    u32 len;
    u32 pkt_type;
    u32 mark;
    u32 queue_mapping;
    u32 protocol;
    u32 vlan_present;
    u32 vlan_tci;
    u32 vlan_proto;
    u32 priority;
    u32 ingress_ifindex;
    u32 ifindex;
    u32 tc_index;
    u32 cb[5];
    u32 hash;
    u32 tc_classid;
    u32 data;
    u32 data_end;
    u32 napi_id;
    u32 family;
    u32 remote_ip4;
    u32 local_ip4;
    u32 remote_ip6[4];
    u32 local_ip6[4];
    u32 remote_port;
    u32 local_port;
    u32 data_meta;
    u64 flow_keys;
    u64 tstamp;
    u32 wire_len;
    u32 gso_segs;
    u64 sk;
    u32 gso_size;
};
_Static_assert(__builtin_offsetof(struct __sk_buff, data) == 76, "__sk_buff.data");
_Static_assert(__builtin_offsetof(struct __sk_buff, gso_segs) == 164, "__sk_buff.gso_segs");
_Static_assert(__builtin_offsetof(struct __sk_buff, gso_size) == 176, "__sk_buff.gso_size");

// The first byte that a program may look at is the first of the UDP or TCP header.
struct sk_reuseport_md {
    void *data;
    void *data_end;
    u32 len;
    u32 eth_protocol; // network order
    u32 ip_protocol;
    u32 bind_inany;
    u32 hash;
    void *sk;
    void *migrating_sk;
};
_Static_assert(__builtin_offsetof(struct sk_reuseport_md, eth_protocol) == 20, "sk_reuseport_md.eth_protocol");
_Static_assert(__builtin_offsetof(struct sk_reuseport_md, sk) == 40, "sk_reuseport_md.sk");

// Where skb_adjust_room makes room: behind the IP header, or in front of it.
enum adjust_room { ADJUST_ROOM_NET, ADJUST_ROOM_MAC };

// Where skb_load_bytes_relative counts from.
enum header_start { HEADER_START_MAC, HEADER_START_NET };

// Helper functions by number (include/uapi/linux/bpf.h, enum bpf_func_id).
static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static u64 (*ktime_get_ns)(void) = (void *)5;
static u32 (*processor)(void) = (void *)8;
static long (*skb_store_bytes)(struct __sk_buff *packet, u32 offset, const void *from, u32 length, u64 flags) = (void *)9;
static long (*tail_call)(void *context, void *programs, u32 index) = (void *)12;
static long (*l4_csum_replace)(struct __sk_buff *packet, u32 offset, u64 from, u64 to, u64 flags) = (void *)11;
static long (*redirect)(u32 interface, u64 flags) = (void *)23;
static long (*skb_load_bytes)(const void *skb, u32 offset, void *to, u32 length) = (void *)26;
static long (*skb_change_proto)(struct __sk_buff *packet, u16 ethertype, u64 flags) = (void *)31;
static long (*skb_change_tail)(struct __sk_buff *packet, u32 length, u64 flags) = (void *)38;
static long (*skb_pull_data)(struct __sk_buff *packet, u32 length) = (void *)39;
static long (*skb_adjust_room)(struct __sk_buff *packet, int delta, u32 mode, u64 flags) = (void *)50;
static long (*redirect_map)(void *map, u32 key, u64 flags) = (void *)51;
static long (*xdp_adjust_head)(struct xdp_md *packet, int delta) = (void *)44;
static long (*xdp_adjust_tail)(struct xdp_md *packet, int delta) = (void *)65;
static long (*skb_load_bytes_relative)(const void *packet, u32 offset, void *to, u32 length, u32 start) = (void *)68;
static long (*select_reuseport)(struct sk_reuseport_md *packet, void *sockets, void *index, u64 flags) = (void *)82;
static u64 (*ktime_get_coarse_ns)(void) = (void *)160; // as of the last timer tick

static long (*xdp_load_bytes)(struct xdp_md *packet, u32 offset, void *to, u32 length) = (void *)189; // Linux 5.18

#define bswap16(value) __builtin_bswap16(value)
#define bswap32(value) __builtin_bswap32(value)
// Host is little endian (the objects are built for bpfel): network order is one swap away.
#define be16(value) ((u16)(__builtin_constant_p(value) ? ((((value)&0xff) << 8) | (((value) >> 8) & 0xff)) : bswap16(value)))
#define be32(value) __builtin_bswap32(value)
