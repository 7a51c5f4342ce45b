//! A table of 10,000 prefixes and calls for it. Timed by the example `routes`, and counted by the example `cost` of the
//! server.

use std::net::SocketAddr;

use sip::flow::Transport;
use sip::{Message, Mono};
use sip_server::routes::{Action, Call, CallSender, Decision, NextHop, Route, Table, Trunk};

/// Any of what can go wrong here.
pub(crate) type Failed = Box<dyn std::error::Error>;

/// The prefixes of the table.
pub(crate) const PREFIXES: usize = 10_000;

/// The request of all calls; only the Request-URI differs.
pub(crate) const INVITE: &[u8] = b"INVITE sip:+4930@example.com SIP/2.0\r\n\
    Via: SIP/2.0/UDP 192.0.2.9:5060;branch=z9hG4bK1;rport\r\n\
    From: <sip:alice@example.com>;tag=1\r\nTo: <sip:+4930@example.com>\r\n\
    Call-ID: 843817637684230@998sdasdh09\r\nCSeq: 1 INVITE\r\nMax-Forwards: 70\r\n\
    Contact: <sip:alice@192.0.2.9>\r\nContent-Length: 0\r\n\r\n";

/// A table with one route per prefix, and one Request-URI for each prefix.
pub(crate) struct TestBed {
    table: Table,
    uris: Vec<String>,
    next: usize,
}

/// Digits that look random, and are the same in every run (SplitMix64).
struct Digits(u64);

impl Digits {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn number(&mut self, len: u64) -> String {
        let digits = (0..len).map(|_| char::from(b'0' + self.below(10) as u8));
        digits.collect()
    }
}

impl TestBed {
    /// Prefixes of 2 to 8 digits, so a number often has several of them. Each route has two trunks.
    pub(crate) fn new() -> Result<TestBed, Failed> {
        let mut digits = Digits(7);
        let mut prefixes = std::collections::BTreeSet::new();
        while prefixes.len() < PREFIXES {
            let len = 2 + digits.below(7);
            prefixes.insert(format!("+{}", digits.number(len)));
        }
        let trunk = |name: &str, to: &str| -> Result<Trunk, Failed> {
            Ok(Trunk {
                name: name.to_owned(),
                to: vec![NextHop::new(to)?],
                ..Trunk::default()
            })
        };
        let trunks = vec![
            trunk("first", "sip:192.0.2.1:5060")?,
            trunk("second", "sip:192.0.2.2:5060")?,
        ];
        let route = |prefix: &String| Route {
            name: prefix.clone(),
            prefixes: vec![prefix.clone()],
            action: Action::Trunks(vec!["first".to_owned(), "second".to_owned()]),
            ..Route::default()
        };
        let routes = prefixes.iter().map(route).collect();
        let mut uris: Vec<String> = prefixes
            .iter()
            .map(|prefix| format!("sip:{prefix}{}@example.com", digits.number(6)))
            .collect();
        // Not in the order of the table: each decision finds the caches as a call does.
        for place in (1..uris.len()).rev() {
            let other = digits.below(place as u64 + 1) as usize;
            uris.swap(place, other);
        }
        Ok(TestBed {
            table: Table::new(routes, trunks, None)?,
            uris,
            next: 0,
        })
    }

    /// Decides the next call.
    pub(crate) fn once(&mut self, message: &Message<'_>) -> Result<(), Failed> {
        let uri = self.uris.get(self.next).ok_or("there are calls")?;
        self.next = (self.next + 1) % self.uris.len();
        let call = Call {
            message,
            uri: uri.as_bytes(),
            sender: CallSender::User(b"alice", b"example.com"),
            source: SocketAddr::from(([192, 0, 2, 9], 5060)),
            transport: Transport::Udp,
            draw: 1,
        };
        match decide(&self.table, &call) {
            Decision::Trunks(_) => Ok(()),
            other => Err(format!("{uri}: {other:?}").into()),
        }
    }
}

/// One decision. Not inlined: the tools find it by its name.
#[inline(never)]
fn decide(table: &Table, call: &Call<'_>) -> Decision {
    std::hint::black_box(table.decide(Mono(1), std::hint::black_box(call)))
}
