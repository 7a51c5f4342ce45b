//! The options of a SIP workload.

use std::net::IpAddr;
use std::time::Duration;

use client::Tls;

use super::super::Target;
use crate::sip::Transport;
use crate::sip::layers::ConnectionLayers;

/// What one unit of work is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum SipWorkload {
    /// An OPTIONS request and its final response.
    #[default]
    Options,
    /// A REGISTER request; with credentials the challenged one and the one that answers the challenge.
    Register,
    /// INVITE, provisional responses, 200, ACK, BYE, 200.
    Call,
    /// The same between users of one process, through the server: each user registers, calls another one and is called.
    Proxy,
}

impl SipWorkload {
    /// As reports name it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            SipWorkload::Options => "options",
            SipWorkload::Register => "register",
            SipWorkload::Call => "call",
            SipWorkload::Proxy => "proxy",
        }
    }

    /// The method of its first request.
    pub(super) fn method(self) -> &'static str {
        match self {
            SipWorkload::Options => "OPTIONS",
            SipWorkload::Register => "REGISTER",
            SipWorkload::Call | SipWorkload::Proxy => "INVITE",
        }
    }

    /// Its units of work are calls.
    pub(super) fn is_call(self) -> bool {
        matches!(self, SipWorkload::Call | SipWorkload::Proxy)
    }
}

/// Who answers challenges.
#[derive(Clone, PartialEq, Eq)]
pub struct SipCredentials {
    /// User name; `{n}` in it is replaced by the number of the AOR.
    pub user: String,
    /// Password; `{n}` in it is replaced by the number of the AOR.
    pub password: String,
}

impl std::fmt::Debug for SipCredentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SipCredentials {{ user: {:?}, .. }}", self.user)
    }
}

/// A SIP workload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SipOptions {
    /// Where requests go; links take turns if there are several.
    pub targets: Vec<Target>,
    /// At most 25 further targets. A request goes to the next one if a target refuses it with a 503 or does not respond
    /// (RFC 3263 §4.3).
    pub further: Vec<Target>,
    /// Heed Retry-After and go on to `further`, as callers do; else a 503 is the end of a unit of work.
    pub obey: bool,
    /// What carries them.
    pub transport: Transport,
    /// Over TLS, whom to expect there.
    pub tls: Option<Tls>,
    /// What is measured.
    pub workload: SipWorkload,
    /// Sockets, or connections, all threads together.
    pub links: u32,
    /// Address to send from; `None` is the one the route gives.
    pub local: Option<IpAddr>,
    /// User part of the request URI of calls; OPTIONS has one only if it is given.
    pub callee: Option<String>,
    /// Host part of request URIs and AORs; `None` is the target's address.
    pub domain: Option<String>,
    /// AORs that take turns to register, and to call where callers have names.
    pub aors: u32,
    /// User part of AORs; `{n}` in it is replaced by the number, padded with zeros.
    pub aor: String,
    /// Who answers challenges.
    pub credentials: Option<SipCredentials>,
    /// Each AOR answers its challenge again with every registration that follows, counting, until it gets another
    /// (RFC 7616 §3.4); else every registration is challenged.
    pub reuse_nonces: bool,
    /// How long a call lasts from its ACK to its BYE.
    pub hold: Duration,
    /// Workload proxy: from the 180 to the 200 of the callee.
    pub ring: Duration,
    /// Units of work in flight at once: what begins beyond that counts as not sent.
    pub in_flight: u32,
    /// Process of the server on this machine, to say what it spends.
    pub server_process: Option<u32>,
    /// Ends the run when this many units are over, regardless of the time.
    pub runs: Option<u64>,
    /// A unit that fails, say with a 503, begins anew at once, until it succeeds: as testStack has it.
    pub anew: bool,
}

impl SipOptions {
    /// OPTIONS over UDP from ten sockets.
    #[must_use]
    pub fn new(target: Target) -> SipOptions {
        SipOptions {
            targets: vec![target],
            further: Vec::new(),
            obey: true,
            transport: Transport::Udp,
            tls: None,
            workload: SipWorkload::Options,
            links: 10,
            local: None,
            callee: None,
            domain: None,
            aors: 10_000,
            aor: "u{n}".to_owned(),
            credentials: None,
            reuse_nonces: false,
            hold: Duration::ZERO,
            ring: Duration::ZERO,
            in_flight: 1 << 20,
            server_process: None,
            runs: None,
            anew: false,
        }
    }

    /// What connections need beyond TCP.
    pub(super) fn way(&self) -> ConnectionLayers {
        let address = || self.targets[0].address().to_string();
        let host = || self.domain.clone().unwrap_or_else(address);
        ConnectionLayers {
            tls: self.tls.clone().filter(|_| self.transport.is_secure()),
            websocket: self.transport.is_websocket().then(host),
        }
    }
}
