// What is attached by clsact, where the kernel has no TCX: it calls the program in RELAY, and passes the packet if there is none.
//
// A clsact filter outlives the process that attached it. The kernel empties an array of programs when the last descriptor of the
// array is closed: so after SIGKILL the filter is still there and passes everything.
#include "bpf_abi.h"

struct {
    UINT(type, MAP_TYPE_PROG_ARRAY);
    TYPE(key, u32);
    TYPE(value, u32);
    UINT(max_entries, 1);
} RELAY SEC(".maps");

SEC("classifier") int relay_gate(struct __sk_buff *packet)
{
    tail_call(packet, &RELAY, 0);
    return TCX_NEXT;
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
