//! A registrar with bindings in memory, and requests to it.

use sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};
use sip::{HashKey, Message, Mono, Now, Spans};
use sip_server::Aor;
use sip_server::flow::FlowId;
use sip_server::location::{Binding, Found, Limits, Location, MemoryLocation};
use sip_server::registrar::{
    Access, Config, Domain, Domains, Examined, Outcome, Registrar, Request,
};

pub(crate) const KEY: [u8; 16] = [1; 16];
/// Fri, 13 Nov 2026 12:00:00 GMT.
const START_UNIX_S: u64 = 1_794_571_200;

pub(crate) struct World {
    pub(crate) registrar: Registrar,
    pub(crate) location: MemoryLocation,
    pub(crate) now: Now,
    pub(crate) flow: FlowId,
    pub(crate) access: Access,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) code: u16,
    pub(crate) reason: &'static str,
    pub(crate) lines: Vec<(String, String)>,
}

impl Reply {
    fn new(code: u16, reason: &'static str, headers: &[u8]) -> Reply {
        let text = std::str::from_utf8(headers).unwrap();
        let lines = text.split_terminator("\r\n").map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_owned(), value.to_owned())
        });
        Reply {
            code,
            reason,
            lines: lines.collect(),
        }
    }

    /// The values of all header lines with this name.
    pub(crate) fn values(&self, name: &str) -> Vec<&str> {
        let lines = self.lines.iter().filter(|(found, _)| found == name);
        lines.map(|(_, value)| &value[..]).collect()
    }

    /// The contacts of a 200.
    pub(crate) fn contacts(&self) -> Vec<&str> {
        assert_eq!(self.code, 200, "{self:?}");
        self.values("Contact")
    }

    /// A parameter of a contact of a 200, without quotes.
    pub(crate) fn param(&self, contact: usize, name: &str) -> Option<&str> {
        let begin = format!(";{name}=");
        let (_, rest) = self.contacts()[contact].split_once(&begin)?;
        match rest.strip_prefix('"') {
            Some(quoted) => quoted.split('"').next(),
            None => rest.split(';').next(),
        }
    }
}

pub(crate) fn domain(name: &str, aliases: &[&str]) -> Domain {
    Domain {
        name: name.to_owned(),
        aliases: aliases.iter().map(|alias| (*alias).to_owned()).collect(),
        service_route: Vec::new(),
        ..Domain::default()
    }
}

pub(crate) fn domains() -> Domains {
    let domains = vec![
        domain("example.com", &["example.org", "192.0.2.1"]),
        domain("other.example", &[]),
    ];
    Domains::new(domains).unwrap()
}

pub(crate) fn udp_flow(remote: &str) -> FlowId {
    FlowId {
        worker: 3,
        run: 7,
        flow: Flow {
            transport: Transport::Udp,
            listener: ListenerKey(1),
            connection: None,
            local: "192.0.2.1:5060".parse().unwrap(),
            remote: remote.parse().unwrap(),
        },
    }
}

pub(crate) fn tcp_flow(connection: u64) -> FlowId {
    let mut id = udp_flow("198.51.100.1:40000");
    id.flow.transport = Transport::Tcp;
    id.flow.connection = Some(ConnectionKey(connection));
    id
}

impl World {
    pub(crate) fn new() -> World {
        World::with(Config::default(), Limits::default())
    }

    pub(crate) fn with(config: Config, limits: Limits) -> World {
        let key = HashKey::new(KEY);
        World {
            registrar: Registrar::new(config, domains(), key, 42).unwrap(),
            location: MemoryLocation::new(key, limits),
            now: Now {
                mono: Mono(5_000_000_000),
                unix_s: START_UNIX_S,
            },
            flow: udp_flow("198.51.100.1:5060"),
            access: Access::Granted,
        }
    }

    pub(crate) fn pass(&mut self, seconds: u64) {
        self.now.mono = self.now.mono.plus_secs(seconds);
        self.now.unix_s += seconds;
    }

    /// Hands a request in.
    pub(crate) fn send(&mut self, text: &str) -> Reply {
        let World {
            registrar,
            location,
            ..
        } = self;
        run(registrar, location, text, self.now, self.flow, self.access).unwrap()
    }

    /// Hands a request with these header lines in, for Alice.
    pub(crate) fn register(&mut self, call_id: &str, cseq: u32, lines: &str) -> Reply {
        self.send(&request(call_id, cseq, lines))
    }

    pub(crate) fn bindings(&mut self) -> Vec<Binding> {
        self.bindings_of("alice@example.com")
    }

    pub(crate) fn bindings_of(&mut self, aor: &str) -> Vec<Binding> {
        let aor = Aor::from_canonical(aor.as_bytes()).unwrap();
        match self.location.find(&aor) {
            Found::Bindings(_, bindings) => bindings.to_vec(),
            Found::Pending => panic!("memory never asks"),
        }
    }
}

/// `None` if the location does not know yet.
pub(crate) fn run(
    registrar: &mut Registrar,
    location: &mut dyn Location,
    text: &str,
    now: Now,
    flow: FlowId,
    access: Access,
) -> Option<Reply> {
    let mut spans = Spans::new();
    let message = Message::parse(text.as_bytes(), &mut spans).unwrap();
    let mut buffer = vec![0; 64 << 10];
    let aor = match registrar.examine(&message, &mut buffer) {
        Examined::Foreign => return Some(Reply::new(0, "foreign", b"")),
        Examined::Refused(answer) => {
            return Some(Reply::new(answer.code, answer.reason, answer.headers));
        }
        Examined::Aor(aor) => aor,
    };
    let request = Request {
        message: &message,
        aor,
        flow,
        access,
    };
    match registrar.register(now, &request, location, &mut buffer) {
        Outcome::Response(answer) | Outcome::Later(_, answer) => {
            Some(Reply::new(answer.code, answer.reason, answer.headers))
        }
        Outcome::Pending => None,
    }
}

/// A REGISTER of Alice's, straight from her phone.
pub(crate) fn request(call_id: &str, cseq: u32, lines: &str) -> String {
    request_to(
        "sip:example.com",
        "sip:alice@example.com",
        call_id,
        cseq,
        lines,
    )
}

pub(crate) fn request_to(uri: &str, to: &str, call_id: &str, cseq: u32, lines: &str) -> String {
    let lines: String = lines
        .lines()
        .map(|line| format!("{}\r\n", line.trim()))
        .collect();
    format!(
        "REGISTER {uri} SIP/2.0\r\nVia: SIP/2.0/UDP 198.51.100.1;branch=z9hG4bK{call_id}{cseq}\r\n\
         From: <sip:alice@example.com>;tag=1\r\nTo: <{to}>\r\nCall-ID: {call_id}\r\n\
         CSeq: {cseq} REGISTER\r\nMax-Forwards: 70\r\n{lines}Content-Length: 0\r\n\r\n"
    )
}
