//! What a transaction sends to a source that has proved nothing: 2.5 times the bytes of its request, repetitions
//! included.

use hairpin_sip::congestion::WeightedSource;
use hairpin_sip::engine::{Config, DropReason, Engine, Output, Received, Reply, ServerKey};
use hairpin_sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};
use hairpin_sip::{HashKey, Mono, Now, Spans};

const START: u64 = 1_000_000_000;

struct TestBed {
    engine: Engine,
    now: Now,
    flow: Flow,
    /// Bytes of IP packets that were sent, and the codes of the responses.
    sent: usize,
    codes: Vec<String>,
}

impl TestBed {
    fn new(source: &str) -> TestBed {
        let mut config = Config::new(0, HashKey::new([7; 16]));
        config.trusts_peers_only = true;
        config.congestion.peers = vec![WeightedSource {
            address: [192, 0, 2, 0].into(),
            prefix: 24,
            weight: 1,
        }];
        let remote: std::net::SocketAddr = source.parse().unwrap();
        let flow = Flow {
            transport: Transport::Udp,
            listener: ListenerKey(0),
            connection: None,
            local: match remote.is_ipv4() {
                true => "192.0.2.1:5060".parse().unwrap(),
                false => "[2001:db8::1]:5060".parse().unwrap(),
            },
            remote,
        };
        TestBed {
            engine: Engine::new(config, 1),
            now: Now {
                mono: Mono(START),
                unix_s: 0,
            },
            flow,
            sent: 0,
            codes: Vec::new(),
        }
    }

    fn headers(&self) -> usize {
        match self.flow.remote.is_ipv4() {
            true => 28,
            false => 48,
        }
    }

    fn drain(&mut self) {
        while let Some(output) = self.engine.poll_output() {
            if let Output::Send { bytes, .. } = output {
                let headers = match self.flow.remote.is_ipv4() {
                    true => 28,
                    false => 48,
                };
                self.sent += bytes.len() + headers;
                let code = bytes.get(8..11).unwrap();
                self.codes.push(String::from_utf8(code.to_vec()).unwrap());
            }
        }
    }

