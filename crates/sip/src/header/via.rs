//! Via (RFC 3261 §20.42, RFC 3581, RFC 7339).

use std::net::IpAddr;

use super::params::{self, Params};
use crate::chars::{self, DIGIT, TOKEN};
use crate::cursor::Cursor;
use crate::host::Host;

/// The cookie in front of a branch that RFC 3261 §8.1.1.7 makes unique. It compares without regard to case, as tokens
/// do.
pub const MAGIC_COOKIE: &[u8] = b"z9hG4bK";

/// The transport of a Via.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ViaTransport<'a> {
    /// `UDP`
    Udp,
    /// `TCP`
    Tcp,
    /// `TLS`
    Tls,
    /// `WS` (RFC 7118)
    Ws,
    /// `WSS` (RFC 7118)
    Wss,
    /// `SCTP` (RFC 4168)
    Sctp,
    /// `TLS-SCTP` (RFC 4168)
    TlsSctp,
    /// Any other token.
    Other(&'a [u8]),
}

impl<'a> ViaTransport<'a> {
    const KNOWN: [ViaTransport<'static>; 7] = [
        ViaTransport::Udp,
        ViaTransport::Tcp,
        ViaTransport::Tls,
        ViaTransport::Ws,
        ViaTransport::Wss,
        ViaTransport::Sctp,
        ViaTransport::TlsSctp,
    ];

    /// The transport with this name, in any case.
    #[inline]
    #[must_use]
    pub fn of(name: &'a [u8]) -> ViaTransport<'a> {
        ViaTransport::KNOWN
            .into_iter()
            .find(|known| known.as_bytes().eq_ignore_ascii_case(name))
            .unwrap_or(ViaTransport::Other(name))
    }

    /// As it is written in a Via.
    #[inline]
    #[must_use]
    pub const fn as_bytes(self) -> &'a [u8] {
        match self {
            ViaTransport::Udp => b"UDP",
            ViaTransport::Tcp => b"TCP",
            ViaTransport::Tls => b"TLS",
            ViaTransport::Ws => b"WS",
            ViaTransport::Wss => b"WSS",
            ViaTransport::Sctp => b"SCTP",
            ViaTransport::TlsSctp => b"TLS-SCTP",
            ViaTransport::Other(name) => name,
        }
    }

    /// Whether it delivers everything, in order, or says that it cannot: no retransmissions by transactions.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        !matches!(self, ViaTransport::Udp | ViaTransport::Other(_))
    }

    /// The port where a sent-by names none (RFC 3261 §18.2.2, RFC 7118 §5).
    #[must_use]
    pub const fn default_port(self) -> u16 {
        match self {
            ViaTransport::Tls | ViaTransport::TlsSctp => 5061,
            ViaTransport::Ws => 80,
            ViaTransport::Wss => 443,
            _ => 5060,
        }
    }
}

/// The parameter `rport` (RFC 3581).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rport {
    /// Not there.
    #[default]
    Absent,
    /// There without a value: the client asks for the port it is seen from.
    Asked,
    /// The port the server has seen.
    Port(u16),
}

/// One value of Via.
#[derive(Clone, Copy, Debug)]
pub struct Via<'a> {
    /// The value as it is in the message, without white space around it.
    pub bytes: &'a [u8],
    /// Whether the protocol is `SIP/2.0`. The grammar allows any other too.
    pub is_sip_2_0: bool,
    /// The transport it was sent over.
    pub transport: ViaTransport<'a>,
    /// The host of sent-by.
    pub host: Host<'a>,
    /// The port of sent-by, if it names one; not 0.
    pub port: Option<u16>,
    /// `branch`; tokens compare without regard to case.
    pub branch: Option<&'a [u8]>,
    /// `received`, an address, perhaps in brackets.
    pub received: Option<IpAddr>,
    /// `rport`.
    pub rport: Rport,
    /// `maddr`.
    pub maddr: Option<Host<'a>>,
    /// `ttl`.
    pub ttl: Option<u8>,
    /// All parameters, those above included.
    pub params: Params<'a>,
    /// The name of `rport`, as it is in the message.
    pub(crate) rport_name: Option<&'a [u8]>,
    /// There are parameters that begin like those of RFC 7339.
    pub(crate) has_oc: bool,
}

