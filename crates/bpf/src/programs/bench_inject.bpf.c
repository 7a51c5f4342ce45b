// Frame injector: run through BPF_PROG_TEST_RUN with live frames, it turns one page-pool frame after another into
// the next datagram of a load and sends it out of a device, below every socket.
//
// What it must do every time, because the kernel recycles the frames *with whatever the device under test wrote
// into them*: restore the whole head (addresses, ports, checksums, channel or STUN header, payload head).
//
//   |<------------------------- head, restored per frame, at most 96 bytes --------------------->|
//   | Ethernet | IP | UDP | ChannelData? | magic, flow | sequence | ~sequence | payload ..........| payload, as loaded
//
// The sequence is followed by its complement, so the Internet checksum of the frame does not depend on it: user
// space computes it once per flow. Frames of different header lengths share the payload's position; a flow with a
// shorter head asks for `trim` bytes to be cut off in front.
//
// How it waits: a frame that is dropped goes back to the page pool through a lock that the receiver's frees take, too. A program
// that waited by dropping would slow down whoever it feeds. So it looks at the clock again and again inside one call, and drops
// a batch only now and then, to let the kernel run what else is due on this processor. A batch is a burst: the kernel
// sends what was redirected when the batch is over.
#include "packet.h"

enum { HEAD_BYTES = 96, MIN_FRAME_BYTES = 62, SEQUENCE_BYTES = 8, CATCH_UP_PS = 2000000000,
       // Looks at the clock before a batch is given up; 10 to 20 microseconds.
       LOOKS = 512 };

struct flow_frame {
    u32 device;      // slot in DEVICES
    u32 trim;        // bytes cut from the front of the frame
    u32 sequence_at; // offset of the sequence after the cut
    u32 reserved;
    u8 head[HEAD_BYTES];
};

struct injection {
    // Written by user space before a run.
    u32 flows;   // slots in FLOWS that take turns, >= 1
    u32 train;   // frames of one flow in a row, >= 1
    u32 burst;   // frames sent together when they are due, >= 1
    u32 batch;   // frames that the kernel flushes together, >= 1
    u64 gap_ps;  // picoseconds per frame; 0: as fast as possible
    u64 span_ns; // length of the run, counted from the first call
    // Written by the program.
    u64 start_ns;
    u64 last_ns;
    u64 sent;
    u64 skipped_ps; // schedule given up because the generator was held off the CPU for longer than CATCH_UP_PS
    u32 flow;
    u32 in_train;
    u32 budget;
    u32 ended;
    u32 in_batch; // frames of the batch at hand that have been seen
    u32 given_up; // the rest of the batch is dropped
    // Written by user space before a run.
    u32 scatter; // every frame from another of 2^20 IPv4 addresses
    u32 first_sequence;
};

struct {
    UINT(type, MAP_TYPE_ARRAY);
    UINT(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, struct injection);
} INJECTION SEC(".maps");

struct {
    UINT(type, MAP_TYPE_ARRAY);
    UINT(max_entries, 1);
    TYPE(key, u32);
    TYPE(value, struct flow_frame);
} FLOWS SEC(".maps");

struct {
    UINT(type, MAP_TYPE_DEVMAP);
    UINT(max_entries, 4);
    UINT(key_size, 4);
    UINT(value_size, 8);
} DEVICES SEC(".maps");

// Whether the next burst is due at `now`.
INLINE int burst_due(struct injection *run, u64 now)
{
    u64 elapsed_ns = now - run->start_ns;
    if (elapsed_ns >= run->span_ns) {
        run->ended = 1;
        return 0;
    }
    u64 elapsed_ps = elapsed_ns * 1000;
    u64 owed_ps = run->sent * run->gap_ps + run->skipped_ps;
    if (elapsed_ps < owed_ps)
        return 0;
    if (run->gap_ps && elapsed_ps - owed_ps > CATCH_UP_PS)
        run->skipped_ps += elapsed_ps - owed_ps;
    run->last_ns = now;
    run->budget = run->burst - 1;
    return 1;
}

