// Wire layouts that the programs read (none needs packing: every field is at its natural alignment): Ethernet, IPv4 without options, IPv6 without extension headers, UDP, STUN.
#pragma once
#include "bpf_abi.h"

enum {
    ETHERTYPE_IPV4 = 0x0800,
    ETHERTYPE_IPV6 = 0x86dd,
    ETHERTYPE_VLAN = 0x8100,
    ETHERTYPE_SERVICE_VLAN = 0x88a8,
    PROTOCOL_UDP = 17,
    PROTOCOL_FRAGMENT = 44, // IPv6
    ETHERNET_BYTES = 14,
    IPV4_BYTES = 20,
    IPV6_BYTES = 40,
    UDP_BYTES = 8,
    STUN_HEADER_BYTES = 20,
    CHANNEL_HEADER_BYTES = 4,
    STUN_BINDING_REQUEST = 0x0001,
    STUN_BINDING_SUCCESS = 0x0101,
    STUN_MAGIC_COOKIE = 0x2112a442,
    STUN_XOR_MAPPED_ADDRESS = 0x0020,
    STUN_FINGERPRINT = 0x8028,
    STUN_FINGERPRINT_XOR = 0x5354554e,
};

struct ethernet {
    u8 destination[6];
    u8 source[6];
    u16 type;
};

struct ipv4 {
    u8 version_and_length;
    u8 tos;
    u16 total_length;
    u16 id;
    u16 fragment;
    u8 ttl;
    u8 protocol;
    u16 checksum;
    u32 source;
    u32 destination;
};

struct ipv6 {
    u32 version_class_label;
    u16 payload_length;
    u8 next_header;
    u8 hop_limit;
    u32 source[4];
    u32 destination[4];
};

struct udp {
    u16 source;
    u16 destination;
    u16 length;
    u16 checksum;
};

_Static_assert(sizeof(struct ethernet) == ETHERNET_BYTES, "ethernet");
_Static_assert(sizeof(struct ipv4) == IPV4_BYTES, "ipv4");
_Static_assert(sizeof(struct ipv6) == IPV6_BYTES, "ipv6");
_Static_assert(sizeof(struct udp) == UDP_BYTES, "udp");
