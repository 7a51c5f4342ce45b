// The relay below the socket layer: ChannelData and Binding, for what user space has entered into the maps. All else
// passes, untouched: "any doubt is for the stack". `relay_decide.h` says what is checked.
#include "relay_rewrite_tc.h"
#include "relay_rewrite_xdp.h"

INLINE struct totals *totals_of(u32 path)
{
    return map_lookup(&TOTALS, &path);
}

// Counts a reason to pass, if it is one.
INLINE void count_reason(struct totals *totals, int why)
{
    if (why >= 0 && why < TOTALS_COUNT)
        totals->of[why]++;
}

INLINE int verdict_xdp(struct xdp_md *packet, struct view *view, struct decision *d, int why, struct interface *interface)
{
    if (why == NOT_OURS)
        return XDP_PASS;
    struct totals *totals = totals_of(PATH_XDP);
    if (!totals)
        return XDP_PASS;
    if (why == RELAY)
        return rewrite_xdp(packet, d, view->length, totals);
    if (why == DROP) {
        totals->of[RATE_DROPPED]++;
        return XDP_DROP;
    }
    if (why == PASS_PARTIAL && interface)
        __sync_fetch_and_add(&interface->partial, 1);
    count_reason(totals, why);
    return XDP_PASS;
}

SEC("xdp") int relay_xdp(struct xdp_md *packet)
{
    struct view view = {.context = packet, .path = PATH_XDP};
    view.data = (void *)(long)packet->data;
    view.end = (void *)(long)packet->data_end;
    view.length = (u32)(view.end - view.data);
    const struct ethernet *ethernet = view.data;
    if (view.data + ETHERNET_BYTES > view.end)
        return XDP_PASS;
    u32 slot = packet->ingress_ifindex % INTERFACE_SLOTS;
    struct interface *interface = map_lookup(&INTERFACES, &slot);
    struct wrapping wrapping = {};
    struct decision d = {};
    if (interface && interface->index == packet->ingress_ifindex)
        wrapping.to_us = *(const u32 *)ethernet->destination == *(u32 *)interface->address &&
                         *(const u16 *)(ethernet->destination + 4) == *(u16 *)(interface->address + 4);
    int why = NOT_OURS;
    if (ethernet->type == be16(ETHERTYPE_IPV4)) {
        why = check_ipv4(&view);
        if (why == RELAY)
            why = decide_family(&view, &wrapping, 0, &d);
    } else if (ethernet->type == be16(ETHERTYPE_IPV6)) {
        why = check_ipv6(&view);
        if (why == RELAY)
            why = decide_family(&view, &wrapping, 1, &d);
    } else if (ethernet->type == be16(ETHERTYPE_VLAN) || ethernet->type == be16(ETHERTYPE_SERVICE_VLAN)) {
        why = PASS_VLAN;
    }
    return verdict_xdp(packet, &view, &d, why, interface);
}

INLINE int verdict_tc(struct __sk_buff *packet, struct decision *d, int why)
{
    if (why == NOT_OURS)
        return TCX_NEXT;
    struct totals *totals = totals_of(PATH_TC);
    if (!totals)
        return TCX_NEXT;
    if (why == RELAY)
        return rewrite_tc(packet, d, totals);
    if (why == DROP) {
        totals->of[RATE_DROPPED]++;
        return TC_ACT_SHOT;
    }
    count_reason(totals, why);
    return TCX_NEXT;
}

// Headers that are not in the packet's first piece of memory are pulled there; drivers leave most of them there already.
INLINE int in_one_piece(struct __sk_buff *packet, struct view *view, u32 bytes)
{
    view->data = (void *)(long)packet->data;
    view->end = (void *)(long)packet->data_end;
    if (bytes > view->length)
        bytes = view->length;
    if (view->data + bytes <= view->end)
        return 1;
    if (skb_pull_data(packet, bytes))
        return 0;
    view->data = (void *)(long)packet->data;
    view->end = (void *)(long)packet->data_end;
    return 1;
}

SEC("classifier") int relay_tc(struct __sk_buff *packet)
{
    struct view view = {.context = packet, .path = PATH_TC, .length = packet->len};
    if (packet->protocol != be16(ETHERTYPE_IPV4) && packet->protocol != be16(ETHERTYPE_IPV6))
        return TCX_NEXT;
    if (!in_one_piece(packet, &view, HEADERS_MAX))
        return TCX_NEXT;
    struct wrapping wrapping = {
        .to_us = packet->pkt_type == PACKET_HOST,
        .tagged = packet->vlan_present,
        .several = packet->gso_segs > 1 || packet->gso_size,
    };
    const struct ethernet *ethernet = view.data;
    if (view.data + ETHERNET_BYTES > view.end)
        return TCX_NEXT;
    struct decision d = {};
    int why = NOT_OURS;
    if (ethernet->type == be16(ETHERTYPE_IPV4)) {
        why = check_ipv4(&view);
        if (why == RELAY)
            why = decide_family(&view, &wrapping, 0, &d);
    } else if (ethernet->type == be16(ETHERTYPE_IPV6)) {
        why = check_ipv6(&view);
        if (why == RELAY)
            why = decide_family(&view, &wrapping, 1, &d);
    }
    return verdict_tc(packet, &d, why);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
