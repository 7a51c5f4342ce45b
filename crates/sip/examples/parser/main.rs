//! Times the parser on two messages, with the headers read that their receiver needs:
//!
//! ```text
//! cargo run --release -p hairpin-sip --example parser
//! ```
//!
//! The figures are medians of many short runs, in nanoseconds a message, and the heap allocations that one message
//! takes. `parser OPERATION COUNT` repeats one operation, for counting its instructions with callgrind.

#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a program reads its arguments and the clock"
)]

extern crate hairpin_sip as sip;

mod read;

use core::hint::black_box;
use std::time::Instant;

use read::{Failed, INVITE, REGISTER, read_invite, read_register};
use sip::build::{Builder, Edits, Stamp, forward};
use sip::header::HeaderKind;
use sip::verdict::{Rules, Verdict, judge};
use sip::{Framing, Limits, Message, Scan, Spans};

/// Everything a proxy does with a request, but for the address it goes to.
fn proxy(bytes: &[u8], spans: &mut Spans, buffer: &mut [u8]) -> Result<(), Failed> {
    let Verdict::Accept(message) = judge(
        bytes,
        spans,
        Framing::Datagram,
        &Limits::DEFAULT,
        &Rules::PROXY,
    ) else {
        return Err("refused".into());
    };
    let mut scratch = [0; 512];
    let edits = Edits {
        on_top: b"Via: SIP/2.0/UDP proxy.example.com;branch=z9hG4bK0123456789abcdef\r\n",
        stamp: Stamp::of(&message.via()?, "192.0.2.1:5060".parse()?),
        max_forwards: Some(69),
        ..Edits::default()
    };
    black_box(forward(&message, &edits, &mut scratch)?.copy_to(buffer)?);
    Ok(())
}

/// A refusal without a parse: 503 from the scan alone.
fn refuse(bytes: &[u8], buffer: &mut [u8]) -> Result<(), Failed> {
    let scan = Scan::of(bytes, &Limits::DEFAULT)?;
    let request = scan.answerable().ok_or("cannot be answered")?;
    let mut response =
        Builder::response(buffer, &request, 503, b"", Some(b"tag"), Stamp::default());
    response.number(HeaderKind::RetryAfter, 2);
    black_box(response.finish()?);
    Ok(())
}

const OPERATIONS: &[&str] = &[
    "parse-register",
    "read-register",
    "judge-register",
    "scan-register",
    "refuse-register",
    "parse-invite",
    "read-invite",
    "judge-invite",
    "scan-invite",
    "refuse-invite",
    "proxy-invite",
];

fn run(operation: &str, spans: &mut Spans, buffer: &mut [u8]) -> Result<(), Failed> {
    let (verb, name) = operation.split_once('-').ok_or("no such operation")?;
    let bytes = black_box(if name == "register" { REGISTER } else { INVITE });
    match (verb, name) {
        ("parse", _) => drop(black_box(Message::parse(bytes, spans)?.method())),
        ("read", "register") => read_register(bytes, spans)?,
        ("read", _) => read_invite(bytes, spans)?,
        ("judge", _) => {
            let rules = if name == "register" {
                Rules::USER_AGENT
            } else {
                Rules::PROXY
            };
            let verdict = judge(bytes, spans, Framing::Datagram, &Limits::DEFAULT, &rules);
            if !matches!(black_box(verdict), Verdict::Accept(_)) {
                return Err("refused".into());
            }
        }
        ("scan", _) => drop(black_box(Scan::of(bytes, &Limits::DEFAULT)?.method)),
        ("refuse", _) => refuse(bytes, buffer)?,
        ("proxy", _) => proxy(bytes, spans, buffer)?,
        _ => return Err("no such operation".into()),
    }
    Ok(())
}

fn main() -> Result<(), Failed> {
    let (mut spans, mut buffer) = (Spans::new(), [0; 4096]);
    let mut arguments = std::env::args().skip(1);
    if let Some(operation) = arguments.next() {
        let count: u32 = arguments.next().unwrap_or_default().parse()?;
        for _ in 0..count {
            run(&operation, &mut spans, &mut buffer)?;
        }
        return Ok(());
    }
    for operation in OPERATIONS {
        let mut times = Vec::new();
        for _ in 0..301 {
            let start = Instant::now();
            for _ in 0..2000 {
                run(operation, &mut spans, &mut buffer)?;
            }
            times.push(start.elapsed().as_nanos() / 2000);
        }
        let allocations = allocation_counter::measure(|| {
            run(operation, &mut spans, &mut buffer).unwrap_or_default();
        });
        times.sort_unstable();
        let (low, median, high) = (times[15], times[150], times[285]);
        println!(
            "{operation:16} {median:5} ns (5 % to 95 %: {low} to {high}), {} allocations",
            allocations.count_total
        );
    }
    Ok(())
}
