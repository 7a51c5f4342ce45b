//! All nodes, and the clock they share.

use std::net::SocketAddr;
use std::time::Duration;

use sip::congestion::Class;
use sip::engine::{ClientKey, ConnectKey, Event, Mark, Outgoing, Output, SendTo};
use sip::flow::{ConnectionKey, Destination, ListenerKey, Transport};
use sip::routing::DnsFailed;
use sip::{Mono, Now};
use sip_server::flow::FlowId;
use sip_server::proxy::{Config as ProxyConfig, MediaRequest, MediaResult, Proxy, Stack};

use crate::network::{Network, Packet, Weather};
use crate::node::{NODES, Node, PROXY, RUN, START, TLS, UAC, UAS, address, flow_of, request, text};
use crate::policy::{Contact, TestPolicy};

const UNIX_S: u64 = 1_794_571_200;

pub(crate) struct World {
    pub(crate) now: Mono,
    pub(crate) nodes: Vec<Node>,
    pub(crate) network: Network,
    next_connection: u64,
    /// Nodes that take no connection and hear nothing.
    pub(crate) dead: Vec<usize>,
    pub(crate) unix_s: u64,
    /// What the proxy has asked the media relay.
    pub(crate) media: Vec<MediaRequest>,
    /// The relay rewrites each session description at once.
    pub(crate) has_relay: bool,
}

impl World {
    pub(crate) fn new() -> World {
        World::with(Weather::FINE, 1, ProxyConfig::default())
    }

    pub(crate) fn with(weather: Weather, seed: u64, config: ProxyConfig) -> World {
        World {
            now: Mono(START),
            nodes: (0..NODES).map(|index| Node::new(index, &config)).collect(),
            network: Network::new(weather, seed),
            next_connection: 1,
            dead: Vec::new(),
            unix_s: UNIX_S,
            media: Vec::new(),
            has_relay: true,
        }
    }

    pub(crate) fn policy(&mut self) -> &mut TestPolicy {
        &mut self.nodes[PROXY].proxied.as_mut().unwrap().policy
    }

    pub(crate) fn proxy(&self) -> &Proxy {
        &self.nodes[PROXY].proxied.as_ref().unwrap().proxy
    }

    /// Binds bob to so many user agents, with these values of `q` in thousandths; the caller is a trunk.
    pub(crate) fn bind_bob(&mut self, qs: &[Option<u16>]) {
        self.policy().trunks.insert(address(UAC).ip());
        for (place, q) in qs.iter().enumerate() {
            let uri = format!("sip:bob@{}", address(UAS + place));
            let mut contact = Contact::at(&uri);
            contact.q = *q;
            self.policy().bind("bob", &contact);
        }
    }

    pub(crate) fn now(&self) -> Now {
        Now {
            mono: self.now,
            unix_s: self.unix_s,
        }
    }

    pub(crate) fn ms(&self) -> u64 {
        (self.now.0 - START) / 1_000_000
    }

    /// A node sends a request to the proxy.
    pub(crate) fn send(&mut self, from: usize, transport: Transport, request: &str) -> ClientKey {
        let now = self.now;
        // These engines prove no names, so a TLS connection is there before.
        let connection = (transport == Transport::Tls).then(|| {
            self.phone_connects_by(transport, from);
            let newest = self.nodes[from].streams.last_key_value();
            ConnectionKey(*newest.expect("a connection").0)
        });
        let out = Outgoing {
            to: Destination::new(transport, address(PROXY), ListenerKey(0)),
            connection,
            pieces: &[request.as_bytes()],
            class: Class::New,
            mark: Some(Mark(1)),
            loop_check: None,
        };
        let key = self.nodes[from].engine.request(now, &out).unwrap();
        self.drain();
        key
    }

    /// The caller invites bob, over UDP.
    pub(crate) fn invite(&mut self) -> ClientKey {
        let invite = request("INVITE", "sip:bob@example.com", 1, "");
        self.send(UAC, Transport::Udp, &invite)
    }

    /// A node sends these bytes to the proxy as they are, over UDP.
    pub(crate) fn send_raw(&mut self, from: usize, bytes: &str) {
        let packet = Packet {
            from,
            to: PROXY,
            connection: None,
            bytes: bytes.as_bytes().to_vec(),
        };
        self.network.send(self.now, packet);
    }