impl<'a> Via<'a> {
    /// Whether the branch begins with the magic cookie and has more than it: else matching goes by RFC 2543's rules
    /// (RFC 3261 §17.2.3).
    #[inline]
    #[must_use]
    pub fn has_magic_cookie(&self) -> bool {
        self.branch.is_some_and(|branch| {
            branch.len() > MAGIC_COOKIE.len()
                && branch
                    .get(..MAGIC_COOKIE.len())
                    .is_some_and(|cookie| cookie.eq_ignore_ascii_case(MAGIC_COOKIE))
        })
    }

    /// The port of sent-by, or the transport's default.
    #[inline]
    #[must_use]
    pub fn port_or_default(&self) -> u16 {
        self.port.unwrap_or(self.transport.default_port())
    }

    /// Reads one value up to a comma or the end; `None` if it is malformed.
    #[inline]
    pub(crate) fn read(cursor: &mut Cursor<'a>) -> Option<Via<'a>> {
        cursor.skip_lws();
        let from = cursor.at();
        let mut via = Via::read_sent_by(cursor)?;
        let (params, end) = params::read(cursor, |param| via.note(param.name, param.value))?;
        via.params = params;
        via.bytes = cursor.since(from).get(..end - from)?;
        Some(via)
    }

    /// Reads a value as far as its parameters: enough to send an answer to, where the parameters are malformed.
    #[inline]
    pub(crate) fn read_sent_by(cursor: &mut Cursor<'a>) -> Option<Via<'a>> {
        cursor.skip_lws();
        let from = cursor.at();
        let (is_sip_2_0, transport) = read_protocol(cursor)?;
        let host = Host::read(cursor)?;
        let port = read_port(cursor)?;
        Some(Via {
            bytes: cursor.since(from),
            is_sip_2_0,
            transport,
            host,
            port,
            branch: None,
            received: None,
            rport: Rport::Absent,
            maddr: None,
            ttl: None,
            params: Params::default(),
            rport_name: None,
            has_oc: false,
        })
    }

    /// Keeps a parameter that has a field. The first of a name counts; a malformed value is malformed Via.
    #[inline(always)]
    fn note(&mut self, name: &'a [u8], value: Option<&'a [u8]>) -> Option<()> {
        match name.len() {
            6 if name.eq_ignore_ascii_case(b"branch") => {
                self.branch = self.branch.or(Some(value?));
            }
            5 if name.eq_ignore_ascii_case(b"rport") && self.rport == Rport::Absent => {
                self.rport_name = Some(name);
                self.rport = match value {
                    None => Rport::Asked,
                    Some(port) => Rport::Port(u16::try_from(chars::decimal(port)?).ok()?),
                };
            }
            8 if name.eq_ignore_ascii_case(b"received") => {
                self.received = self.received.or(Some(Host::new(value?)?.ip()?));
            }
            5 if name.eq_ignore_ascii_case(b"maddr") => {
                self.maddr = self.maddr.or(Some(Host::new(value?)?));
            }
            3 if name.eq_ignore_ascii_case(b"ttl") => {
                self.ttl = Some(u8::try_from(chars::decimal(value?)?).ok()?);
            }
            _ => {
                let start = name.first_chunk::<2>();
                self.has_oc |= start.is_some_and(|start| start.eq_ignore_ascii_case(b"oc"));
            }
        }
        Some(())
    }
}

/// `SIP/2.0/UDP` and the white space behind it: whether it is SIP/2.0, and the transport.
#[inline(always)]
fn read_protocol<'a>(cursor: &mut Cursor<'a>) -> Option<(bool, ViaTransport<'a>)> {
    // Nearly everybody writes it without white space.
    if cursor.rest().starts_with(b"SIP/2.0/UDP ") {
        cursor.skip(12);
        cursor.skip_lws();
        return Some((true, ViaTransport::Udp));
    }
    let name = cursor.take(TOKEN);
    if name.is_empty() || !cursor.skip_separator(b'/') {
        return None;
    }
    let version = cursor.take(TOKEN);
    if version.is_empty() || !cursor.skip_separator(b'/') {
        return None;
    }
    let is_sip_2_0 = name.eq_ignore_ascii_case(b"SIP") && version == b"2.0";
    let transport = cursor.take(TOKEN);
    let from = cursor.at();
    cursor.skip_lws();
    let is_whole = !transport.is_empty() && cursor.at() > from;
    is_whole.then(|| (is_sip_2_0, ViaTransport::of(transport)))
}

/// `:port` with white space around the colon (RFC 3261 §25.1, `sent-by`): outer `None` if there is a colon and no port.
#[inline(always)]
fn read_port(cursor: &mut Cursor<'_>) -> Option<Option<u16>> {
    if !cursor.skip_separator(b':') {
        return Some(None);
    }
    let port = u16::try_from(chars::decimal(cursor.take(DIGIT))?).ok()?;
    (port != 0).then_some(Some(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn via(text: &[u8]) -> Option<Via<'_>> {
        Via::read(&mut Cursor::new(text))
    }

    #[test]
    fn a_usual_one() {
        let text = b"SIP/2.0/UDP 192.0.2.1:5066;rport;branch=z9hG4bKabc";
        let via = via(text).expect("well-formed");
        assert_eq!(via.transport, ViaTransport::Udp);
        assert_eq!(via.host.ip(), Some("192.0.2.1".parse().expect("address")));
        assert_eq!((via.port, via.rport), (Some(5066), Rport::Asked));
        assert_eq!(via.branch, Some(&b"z9hG4bKabc"[..]));
        assert!(via.has_magic_cookie());
        assert_eq!(via.bytes, text);
    }

    #[test]
    fn white_space_is_allowed_around_every_separator() {
        let text = b"  SIP  / 2.0\r\n  / tls   [2001:db8::9] : 5061 ;\t branch = Z9HG4BKx ; received=[2001:db8::1];ttl=7 \t";
        let via = via(text).expect("well-formed");
        assert_eq!(via.transport, ViaTransport::Tls);
        assert_eq!(via.port, Some(5061));
        assert!(via.has_magic_cookie());
        assert_eq!(via.received, Some("2001:db8::1".parse().expect("address")));
        assert_eq!(via.ttl, Some(7));
        assert_eq!(via.bytes, chars::trim(text));
    }

    #[test]
    fn other_protocols_are_recognized_and_not_malformed() {
        let other = via(b"SIP/7.0/UDP c.example.com;branch=z9hG4bKkdjuw").expect("well-formed");
        assert!(!other.is_sip_2_0 && other.has_magic_cookie());
        assert!(via(b"sip/2.0/UDP c").expect("well-formed").is_sip_2_0);
    }

    #[test]
    fn a_value_ends_at_a_comma() {
        let mut cursor =
            Cursor::new(b"SIP/2.0/TCP a.example , SIP/2.0/WSS x.invalid;branch=z9hG4bK");
        let first = Via::read(&mut cursor).expect("well-formed");
        assert_eq!(first.bytes, b"SIP/2.0/TCP a.example");
        assert!(cursor.skip_if(b','));
        let second = Via::read(&mut cursor).expect("well-formed");
        assert_eq!(second.transport, ViaTransport::Wss);
        assert!(!second.has_magic_cookie(), "a cookie alone is no branch");
    }

    #[test]
    fn malformed_ones_are_refused() {
        for wrong in [
            "",
            "SIP/2.0/UDP",
            "SIP/2.0/UDP ",
            "SIP/3.0/ a",
            "SIP//UDP a",
            "SIP/2.0/UDP a:",
            "SIP/2.0/UDP a:0",
            "SIP/2.0/UDP a:65536",
            "SIP/2.0/UDP a;ttl=256",
            "SIP/2.0/UDP a;branch",
            "SIP/2.0/UDP a;received=x.example",
            "SIP/2.0/UDP a b",
            "SIP/2.0/UDP [::1",
            "SIP/2.0/UDP a;rport=x",
        ] {
            assert!(via(wrong.as_bytes()).is_none(), "{wrong}");
        }
    }
}
