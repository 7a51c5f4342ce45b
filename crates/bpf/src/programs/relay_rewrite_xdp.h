// Rewriting in XDP: the head of the frame is moved, and written anew from its first byte to the payload. Only moving it can
// fail, and then nothing has changed. relay_decide.h has already computed the UDP checksum.
//
//   before:  | Ethernet | IP | UDP | ChannelData | payload | padding
//   after:           | Ethernet | IP | UDP       | payload |           the payload stays where it is
#pragma once
#include "relay_headers.h"

INLINE int rewrite_xdp(struct xdp_md *packet, const struct decision *d, const struct view *view, struct totals *totals)
{
    int v6 = !!d->tail;
    u32 before = header_bytes(d->v6, d->framed);
    u32 behind = view->length - before - d->payload;
    int delta = (int)before - (int)header_bytes(v6, !!d->out.flow->channel);
    if (delta && xdp_adjust_head(packet, delta)) {
        totals->of[PASS_ROOM]++;
        return XDP_PASS;
    }
    // Padding of ChannelData, and of short frames. It cannot fail: headers and payload remain.
    if (UNLIKELY(behind) && xdp_adjust_tail(packet, -(int)behind))
        return XDP_ABORTED;
    void *data = (void *)(long)packet->data;
    void *end = (void *)(long)packet->data_end;
    if (!(v6 ? write_headers(data, end, d, 1, 0) : write_headers(data, end, d, 0, 0)))
        return XDP_ABORTED;
    u32 interface = d->hop->interface;
    if (UNLIKELY(!is_still_valid(d))) {
        totals->of[DROP_CHANGED]++;
        return XDP_DROP;
    }
    account(d, totals);
    // Of a lower device of a bond XDP_TX leaves by the bond, too.
    return interface == view->device ? XDP_TX : (int)redirect(interface, 0);
}
