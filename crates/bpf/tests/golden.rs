//! Golden frames through BPF_PROG_TEST_RUN: packet in, packet or counters out. No interface is
//! touched.
//!
//! These tests need root (CAP_BPF and CAP_NET_ADMIN) and Linux 5.18; without, they fail and say so.

use std::net::SocketAddr;
use std::time::Duration;

use hairpin_bpf::count::{
    Aggregate, ArrivingPayload, Counter, Expectation, ExpectedFlow, Hook, Totals,
};
use hairpin_bpf::frame::Path;
use hairpin_bpf::inject::{Datagram, Flow, Injector, Pace};
use hairpin_bpf::{BpfError, payload};

const LOOPBACK: u32 = 1;

fn privileged<T>(result: Result<T, BpfError>) -> T {
    match result {
        Ok(value) => value,
        Err(error) => panic!("this test needs root and Linux 5.18 or later: {error}"),
    }
}

fn address(text: &str) -> SocketAddr {
    text.parse().expect("an address")
}

/// Flow `number` between two hosts of one family.
fn path(number: u16, v6: bool) -> Path {
    let (source, destination) = match v6 {
        false => (address("192.0.2.1:40000"), address("192.0.2.2:3478")),
        true => (
            address("[2001:db8::1]:40000"),
            address("[2001:db8::2]:3478"),
        ),
    };
    Path {
        source_mac: [2, 0, 0, 0, 0, 1],
        destination_mac: [2, 0, 0, 0, 0, 2],
        source: SocketAddr::new(source.ip(), 40000 + number),
        destination,
    }
}

fn flows(count: u16, v6: bool, datagram: impl Fn(u16) -> Datagram) -> Vec<Flow> {
    (0..count)
        .map(|number| {
            Flow::new(number.into(), 0, &path(number, v6), datagram(number)).expect("a flow")
        })
        .collect()
}

/// An injector with its one device set, that sends without pacing.
fn injector(flows: &[Flow], train: u32) -> Injector {
    let mut injector = privileged(Injector::load(64));
    privileged(injector.set_device(0, LOOPBACK));
    privileged(injector.set_flows(flows));
    let pace = Pace {
        rate: None,
        duration: Duration::from_secs(60),
        train,
        burst: 1,
    };
    privileged(injector.prepare(&pace));
    injector
}

fn expectation(arrives: ArrivingPayload, flows: u16, v6: bool) -> Expectation {
    // The frames are not relayed here: they arrive where they were sent, at port 3478.
    let flows = (0..flows).map(|number| ExpectedFlow {
        source: path(number, v6).source,
        destination_port: 3478,
        channel: 0x4000 + number,
    });
    Expectation {
        arrives,
        first_port: 3478,
        ports: 1,
        flows: flows.collect(),
        flow_mask: 0,
        verify_one_in: 1,
    }
}

/// The counters without the clock.
fn totals(counter: &mut Counter) -> Totals {
    Totals {
        last_ns: 0,
        ..privileged(counter.totals())
    }
}

fn counter(hook: Hook, expectation: &Expectation) -> Counter {
    let mut counter = privileged(Counter::load(hook, 64));
    privileged(counter.expect(expectation));
    counter
}

#[test]
fn a_dirty_frame_leaves_with_the_next_flows_head_and_sequence() {
    for v6 in [false, true] {
        let flows = flows(3, v6, |number| Datagram::ChannelData(0x4000 + number, 120));
        let mut injector = injector(&flows, 2);
        let order = [0, 0, 1, 1, 2, 2, 0];
        for (sequence, flow) in order.into_iter().enumerate() {
            let mut wanted = flows[flow].frame().to_vec();
            let head = path(0, v6).payload_offset() + 4;
            payload::stamp(&mut wanted[head..], sequence as u32);
            // The kernel hands the frame back with whatever the device under test wrote into its
            // head.
            let mut dirty = wanted.clone();
            dirty[..head + 16].fill(0xee);
            let left = privileged(injector.rewrite(&dirty)).expect("redirected");
            assert_eq!(left, wanted, "frame {sequence}, IPv6 {v6}");
        }
    }
}

#[test]
fn a_binding_request_of_62_bytes_is_restored_to_its_last_byte() {
    let flows = flows(2, false, |_| Datagram::Binding);
    let mut injector = injector(&flows, 1);
    let dirty = vec![0xee; 62];
    let left = privileged(injector.rewrite(&dirty)).expect("redirected");
    assert_eq!(left, flows[0].frame());
    assert_eq!(left[42..50], [0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42]);
}

