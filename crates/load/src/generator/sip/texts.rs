//! The texts of all requests.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use super::options::{SipOptions, SipWorkload};
use super::pattern::Pattern;
use super::template::{Template, decimal, id};
use crate::sip::Transport;

/// Characters of the salt.
pub(super) const SALT: usize = 8;

/// The role of a request in its unit of work: a letter of its branch, behind the id. It distinguishes the requests of a
/// unit. After n answered challenges, a request has the letter n places after its own: INVITE a, b, c; ACK d;
/// BYE e, f, g; the REGISTER of a callee h, i, j.
pub(super) mod role {
    /// OPTIONS, REGISTER or INVITE.
    pub(in super::super) const FIRST: u8 = b'a';
    /// The ACK of a 2xx, which is no transaction.
    pub(in super::super) const ACK: u8 = FIRST + CHALLENGES_MAX + 1;
    /// The BYE.
    pub(in super::super) const BYE: u8 = ACK + 1;
    /// The REGISTER of a callee.
    pub(in super::super) const ENROL: u8 = BYE + CHALLENGES_MAX + 1;

    /// The maximum number of challenges that the generator answers for one request. The second one must say that the
    /// nonce was too old (`stale=true`, RFC 7616 §3.3). A server that is upgraded between challenge and answer sends
    /// such a challenge.
    pub(in super::super) const CHALLENGES_MAX: u8 = 2;

    /// Whether a request with this role is `request`, with any number of challenges answered.
    pub(in super::super) const fn is_of(role: u8, request: u8) -> bool {
        request <= role && role <= request + CHALLENGES_MAX
    }
}

/// The first server in a branch; those that follow have the letters that follow.
pub(super) const FIRST_SERVER: u8 = b'a';

/// What all requests of a worker have in common.
#[derive(Clone, Debug)]
pub(super) struct Words {
    /// Of this run and thread.
    pub(super) salt: String,
    pub(super) transport: Transport,
    pub(super) workload: SipWorkload,
    /// Host, or host and port, of request URIs and AORs.
    pub(super) domain: String,
    /// The request URI of the first request, by the number of the AOR that is called.
    pub(super) request_uri: Pattern,
    /// The request URI of a REGISTER.
    pub(super) registrar_uri: Pattern,
    /// Digits of an AOR's number.
    pub(super) width: usize,
    /// User part of AORs.
    pub(super) aor: Pattern,
    /// Callers have AORs.
    pub(super) named: bool,
}

/// Who calls, and who asks, if callers have no AORs.
const CALLER: &str = "hairpin";
/// Who is called, unless said otherwise.
const CALLEE: &str = "service";
/// Begins the instance IDs of callees, which are the same in each run (RFC 5626 §4.1).
const INSTANCE: &str = "68616972";
/// How long a registration is to last, seconds.
pub(super) const EXPIRES: u32 = 3600;

/// `host`, in brackets if it is IPv6.
pub(super) fn host(ip: IpAddr) -> String {
    match ip {
        IpAddr::V4(ip) => ip.to_string(),
        IpAddr::V6(ip) => format!("[{ip}]"),
    }
}

/// The transport in URIs.
const fn parameter(transport: Transport) -> &'static str {
    match transport {
        Transport::Udp => "",
        Transport::Tcp => ";transport=tcp",
        Transport::Tls => ";transport=tls",
        Transport::Ws | Transport::Wss => ";transport=ws",
    }
}

impl Words {
    /// The texts for `options` and `target`.
    pub(super) fn new(options: &SipOptions, target: SocketAddr, salt: String) -> Words {
        let address = format!("{}:{}", host(target.ip()), target.port());
        let domain = options.domain.clone().unwrap_or(address);
        let parameter = parameter(options.transport);
        let width = options.aors.saturating_sub(1).max(1).ilog10() as usize + 1;
        let aor = Pattern::new(&options.aor, width);
        let user = match (options.workload, &options.callee) {
            (SipWorkload::Register, _) | (SipWorkload::Options, None) => String::new(),
            (SipWorkload::Call, None) => format!("{CALLEE}@"),
            (_, Some(callee)) => format!("{callee}@"),
            (SipWorkload::Proxy, None) => String::new(),
        };
        let request_uri = match options.workload {
            // The domain decides where its users are, and by which transport.
            SipWorkload::Proxy => Pattern::between("sip:", &aor, &format!("@{domain}")),
            _ => Pattern::new(&format!("sip:{user}{domain}{parameter}"), width),
        };
        Words {
            salt,
            transport: options.transport,
            workload: options.workload,
            request_uri,
            registrar_uri: Pattern::new(&format!("sip:{domain}{parameter}"), width),
            domain,
            width,
            aor,
            named: options.workload == SipWorkload::Proxy || options.credentials.is_some(),
        }
    }

