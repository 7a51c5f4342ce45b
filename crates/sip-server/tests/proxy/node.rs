//! One node: an engine, with a proxy or a user agent that follows a script.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::thread::LocalKey;

use sip::congestion::Class;
use sip::dispatch::{self, ClusterNodes, Dispatcher, Source};
use sip::engine::{Config, Engine, Mark, NewRequest, Outgoing, Received, Reply, SentBy, ServerKey};
use sip::flow::{ConnectionKey, Destination, Flow, ListenerKey, Transport};
use sip::{HashKey, Method, Mono, Now, Spans};
use sip_server::flow::FlowId;
use sip_server::proxy::{Config as ProxyConfig, Handled, Proxy, RouteProof, Stack};

use crate::policy::TestPolicy;

pub(crate) const START: u64 = 1_000_000_000_000;
pub(crate) const RUN: u32 = 77;
pub(crate) const NODES: usize = 6;
pub(crate) const UAC: usize = 0;
pub(crate) const PROXY: usize = 1;
/// The first user agent server; the others follow.
pub(crate) const UAS: usize = 2;

thread_local! {
    // Set by `with` alone: another test may run on the same thread afterwards.
    /// The proxies of this thread are made without any allowed address.
    pub(crate) static IS_CLOSED: Cell<bool> = const { Cell::new(false) };
    /// The address of the proxy is not among the allowed addresses, as in the server.
    pub(crate) static EXCLUDES_ITSELF: Cell<bool> = const { Cell::new(false) };
    /// The proxies of this thread can connect by TLS.
    pub(crate) static HAS_TLS: Cell<bool> = const { Cell::new(false) };
    /// The proxies of this thread reach the first user agent over TLS, and nobody else.
    pub(crate) static HAS_PARTNER: Cell<bool> = const { Cell::new(false) };
}

type Setting = &'static LocalKey<Cell<bool>>;

/// Makes a world with one of these settings, which does not hold for later worlds.
pub(crate) fn with<T>(setting: Setting, make: impl FnOnce() -> T) -> T {
    struct Reset(Setting);
    impl Drop for Reset {
        fn drop(&mut self) {
            self.0.set(false);
        }
    }
    setting.set(true);
    let _reset = Reset(setting);
    make()
}

/// Whether a setting holds for the next world on this thread.
fn is_set() -> [bool; 4] {
    [&IS_CLOSED, &EXCLUDES_ITSELF, &HAS_TLS, &HAS_PARTNER].map(LocalKey::get)
}

#[test]
fn a_setting_holds_for_one_world_even_if_making_it_panics() {
    assert_eq!(with(&EXCLUDES_ITSELF, is_set), [false, true, false, false]);
    assert_eq!(is_set(), [false; 4]);
    let failed = std::panic::catch_unwind(|| with(&HAS_TLS, || panic!("no world")));
    assert!(failed.is_err());
    assert_eq!(is_set(), [false; 4]);
}

/// The tests of other files, as far as they have their own way to make a world.
#[test]
fn a_world_with_settings_leaves_none_to_the_next_test_on_the_thread() {
    drop(crate::media_passes::world([true, true]));
    drop(crate::record_route::world(true));
    assert_eq!(is_set(), [false; 4]);
}

pub(crate) fn address(node: usize) -> SocketAddr {
    ([192, 0, 2, node as u8 + 1], 5060).into()
}

/// What a user agent answers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    /// Responses to an INVITE: after so many milliseconds this code, with these header lines.
    pub(crate) invite: Vec<(u64, u16, String)>,
    /// Responses to any other request.
    pub(crate) other: Vec<(u64, u16, String)>,
    /// An INVITE is not ended by a CANCEL.
    pub(crate) ignores_cancel: bool,
}

/// A script for INVITEs.
pub(crate) fn answers(codes: &[(u64, u16)]) -> Script {
    let with = |(at, code): &(u64, u16)| (*at, *code, String::new());
    Script {
        invite: codes.iter().map(with).collect(),
        ..Script::default()
    }
}

/// The proxy of a node.
pub(crate) struct Proxied {
    pub(crate) proxy: Proxy,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) policy: TestPolicy,
    /// The number of its run.
    pub(crate) run: u32,
}

