//! A phone that registers and calls by the proxy: what it sends is text.

use super::{Client, Stream, status};
use hairpin_server::Running;
use sip::build::Builder;
use sip::digest::{DigestResponse, choose};
use sip::{HeaderKind, Message, Method, Spans};
use std::net::SocketAddr;

/// Of every user.
pub(crate) const PASSWORD: &str = "secret";

/// User-Agent of each REGISTER.
pub(crate) const AGENT: &str = "test-phone/1.0 (desk)";

/// A phone: a socket or a connection, and who it is.
pub(crate) struct Phone {
    pub(crate) user: String,
    pub(crate) line: Line,
    count: u32,
}

pub(crate) enum Line {
    Udp(Client),
    Tcp(Stream, SocketAddr),
    /// Such as TLS; nobody listens at the address.
    Other(Box<dyn Wire>, &'static str, SocketAddr),
}

/// How messages travel.
pub(crate) trait Wire {
    fn send(&mut self, text: &str);
    fn receive(&mut self) -> String;
}

impl Phone {
    pub(crate) fn udp(server: &Running, user: &str) -> Phone {
        Phone::udp_at(server.sip_listeners()[0], user)
    }

    pub(crate) fn udp_at(server: SocketAddr, user: &str) -> Phone {
        Phone {
            user: user.to_owned(),
            line: Line::Udp(Client::new(server)),
            count: 0,
        }
    }

    /// At the other end of this client.
    pub(crate) fn of(client: Client, user: &str) -> Phone {
        Phone {
            user: user.to_owned(),
            line: Line::Udp(client),
            count: 0,
        }
    }

    pub(crate) fn tcp(server: &Running, user: &str) -> Phone {
        Phone::tcp_at(server.sip_listeners()[0], user)
    }

    pub(crate) fn other(
        wire: Box<dyn Wire>,
        transport: &'static str,
        nobody: SocketAddr,
        user: &str,
    ) -> Phone {
        Phone {
            user: user.to_owned(),
            line: Line::Other(wire, transport, nobody),
            count: 0,
        }
    }

    pub(crate) fn tcp_at(server: SocketAddr, user: &str) -> Phone {
        let stream = Stream::new(server);
        // Nobody listens there: the phone is reached by its connection alone. Each phone has a Contact of its own.
        let port = stream.local().port();
        let nobody = SocketAddr::from(([127, 0, 0, 9], port));
        Phone {
            user: user.to_owned(),
            line: Line::Tcp(stream, nobody),
            count: 0,
        }
    }

    pub(crate) fn send(&mut self, text: &str) {
        match &mut self.line {
            Line::Udp(client) => client.send(text.as_bytes()),
            Line::Tcp(stream, _) => stream.send(text.as_bytes()),
            Line::Other(wire, ..) => wire.send(text),
        }
    }

    pub(crate) fn receive(&mut self) -> String {
        match &mut self.line {
            Line::Udp(client) => client.answer(),
            Line::Tcp(stream, _) => stream.answer(),
            Line::Other(wire, ..) => wire.receive(),
        }
    }

    /// The next message that begins so. Retransmissions of others come in between over UDP, and 100 as it likes.
    pub(crate) fn expect(&mut self, start: &str) -> String {
        for _ in 0..20 {
            let text = self.receive();
            if text.starts_with(start) {
                return text;
            }
        }
        panic!("{}: no {start}", self.user);
    }

    pub(crate) fn contact(&self) -> String {
        match &self.line {
            Line::Udp(client) => format!("<sip:{}@{}>", self.user, client.local()),
            Line::Tcp(_, nobody) => format!("<sip:{}@{nobody};transport=tcp>", self.user),
            Line::Other(_, transport, nobody) => {
                let transport = transport.to_lowercase();
                format!("<sip:{}@{nobody};transport={transport}>", self.user)
            }
        }
    }

