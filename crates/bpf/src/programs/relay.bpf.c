// The relay below the socket layer: ChannelData and Binding, for what user space has entered into the maps. All else
// passes, untouched: any doubt is for the stack. `relay_decide.h` and `relay_binding.h` say what is checked.
#include "relay_answer.h"
#include "relay_rewrite_tc.h"
#include "relay_rewrite_xdp.h"

INLINE struct totals *totals_of(u32 path)
{
    return map_lookup(&TOTALS, &path);
}

// Counts what is neither relaying nor none of our business. Returns whether the packet is to be dropped.
INLINE int count_outcome(struct totals *totals, int what)
{
    if (what == DROP)
        totals->of[RATE_DROPPED]++;
    else if (what == DROP_BINDING)
        totals->of[BINDING_OVER_RATE]++;
    else if (what == ANSWER)
        totals->of[BINDING_ANSWERED]++;
    else if (what >= 0 && what < TOTALS_COUNT)
        totals->of[what]++;
    return what == DROP || what == DROP_BINDING || what == FAILED;
}

INLINE int answer_in_xdp(struct xdp_md *packet, struct view *view, int v6, struct decision *d)
{
    u32 zero = 0;
    struct question *question = map_lookup(&QUESTION, &zero);
    if (!question)
        return PASS_STUN;
    const struct udp *udp = view->data + ETHERNET_BYTES + (v6 ? IPV6_BYTES : IPV4_BYTES);
    int what = decide_binding(view, udp, v6, question, d);
    return what == ANSWER ? answer_xdp(packet, view, question, d, v6) : what;
}

// Nothing here says what is to become of the packet.
INLINE int is_of_nobody_here(int what)
{
    return what == NOT_OURS || what == PASS_MISS || what == PASS_OFF || what == PASS_INTERFACE;
}

INLINE int conclude_xdp(struct xdp_md *packet, struct view *view, struct decision *d, int what, struct interface *interface)
{
    // The call returns only if there is no program.
    if (IS_IN_FRONT && is_of_nobody_here(what))
        tail_call(packet, &BEHIND, 0);
    if (what == NOT_OURS)
        return XDP_PASS;
    struct totals *totals = totals_of(PATH_XDP);
    if (!totals)
        return XDP_PASS;
    if (what == RELAY)
        return rewrite_xdp(packet, d, view, totals);
    if (what == PASS_PARTIAL && interface)
        __sync_fetch_and_add(&interface->partial, 1);
    if (count_outcome(totals, what))
        return XDP_DROP;
    return what == ANSWER ? XDP_TX : XDP_PASS;
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
    else
        wrapping.unknown = 1;
    if (interface)
        view.device = interface->device;
    int what = NOT_OURS;
    if (ethernet->type == be16(ETHERTYPE_IPV4)) {
        what = check_ipv4(&view);
        if (what == RELAY)
            what = decide_family(&view, &wrapping, 0, &d);
        if (what == ANSWER)
            what = answer_in_xdp(packet, &view, 0, &d);
    } else if (ethernet->type == be16(ETHERTYPE_IPV6)) {
        what = check_ipv6(&view);
        if (what == RELAY)
            what = decide_family(&view, &wrapping, 1, &d);
        if (what == ANSWER)
            what = answer_in_xdp(packet, &view, 1, &d);
    } else if (ethernet->type == be16(ETHERTYPE_VLAN) || ethernet->type == be16(ETHERTYPE_SERVICE_VLAN)) {
        what = PASS_VLAN;
    }
    return conclude_xdp(packet, &view, &d, what, interface);
}

// What is not in the packet's first piece of memory is pulled there; drivers leave most headers there already.
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

INLINE int answer_at_tc(struct __sk_buff *packet, struct view *view, int v6, struct decision *d)
{
    u32 zero = 0;
    struct question *question = map_lookup(&QUESTION, &zero);
    u32 message_at = ETHERNET_BYTES + (v6 ? IPV6_BYTES : IPV4_BYTES) + UDP_BYTES;
    if (!question || !in_one_piece(packet, view, message_at + STUN_HEADER_BYTES + ATTRIBUTES_MAX_BYTES) ||
        view->data + message_at + STUN_HEADER_BYTES > view->end)
        return PASS_STUN;
    const struct udp *udp = view->data + message_at - UDP_BYTES;
    int what = decide_binding(view, udp, v6, question, d);
    return what == ANSWER ? answer_tc(packet, view, question, d, v6) : what;
}

INLINE int conclude_tc(struct __sk_buff *packet, struct decision *d, int what)
{
    if (what == NOT_OURS)
        return TCX_NEXT;
    struct totals *totals = totals_of(PATH_TC);
    if (!totals)
        return TCX_NEXT;
    if (what == RELAY)
        return rewrite_tc(packet, d, totals);
    if (count_outcome(totals, what))
        return TC_ACT_SHOT;
    return what == ANSWER ? (int)redirect(packet->ifindex, 0) : TCX_NEXT;
}

SEC("classifier") int relay_tc(struct __sk_buff *packet)
{
    struct view view = {.context = packet, .path = PATH_TC, .length = packet->len};
    if (packet->protocol != be16(ETHERTYPE_IPV4) && packet->protocol != be16(ETHERTYPE_IPV6))
        return TCX_NEXT;
    if (!in_one_piece(packet, &view, HEADERS_MAX) || view.data + ETHERNET_BYTES > view.end)
        return TCX_NEXT;
    struct wrapping wrapping = {
        .to_us = packet->pkt_type == PACKET_HOST,
        .tagged = packet->vlan_present,
        .several = packet->gso_segs > 1 || packet->gso_size,
    };
    const struct ethernet *ethernet = view.data;
    struct decision d = {};
    int what = NOT_OURS;
    if (ethernet->type == be16(ETHERTYPE_IPV4)) {
        what = check_ipv4(&view);
        if (what == RELAY)
            what = decide_family(&view, &wrapping, 0, &d);
        if (what == ANSWER)
            what = answer_at_tc(packet, &view, 0, &d);
    } else if (ethernet->type == be16(ETHERTYPE_IPV6)) {
        what = check_ipv6(&view);
        if (what == RELAY)
            what = decide_family(&view, &wrapping, 1, &d);
        if (what == ANSWER)
            what = answer_at_tc(packet, &view, 1, &d);
    }
    return conclude_tc(packet, &d, what);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