#[test]
fn a_flow_with_a_shorter_head_is_cut_from_the_front() {
    let to_server =
        Flow::new(0, 0, &path(0, false), Datagram::ChannelData(0x4000, 1200)).expect("a flow");
    let to_relay = Flow::new(1, 0, &path(1, false), Datagram::Raw(1200)).expect("a flow");
    let mut injector = injector(&[to_server.clone(), to_relay.clone()], 1);
    let first = privileged(injector.rewrite(to_server.frame())).expect("redirected");
    let second = privileged(injector.rewrite(to_server.frame())).expect("redirected");
    assert_eq!(first, to_server.frame());
    let mut wanted = to_relay.frame().to_vec();
    payload::stamp(&mut wanted[42..], 1);
    assert_eq!(second, wanted);
    assert_eq!(payload::check(&second[42..]), Some((1, 1)));
}

#[test]
fn nothing_leaves_before_it_is_due_nor_after_the_end() {
    let flows = flows(1, false, |_| Datagram::Raw(120));
    let frame = flows[0].frame().to_vec();
    let mut injector = injector(&flows, 1);
    let slow = Pace {
        rate: Some(1.0),
        duration: Duration::from_secs(60),
        train: 1,
        burst: 2,
    };
    privileged(injector.prepare(&slow));
    assert!(privileged(injector.rewrite(&frame)).is_some());
    assert!(
        privileged(injector.rewrite(&frame)).is_some(),
        "a burst of two"
    );
    assert!(
        privileged(injector.rewrite(&frame)).is_none(),
        "the third is due in two seconds"
    );
    let over = Pace {
        rate: None,
        duration: Duration::ZERO,
        train: 1,
        burst: 1,
    };
    privileged(injector.prepare(&over));
    assert!(privileged(injector.rewrite(&frame)).is_none());
}

#[test]
fn loads_that_cannot_be_sent_are_refused_with_a_reason() {
    let mut injector = privileged(Injector::load(1));
    let refused = |result: Result<(), BpfError>| assert!(matches!(result, Err(BpfError::Flows(_))));
    refused(injector.set_flows(&[]));
    refused(injector.set_flows(&flows(2, false, |_| Datagram::Raw(120))));
    refused(Flow::new(0, 0, &path(0, false), Datagram::Raw(33)).map(drop));
    refused(Flow::new(0, 0, &path(0, false), Datagram::Raw(1600)).map(drop));
    let pace = Pace {
        rate: None,
        duration: Duration::ZERO,
        train: 1,
        burst: 1,
    };
    refused(injector.run(&pace).map(drop));
}

#[test]
fn the_counter_counts_the_frames_of_the_injector() {
    for (hook, v6) in [
        (Hook::Tc, false),
        (Hook::Tc, true),
        (Hook::Xdp, false),
        (Hook::Xdp, true),
    ] {
        let flows = flows(3, v6, |number| Datagram::ChannelData(0x4000 + number, 1200));
        let mut injector = injector(&flows, 1);
        let mut counter = counter(
            hook,
            &expectation(ArrivingPayload::ChannelData(1200), 3, v6),
        );
        for _ in 0..7 {
            let frame = privileged(injector.rewrite(flows[0].frame())).expect("redirected");
            assert!(
                privileged(counter.judge(&frame, None)),
                "taken off the wire"
            );
        }
        let wanted = Totals {
            datagrams: 7,
            bytes: 7 * 1204,
            packets: 7,
            verified: 7,
            ..Totals::default()
        };
        assert_eq!(totals(&mut counter), wanted, "{hook:?}, IPv6 {v6}");
    }
}

/// One damage to a valid frame, and what the counter must make of it.
struct Case {
    what: &'static str,
    damage: fn(&mut Vec<u8>),
    wanted: Totals,
}

const CORRUPT: Totals = Totals {
    datagrams: 0,
    bytes: 0,
    packets: 1,
    aggregated: 0,
    corrupt: 1,
    misdirected: 0,
    reordered: 0,
    duplicated: 0,
    verified: 0,
    last_ns: 0,
};
const SEEN_CORRUPT: Totals = Totals {
    verified: 1,
    ..CORRUPT
};
const MISDIRECTED: Totals = Totals {
    corrupt: 0,
    misdirected: 1,
    ..CORRUPT
};
const PASSED: Totals = Totals {
    corrupt: 0,
    packets: 0,
    ..CORRUPT
};