    fn receive(&mut self, text: &str, trust: fn(&mut hairpin_sip::engine::NewRequest<'_>)) {
        let mut spans = Spans::new();
        let received =
            self.engine
                .handle_message(self.now, &self.flow, text.as_bytes(), &mut spans);
        if let Received::Request(mut request) = received {
            trust(&mut request);
            self.engine.accept(self.now.mono, request, None).unwrap();
        }
        self.drain();
    }

    fn respond(&mut self, key: ServerKey, reply: &Reply<'_>) {
        self.engine.respond(self.now.mono, key, reply).unwrap();
        self.drain();
    }

    /// Lets 40 seconds pass.
    fn wait(&mut self) {
        for _ in 0..400 {
            self.now.mono.0 += 100_000_000;
            while self
                .engine
                .poll_timeout()
                .is_some_and(|at| at <= self.now.mono)
            {
                self.engine.handle_timeout(self.now);
                self.drain();
            }
        }
    }

    fn amplified(&self) -> u64 {
        let mut all = DropReason::ALL.iter();
        let place = all.position(|it| *it == DropReason::Amplification);
        self.engine.stats().dropped[place.unwrap()]
    }
}

fn invite(pad: usize) -> String {
    format!(
        "INVITE sip:x@example.com SIP/2.0\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK7;rport\r\n\
         From: <sip:a@example.com>;tag=1\r\nTo: <sip:x@example.com>\r\nCall-ID: 1@a\r\n\
         CSeq: 1 INVITE\r\nMax-Forwards: 70\r\nContact: <sip:a@a>\r\nSubject: {}\r\n\
         Content-Length: 0\r\n\r\n",
        "x".repeat(pad)
    )
}

/// The first server transaction of an engine.
fn first() -> ServerKey {
    let mut engine = Engine::new(Config::new(0, HashKey::new([7; 16])), 1);
    let mut spans = Spans::new();
    let flow = TestBed::new("203.0.113.5:40000").flow;
    let text = invite(0);
    let received = engine.handle_message(Now::default(), &flow, text.as_bytes(), &mut spans);
    let Received::Request(request) = received else {
        panic!("a request");
    };
    engine.accept(Mono(START), request, None).unwrap()
}

#[test]
fn all_responses_of_an_unauthenticated_transaction_together_are_bounded() {
    let body = "x".repeat(700);
    for source in ["203.0.113.5:40000", "[2001:db8:5::9]:40000"] {
        for pad in [0, 100, 400, 900] {
            let mut bed = TestBed::new(source);
            let text = invite(pad);
            bed.receive(&text, |_| ());
            for code in [180, 183, 183, 183] {
                bed.respond(first(), &Reply::new(code).body(body.as_bytes()));
            }
            bed.respond(first(), &Reply::new(486));
            bed.wait();
            let most = (text.len() + bed.headers()) * 5 / 2;
            assert!(bed.sent <= most, "{} of {most}: {:?}", bed.sent, bed.codes);
            // The final response has come all the same, though it is not repeated for as long as it would be.
            let finals = bed.codes.iter().filter(|code| *code == "486").count();
            assert!((1..8).contains(&finals), "{:?}", bed.codes);
            assert!(bed.amplified() > 0);
        }
    }
}

#[test]
fn a_request_that_comes_again_has_room_for_more() {
    let mut bed = TestBed::new("203.0.113.5:40000");
    let text = invite(0);
    bed.receive(&text, |_| ());
    bed.respond(first(), &Reply::new(486));
    bed.wait();
    // The transaction ends after 32 s, so the same begins anew.
    let mut again = TestBed::new("203.0.113.5:40000");
    again.receive(&text, |_| ());
    again.respond(first(), &Reply::new(486));
    for _ in 0..3 {
        again.receive(&text, |_| ());
    }
    assert_eq!(again.codes.len(), 4, "one for each request");
    again.wait();
    let most = (text.len() + 28) * 5 / 2;
    assert!(again.sent > bed.sent && again.sent <= 4 * most);
}

#[test]
fn a_forwarded_refusal_that_does_not_fit_is_replaced_by_the_shortest_with_its_code() {
    let mut bed = TestBed::new("203.0.113.5:40000");
    bed.receive(&invite(0), |_| ());
    let long = format!(
        "SIP/2.0 404 Not Found\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK7\r\nX: {}\r\n\r\n",
        "x".repeat(2000)
    );
    bed.respond(first(), &Reply::forwarded(404, &[long.as_bytes()]));
    assert_eq!(bed.codes, ["404"]);
    assert!(bed.sent < 600, "{}", bed.sent);
}

#[test]
fn a_long_180_is_replaced_by_the_shortest_one() {
    let mut bed = TestBed::new("203.0.113.5:40000");
    let text = invite(200);
    bed.receive(&text, |_| ());
    let long = format!(
        "SIP/2.0 180 Ringing\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK7\r\nRecord-Route: <sip:{}>\r\n\r\n",
        "x".repeat(500)
    );
    bed.respond(first(), &Reply::new(100));
    bed.respond(first(), &Reply::forwarded(180, &[long.as_bytes()]));
    bed.respond(first(), &Reply::new(486));
    assert_eq!(bed.codes, ["100", "180", "486"]);
    bed.wait();
    assert!(bed.sent <= (text.len() + 28) * 5 / 2);
}

#[test]
fn a_reliable_183_keeps_its_rseq_or_is_not_sent_rfc3262_3() {
    let text = invite(200);
    let long = |rseq: &str| {
        format!(
            "SIP/2.0 183 Progress\r\nVia: SIP/2.0/UDP a;branch=z9hG4bK7\r\n{rseq}Record-Route: <sip:{}>\r\n\r\n",
            "x".repeat(1500)
        )
    };
    for (rseq, sent) in [
        ("RSeq: 1\r\nRequire: 100rel\r\n", 0),
        ("RSEQ : 1\r\n", 0),
        ("X: RSeq:\r\n", 1),
        ("", 1),
    ] {
        let mut bed = TestBed::new("203.0.113.5:40000");
        bed.receive(&text, |_| ());
        let long = long(rseq);
        bed.respond(first(), &Reply::forwarded(183, &[long.as_bytes()]));
        assert_eq!(bed.codes.len(), sent, "{rseq}");
        assert_eq!(bed.amplified(), u64::from(sent == 0), "{rseq}");
        bed.respond(first(), &Reply::new(486));
        assert_eq!(bed.codes.last().unwrap(), "486");
    }
}

#[test]
fn a_2xx_to_an_invite_is_sent_in_any_case_and_others_have_no_bound() {
    let body = "x".repeat(3000);
    let mut bed = TestBed::new("203.0.113.5:40000");
    bed.receive(&invite(0), |_| ());
    bed.respond(first(), &Reply::new(200).body(body.as_bytes()));
    assert_eq!(bed.codes, ["200"]);
    for (source, connection, trust) in [
        ("192.0.2.77:40000", None, false),
        ("203.0.113.5:40000", None, true),
        ("203.0.113.5:40000", Some(ConnectionKey(7)), false),
    ] {
        let mut bed = TestBed::new(source);
        bed.flow.connection = connection;
        if connection.is_some() {
            bed.flow.transport = Transport::Tcp;
            bed.engine.accepted(bed.now.mono, &bed.flow.clone());
        }
        bed.receive(
            &invite(0),
            match trust {
                true => |request| request.trust_source(),
                false => |_| (),
            },
        );
        bed.respond(first(), &Reply::new(183).body(body.as_bytes()));
        bed.respond(first(), &Reply::new(486));
        bed.wait();
        let finals = bed.codes.iter().filter(|code| *code == "486").count();
        let wanted = match connection {
            Some(_) => 1,
            None => 11,
        };
        assert_eq!((bed.codes[0].as_str(), finals), ("183", wanted), "{source}");
        assert_eq!(bed.amplified(), 0);
    }
    // One that has proved itself later.
    let mut bed = TestBed::new("203.0.113.5:40000");
    bed.receive(&invite(0), |_| ());
    bed.engine.trust_source(first());
    bed.respond(first(), &Reply::new(183).body(body.as_bytes()));
    assert_eq!(bed.codes, ["183"]);
}
