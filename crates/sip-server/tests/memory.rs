//! What a binding costs, and that calls allocate nothing to find one.
#![allow(missing_docs, clippy::unwrap_used)]

extern crate hairpin_sip_server as sip_server;

use std::net::SocketAddr;
use std::time::Duration;

use allocation_counter::measure;
use sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};
use sip::{HashKey, Message, Mono, Now, Spans};
use sip_server::Aor;
use sip_server::calls::{
    AttemptFailure, CallRecord, Counted, DialogId, DialogLifetime, Dialogs, Leg,
};
use sip_server::flow::FlowId;
use sip_server::location::{Found, Limits, Location, MAX_AGENT, MemoryLocation};
use sip_server::registrar::{
    Access, Config, Domain, Domains, Examined, Outcome, Registrar, Request,
};

const USERS: u32 = 20_000;
/// What the project promises for one binding.
const MAX_BINDING_BYTES: u64 = 512;

struct World {
    registrar: Registrar,
    location: MemoryLocation,
    buffer: Vec<u8>,
    spans: Spans,
}

fn world() -> World {
    let key = HashKey::new([1; 16]);
    let domain = Domain {
        name: "example.com".to_owned(),
        ..Domain::default()
    };
    let domains = Domains::new(vec![domain]).unwrap();
    World {
        registrar: Registrar::new(Config::default(), domains, key, 1).unwrap(),
        location: MemoryLocation::new(key, Limits::default()),
        buffer: vec![0; 64 << 10],
        spans: Spans::new(),
    }
}

/// As phones send it: the Contact of a SIP stack with Outbound, over IPv6 and TLS, which is the longest of the flows.
fn text(user: u32) -> String {
    // More than a binding keeps.
    let agent = "a".repeat(2 * MAX_AGENT);
    format!(
        "REGISTER sip:example.com SIP/2.0\r\n\
         Via: SIP/2.0/TLS [2001:db8::{user:x}]:5061;branch=z9hG4bKa{user};rport\r\n\
         From: <sip:user{user}@example.com>;tag=1\r\nTo: <sip:user{user}@example.com>\r\n\
         Call-ID: {user:08x}-7dec-11d0-a765-00a0c91e6bf6\r\nCSeq: 1 REGISTER\r\nMax-Forwards: 70\r\n\
         Contact: <sip:user{user}@[2001:db8::{user:x}]:5061;transport=tls;ob>;reg-id=1;\
         +sip.instance=\"<urn:uuid:{user:08x}-0000-1000-8000-000a95a0e128>\"\r\n\
         User-Agent: {agent}\r\nSupported: outbound, path, gruu\r\nContent-Length: 0\r\n\r\n"
    )
}

impl World {
    fn register(&mut self, text: &str, user: u32) {
        let World {
            registrar,
            location,
            buffer,
            spans,
        } = self;
        let now = Now {
            mono: Mono(1_000_000_000),
            unix_s: 1_794_571_200,
        };
        let message = Message::parse(text.as_bytes(), spans).unwrap();
        let Examined::Aor(aor) = registrar.examine(&message, buffer) else {
            panic!("ours")
        };
        let v6 = |port| SocketAddr::new("2001:db8::1".parse().unwrap(), port);
        let request = Request {
            message: &message,
            aor,
            flow: FlowId {
                worker: 1,
                run: 1,
                flow: Flow {
                    transport: Transport::Tls,
                    listener: ListenerKey(1),
                    connection: Some(ConnectionKey(user.into())),
                    local: v6(5061),
                    remote: v6(40_000),
                },
            },
            access: Access::Granted,
        };
        let outcome = registrar.register(now, &request, location, buffer);
        assert!(matches!(outcome, Outcome::Response(answer) if answer.code == 200));
    }
}

#[test]
fn a_binding_costs_at_most_512_bytes() {
    let texts: Vec<String> = (0..USERS).map(text).collect();
    let mut world = world();
    // What does not belong to the bindings is allocated first.
    world.register(&texts[0], 0);
    let mut most = 0;
    let mut left = 0;
    let mut step = 1;
    // The tables double now and then: the bytes per binding are measured at each power of two and just behind it.
    for count in (0..15).flat_map(|power| [1 << power, (1 << power) + 1]) {
        let counted = measure(|| {
            for user in step..count {
                world.register(&texts[user as usize], user);
            }
        });
        step = step.max(count);
        left += counted.bytes_current;
        if count >= 1000 {
            most = most.max(left as u64 / u64::from(count));
        }
    }
    println!("{most} bytes per binding at most, with {step} of them");
    assert!(most <= MAX_BINDING_BYTES, "{most}");
    assert_eq!(world.location.len(), step as usize);
}

#[test]
fn finding_bindings_allocates_nothing() {
    let mut world = world();
    for user in 0..100 {
        world.register(&text(user), user);
    }
    let mut found = 0;
    let counted = measure(|| {
        for user in 0..100 {
            let aor = match user % 2 {
                0 => Aor::from_canonical(b"user10@example.com"),
                _ => Aor::from_canonical(b"nobody@example.com"),
            };
            if let Some(Found::Bindings(_, bindings)) =
                aor.as_ref().map(|aor| world.location.find(aor))
            {
                found += bindings.len();
            }
        }
    });
    assert_eq!((counted.count_total, found), (0, 50));
}

#[test]
fn a_recorded_call_costs_at_most_512_bytes() {
    let (key, dialogs) = (HashKey::new([1; 16]), Dialogs::default());
    let long = "a".repeat(300);
    let text = format!(
        "INVITE sip:{long}@example.com SIP/2.0\r\nVia: SIP/2.0/UDP 192.0.2.1;branch=z9hG4bKa\r\n\
         From: <sip:{long}@example.com>;tag=1\r\nTo: <sip:bob@example.com>\r\nCall-ID: {long}\r\n\
         CSeq: 1 INVITE\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n"
    );
    let mut spans = Spans::new();
    let message = Message::parse(text.as_bytes(), &mut spans).unwrap();
    let flow = Flow {
        transport: Transport::Tls,
        listener: ListenerKey(1),
        connection: None,
        local: "[2001:db8::1]:5061".parse().unwrap(),
        remote: "[2001:db8::2]:40000".parse().unwrap(),
    };
    let now = Now {
        mono: Mono(1_000_000_000),
        unix_s: 1_794_571_200,
    };
    let lifetime = DialogLifetime {
        session: Some(Duration::from_secs(1800)),
        most: Duration::from_secs(43_200),
    };
    let counted = measure(|| {
        for number in 0..USERS {
            let from = (long.as_bytes(), &flow);
            let mut record = CallRecord::new(key, now, &message, from);
            for _ in 0..16 {
                record.attempt_failed(now.mono, b"carrier-with-a-name", AttemptFailure::NoResponse);
            }
            record.concluded(now.mono, 200, long.as_bytes(), Some(Leg::from(&flow)));
            let id = DialogId::new(key, &number.to_be_bytes(), [b"a", b"b"]);
            let counted = Counted {
                tickets: Vec::new(),
                record: Some(Box::new(record)),
                ..Counted::default()
            };
            assert!(dialogs.begin(now.mono, id, lifetime, counted).is_none());
        }
    });
    let each = counted.bytes_current as u64 / u64::from(USERS);
    println!("{each} bytes per recorded call");
    assert!(each <= MAX_BINDING_BYTES, "{each}");
}