    /// A node sends a request in the dialog of its last 2xx.
    pub(crate) fn in_dialog(&mut self, node: usize, method: &str) {
        let now = self.now;
        let flow = flow_of(node, address(PROXY), None);
        self.nodes[node].in_dialog(now, method, &flow);
        self.drain();
    }

    /// From now on, the proxy keeps so many contexts.
    pub(crate) fn limit_contexts(&mut self, most: usize) {
        let config = ProxyConfig {
            most,
            ..ProxyConfig::default()
        };
        self.with_proxy(|proxy, _| proxy.configure(config));
    }

    pub(crate) fn cancel(&mut self, key: ClientKey) {
        self.cancel_with_reason(key, "");
    }

    pub(crate) fn cancel_with_reason(&mut self, key: ClientKey, reason: &str) {
        let now = self.now;
        let engine = &mut self.nodes[UAC].engine;
        engine.cancel_with_reason(now, key, reason.as_bytes());
        self.drain();
    }

    /// What waited for a location or for credentials is known.
    pub(crate) fn resume(&mut self) {
        let now = self.now();
        self.with_proxy(|proxy, stack| {
            for key in proxy.waiting() {
                proxy.resume(now, stack, key);
            }
        });
        self.drain();
    }

    /// A user's phone has registered again: its binding is refreshed now.
    pub(crate) fn registered(&mut self, user: &str, contact: &crate::policy::Contact) {
        let contact = crate::policy::Contact {
            updated: START + self.ms() * 1_000_000,
            ..contact.clone()
        };
        let policy = self.policy();
        policy
            .user(user)
            .retain(|it| it.uri() != contact.uri.as_bytes());
        policy.bind(user, &contact);
        let aor = sip_server::Aor::from_canonical(format!("{user}@example.com").as_bytes());
        let now = self.now();
        self.with_proxy(|proxy, stack| proxy.registered(now, stack, &aor.unwrap()));
        self.drain();
    }

    /// The records of calls that are not answered.
    pub(crate) fn take_calls(&mut self) -> Vec<sip_server::calls::CallRecord> {
        let mut taken = Vec::new();
        self.with_proxy(|proxy, _| taken = proxy.take_calls());
        taken
    }