/// ChannelData over IPv4: Ethernet 0, IP 14, UDP 34, channel 42, length 44, payload 46.
const CASES: &[Case] = &[
    Case {
        what: "magic",
        damage: |frame| frame[46] ^= 1,
        wanted: CORRUPT,
    },
    Case {
        what: "sequence without its complement",
        damage: |frame| frame[54] ^= 1,
        wanted: CORRUPT,
    },
    Case {
        what: "first pattern byte",
        damage: |frame| frame[62] ^= 1,
        wanted: SEEN_CORRUPT,
    },
    Case {
        what: "a byte in the middle",
        damage: |frame| frame[700] ^= 1,
        wanted: SEEN_CORRUPT,
    },
    Case {
        what: "last byte",
        damage: |frame| *frame.last_mut().expect("bytes") ^= 1,
        wanted: SEEN_CORRUPT,
    },
    Case {
        what: "ChannelData length",
        damage: |frame| frame[45] ^= 4,
        wanted: CORRUPT,
    },
    Case {
        what: "UDP length, shorter",
        damage: |frame| frame[39] -= 8,
        wanted: CORRUPT,
    },
    Case {
        what: "UDP length, beyond the frame",
        damage: |frame| frame[38] += 1,
        wanted: CORRUPT,
    },
    Case {
        what: "channel of another flow",
        damage: |frame| frame[43] = 1,
        wanted: MISDIRECTED,
    },
    Case {
        what: "number of another flow",
        damage: |frame| frame[50] = 1,
        wanted: MISDIRECTED,
    },
    Case {
        what: "flow that does not exist",
        damage: |frame| frame[51] = 1,
        wanted: MISDIRECTED,
    },
    Case {
        what: "source address",
        damage: |frame| frame[29] ^= 1,
        wanted: MISDIRECTED,
    },
    Case {
        what: "source port",
        damage: |frame| frame[35] ^= 1,
        wanted: MISDIRECTED,
    },
    Case {
        what: "destination port beyond the load",
        damage: |frame| frame[37] += 1,
        wanted: PASSED,
    },
    Case {
        what: "not ChannelData",
        damage: |frame| frame[42] = 0x80,
        wanted: PASSED,
    },
    Case {
        what: "not UDP",
        damage: |frame| frame[23] = 6,
        wanted: PASSED,
    },
    Case {
        what: "IP options",
        damage: |frame| frame[14] = 0x46,
        wanted: PASSED,
    },
    Case {
        what: "fragment",
        damage: |frame| frame[21] = 1,
        wanted: PASSED,
    },
    Case {
        what: "ARP",
        damage: |frame| frame[13] = 6,
        wanted: PASSED,
    },
    Case {
        what: "cut short",
        damage: |frame| frame.truncate(60),
        wanted: PASSED,
    },
];

#[test]
fn damage_differs_from_what_is_not_part_of_the_load() {
    let frame = flows(1, false, |_| Datagram::ChannelData(0x4000, 1200))[0]
        .frame()
        .to_vec();
    for hook in [Hook::Tc, Hook::Xdp] {
        for case in CASES {
            let mut counter = counter(
                hook,
                &expectation(ArrivingPayload::ChannelData(1200), 2, false),
            );
            let mut damaged = frame.clone();
            (case.damage)(&mut damaged);
            let taken = privileged(counter.judge(&damaged, None));
            assert_eq!(totals(&mut counter), case.wanted, "{hook:?}: {}", case.what);
            assert_eq!(taken, case.wanted != PASSED, "{hook:?}: {}", case.what);
        }
    }
}

#[test]
fn reordering_and_duplicates_are_counted_per_flow() {
    let frame = flows(1, false, |_| Datagram::Raw(120))[0].frame().to_vec();
    let mut counter = counter(Hook::Tc, &expectation(ArrivingPayload::Raw(120), 1, false));
    // The window has 2^23 sequences: 5 came, and then is so old that nobody knows.
    for sequence in [5, 6, 6, 4, 7, 300, 4, 5 + (1 << 23), 5] {
        let mut frame = frame.clone();
        payload::stamp(&mut frame[42..], sequence);
        privileged(counter.judge(&frame, None));
    }
    let totals = totals(&mut counter);
    assert_eq!(
        (totals.datagrams, totals.duplicated, totals.reordered),
        (6, 3, 1)
    );
}

