//! Random events against what must hold after each of them.

use hairpin_sip::congestion::Class;
use hairpin_sip::engine::{ClientKey, Engine, Event};
use hairpin_sip::engine::{Mark, Origin, Outgoing, Output, Received, Reply, SendTo, ServerKey};
use hairpin_sip::flow::{ConnectionKey, Destination, Flow, ListenerKey, Transport};
use hairpin_sip::{Mono, Now, Spans};
use proptest::prelude::*;

use crate::world::{address, config, request, text};

#[derive(Clone, Debug)]
enum Op {
    Request {
        invite: bool,
        tcp: bool,
    },
    Cancel(usize),
    /// A response of this code to some request of ours, with its To tag or another.
    Response {
        of: usize,
        code: u16,
        fork: bool,
    },
    Fail(usize),
    /// A request, perhaps one that came before.
    Incoming {
        number: u32,
        method: usize,
        tcp: bool,
    },
    Respond {
        of: usize,
        code: u16,
    },
    Pass(u64),
    Disconnect,
    /// Bytes with one changed.
    Garble {
        of: usize,
        place: usize,
        with: u8,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let code = prop_oneof![
        Just(100u16),
        Just(180),
        Just(183),
        Just(200),
        Just(202),
        Just(302),
        Just(408),
        Just(486),
        Just(503),
        Just(603)
    ];
    prop_oneof![
        3 => (any::<bool>(), any::<bool>()).prop_map(|(invite, tcp)| Op::Request { invite, tcp }),
        1 => any::<usize>().prop_map(Op::Cancel),
        5 => (any::<usize>(), code.clone(), any::<bool>()).prop_map(|(of, code, fork)| Op::Response { of, code, fork }),
        1 => any::<usize>().prop_map(Op::Fail),
        4 => (0u32..6, 0usize..6, any::<bool>()).prop_map(|(number, method, tcp)| Op::Incoming { number, method, tcp }),
        4 => (any::<usize>(), code).prop_map(|(of, code)| Op::Respond { of, code }),
        3 => prop_oneof![0u64..700, 0u64..40_000].prop_map(Op::Pass),
        1 => Just(Op::Disconnect),
        1 => (any::<usize>(), 0usize..300, any::<u8>()).prop_map(|(of, place, with)| Op::Garble { of, place, with }),
    ]
}

const METHODS: [&str; 6] = ["INVITE", "ACK", "CANCEL", "BYE", "OPTIONS", "REGISTER"];

struct Test {
    engine: Engine,
    now: Mono,
    /// Requests we sent, as they went out.
    sent: Vec<Vec<u8>>,
    clients: Vec<ClientKey>,
    ended: usize,
    marked: usize,
    servers: Vec<ServerKey>,
    connections: u64,
    open: Vec<u64>,
}

impl Test {
    fn drain(&mut self) {
        loop {
            let mut connect = None;
            match self.engine.poll_output() {
                None => return,
                Some(Output::Send { bytes, to, .. }) => {
                    assert!(bytes.ends_with(b"\r\n\r\n"), "{}", text(bytes));
                    if let SendTo::Stream(ConnectionKey(key)) = to {
                        assert!(
                            self.open.contains(&key),
                            "sent over a connection that is gone"
                        );
                    }
                    if !bytes.starts_with(b"SIP/") {
                        self.sent.push(bytes.to_vec());
                    }
                }
                Some(Output::Connect { key, .. }) => connect = Some(key),
                Some(Output::Event(Event::ClientFailed { .. } | Event::ClientEnded { .. })) => {
                    self.ended += 1;
                }
                Some(_) => {}
            }
            if let Some(key) = connect {
                self.connections += 1;
                self.open.push(self.connections);
                let flow = self.flow(Some(self.connections));
                self.engine.connected(self.now, key, &flow);
            }
        }
    }

    fn flow(&self, stream: Option<u64>) -> Flow {
        Flow {
            transport: stream.map_or(Transport::Udp, |_| Transport::Tcp),
            listener: ListenerKey(0),
            connection: stream.map(ConnectionKey),
            local: address(0),
            remote: address(1),
        }
    }

    fn receive(&mut self, bytes: &[u8], tcp: bool) {
        let mut spans = Spans::new();
        let now = Now {
            mono: self.now,
            unix_s: 0,
        };
        let stream = self.open.last().copied().filter(|_| tcp);
        let flow = self.flow(stream);
        if let Received::Request(request) =
            self.engine.handle_message(now, &flow, bytes, &mut spans)
            && let Ok(key) = self.engine.accept(self.now, request, Some(Mark(2)))
        {
            self.servers.push(key);
        }
    }