    /// The first request of a unit of work, with and without credentials.
    pub(super) fn template(&self, local: SocketAddr, server: u8) -> Template {
        let here = format!("{}:{}", host(local.ip()), local.port());
        match self.workload {
            SipWorkload::Register => self.register(&here, server, false),
            _ => self.request(&here, local.ip(), server),
        }
    }

    /// The REGISTER of a callee, with and without credentials.
    pub(super) fn enrol_template(&self, local: SocketAddr, server: u8) -> Template {
        let here = format!("{}:{}", host(local.ip()), local.port());
        self.register(&here, server, true)
    }

    /// A REGISTER. That of a callee offers its connection as a flow (RFC 5626 §4.2), and its binding takes the place of
    /// that of an earlier run.
    fn register(&self, here: &str, server: u8, enrols: bool) -> Template {
        let (id, cseq) = (Template::id_mark(), Template::cseq_mark());
        let aor_mark = Template::aor_mark(self.width);
        let aor = self.aor.with_mark(&aor_mark);
        let uri = self.registrar_uri.with_mark("");
        let head = self.head("REGISTER", &uri, here, &id, server);
        let flow = match (enrols, self.transport.is_stream()) {
            (true, true) => format!(
                ";+sip.instance=\"<urn:uuid:{INSTANCE}-0000-4000-8000-{}>\";reg-id=1",
                "0".repeat(12_usize.saturating_sub(self.width)) + &aor_mark
            ),
            _ => String::new(),
        };
        let supported = match enrols && self.transport.is_stream() {
            true => "Supported: path, outbound\r\n",
            false => "",
        };
        // How long a callee's binding is to last stands in the lines that are added.
        let expires = match enrols {
            true => String::new(),
            false => format!("Expires: {EXPIRES}\r\n"),
        };
        Template::new(&format!(
            "{head}From: <sip:{aor}@{0}>;tag={1}\r\nTo: <sip:{aor}@{0}>\r\nCall-ID: {1}{aor_mark}@hairpin\r\n\
             Contact: <sip:{aor}@{here}{2}>{flow}\r\n{supported}{expires}CSeq: {cseq} REGISTER\r\nContent-Length: 0\r\n\r\n",
            self.domain,
            self.salt,
            self.contact_parameter(),
        ))
    }