#[test]
fn a_damaged_or_replayed_copy_makes_no_duplicate_of_the_true_datagram() {
    const MASK: u32 = 0x5eed_0000;
    let of_run = |mask: u32| {
        let path = path(0, false);
        Flow::new(mask, 0, &path, Datagram::Raw(120)).expect("a flow")
    };
    for hook in [Hook::Tc, Hook::Xdp] {
        let mut expectation = expectation(ArrivingPayload::Raw(120), 1, false);
        expectation.flow_mask = MASK;
        let mut counter = counter(hook, &expectation);
        let sequence = |flow: &Flow, sequence| {
            let mut frame = flow.frame().to_vec();
            payload::stamp(&mut frame[42..], sequence);
            frame
        };
        let (own, other) = (of_run(MASK), of_run(MASK ^ 0x10_0000));
        let mut damaged = sequence(&own, 8);
        damaged[42 + 60] ^= 1;
        // The copies are first. The last one has a sequence that would empty the whole window.
        let frames = [
            damaged,
            sequence(&other, 9),
            sequence(&other, 9 + (1 << 23)),
            sequence(&own, 8),
            sequence(&own, 9),
        ];
        for frame in frames {
            assert!(privileged(counter.judge(&frame, None)), "{hook:?}");
        }
        let wanted = Totals {
            datagrams: 2,
            bytes: 240,
            packets: 5,
            corrupt: 1,
            misdirected: 2,
            verified: 3,
            ..Totals::default()
        };
        assert_eq!(totals(&mut counter), wanted, "{hook:?}");
    }
}

/// A packet as GRO or UDP_SEGMENT leaves it: one header, segments of `stride` bytes, the last as it
/// comes.
fn aggregate(payloads: &[Vec<u8>]) -> (Vec<u8>, Aggregate) {
    let stride = payloads[0].len() as u32;
    let frame = path(0, false)
        .frame(&payloads.concat())
        .expect("one family");
    (
        frame,
        Aggregate {
            stride,
            segments: payloads.len() as u32,
        },
    )
}

fn channel_data(sequence: u32) -> Vec<u8> {
    let mut bytes = vec![0x40, 0, 0, 120];
    bytes.resize(124, 0);
    payload::fill(&mut bytes[4..], 0, sequence);
    bytes
}

#[test]
fn every_segment_of_an_aggregate_counts_and_is_checked() {
    let mut counter = counter(
        Hook::Tc,
        &expectation(ArrivingPayload::ChannelData(120), 1, false),
    );
    let (frame, shape) = aggregate(&(0..20).map(channel_data).collect::<Vec<_>>());
    assert!(privileged(counter.judge(&frame, Some(shape))));
    let first = totals(&mut counter);
    let wanted = Totals {
        datagrams: 20,
        bytes: 20 * 124,
        packets: 1,
        aggregated: 1,
        verified: 20,
        ..Totals::default()
    };
    assert_eq!(first, wanted);
    let (mut damaged, shape) = aggregate(&(20..40).map(channel_data).collect::<Vec<_>>());
    damaged[42 + 3 * 124 + 50] ^= 1;
    assert!(privileged(counter.judge(&damaged, Some(shape))));
    let second = totals(&mut counter) - first;
    assert_eq!((second.datagrams, second.corrupt), (19, 1));
}

#[test]
fn only_the_sampled_payloads_are_compared_in_full() {
    let mut expectation = expectation(ArrivingPayload::ChannelData(120), 1, false);
    expectation.verify_one_in = 4;
    let mut counter = counter(Hook::Tc, &expectation);
    let (mut frame, shape) = aggregate(&(0..16).map(channel_data).collect::<Vec<_>>());
    frame[42 + 124 + 50] ^= 1; // sequence 1: not sampled
    frame[42 + 4 * 124 + 50] ^= 1; // sequence 4: sampled
    privileged(counter.judge(&frame, Some(shape)));
    let totals = totals(&mut counter);
    assert_eq!(
        (totals.datagrams, totals.corrupt, totals.verified),
        (15, 1, 4)
    );
}

