//! Nodes, each an engine with a TU that follows a script, and the clock they share.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use hairpin_sip::congestion::Class;
use hairpin_sip::engine::{
    ClientFailure, ClientKey, Config, ConnectKey, Engine, Event, Mark, NewRequest, Origin,
    Outgoing, Output, Received, Reply, SendTo, SentBy, ServerKey,
};
use hairpin_sip::flow::{ConnectionKey, Destination, Flow, ListenerKey, Transport};
use hairpin_sip::{HashKey, Message, Method, Mono, Now, Spans};

use crate::network::{Network, Packet, Weather};
use crate::proxy::Proxied;

/// What the TU of a node does with requests.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// Responses to an INVITE: after so many milliseconds this code.
    pub(crate) invite: Vec<(u64, u16)>,
    /// Responses to any other request.
    pub(crate) other: Vec<(u64, u16)>,
    /// INVITEs are not cancelled by a CANCEL.
    pub(crate) ignores_cancel: bool,
    /// Requests are answered without a transaction.
    pub(crate) stateless: bool,
    /// Requests are forwarded to this node: a proxy.
    pub(crate) proxy_to: Option<usize>,
}

pub(crate) struct Node {
    pub(crate) engine: Engine,
    pub(crate) address: SocketAddr,
    pub(crate) script: Script,
    /// What the TU heard, with the time in milliseconds.
    pub(crate) heard: Vec<(u64, String)>,
    /// What was sent: the start of the first line.
    pub(crate) sent: Vec<(u64, String)>,
    /// The last message sent, for tests that forge.
    pub(crate) last: Vec<u8>,
    due: BTreeMap<(Mono, u64), (ServerKey, u16)>,
    due_count: u64,
    /// Connections: our key, the peer node and its key.
    streams: BTreeMap<u64, (usize, u64)>,
    pub(crate) proxied: Proxied,
}

pub(crate) struct World {
    pub(crate) now: Mono,
    pub(crate) nodes: Vec<Node>,
    pub(crate) network: Network,
    next_connection: u64,
    /// Connections are refused.
    pub(crate) refuses_tcp: bool,
}

pub(crate) const UAC: usize = 0;
pub(crate) const UAS: usize = 1;
pub(crate) const PROXY: usize = 2;
const NODES: usize = 3;

pub(crate) fn address(node: usize) -> SocketAddr {
    ([192, 0, 2, node as u8 + 1], 5060).into()
}

pub(crate) fn config(node: usize) -> Config {
    let mut config = Config::new(node as u16, HashKey::new([9 + node as u8; 16]));
    for transport in [Transport::Udp, Transport::Tcp] {
        config.sent_by.push(SentBy::new(
            ListenerKey(0),
            transport,
            &address(node).ip().to_string(),
            5060,
        ));
    }
    config.rules.schemes = &["sip", "sips", "tel", "urn"];
    // Whether RFC 7339 is spoken is tried where it matters.
    config.overload_control = false;
    config
}

pub(crate) fn request(method: &str, number: u32, extra: &str) -> Vec<u8> {
    format!(
        "{method} sip:bob@192.0.2.2 SIP/2.0\r\nFrom: <sip:alice@192.0.2.1>;tag=a{number}\r\n\
         To: <sip:bob@192.0.2.2>\r\nCall-ID: {number}@192.0.2.1\r\nCSeq: {number} {method}\r\n\
         Max-Forwards: 70\r\n{extra}Content-Length: 0\r\n\r\n"
    )
    .into_bytes()
}

impl Node {
    fn new(index: usize, change: &mut dyn FnMut(usize, &mut Config)) -> Node {
        let mut config = config(index);
        change(index, &mut config);
        Node {
            engine: Engine::new(config, 7 + index as u64),
            address: address(index),
            script: Script::default(),
            heard: Vec::new(),
            sent: Vec::new(),
            last: Vec::new(),
            due: BTreeMap::new(),
            due_count: 0,
            streams: BTreeMap::new(),
            proxied: Proxied::default(),
        }
    }

    pub(crate) fn flow(&self, from: SocketAddr, stream: Option<u64>) -> Flow {
        Flow {
            transport: stream.map_or(Transport::Udp, |_| Transport::Tcp),
            listener: ListenerKey(0),
            connection: stream.map(ConnectionKey),
            local: self.address,
            remote: from,
        }
    }

    fn hear(&mut self, now: Mono, what: String) {
        self.heard.push((now.0 / 1_000_000, what));
    }