    /// An OPTIONS or an INVITE.
    fn request(&self, here: &str, local: IpAddr, server: u8) -> Template {
        let (id, cseq) = (Template::id_mark(), Template::cseq_mark());
        let method = self.workload.method();
        let uri = self.request_uri.with_mark(&Template::peer_mark(self.width));
        let mut text = self.head(method, &uri, here, &id, server);
        let user = self.caller(&Template::aor_mark(self.width));
        let from = match self.named {
            true => format!("{user}@{}", self.domain),
            false => format!("{user}@{here}"),
        };
        // Writing to a string cannot fail.
        let _ = write!(
            text,
            "From: <sip:{from}>;tag={id}\r\nTo: <{uri}>\r\nCall-ID: {}{id}@hairpin\r\nContact: <sip:{user}@{here}{}>\r\n\
             CSeq: {cseq} {method}\r\n",
            self.salt,
            self.contact_parameter(),
        );
        if self.workload.is_call() {
            let body = session(local);
            let _ = write!(
                text,
                "Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            );
        } else {
            text.push_str("Accept: application/sdp\r\nContent-Length: 0\r\n\r\n");
        }
        Template::new(&text)
    }

    /// The request URI that reaches AOR number `peer`.
    pub(super) fn uri<'a>(&self, room: &'a mut String, peer: u32) -> &'a [u8] {
        room.clear();
        self.request_uri.write(room, peer);
        room.as_bytes()
    }

    /// User part of From.
    fn caller(&self, mark: &str) -> String {
        match self.named {
            true => self.aor.with_mark(mark),
            false => CALLER.to_owned(),
        }
    }

    fn contact_parameter(&self) -> &'static str {
        parameter(self.transport)
    }

    /// Start line, topmost Via and Max-Forwards.
    fn head(&self, method: &str, uri: &str, here: &str, id: &str, server: u8) -> String {
        format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/{} {here};branch=z9hG4bK{}{id}{}{};rport\r\nMax-Forwards: 70\r\n",
            self.transport.in_via(),
            self.salt,
            Template::role_mark(),
            char::from(server),
        )
    }

    /// What requests of all calls over one link have in common.
    pub(super) fn in_dialog(&self, local: SocketAddr, server: u8) -> InDialog {
        let here = format!("{}:{}", host(local.ip()), local.port());
        let domain = match self.named {
            true => &self.domain,
            false => &here,
        };
        let user = match self.named {
            true => self.aor.clone(),
            false => Pattern::new(CALLER, self.width),
        };
        InDialog {
            via: format!(
                " SIP/2.0\r\nVia: SIP/2.0/{} {here};branch=z9hG4bK{}",
                self.transport.in_via(),
                self.salt
            )
            .into_bytes(),
            from: Pattern::between(
                "Max-Forwards: 70\r\nFrom: <sip:",
                &user,
                &format!("@{domain}>;tag="),
            ),
            call_id: format!("\r\nCall-ID: {}", self.salt).into_bytes(),
            server,
        }
    }
}

/// The smallest session that is one.
fn session(local: IpAddr) -> String {
    let family = if local.is_ipv6() { "IP6" } else { "IP4" };
    format!(
        "v=0\r\no=hairpin 1 1 IN {family} {local}\r\ns=-\r\nc=IN {family} {local}\r\nt=0 0\r\nm=audio 40000 RTP/AVP 0\r\n\
         a=rtpmap:0 PCMU/8000\r\n"
    )
}

/// Pieces of requests within a dialog.
#[derive(Clone, Debug)]
pub(super) struct InDialog {
    via: Vec<u8>,
    from: Pattern,
    call_id: Vec<u8>,
    server: u8,
}

/// What a request within a dialog is made of (RFC 3261 §12.2.1.1), or a CANCEL (§9.1).
#[derive(Clone, Copy, Debug)]
pub(super) struct DialogRequest<'a> {
    pub(super) method: &'a str,
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) role: u8,
    pub(super) cseq: u32,
    /// Number of the caller's AOR.
    pub(super) aor: u32,
    /// Request URI.
    pub(super) target: &'a [u8],
    /// Value of To, with its tag.
    pub(super) to: &'a [u8],
    /// Route lines.
    pub(super) routes: &'a [u8],
    /// More lines.
    pub(super) lines: &'a [u8],
}

impl InDialog {
    /// Appends the request to `into`. `from` is a buffer for the From value.
    pub(super) fn write(&self, into: &mut Vec<u8>, request: &DialogRequest<'_>, from: &mut String) {
        from.clear();
        self.from.write(from, request.aor);
        let id = id(request.slot, request.generation);
        let method = request.method.as_bytes();
        let mut cseq = [0; 10];
        decimal(&mut cseq, request.cseq);
        for part in [
            method,
            b" ",
            request.target,
            &self.via,
            &id,
            &[request.role, self.server],
            b";rport\r\n",
            request.routes,
            from.as_bytes(),
            &id,
            b"\r\nTo: ",
            request.to,
            &self.call_id,
            &id,
            b"@hairpin\r\nCSeq: ",
            &cseq,
            b" ",
            method,
            b"\r\n",
            request.lines,
            b"Content-Length: 0\r\n\r\n",
        ] {
            into.extend_from_slice(part);
        }
    }
}