/// A Binding success response to flow `flow` at `port` with this sequence, with an attribute in front or
/// not.
fn binding_response(
    (flow, sequence): (u32, u32),
    port: u16,
    mapped_port: u16,
    attribute_before: bool,
) -> Vec<u8> {
    let mut body = Vec::new();
    if attribute_before {
        body.extend([0x80, 0x22, 0, 3, b'a', b'b', b'c', 0]);
    }
    body.extend([0, 0x20, 0, 8, 0, 1]);
    body.extend((mapped_port ^ 0x2112).to_be_bytes());
    body.extend([192 ^ 0x21, 0x12, 2 ^ 0xa4, 1 ^ 0x42]);
    let mut message = vec![1, 1, 0, body.len() as u8, 0x21, 0x12, 0xa4, 0x42];
    message.extend(flow.to_le_bytes());
    message.extend(sequence.to_le_bytes());
    message.extend((!sequence).to_le_bytes());
    message.extend(body);
    let there = path(0, false);
    let back = Path {
        source: there.destination,
        destination: SocketAddr::new(there.source.ip(), port),
        ..there
    };
    back.frame(&message).expect("one family")
}

#[test]
fn a_binding_response_must_carry_the_address_it_goes_to() {
    let flows = (0..2).map(|number| ExpectedFlow {
        source: path(0, false).destination,
        destination_port: 40000 + number,
        channel: 0,
    });
    let expectation = Expectation {
        arrives: ArrivingPayload::Binding,
        first_port: 40000,
        ports: 2,
        flows: flows.collect(),
        flow_mask: 0,
        verify_one_in: 1,
    };
    for hook in [Hook::Tc, Hook::Xdp] {
        let mut counter = counter(hook, &expectation);
        for attribute_before in [false, true] {
            let id = (1, attribute_before.into());
            let good = binding_response(id, 40001, 40001, attribute_before);
            assert!(privileged(counter.judge(&good, None)));
        }
        assert!(
            privileged(counter.judge(&binding_response((1, 2), 40001, 40002, false), None)),
            "wrong mapped port"
        );
        assert!(
            privileged(counter.judge(&binding_response((1, 2), 40001, 40001, false), None)),
            "the true answer behind it is no duplicate"
        );
        assert!(
            privileged(counter.judge(&binding_response((0, 3), 40001, 40001, false), None)),
            "another flow's answer"
        );
        let mut allocate_response = binding_response((1, 4), 40001, 40001, false);
        allocate_response[43] = 3;
        assert!(
            !privileged(counter.judge(&allocate_response, None)),
            "other answers go to the stack"
        );
        let totals = totals(&mut counter);
        assert_eq!(
            (totals.datagrams, totals.corrupt, totals.misdirected),
            (3, 1, 1),
            "{hook:?}"
        );
    }
}

#[test]
fn so_it_is_over_ipv6() {
    let there = path(1, true);
    let response = |sequence: u32, mapped: [u8; 16]| {
        let mut message = vec![1, 1, 0, 24, 0x21, 0x12, 0xa4, 0x42];
        message.extend(1u32.to_le_bytes());
        message.extend(sequence.to_le_bytes());
        message.extend((!sequence).to_le_bytes());
        let id: Vec<u8> = message[4..20].to_vec();
        message.extend([0, 0x20, 0, 20, 0, 2]);
        message.extend((40001u16 ^ 0x2112).to_be_bytes());
        message.extend(mapped.iter().zip(id).map(|(byte, mask)| byte ^ mask));
        let back = Path {
            source: there.destination,
            destination: there.source,
            ..there
        };
        back.frame(&message).expect("one family")
    };
    let std::net::IpAddr::V6(own) = there.source.ip() else {
        panic!("an IPv6 path")
    };
    let flow = |port| ExpectedFlow {
        source: there.destination,
        destination_port: port,
        channel: 0,
    };
    let expectation = Expectation {
        arrives: ArrivingPayload::Binding,
        first_port: 40000,
        ports: 2,
        flows: vec![flow(40000), flow(40001)],
        flow_mask: 0,
        verify_one_in: 1,
    };
    for hook in [Hook::Tc, Hook::Xdp] {
        let mut counter = counter(hook, &expectation);
        let mut other = own.octets();
        other[15] ^= 1;
        for (sequence, mapped) in [(0, own.octets()), (1, other)] {
            assert!(privileged(counter.judge(&response(sequence, mapped), None)));
        }
        let totals = totals(&mut counter);
        assert_eq!((totals.datagrams, totals.corrupt), (1, 1), "{hook:?}");
    }
}
