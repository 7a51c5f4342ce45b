//! What the admission filter of the SIP listeners costs on this machine: nanoseconds per run of its program.
//!
//! `cargo run --release -p hairpin-bpf --example admission_filter_cost` as root. The kernel's own loop around a run is
//! in the figures; it is shown as the cost of a datagram while there are no rules.

use std::time::Duration;

use hairpin_bpf::BpfError;
use hairpin_bpf::admission_filter::{AdmissionFilter, PLACES, Rules};

const RUNS: u32 = 200_000;
const ROUNDS: u32 = 5;
/// Different datagrams: each meets other words of the memory.
const DIFFERENT: u32 = 2_000;

fn main() -> Result<(), BpfError> {
    let mut filter = AdmissionFilter::load()?;
    for (name, long) in [("REGISTER", false), ("INVITE with SDP", true)] {
        let request = |number| request(number, long);
        let bytes = request(0).len();
        filter.set(None)?;
        let none = best(&mut filter, &request(0), false)?;
        filter.set(Some(&rules(&[65535; PLACES], 65534)))?;
        let passes = best(&mut filter, &request(0), false)?;
        filter.set(Some(&rules(&[0; PLACES], 0)))?;
        let again = best(&mut filter, &request(0), true)?;
        let mut first = Duration::ZERO;
        for number in 1..=DIFFERENT {
            first += filter.test_run(&request(number), 1)?.1;
        }
        let first = (first / DIFFERENT).as_nanos();
        println!(
            "{name}, {bytes} bytes: no rules {none} ns, passed {passes} ns, dropped {again} ns (hot), {first} ns (once each)"
        );
    }
    Ok(())
}

fn rules(thresholds: &[u16; PLACES], retransmissions: u32) -> Rules<'_> {
    Rules {
        keys: [0x0123_4567_89ab_cdef, 0x9e37_79b9_7f4a_7c15],
        thresholds,
        retransmissions,
        until_ns: u64::MAX,
    }
}

fn best(filter: &mut AdmissionFilter, datagram: &[u8], dropped: bool) -> Result<u128, BpfError> {
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let (is_dropped, duration) = filter.test_run(datagram, RUNS)?;
        assert_eq!(is_dropped, dropped, "not what was to be measured");
        best = best.min(duration);
    }
    Ok(best.as_nanos())
}

fn request(number: u32, long: bool) -> Vec<u8> {
    let (method, body) = match long {
        false => ("REGISTER", String::new()),
        true => (
            "INVITE",
            format!(
                "v=0\r\no=- {number} 1 IN IP4 192.0.2.1\r\ns=-\r\nc=IN IP4 192.0.2.1\r\nt=0 0\r\nm=audio 40000 RTP/AVP 0 8 101\r\n\
                 a=rtpmap:0 PCMU/8000\r\na=rtpmap:8 PCMA/8000\r\na=rtpmap:101 telephone-event/8000\r\na=fmtp:101 0-16\r\na=sendrecv\r\n"
            ),
        ),
    };
    format!(
        "{method} sip:bob@192.0.2.2 SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1:5060;branch=z9hG4bK74bf9{number};rport\r\nMax-Forwards: 70\r\n\
         From: \"Alice\" <sip:alice@192.0.2.1>;tag=9fxced76sl{number}\r\nTo: \"Bob\" <sip:bob@192.0.2.2>\r\nCall-ID: 3848276298220188511{number}@192.0.2.1\r\n\
         CSeq: 1 {method}\r\nContact: <sip:alice@192.0.2.1:5060>\r\nUser-Agent: telephone/1.0\r\nExpires: 3600\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}