pub(crate) struct Node {
    pub(crate) engine: Engine,
    index: usize,
    pub(crate) script: Script,
    /// What the TU heard, with the time in milliseconds.
    pub(crate) heard: Vec<(u64, String)>,
    /// Requests and responses that came to the TU, whole.
    pub(crate) texts: Vec<String>,
    /// All messages sent, with the time and the node they went to.
    pub(crate) sent: Vec<(u64, usize, String)>,
    pub(crate) due: BTreeMap<(Mono, u64), (ServerKey, u16, String)>,
    due_count: u64,
    /// Connections: our key, the peer and its key.
    pub(crate) streams: BTreeMap<u64, (usize, u64)>,
    pub(crate) proxied: Option<Box<Proxied>>,
    /// The session description of its ACKs.
    pub(crate) ack_sdp: &'static str,
}

fn engine(index: usize, is_proxy: bool) -> Engine {
    let mut config = Config::new(index as u16, HashKey::new([9 + index as u8; 16]));
    for transport in [
        Transport::Udp,
        Transport::Tcp,
        Transport::Tls,
        Transport::Ws,
    ] {
        config.sent_by.push(SentBy::new(
            ListenerKey(0),
            transport,
            &address(index).ip().to_string(),
            if transport == Transport::Tls {
                5061
            } else {
                5060
            },
        ));
    }
    if !is_proxy {
        config.rules.schemes = &["sip", "sips", "tel", "urn"];
    }
    config.overload_control = false;
    let mut engine = Engine::new(config, 7 + index as u64);
    if is_proxy {
        engine.set_proof(Box::new(RouteProof::new(key())));
    }
    engine
}

/// The lasting key of all proxies.
pub(crate) fn key() -> HashKey {
    HashKey::new([3; 16])
}

fn proxied(config: ProxyConfig) -> Proxied {
    let key = key();
    let tls = HAS_TLS.get().then_some(Transport::Tls);
    let transports = [Transport::Udp, Transport::Tcp].into_iter().chain(tls);
    let sources = transports.map(|transport| Source {
        listener: ListenerKey(0),
        transport,
        is_v4: true,
    });
    let mut dispatch = dispatch::Config::new(sources.collect());
    // What is configured to be allowed: the addresses of the user agents.
    let (is_closed, may_be_itself) = (IS_CLOSED.get(), !EXCLUDES_ITSELF.get());
    dispatch.allowed = Box::new(move |to, _| {
        let mut nodes = (0..NODES).filter(|node| may_be_itself || *node != PROXY);
        !is_closed && nodes.any(|node| address(node) == to)
    });
    dispatch.nodes = HAS_PARTNER.get().then(|| ClusterNodes {
        sources: vec![Source {
            listener: ListenerKey(0),
            transport: Transport::Tls,
            is_v4: true,
        }],
        has: Box::new(|transport, to| transport == Transport::Tls && to == address(UAS)),
    });
    Proxied {
        proxy: Proxy::new(config, key, PROXY as u16, RUN),
        dispatcher: Dispatcher::new(dispatch, key, 1),
        policy: TestPolicy::new(address(PROXY)),
        run: RUN,
    }
}

/// A request of a caller who is a trunk, or shows who it is by `extra`.
pub(crate) fn request(method: &str, uri: &str, number: u32, extra: &str) -> String {
    format!(
        "{method} {uri} SIP/2.0\r\nFrom: <sip:alice@example.com>;tag=a{number}\r\nTo: <{uri}>\r\n\
         Call-ID: {number}@192.0.2.1\r\nCSeq: {number} {method}\r\nMax-Forwards: 70\r\n\
         Contact: <sip:alice@192.0.2.1>\r\n{extra}Content-Length: 0\r\n\r\n"
    )
}

pub(crate) const ALICE: &str = "Proxy-Authorization: Test user=alice\r\n";

/// In a script, a session description follows this line.
pub(crate) const SDP: &str = "Content-Type: application/sdp\r\n";

/// A request with a session description.
pub(crate) fn with_sdp(request: &str, sdp: &str) -> String {
    let end = format!("{SDP}Content-Length: {}\r\n\r\n{sdp}", sdp.len());
    request.replace("Content-Length: 0\r\n\r\n", &end)
}

/// The value of a header of a message, `None` if there is none.
pub(crate) fn value<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    values(text, name).first().copied()
}

pub(crate) fn values<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let head = text.split("\r\n\r\n").next().unwrap();
    let lines = head.split("\r\n").filter_map(|line| line.split_once(": "));
    let lines = lines.filter(|(found, _)| found.eq_ignore_ascii_case(name));
    lines.map(|(_, value)| value).collect()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Connections with this bit in their keys have TLS.
