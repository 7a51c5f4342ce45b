//! The texts of all requests.

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use super::options::{SipOptions, SipWorkload};
use super::template::{Template, id};
use crate::sip::Transport;

/// Characters of the salt.
pub(super) const SALT: usize = 8;

/// How a request of a transaction is told from others of the same unit of work, at the end of its branch.
pub(super) mod leg {
    /// The first request: OPTIONS, REGISTER or INVITE.
    pub(in super::super) const FIRST: u8 = b'a';
    /// The REGISTER that answers a challenge.
    pub(in super::super) const AUTHORIZED: u8 = b'b';
    /// The ACK of a 2xx, which is no transaction.
    pub(in super::super) const ACK: u8 = b'c';
    /// The BYE.
    pub(in super::super) const BYE: u8 = b'd';
}

/// What all requests of a worker have in common.
#[derive(Clone, Debug)]
pub(super) struct Words {
    /// Of this run and thread.
    pub(super) salt: String,
    pub(super) transport: Transport,
    pub(super) workload: SipWorkload,
    /// Host, or host and port, of request URIs and AORs.
    pub(super) domain: String,
    /// The request URI of the first request.
    pub(super) request_uri: String,
    /// Digits of an AOR's number.
    pub(super) width: usize,
    /// User part of AORs and of From: what the number follows.
    pub(super) user: &'static str,
}

/// User part of AORs, before the number.
const AOR_USER: &str = "u";
/// Who calls, and who asks.
const CALLER: &str = "hairpin";
/// Who is called, unless said otherwise.
const CALLEE: &str = "service";
/// How long a registration is to last, seconds.
const EXPIRES: u32 = 3600;

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
    /// Those of `options` towards `target`.
    pub(super) fn new(options: &SipOptions, target: SocketAddr, salt: String) -> Words {
        let address = format!("{}:{}", host(target.ip()), target.port());
        let domain = options.domain.clone().unwrap_or(address);
        let parameter = parameter(options.transport);
        let user = match (options.workload, &options.callee) {
            (SipWorkload::Register, _) | (SipWorkload::Options, None) => String::new(),
            (SipWorkload::Call, None) => format!("{CALLEE}@"),
            (_, Some(callee)) => format!("{callee}@"),
        };
        Words {
            salt,
            transport: options.transport,
            workload: options.workload,
            request_uri: format!("sip:{user}{domain}{parameter}"),
            domain,
            width: options.aors.saturating_sub(1).max(1).ilog10() as usize + 1,
            user: AOR_USER,
        }
    }

    /// The first request of a unit of work (`leg::FIRST`), or the one that follows a challenge (`leg::AUTHORIZED`).
    pub(super) fn template(&self, local: SocketAddr, leg: u8) -> Template {
        let (id, cseq) = (Template::id_mark(), Template::cseq_mark());
        let here = format!("{}:{}", host(local.ip()), local.port());
        let method = self.workload.method();
        let mut text = self.head(method, &self.request_uri, &here, &id, leg);
        let more = match self.workload {
            SipWorkload::Register => {
                let aor = format!("{}{}", self.user, Template::aor_mark(self.width));
                format!(
                    "From: <sip:{aor}@{0}>;tag={1}\r\nTo: <sip:{aor}@{0}>\r\nCall-ID: {1}{2}@hairpin\r\n\
                     Contact: <sip:{aor}@{here}{3}>\r\nExpires: {EXPIRES}\r\n",
                    self.domain,
                    self.salt,
                    Template::aor_mark(self.width),
                    self.contact_parameter(),
                )
            }
            _ => format!(
                "From: <sip:{CALLER}@{here}>;tag={id}\r\nTo: <{}>\r\nCall-ID: {}{id}@hairpin\r\n\
                 Contact: <sip:{CALLER}@{here}{}>\r\n",
                self.request_uri,
                self.salt,
                self.contact_parameter(),
            ),
        };
        // Writing to a string cannot fail.
        let _ = write!(text, "{more}CSeq: {cseq} {method}\r\n");
        match self.workload {
            SipWorkload::Call => {
                let body = session(local.ip());
                let _ = write!(
                    text,
                    "Content-Type: application/sdp\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
            }
            SipWorkload::Options => {
                text.push_str("Accept: application/sdp\r\nContent-Length: 0\r\n\r\n");
            }
            SipWorkload::Register => text.push_str("Content-Length: 0\r\n\r\n"),
        }
        Template::new(&text)
    }

    fn contact_parameter(&self) -> &'static str {
        parameter(self.transport)
    }

    /// Start line, topmost Via and Max-Forwards.
    fn head(&self, method: &str, uri: &str, here: &str, id: &str, leg: u8) -> String {
        format!(
            "{method} {uri} SIP/2.0\r\nVia: SIP/2.0/{} {here};branch=z9hG4bK{}{id}{};rport\r\nMax-Forwards: 70\r\n",
            self.transport.in_via(),
            self.salt,
            char::from(leg),
        )
    }

    /// What the ACK and the BYE of all calls over one link have in common.
    pub(super) fn in_dialog(&self, local: SocketAddr) -> InDialog {
        let here = format!("{}:{}", host(local.ip()), local.port());
        InDialog {
            via: format!(
                " SIP/2.0\r\nVia: SIP/2.0/{} {here};branch=z9hG4bK{}",
                self.transport.in_via(),
                self.salt
            )
            .into_bytes(),
            from: format!("Max-Forwards: 70\r\nFrom: <sip:{CALLER}@{here}>;tag=").into_bytes(),
            call_id: format!("\r\nCall-ID: {}", self.salt).into_bytes(),
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
    from: Vec<u8>,
    call_id: Vec<u8>,
}

/// What a request within a dialog is made of (RFC 3261 §12.2.1.1).
#[derive(Clone, Copy, Debug)]
pub(super) struct DialogRequest<'a> {
    pub(super) method: &'a str,
    pub(super) slot: u32,
    pub(super) generation: u32,
    pub(super) leg: u8,
    pub(super) cseq: u32,
    /// Request URI.
    pub(super) target: &'a [u8],
    /// Value of To, with its tag.
    pub(super) to: &'a [u8],
    /// Route lines.
    pub(super) routes: &'a [u8],
}

impl InDialog {
    /// Appends the request.
    pub(super) fn write(&self, into: &mut Vec<u8>, request: &DialogRequest<'_>) {
        let id = id(request.slot, request.generation);
        let method = request.method.as_bytes();
        let mut cseq = [0; 10];
        let mut number = request.cseq;
        for digit in cseq.iter_mut().rev() {
            *digit = b'0' + (number % 10) as u8;
            number /= 10;
        }
        for part in [
            method,
            b" ",
            request.target,
            &self.via,
            &id,
            &[request.leg],
            b";rport\r\n",
            request.routes,
            &self.from,
            &id,
            b"\r\nTo: ",
            request.to,
            &self.call_id,
            &id,
            b"@hairpin\r\nCSeq: ",
            &cseq,
            b" ",
            method,
            b"\r\nContent-Length: 0\r\n\r\n",
        ] {
            into.extend_from_slice(part);
        }
    }
}