    pub(crate) fn via(&mut self) -> String {
        self.count += 1;
        let (transport, user, count) = (self.transport(), &self.user, self.count);
        let branch = format!("z9hG4bK{user}p{}c{count}", self.port());
        format!("Via: SIP/2.0/{transport} 192.0.2.1:5060;rport;branch={branch}\r\n")
    }

    /// Tells phones of one user apart.
    pub(crate) fn port(&self) -> u16 {
        match &self.line {
            Line::Udp(client) => client.local().port(),
            Line::Tcp(_, nobody) | Line::Other(_, _, nobody) => nobody.port(),
        }
    }

    pub(crate) fn transport(&self) -> &'static str {
        match self.line {
            Line::Udp(_) => "UDP",
            Line::Tcp(..) => "TCP",
            Line::Other(_, transport, _) => transport,
        }
    }

    /// A request of this phone outside of dialogs.
    pub(crate) fn request(
        &mut self,
        method: &str,
        uri: &str,
        call: &str,
        cseq: u32,
        lines: &str,
    ) -> String {
        let (via, user, contact) = (self.via(), &self.user, self.contact());
        let (to, agent) = match method {
            "REGISTER" => {
                let agent = format!("User-Agent: {AGENT}\r\n");
                (format!("sip:{user}@example.com"), agent)
            }
            _ => (uri.to_owned(), String::new()),
        };
        format!(
            "{method} {uri} SIP/2.0\r\n{via}From: <sip:{user}@example.com>;tag=f{call}\r\nTo: <{to}>\r\n\
             Call-ID: {call}@test\r\nCSeq: {cseq} {method}\r\nMax-Forwards: 70\r\nContact: {contact}\r\n\
             {agent}{lines}Content-Length: 0\r\n\r\n"
        )
    }

    /// Sends a request and, upon the challenge, the same with credentials; the Call-ID is kept. Returns the branch of
    /// the second.
    pub(crate) fn ask(&mut self, method: Method<'_>, uri: &str, call: &str) -> String {
        let name = String::from_utf8_lossy(method.as_bytes()).into_owned();
        let request = self.request(&name, uri, call, 1, "");
        self.send(&request);
        let challenge = self.expect("SIP/2.0 4");
        let (code, kind) = match method {
            Method::Register => (401, HeaderKind::Authorization),
            _ => (407, HeaderKind::ProxyAuthorization),
        };
        assert_eq!(status(&challenge), code, "{challenge}");
        if method == Method::Invite {
            self.acknowledge(&request, &challenge);
        }
        let line = credentials(&challenge, kind, &self.user, method, uri);
        let request = self.request(&name, uri, call, 2, &line);
        self.send(&request);
        request
    }

    pub(crate) fn register(&mut self) {
        let call = format!("reg{}", self.port());
        self.ask(Method::Register, "sip:example.com", &call);
        let answer = self.expect("SIP/2.0 200");
        assert!(answer.contains("\r\nContact: "), "{answer}");
    }

    /// The ACK for a final response that is no 2xx.
    pub(crate) fn acknowledge(&mut self, invite: &str, response: &str) {
        let to = value(response, "To");
        let old = value(invite, "To");
        let ack = invite
            .replacen("INVITE ", "ACK ", 1)
            .replace(" INVITE\r\n", " ACK\r\n")
            .replacen(&format!("To: {old}"), &format!("To: {to}"), 1);
        self.send(&ack);
    }

    /// A response to a request that came, with a tag and a Contact of this phone.
    pub(crate) fn respond(&mut self, request: &str, code: &str) {
        let text = self.response(request, code);
        self.send(&text);
    }

    /// The same, not sent yet.
    pub(crate) fn response(&self, request: &str, code: &str) -> String {
        let copied: String = request
            .split_inclusive("\r\n")
            .filter(|line| {
                let names = ["Via:", "From:", "Call-ID:", "CSeq:", "Record-Route:"];
                names.iter().any(|name| line.starts_with(name))
            })
            .collect();
        let mut to = value(request, "To").to_owned();
        if !to.contains(";tag=") {
            to += &format!(";tag=t{}", self.user);
        }
        let contact = self.contact();
        format!(
            "SIP/2.0 {code}\r\n{copied}To: {to}\r\nContact: {contact}\r\nContent-Length: 0\r\n\r\n"
        )
    }