    fn with_proxy(&mut self, act: impl FnOnce(&mut Proxy, &mut Stack<'_>)) {
        let node = &mut self.nodes[PROXY];
        let proxied = node.proxied.as_mut().unwrap();
        let mut stack = Stack {
            engine: &mut node.engine,
            dispatcher: &mut proxied.dispatcher,
            policy: &mut proxied.policy,
        };
        act(&mut proxied.proxy, &mut stack);
    }

    /// Carries out what the engines ask for.
    pub(crate) fn drain(&mut self) {
        loop {
            let mut connects = Vec::new();
            for index in 0..NODES {
                while self.drain_node(index, &mut connects) {}
            }
            if connects.is_empty() {
                return;
            }
            for (index, key, to) in connects {
                self.connect(index, key, &to);
            }
        }
    }

    /// Returns whether there is more to do.
    fn drain_node(
        &mut self,
        index: usize,
        connects: &mut Vec<(usize, ConnectKey, Destination)>,
    ) -> bool {
        let (now, ms) = (self.now, self.ms());
        let node = &mut self.nodes[index];
        let mut events = Vec::new();
        while let Some(output) = node.engine.poll_output() {
            match output {
                Output::Send { to, bytes, .. } => {
                    let to = match to {
                        SendTo::Datagram { remote, .. } => (0..NODES)
                            .find(|to| address(*to) == remote)
                            .map(|to| (to, None)),
                        SendTo::Stream(ConnectionKey(ours)) => {
                            let peer = node.streams.get(&ours);
                            peer.map(|(peer, theirs)| (*peer, Some(*theirs)))
                        }
                    };
                    let number = to.map_or(NODES, |(to, _)| to);
                    node.sent.push((ms, number, text(bytes)));
                    if let Some((to, connection)) = to.filter(|(to, _)| !self.dead.contains(to)) {
                        let packet = Packet {
                            from: index,
                            to,
                            connection,
                            bytes: bytes.to_vec(),
                        };
                        self.network.send(now, packet);
                    }
                }
                Output::Connect { key, to } => connects.push((index, key, to.clone())),
                Output::Close(ConnectionKey(key)) => drop(node.streams.remove(&key)),
                Output::Event(event) => events.push(event),
                _ => {}
            }
        }
        let any = !events.is_empty();
        for event in &events {
            self.event(index, event);
        }
        any
    }

    fn event(&mut self, index: usize, event: &Event) {
        let now = self.now();
        if index != PROXY {
            if let Event::ClientFailed { failure, .. } = event {
                self.nodes[index].hear(now.mono, format!("{failure:?}"));
            }
            return;
        }
        self.with_proxy(|proxy, stack| {
            if let Event::ServerEnded { mark, .. } = event {
                proxy.server_ended(*mark);
            }
            stack.dispatcher.event(now.mono, stack.engine, event);
        });
        self.hear_failures();
    }

    /// The media relay answers a request: it writes for whom a session description is.
    pub(crate) fn media_answered(&mut self, number: u64, sdp: Option<&str>) -> MediaResult {
        let (now, mut result) = (self.now(), MediaResult::Late);
        self.with_proxy(|proxy, stack| {
            result = proxy.media_answered(now, stack, number, sdp.map(str::as_bytes));
        });
        self.hear_failures();
        self.drain();
        result
    }

    fn relay_media(&mut self) {
        let (now, has_relay) = (self.now(), self.has_relay);
        let mut asked = Vec::new();
        self.with_proxy(|proxy, stack| {
            while let Some(request) = proxy.poll_media() {
                if has_relay && !request.sdp.is_empty() {
                    let sdp = crate::media::rewritten(&request);
                    let sdp = Some(sdp.as_bytes());
                    let result = proxy.media_answered(now, stack, request.number, sdp);
                    assert_eq!(result, MediaResult::Taken);
                }
                asked.push(request);
            }
        });
        self.media.extend(asked);
    }

    fn hear_failures(&mut self) {
        self.relay_media();
        let now = self.now();
        self.with_proxy(|proxy, stack| {
            while let Some(told) = stack.dispatcher.poll_failure() {
                proxy.failed(now, stack, told.mark, &told.failure);
            }
            // There is no DNS.
            while let Some(question) = stack.dispatcher.poll_query() {
                stack
                    .dispatcher
                    .answered(now.mono, stack.engine, question, Err(DnsFailed));
            }
            while let Some(told) = stack.dispatcher.poll_failure() {
                proxy.failed(now, stack, told.mark, &told.failure);
            }
        });
    }

    fn connect(&mut self, from: usize, key: ConnectKey, destination: &Destination) {
        let now = self.now;
        let remote = destination.remote;
        let to = (0..NODES).find(|to| address(*to) == remote);
        let Some(to) = to.filter(|to| !self.dead.contains(to)) else {
            self.nodes[from].engine.connect_failed(now, key);
            return;
        };
        let (ours, theirs) = self.new_connection(destination.transport);
        let source = SocketAddr::new(address(from).ip(), 40_000 + ours as u16);
        self.nodes[from].streams.insert(ours, (to, theirs));
        self.nodes[to].streams.insert(theirs, (from, ours));
        let accepted = flow_of(to, source, Some(theirs));
        self.nodes[to].engine.accepted(now, &accepted);
        let opened = flow_of(from, remote, Some(ours));
        self.nodes[from].engine.connected(now, key, &opened);
    }

    /// The keys of a new connection at both ends.
    fn new_connection(&mut self, transport: Transport) -> (u64, u64) {
        let number = self.next_connection;
        self.next_connection += 2;
        let kind = if transport == Transport::Tls { TLS } else { 0 };
        (kind | number, kind | (number + 1))
    }

    /// A user agent opens a connection to the proxy, as a phone does; its flow as the proxy has it.
    pub(crate) fn phone_connects(&mut self, node: usize) -> FlowId {
        self.phone_connects_by(Transport::Tcp, node)
    }

    pub(crate) fn phone_connects_by(&mut self, transport: Transport, node: usize) -> FlowId {
        let (ours, theirs) = self.new_connection(transport);
        let now = self.now;
        let source = SocketAddr::new(address(node).ip(), 40_000 + ours as u16);
        self.nodes[node].streams.insert(ours, (PROXY, theirs));
        self.nodes[PROXY].streams.insert(theirs, (node, ours));
        let opened = flow_of(node, address(PROXY), Some(ours));
        self.nodes[node].engine.accepted(now, &opened);
        let flow = flow_of(PROXY, source, Some(theirs));
        self.nodes[PROXY].engine.accepted(now, &flow);
        FlowId {
            worker: PROXY as u16,
            run: RUN,
            flow,
        }
    }

    /// The same by a WebSocket.
    pub(crate) fn browser_connects(&mut self, node: usize) -> FlowId {
        let mut flow = self.phone_connects(node);
        flow.flow.transport = Transport::Ws;
        flow
    }

    /// The flow of datagrams from a node, as the proxy has it.
    pub(crate) fn datagrams_of(node: usize) -> FlowId {
        FlowId {
            worker: PROXY as u16,
            run: RUN,
            flow: flow_of(PROXY, address(node), None),
        }
    }

    /// Breaks the connections of a node.
    pub(crate) fn disconnect(&mut self, node: usize) {
        let now = self.now;
        for (ours, (peer, theirs)) in std::mem::take(&mut self.nodes[node].streams) {
            self.nodes[node]
                .engine
                .disconnected(now, ConnectionKey(ours));
            self.nodes[peer].streams.remove(&theirs);
            self.nodes[peer]
                .engine
                .disconnected(now, ConnectionKey(theirs));
        }
        self.drain();
    }

    /// Lets time pass until so many milliseconds after the beginning.
    pub(crate) fn run_until(&mut self, ms: u64) {
        let end = Mono(START + ms * 1_000_000);
        self.drain();
        self.hear_failures();
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
        let scripts = self.nodes.iter();
        let scripts = scripts.filter_map(|node| Some(node.due.first_key_value()?.0.0));
        let proxied = self.nodes[PROXY].proxied.as_ref().unwrap();
        let proxy = [
            proxied.proxy.poll_timeout(),
            proxied.dispatcher.poll_timeout(),
        ];
        engines
            .chain(scripts)
            .chain(proxy.into_iter().flatten())
            .chain(self.network.next_arrival())
            .min()
    }

    fn step(&mut self) {
        let now = self.now();
        while let Some(packet) = self.network.arrive(now.mono) {
            let node = &mut self.nodes[packet.to];
            let remote = match packet.connection {
                None => address(packet.from),
                Some(key) if !node.streams.contains_key(&key) => continue,
                // An accepted connection has the even key.
                Some(key) if key % 2 == 0 => {
                    SocketAddr::new(address(packet.from).ip(), 40_000 + key as u16 - 1)
                }
                Some(_) => address(packet.from),
            };
            let flow = flow_of(packet.to, remote, packet.connection);
            node.receive(now, &flow, &packet.bytes);
            self.drain();
            self.hear_failures();
            self.drain();
        }
        for node in &mut self.nodes {
            node.respond_as_due(now.mono);
            node.engine.handle_timeout(now);
        }
        self.with_proxy(|proxy, stack| {
            proxy.handle_timeout(now.mono, stack);
            stack.dispatcher.handle_timeout(now.mono, stack.engine);
        });
        self.drain();
        self.hear_failures();
        self.drain();
    }

    /// After every scenario: nothing is left, neither transaction nor context nor byte.
    pub(crate) fn nothing_is_left(&mut self) {
        let later = self.ms() + Duration::from_secs(1_000).as_millis() as u64;
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
        let proxied = self.nodes[PROXY].proxied.as_ref().unwrap();
        assert_eq!(proxied.proxy.stats().contexts, 0);
        assert!(!proxied.dispatcher.has_requests());
        assert_eq!(proxied.proxy.poll_timeout(), None);
    }

    /// What a node's TU heard, without the times.
    pub(crate) fn heard(&self, node: usize) -> Vec<&str> {
        let heard = self.nodes[node].heard.iter();
        heard.map(|(_, what)| &what[..]).collect()
    }

    /// The last message that a node's TU got.
    pub(crate) fn last(&self, node: usize) -> &str {
        self.nodes[node].texts.last().unwrap()
    }

    /// What a node sent that begins so: when, and to whom.
    pub(crate) fn sent(&self, node: usize, start: &str) -> Vec<(u64, usize)> {
        let sent = self.nodes[node].sent.iter();
        let sent = sent.filter(|(_, _, text)| text.starts_with(start));
        sent.map(|(ms, to, _)| (*ms, *to)).collect()
    }
}