pub(crate) const TLS: u64 = 1 << 32;

pub(crate) fn flow_of(node: usize, remote: SocketAddr, connection: Option<u64>) -> Flow {
    Flow {
        transport: match connection {
            Some(key) if key & TLS != 0 => Transport::Tls,
            Some(_) => Transport::Tcp,
            None => Transport::Udp,
        },
        listener: ListenerKey(0),
        connection: connection.map(ConnectionKey),
        local: address(node),
        remote,
    }
}

impl Proxied {
    /// From now on, the proxy is that of another run, or of another node.
    pub(crate) fn set_run(&mut self, run: u32) {
        self.proxy = Proxy::new(ProxyConfig::default(), key(), PROXY as u16, run);
        self.run = run;
    }
}

impl Node {
    pub(crate) fn new(index: usize, config: &ProxyConfig) -> Node {
        let is_proxy = index == PROXY;
        Node {
            engine: engine(index, is_proxy),
            index,
            script: Script::default(),
            heard: Vec::new(),
            texts: Vec::new(),
            sent: Vec::new(),
            due: BTreeMap::new(),
            due_count: 0,
            streams: BTreeMap::new(),
            ack_sdp: "",
            proxied: is_proxy.then(|| Box::new(proxied(config.clone()))),
        }
    }

    pub(crate) fn hear(&mut self, now: Mono, what: String) {
        self.heard.push(((now.0 - START) / 1_000_000, what));
    }

    pub(crate) fn receive(&mut self, now: Now, flow: &Flow, bytes: &[u8]) {
        let mut spans = Spans::new();
        let received = self.engine.handle_message(now, flow, bytes, &mut spans);
        if let Some(mut proxied) = self.proxied.take() {
            self.proxy(now, flow, received, &mut proxied);
            self.proxied = Some(proxied);
            return;
        }
        match received {
            Received::Request(request) => self.new_request(now.mono, request),
            Received::Ack(ack) => {
                self.texts.push(text(ack.message.as_bytes()));
                self.hear(now.mono, "ACK".to_owned());
            }
            Received::Cancel { invite, .. } => {
                self.hear(now.mono, "CANCEL".to_owned());
                if !self.script.ignores_cancel {
                    let _ = self.engine.respond(now.mono, invite, &Reply::new(487));
                }
            }
            Received::Response { message, .. } => {
                let code = message.status_code().unwrap();
                let method = message.cseq().unwrap().method;
                self.texts.push(text(message.as_bytes()));
                self.hear(now.mono, format!("{code} {}", text(method.as_bytes())));
                if method == Method::Invite && code / 100 == 2 {
                    self.in_dialog(now.mono, "ACK", flow);
                }
            }
            _ => {}
        }
    }

    fn proxy(&mut self, now: Now, flow: &Flow, received: Received<'_>, proxied: &mut Proxied) {
        let from = FlowId {
            worker: PROXY as u16,
            run: proxied.run,
            flow: *flow,
        };
        let Proxied {
            proxy,
            dispatcher,
            policy,
            ..
        } = proxied;
        let mark_of_tu = match &received {
            Received::Response {
                client,
                mark: Some(mark),
                message,
            } => dispatcher.response(now.mono, &mut self.engine, *client, *mark, message),
            _ => None,
        };
        let mut stack = Stack {
            engine: &mut self.engine,
            dispatcher,
            policy,
        };
        let handled = match received {
            Received::Request(request) => proxy.request(now, &mut stack, request, &from),
            Received::Ack(ack) => {
                let _ = proxy.ack(now, &mut stack, &ack.message, &from);
                Handled::Yes
            }
            Received::Cancel {
                mark: Some(mark),
                message,
                ..
            } => {
                proxy.cancel(now.mono, &mut stack, mark, &message);
                Handled::Yes
            }
            Received::Response { message, .. } => {
                if let Some(mark) = mark_of_tu {
                    proxy.response(now, &mut stack, mark, &message, flow);
                }
                Handled::Yes
            }
            _ => Handled::Yes,
        };
        if !matches!(handled, Handled::Yes | Handled::Waits(_)) {
            let what = match handled {
                Handled::Own(_) => "Own".to_owned(),
                other => format!("{other:?}"),
            };
            self.hear(now.mono, what);
        }
    }