    fn apply(&mut self, op: &Op) {
        match op {
            Op::Request { invite, tcp } => self.request(*invite, *tcp),
            Op::Cancel(of) => {
                if let Some(key) = pick(&self.clients, *of) {
                    self.engine.cancel(self.now, key);
                }
            }
            Op::Response { of, code, fork } => self.response(*of, *code, *fork),
            Op::Fail(of) => {
                if let Some(key) = pick(&self.clients, *of) {
                    self.engine.send_failed(self.now, Origin::Client(key));
                }
            }
            Op::Incoming {
                number,
                method,
                tcp,
            } => {
                let method = METHODS[*method];
                let via = format!("Via: SIP/2.0/UDP 192.0.2.2;branch=z9hG4bKx{number}\r\n");
                self.receive(&request(method, *number, &via), *tcp);
            }
            Op::Respond { of, code } => {
                if let Some(key) = pick(&self.servers, *of) {
                    let _ = self.engine.respond(self.now, key, &Reply::new(*code));
                }
            }
            Op::Pass(ms) => self.pass(*ms),
            Op::Disconnect => {
                for key in std::mem::take(&mut self.open) {
                    self.engine.disconnected(self.now, ConnectionKey(key));
                }
            }
            Op::Garble { of, place, with } => {
                if let Some(mut bytes) = pick(&self.sent, *of) {
                    if let Some(byte) = bytes.get_mut(*place) {
                        *byte = *with;
                    }
                    self.receive(&bytes, false);
                }
            }
        }
        self.drain();
    }

    fn request(&mut self, invite: bool, tcp: bool) {
        let method = if invite { "INVITE" } else { "OPTIONS" };
        let bytes = request(method, self.clients.len() as u32 + 1, "");
        let out = Outgoing {
            to: Destination::new(
                if tcp { Transport::Tcp } else { Transport::Udp },
                address(1),
                ListenerKey(0),
            ),
            connection: None,
            pieces: &[&bytes],
            class: Class::New,
            mark: Some(Mark(1)),
            loop_check: None,
        };
        self.clients
            .push(self.engine.request(self.now, &out).unwrap());
        self.marked += 1;
    }

    fn response(&mut self, of: usize, code: u16, fork: bool) {
        let Some(request) = pick(&self.sent, of) else {
            return;
        };
        let request = text(&request);
        let (_, headers) = request.split_once("\r\n").unwrap();
        let tag = if fork { ";tag=two" } else { ";tag=one" };
        let to = "To: <sip:bob@192.0.2.2>";
        let headers = headers.replacen(&format!("{to}\r\n"), &format!("{to}{tag}\r\n"), 1);
        self.receive(format!("SIP/2.0 {code} X\r\n{headers}").as_bytes(), false);
    }

    fn pass(&mut self, ms: u64) {
        let end = Mono(self.now.0 + ms * 1_000_000);
        while let Some(next) = self.engine.poll_timeout().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.engine.handle_timeout(Now {
                mono: self.now,
                unix_s: 0,
            });
            self.drain();
        }
        self.now = end;
    }

    fn holds(&self) {
        let stats = self.engine.stats();
        assert_eq!(
            stats.timers,
            stats.servers + stats.clients,
            "timers alive = transactions alive"
        );
        assert!(stats.message_bytes == 0 || stats.servers + stats.clients > 0);
    }
}

fn pick<T: Clone>(list: &[T], of: usize) -> Option<T> {
    (!list.is_empty()).then(|| list[of % list.len()].clone())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]
    #[test]
    fn there_are_as_many_timers_as_transactions_and_all_end(ops in prop::collection::vec(op(), 0..60)) {
        let mut test = Test {
            engine: Engine::new(config(0), 1),
            now: Mono(5_000_000_000),
            sent: Vec::new(),
            clients: Vec::new(),
            ended: 0,
            marked: 0,
            servers: Vec::new(),
            connections: 0,
            open: Vec::new(),
        };
        for op in &ops {
            test.apply(op);
            test.holds();
        }
        test.pass(2_000_000);
        let stats = test.engine.stats();
        prop_assert_eq!((stats.servers, stats.clients, stats.timers, stats.message_bytes), (0, 0, 0, 0));
        prop_assert_eq!(test.ended, test.marked, "each client transaction has one end");
    }
}