// Whether a frame is due. The time is read once per burst: reading it costs as much as the rest of the program.
INLINE int due(struct injection *run)
{
    if (run->in_batch >= run->batch) {
        run->in_batch = 0;
        run->given_up = 0;
    }
    run->in_batch++;
    if (run->budget) {
        run->budget--;
        return 1;
    }
    if (run->given_up)
        return 0;
    if (!run->start_ns)
        run->start_ns = ktime_get_ns();
#pragma clang loop unroll(disable)
    for (int look = 0; look < LOOKS; look++) {
        if (burst_due(run, ktime_get_ns()))
            return 1;
        if (run->ended)
            break;
    }
    run->given_up = 1;
    return 0;
}

INLINE u32 next_flow(struct injection *run)
{
    u32 flow = run->flow;
    if (++run->in_train >= run->train) {
        run->in_train = 0;
        run->flow = flow + 1 >= run->flows ? 0 : flow + 1;
    }
    return flow;
}

// Copies the head in words as far as the frame reaches; a frame's length modulo 4 is 2 (62, 66, ... bytes).
INLINE int restore_head(void *data, void *end, const struct flow_frame *flow)
{
    if (data + MIN_FRAME_BYTES > end)
        return 0;
    if (data + HEAD_BYTES <= end) {
        u64 *to = data;
        const u64 *from = (const void *)flow->head;
#pragma unroll
        for (int i = 0; i < HEAD_BYTES / 8; i++)
            to[i] = from[i];
        return 1;
    }
    u64 *to = data;
    const u64 *from = (const void *)flow->head;
#pragma unroll
    for (int i = 0; i < 7; i++)
        to[i] = from[i];
    u16 *short_to = data;
    const u16 *short_from = (const void *)flow->head;
#pragma unroll
    for (int i = 28; i < HEAD_BYTES / 2; i++) {
        if ((void *)(short_to + i + 1) > end)
            break;
        short_to[i] = short_from[i];
    }
    return 1;
}

INLINE u16 fold(u32 sum)
{
    sum = (sum & 0xffff) + (sum >> 16);
    return (sum & 0xffff) + (sum >> 16);
}

// Sends the frame from an address that follows from its sequence: 20 bits, which are 0 in the flow's address, beside
// the lowest 3. Consecutive sequences are far from each other, as spoofed sources are.
INLINE int scatter(void *data, void *end, u32 sequence)
{
    if (data + MIN_FRAME_BYTES > end)
        return 0;
    struct ipv4 *ip = data + ETHERNET_BYTES;
    struct udp *udp = data + ETHERNET_BYTES + IPV4_BYTES;
    u32 bits = be32(sequence * 0x9e3779b1 >> 12 << 3);
    u32 sum = (bits & 0xffff) + (bits >> 16);
    ip->source |= bits;
    // RFC 1624, with nothing taken away.
    ip->checksum = ~fold((u16)~ip->checksum + sum);
    u16 checksum = ~fold((u16)~udp->checksum + sum);
    udp->checksum = checksum ? checksum : 0xffff;
    return 1;
}

SEC("xdp")
int inject(struct xdp_md *packet)
{
    u32 zero = 0;
    struct injection *run = map_lookup(&INJECTION, &zero);
    if (!run || run->ended || !due(run))
        return XDP_DROP;
    u32 number = next_flow(run);
    struct flow_frame *flow = map_lookup(&FLOWS, &number);
    if (!flow)
        return XDP_ABORTED;
    if (flow->trim && xdp_adjust_head(packet, (int)(flow->trim & 63)))
        return XDP_ABORTED;
    void *data = (void *)(long)packet->data;
    void *end = (void *)(long)packet->data_end;
    if (!restore_head(data, end, flow))
        return XDP_ABORTED;
    u32 at = flow->sequence_at;
    if (at > HEAD_BYTES - SEQUENCE_BYTES || data + at + SEQUENCE_BYTES > end)
        return XDP_ABORTED;
    u32 *sequence = data + at;
    u32 value = run->first_sequence + (u32)run->sent;
    sequence[0] = value;
    sequence[1] = ~value;
    if (run->scatter && !scatter(data, end, value))
        return XDP_ABORTED;
    run->sent++;
    return redirect_map(&DEVICES, flow->device, 0);
}

char LICENSE[] SEC("license") = "Dual MIT/GPL";