    fn plan(&mut self, now: Mono, key: ServerKey, responses: &[(u64, u16)]) {
        for (delay, code) in responses {
            self.due_count += 1;
            let at = Mono(now.0 + delay * 1_000_000);
            self.due.insert((at, self.due_count), (key, *code));
        }
    }

    /// A message came in: the engine and the script deal with it.
    pub(crate) fn receive(&mut self, now: Mono, flow: &Flow, bytes: &[u8]) -> String {
        let mut spans = Spans::new();
        let time = Now {
            mono: now,
            unix_s: 1_700_000_000,
        };
        match self.engine.handle_message(time, flow, bytes, &mut spans) {
            Received::Request(request) if self.script.proxy_to.is_some() => {
                self.forward_request(now, request);
                "proxied".to_owned()
            }
            Received::Ack(ack) if self.script.proxy_to.is_some() => {
                self.forward_ack(now, &ack.message, &ack.flow);
                "proxied".to_owned()
            }
            Received::Cancel { invite, .. } if self.script.proxy_to.is_some() => {
                self.forward_cancel(now, invite);
                "proxied".to_owned()
            }
            Received::Response { message, mark, .. } if self.script.proxy_to.is_some() => {
                self.forward_response(now, &message, mark.unwrap());
                "proxied".to_owned()
            }
            Received::Request(request) => {
                let method = method(&request.message);
                self.hear(now, method.clone());
                self.new_request(now, request);
                format!("request {method}")
            }
            Received::Ack(ack) => {
                let whose = if ack.invite.is_some() {
                    "ACK"
                } else {
                    "ACK of nobody"
                };
                self.hear(now, whose.to_owned());
                whose.to_owned()
            }
            Received::Cancel { invite, .. } => {
                self.hear(now, "CANCEL".to_owned());
                if !self.script.ignores_cancel {
                    let _ = self.engine.respond(now, invite, &Reply::new(487));
                }
                "cancel".to_owned()
            }
            Received::Response {
                message, client, ..
            } => {
                let code = message.status_code().unwrap();
                let cseq = message.cseq().unwrap();
                let is_2xx_of_invite = cseq.method == Method::Invite && code / 100 == 2;
                let what = format!("{code} {}", text(cseq.method.as_bytes()));
                self.hear(now, what.clone());
                if is_2xx_of_invite {
                    self.acknowledge(now, &message, flow, client);
                }
                what
            }
            other => format!("{other:?}"),
        }
    }

    fn new_request(&mut self, now: Mono, request: NewRequest<'_>) {
        let script = self.script.clone();
        let is_invite = request.message.method() == Some(Method::Invite);
        let responses = if is_invite {
            &script.invite
        } else {
            &script.other
        };
        if script.stateless {
            let code = responses.first().map_or(200, |(_, code)| *code);
            let _ = self.engine.answer_statelessly(request, &Reply::new(code));
        } else if let [(0, code)] = responses[..] {
            let mut reply = Reply::new(code);
            if is_invite && code < 300 {
                reply = reply.until_ack();
            }
            let _ = self.engine.answer(now, request, &reply);
        } else if let Ok(key) = self.engine.accept(now, request, Some(Mark(7))) {
            self.plan(now, key, responses);
        }
    }

    /// The UAC core's ACK for a 2xx (RFC 3261 §13.2.2.4).
    fn acknowledge(&mut self, now: Mono, ok: &Message<'_>, flow: &Flow, client: ClientKey) {
        let to = text(ok.header(hairpin_sip::HeaderKind::To).unwrap().value);
        let from = text(ok.header(hairpin_sip::HeaderKind::From).unwrap().value);
        let call_id = text(ok.call_id().unwrap());
        let ack = format!(
            "ACK sip:bob@192.0.2.2 SIP/2.0\r\nFrom: {from}\r\nTo: {to}\r\nCall-ID: {call_id}\r\n\
             CSeq: {} ACK\r\nMax-Forwards: 70\r\nContent-Length: 0\r\n\r\n",
            ok.cseq().unwrap().number
        );
        let out = Outgoing {
            to: Destination::new(flow.transport, flow.remote, ListenerKey(0)),
            connection: flow.connection,
            pieces: &[ack.as_bytes()],
            class: Class::Finishing,
            mark: None,
            loop_check: None,
        };
        let number = u128::from(now.0) << 32 | u128::from(format!("{client:?}").len() as u32);
        self.engine.send_stateless(now, &out, number).unwrap();
    }
}