    fn new_request(&mut self, now: Mono, request: NewRequest<'_>) {
        self.texts.push(text(request.message.as_bytes()));
        let method = request.message.method().unwrap();
        self.hear(now, text(method.as_bytes()));
        let responses = match method {
            Method::Invite => self.script.invite.clone(),
            _ => self.script.other.clone(),
        };
        if responses.is_empty() && method != Method::Invite {
            let _ = self.engine.answer(now, request, &Reply::new(200));
        } else if let Ok(key) = self.engine.accept(now, request, Some(Mark(7))) {
            for (delay, code, lines) in responses {
                self.due_count += 1;
                let at = Mono(now.0 + delay * 1_000_000);
                self.due.insert((at, self.due_count), (key, code, lines));
            }
        }
    }

    /// Sends a request in the dialog of the last 2xx that came, as a UAC does (RFC 3261 §12.2.1.1).
    pub(crate) fn in_dialog(&mut self, now: Mono, method: &str, flow: &Flow) {
        let last = self.texts.iter().rev();
        let mut last = last.filter(|text| text.starts_with("SIP/2.0 2"));
        let ok = last.find(|text| value(text, "CSeq").unwrap().ends_with("INVITE"));
        let ok = ok.unwrap();
        // The routes are those of the first (RFC 3261 §12.1.2).
        let first = self.texts.iter().find(|text| {
            text.starts_with("SIP/2.0 2")
                && value(text, "Call-ID") == value(ok, "Call-ID")
                && value(text, "CSeq").unwrap().ends_with("INVITE")
        });
        let mut bytes = with_routes(ok, method, first.unwrap());
        if method == "ACK" && !self.ack_sdp.is_empty() {
            bytes = with_sdp(&bytes, self.ack_sdp);
        }
        let to = Destination::new(flow.transport, flow.remote, ListenerKey(0));
        let out = Outgoing {
            to,
            connection: flow.connection,
            pieces: &[bytes.as_bytes()],
            class: Class::Finishing,
            mark: None,
            loop_check: None,
        };
        if method == "ACK" {
            let number = self.engine.number_of(bytes.as_bytes());
            self.engine.send_stateless(now, &out, number).unwrap();
        } else {
            self.engine.request(now, &out).unwrap();
        }
    }

    pub(crate) fn respond_as_due(&mut self, now: Mono) {
        while let Some(entry) = self.due.first_entry().filter(|e| e.key().0 <= now) {
            let (key, code, mut lines) = entry.remove();
            if code < 400 && code > 100 && !lines.contains("Contact") {
                lines.insert_str(
                    0,
                    &format!("Contact: <sip:uas@{}>\r\n", address(self.index)),
                );
            }
            let (lines, sdp) = lines.rsplit_once(SDP).unwrap_or((&lines, ""));
            let lines = match sdp {
                "" => lines.to_owned(),
                _ => format!("{lines}{SDP}"),
            };
            let mut reply = Reply::new(code).headers(lines.as_bytes());
            reply = reply.body(sdp.as_bytes());
            if code / 100 == 2 {
                reply = reply.until_ack();
            }
            let _ = self.engine.respond(now, key, &reply);
        }
    }
}

/// A request in the dialog of a 2xx, of who has sent the INVITE.
pub(crate) fn in_dialog(ok: &str, method: &str) -> String {
    with_routes(ok, method, ok)
}

fn with_routes(ok: &str, method: &str, first: &str) -> String {
    let target = value(ok, "Contact").unwrap();
    let target = target.trim_matches(['<', '>']);
    let routes = values(first, "Record-Route").join(", ");
    let routes: Vec<&str> = routes.split(", ").filter(|it| !it.is_empty()).collect();
    let routes: Vec<String> = routes
        .iter()
        .rev()
        .map(|route| format!("Route: {route}\r\n"))
        .collect();
    let number: u32 = value(ok, "CSeq")
        .and_then(|cseq| cseq.split(' ').next())
        .unwrap()
        .parse()
        .unwrap();
    let number = number + u32::from(method != "ACK");
    format!(
        "{method} {target} SIP/2.0\r\n{}From: {}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: {number} {method}\r\n\
         Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n",
        routes.concat(),
        value(ok, "From").unwrap(),
        value(ok, "To").unwrap(),
        value(ok, "Call-ID").unwrap(),
    )
}