    /// Sends a request within the dialog of a 200, of who has sent the INVITE.
    pub(crate) fn in_dialog(&mut self, ok: &str, method: &str) {
        let routes: Vec<&str> = values(ok, "Record-Route");
        let routes = routes.iter().rev();
        let routes: String = routes.map(|it| format!("Route: {it}\r\n")).collect();
        let number = value(ok, "CSeq").split(' ').next().expect("a number");
        let mut number: u32 = number.parse().expect("a number");
        number += u32::from(method != "ACK");
        let via = self.via();
        let target = value(ok, "Contact").trim_matches(['<', '>']);
        let contact = match method {
            "INVITE" => format!("Contact: {}\r\n", self.contact()),
            _ => String::new(),
        };
        self.send(&format!(
            "{method} {target} SIP/2.0\r\n{via}{routes}From: {}\r\nTo: {}\r\nCall-ID: {}\r\n\
             CSeq: {number} {method}\r\nMax-Forwards: 70\r\n{contact}Content-Length: 0\r\n\r\n",
            value(ok, "From"),
            value(ok, "To"),
            value(ok, "Call-ID"),
        ));
    }

    /// Sends a BYE within the dialog of an INVITE that this phone has answered.
    pub(crate) fn hang_up(&mut self, invite: &str) {
        let routes: Vec<&str> = values(invite, "Record-Route");
        let routes: String = routes.iter().map(|it| format!("Route: {it}\r\n")).collect();
        let via = self.via();
        let target = value(invite, "Contact").trim_matches(['<', '>']);
        self.send(&format!(
            "BYE {target} SIP/2.0\r\n{via}{routes}From: {};tag=t{}\r\nTo: {}\r\nCall-ID: {}\r\nCSeq: 1 BYE\r\n\
             Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n",
            value(invite, "To"),
            self.user,
            value(invite, "From"),
            value(invite, "Call-ID"),
        ));
    }
}

pub(crate) fn value<'t>(text: &'t str, name: &str) -> &'t str {
    values(text, name)
        .first()
        .copied()
        .unwrap_or_else(|| panic!("no {name} in {text}"))
}

pub(crate) fn values<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    let lines = text.lines().filter_map(|line| line.split_once(": "));
    lines
        .filter(|(found, _)| *found == name)
        .map(|(_, value)| value)
        .collect()
}

/// The line with the credentials that answer this challenge.
pub(crate) fn credentials(
    challenge: &str,
    kind: HeaderKind,
    user: &str,
    method: Method<'_>,
    uri: &str,
) -> String {
    credentials_of(challenge, kind, (user, PASSWORD), method, uri)
}

/// The same of a user with this password.
pub(crate) fn credentials_of(
    challenge: &str,
    kind: HeaderKind,
    (user, password): (&str, &str),
    method: Method<'_>,
    uri: &str,
) -> String {
    let mut spans = Spans::new();
    let message = Message::parse(challenge.as_bytes(), &mut spans).expect("well-formed");
    let asked = match kind {
        HeaderKind::Authorization => HeaderKind::WwwAuthenticate,
        _ => HeaderKind::ProxyAuthenticate,
    };
    let challenge = choose(&message, asked).expect("a challenge");
    let answer = DigestResponse {
        challenge: &challenge,
        username: user.as_bytes(),
        ha1: &challenge.ha1(user.as_bytes(), password.as_bytes()),
        method,
        uri: uri.as_bytes(),
        body: b"",
        count: 1,
        cnonce: b"c1",
    };
    let mut buffer = [0; 2048];
    let mut line = Builder::fields(&mut buffer);
    answer.write(&mut line, kind);
    String::from_utf8(line.finish_fields().expect("room").to_vec()).expect("text")
}