fn method(message: &Message<'_>) -> String {
    text(message.method().unwrap().as_bytes())
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

impl World {
    pub(crate) fn new(weather: Weather, seed: u64) -> World {
        World::with(weather, seed, |_, _| ())
    }

    pub(crate) fn with(
        weather: Weather,
        seed: u64,
        mut change: impl FnMut(usize, &mut Config),
    ) -> World {
        World {
            now: Mono(1_000_000_000_000),
            nodes: (0..NODES)
                .map(|index| Node::new(index, &mut change))
                .collect(),
            network: Network::new(weather, seed),
            next_connection: 1,
            refuses_tcp: false,
        }
    }

    pub(crate) fn uac(&mut self) -> &mut Node {
        &mut self.nodes[UAC]
    }

    pub(crate) fn uas(&mut self) -> &mut Node {
        &mut self.nodes[UAS]
    }

    /// Milliseconds since the world began.
    pub(crate) fn ms(&self) -> u64 {
        (self.now.0 - 1_000_000_000_000) / 1_000_000
    }

    /// The UAC sends a request.
    pub(crate) fn send(&mut self, transport: Transport, bytes: &[u8]) -> ClientKey {
        self.send_to(UAS, transport, bytes)
    }

    /// The UAC sends a request to a node.
    pub(crate) fn send_to(&mut self, to: usize, transport: Transport, bytes: &[u8]) -> ClientKey {
        let now = self.now;
        let out = Outgoing {
            to: Destination::new(transport, address(to), ListenerKey(0)),
            connection: None,
            pieces: &[bytes],
            class: Class::New,
            mark: Some(Mark(1)),
            loop_check: None,
        };
        let key = self.uac().engine.request(now, &out).unwrap();
        self.drain();
        key
    }

    pub(crate) fn cancel(&mut self, key: ClientKey) {
        self.cancel_with_reason(key, "");
    }

    pub(crate) fn cancel_with_reason(&mut self, key: ClientKey, reason: &str) {
        let now = self.now;
        let engine = &mut self.uac().engine;
        engine.cancel_with_reason(now, key, reason.as_bytes());
        self.drain();
    }

    /// Carries out what the engines ask for.
    pub(crate) fn drain(&mut self) {
        loop {
            let mut connects = Vec::new();
            for index in 0..self.nodes.len() {
                self.drain_node(index, &mut connects);
            }
            if connects.is_empty() {
                return;
            }
            for (index, key, remote) in connects {
                self.connect(index, key, remote);
            }
        }
    }

    fn drain_node(&mut self, index: usize, connects: &mut Vec<(usize, ConnectKey, SocketAddr)>) {
        let (now, ms) = (self.now, self.ms());
        let node = &mut self.nodes[index];
        let mut failed = Vec::new();
        while let Some(output) = node.engine.poll_output() {
            match output {
                Output::Send { to, bytes, .. } => {
                    let line = bytes.split(|byte| *byte == b'\r').next().unwrap();
                    node.sent.push((ms, text(&line[..line.len().min(12)])));
                    node.last = bytes.to_vec();
                    let (to, stream) = match to {
                        SendTo::Datagram { remote, .. } => {
                            ((0..NODES).find(|to| address(*to) == remote), None)
                        }
                        SendTo::Stream(ConnectionKey(ours)) => match node.streams.get(&ours) {
                            Some((peer, theirs)) => (Some(*peer), Some((ours, *theirs))),
                            None => (None, None),
                        },
                    };
                    if let Some(to) = to {
                        let packet = Packet {
                            from: index,
                            to,
                            stream,
                            bytes: bytes.to_vec(),
                        };
                        self.network.send(now, packet);
                    }
                }
                Output::Connect { key, to } => connects.push((index, key, to.remote)),
                Output::Close(ConnectionKey(key)) => {
                    node.streams.remove(&key);
                    node.heard.push((ms, "close".to_owned()));
                }
                Output::Event(Event::ClientFailed { mark, failure, .. })
                    if node.script.proxy_to.is_some() =>
                {
                    failed.push((mark, failure));
                }
                Output::Event(event) => {
                    let what = describe(&event);
                    node.heard.push((ms, what));
                }
                _ => {}
            }
        }
        if !failed.is_empty() {
            for (mark, failure) in failed {
                node.proxy_failed(now, mark, failure);
            }
            self.drain_node(index, connects);
        }
    }

    /// Connections open at once, or are refused at once.
    fn connect(&mut self, from: usize, key: ConnectKey, remote: SocketAddr) {
        let now = self.now;
        let to = (0..self.nodes.len()).find(|to| address(*to) == remote);
        let Some(to) = to.filter(|_| !self.refuses_tcp) else {
            self.nodes[from].engine.connect_failed(now, key);
            return;
        };
        let (ours, theirs) = (self.next_connection, self.next_connection + 1);
        self.next_connection += 2;
        let port = 40_000 + ours as u16;
        let source = SocketAddr::new(address(from).ip(), port);
        self.nodes[from].streams.insert(ours, (to, theirs));
        self.nodes[to].streams.insert(theirs, (from, ours));
        let accepted = self.nodes[to].flow(source, Some(theirs));
        self.nodes[to].engine.accepted(now, &accepted);
        let opened = self.nodes[from].flow(remote, Some(ours));
        self.nodes[from].engine.connected(now, key, &opened);
    }

    /// Breaks all connections.
    pub(crate) fn disconnect(&mut self) {
        let now = self.now;
        for node in &mut self.nodes {
            for (key, _) in std::mem::take(&mut node.streams) {
                node.engine.disconnected(now, ConnectionKey(key));
            }
        }
        self.drain();
    }

    /// Lets time pass until so many milliseconds after the beginning.
    pub(crate) fn run_until(&mut self, ms: u64) {
        let end = Mono(1_000_000_000_000 + ms * 1_000_000);
        self.drain();
        while let Some(next) = self.next_event().filter(|next| *next <= end) {
            self.now = self.now.max(next);
            self.step();
        }
        self.now = end;
    }

    fn next_event(&self) -> Option<Mono> {
        let engines = self
            .nodes
            .iter()
            .filter_map(|node| node.engine.poll_timeout());
        let scripts = self
            .nodes
            .iter()
            .filter_map(|node| node.due.first_key_value().map(|((at, _), _)| *at));
        engines
            .chain(scripts)
            .chain(self.network.next_arrival())
            .min()
    }

    fn step(&mut self) {
        let now = self.now;
        while let Some(packet) = self.network.arrive(now) {
            let from = address(packet.from);
            let node = &mut self.nodes[packet.to];
            let stream = packet.stream.map(|(_, theirs)| theirs);
            if stream.is_some_and(|key| !node.streams.contains_key(&key)) {
                continue;
            }
            let flow = node.flow(from, stream);
            node.receive(now, &flow, &packet.bytes);
            self.drain();
        }
        for node in &mut self.nodes {
            while let Some(entry) = node.due.first_entry().filter(|e| e.key().0 <= now) {
                let (key, code) = entry.remove();
                let mut reply = Reply::new(code);
                if (200..300).contains(&code) {
                    reply = reply.until_ack();
                }
                let _ = node.engine.respond(now, key, &reply);
            }
            node.engine.handle_timeout(Now {
                mono: now,
                unix_s: 1_700_000_000,
            });
        }
        self.drain();
    }

    /// After every scenario: nothing is left, neither transaction nor timer nor byte.
    pub(crate) fn nothing_is_left(&mut self) {
        let later = self.ms() + 1_000_000;
        self.run_until(later);
        for (index, node) in self.nodes.iter().enumerate() {
            let stats = node.engine.stats();
            let left = (
                stats.servers,
                stats.clients,
                stats.timers,
                stats.message_bytes,
            );
            assert_eq!(left, (0, 0, 0, 0), "node {index}: {stats:?}");
        }
    }

    /// What a node's TU heard, without the times.
    pub(crate) fn heard(&self, node: usize) -> Vec<&str> {
        self.nodes[node]
            .heard
            .iter()
            .map(|(_, what)| &what[..])
            .collect()
    }

    /// When a node sent what begins so, in milliseconds.
    pub(crate) fn times(&self, node: usize, start: &str) -> Vec<u64> {
        self.nodes[node]
            .sent
            .iter()
            .filter(|(_, line)| line.starts_with(start))
            .map(|(ms, _)| *ms)
            .collect()
    }
}

fn describe(event: &Event) -> String {
    match event {
        Event::ClientFailed { failure, .. } => match failure {
            ClientFailure::TimedOut => "timed out".to_owned(),
            ClientFailure::TransportFailed => "transport failed".to_owned(),
            ClientFailure::Cancelled => "cancelled".to_owned(),
        },
        Event::ClientEnded { .. } => "client ended".to_owned(),
        Event::ServerFailed { failure, .. } => format!("server failed: {failure:?}"),
        Event::ServerEnded { .. } => "server ended".to_owned(),
        _ => "event".to_owned(),
    }
}

/// Reports a failure of sending to a node's engine.
pub(crate) fn fail(world: &mut World, node: usize, key: ClientKey) {
    let now = world.now;
    world.nodes[node]
        .engine
        .send_failed(now, Origin::Client(key));
    world.drain();
}
