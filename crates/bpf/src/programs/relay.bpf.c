// The relay below the socket layer.
#include "relay_maps.h"

SEC("xdp") int relay_xdp(struct xdp_md *packet)
{
    (void)packet;
    return XDP_PASS;
}

SEC("classifier") int relay_tc(struct __sk_buff *packet)
{
    (void)packet;
    return TCX_NEXT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
