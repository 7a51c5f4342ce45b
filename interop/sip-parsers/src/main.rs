//! Times SIP parsers side by side: rounds in which each has its turn, and the median of the rounds.
//!
//! Each parses both messages, and each parses them and reads the typed Via, From, To and CSeq: what every element
//! needs.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::Instant;

use hairpin_sip as sip;

const REGISTER: &[u8] = include_bytes!("../../../crates/sip/examples/parser/register.sip");
const INVITE: &[u8] = include_bytes!("../../../crates/sip/examples/parser/invite.sip");
const ROUNDS: usize = 31;
const RUNS: u32 = 2000;

/// Parses, and reads headers if asked to.
type Parse = fn(&[u8], bool, &mut sip::Spans);

fn hairpin(bytes: &[u8], reads: bool, spans: &mut sip::Spans) {
    let message = sip::Message::parse(bytes, spans).expect("well-formed");
    if reads {
        black_box((message.via().expect("Via"), message.cseq().expect("CSeq")));
        black_box((message.from().expect("From"), message.to().expect("To")));
    }
    black_box(&message);
}

fn rsip(bytes: &[u8], reads: bool, _: &mut sip::Spans) {
    use rsip::prelude::{HeadersExt as _, ToTypedHeader as _};
    let message = rsip::Request::try_from(bytes).expect("well-formed");
    if reads {
        black_box(message.via_header().expect("Via").typed().expect("Via"));
        black_box(message.cseq_header().expect("CSeq").typed().expect("CSeq"));
        black_box(message.from_header().expect("From").typed().expect("From"));
        black_box(message.to_header().expect("To").typed().expect("To"));
    }
    black_box(&message);
}

fn rsipstack(bytes: &[u8], reads: bool, _: &mut sip::Spans) {
    use rsipstack::sip::{ToTypedHeader as _, prelude::HeadersExt as _};
    let message = rsipstack::sip::Request::try_from(bytes).expect("well-formed");
    if reads {
        black_box(message.via_header().expect("Via").typed().expect("Via"));
        black_box(message.cseq_header().expect("CSeq").typed().expect("CSeq"));
        black_box(message.from_header().expect("From").typed().expect("From"));
        black_box(message.to_header().expect("To").typed().expect("To"));
    }
    black_box(&message);
}

fn main() {
    let parsers: [(&str, Parse); 3] = [("hairpin", hairpin), ("rsipstack", rsipstack), ("rsip", rsip)];
    let mut spans = sip::Spans::new();
    for (message, bytes) in [("REGISTER", REGISTER), ("INVITE", INVITE)] {
        for reads in [false, true] {
            let mut times = vec![Vec::new(); parsers.len()];
            for _ in 0..ROUNDS {
                for (times, (_, parse)) in times.iter_mut().zip(&parsers) {
                    let start = Instant::now();
                    for _ in 0..RUNS {
                        parse(black_box(bytes), reads, &mut spans);
                    }
                    times.push(start.elapsed().as_nanos() / u128::from(RUNS));
                }
            }
            for (times, (name, parse)) in times.iter_mut().zip(&parsers) {
                times.sort_unstable();
                let allocations = allocation_counter::measure(|| parse(bytes, reads, &mut spans)).count_total;
                let what = if reads { "parsed and read" } else { "parsed" };
                let (low, median, high) = (times[1], times[ROUNDS / 2], times[ROUNDS - 2]);
                println!("{message:8} {what:15} {name:9} {median:6} ns ({low} to {high}), {allocations} allocations");
            }
        }
    }
}
