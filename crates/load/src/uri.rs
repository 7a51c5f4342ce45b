//! Where a server is: the `stun:`, `stuns:`, `turn:` and `turns:` URIs of RFC 7064 and RFC 7065.
//!
//! ```text
//! turn : host [ : port ] [ ?transport= udp | tcp ]        stun : host [ : port ]
//! ```
//!
//! RFC 7064 gives STUN URIs no transport. Here they may have one, so that STUN over TCP can be named; other programs
//! refuse that.
//!
//! They have no `//`, no user and no path, which is what people get wrong most; the errors say so.

use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::str::FromStr;

use turn::Transport;

/// RFC 8489 §8.1, RFC 8656 §4.1: for UDP and TCP.
const DEFAULT_PORT: u16 = 3478;
/// RFC 8489 §8.1, RFC 8656 §4.1: for TLS and DTLS.
const DEFAULT_SECURE_PORT: u16 = 5349;
/// RFC 1035 §2.3.4: a name has 255 or fewer octets.
const NAME_MAX: usize = 255;

/// The protocol, and whether it is encrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Scheme {
    /// STUN.
    Stun,
    /// STUN over TLS or DTLS.
    Stuns,
    /// TURN.
    Turn,
    /// TURN over TLS or DTLS.
    Turns,
}

impl Scheme {
    /// The name before the colon.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::Stun => "stun",
            Scheme::Stuns => "stuns",
            Scheme::Turn => "turn",
            Scheme::Turns => "turns",
        }
    }

    /// Whether it is encrypted.
    #[must_use]
    pub const fn is_secure(self) -> bool {
        matches!(self, Scheme::Stuns | Scheme::Turns)
    }

    fn of(name: &str) -> Option<Scheme> {
        // RFC 3986 §3.1: schemes are case-insensitive.
        [Scheme::Stun, Scheme::Stuns, Scheme::Turn, Scheme::Turns]
            .into_iter()
            .find(|scheme| name.eq_ignore_ascii_case(scheme.name()))
    }
}

/// The host of a URI.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Host {
    /// An address; an IPv6 one is in brackets.
    Ip(IpAddr),
    /// A name to look up.
    Name(String),
}

/// The `transport` of a TURN URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UriTransport {
    /// UDP; DTLS for `turns:`.
    Udp,
    /// TCP; TLS for `turns:`.
    Tcp,
}

/// A STUN or TURN URI.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Uri {
    /// What is spoken there.
    pub scheme: Scheme,
    /// The machine.
    pub host: Host,
    /// The port, if it is given; see [`port`](Uri::port).
    pub port: Option<u16>,
    /// The transport, if it is given; see [`transport`](Uri::transport).
    pub transport: Option<UriTransport>,
}

/// Why a text is no STUN or TURN URI.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum UriError {
    /// There is no scheme.
    #[error("`{0}` has no scheme: write turn:{0} or stun:{0}")]
    NoScheme(String),
    /// The scheme is none of the four.
    #[error(
        "`{0}:` is not supported: use stun:, stuns:, turn: or turns:, with ?transport=tcp behind the host for TCP and TLS"
    )]
    Scheme(String),
    /// There are slashes, as in web addresses.
    #[error("a STUN or TURN URI has no slashes: write turn:host:port")]
    Slashes,
    /// There is a user, as in SIP addresses.
    #[error("a STUN or TURN URI holds no user: give name and password separately")]
    User,
    /// The host is missing.
    #[error("the host is missing: write turn:host or turn:host:port")]
    NoHost,
    /// The host is neither a name nor an address.
    #[error("`{0}` is neither a name nor an address")]
    Host(String),
    /// An IPv6 address without brackets.
    #[error("an IPv6 address stands in brackets: [{0}]")]
    Brackets(String),
    /// The port is not a number from 1 to 65535.
    #[error("`{0}` is not a port: give a number from 1 to 65535")]
    Port(String),
    /// Something other than `?transport=udp` or `?transport=tcp`.
    #[error("`?{0}` is not understood: only ?transport=udp and ?transport=tcp are")]
    Query(String),
}

impl Uri {
    /// The UDP or TCP port: the one given, else 3478, or 5349 for `stuns:` and `turns:`.
    #[must_use]
    pub fn port(&self) -> u16 {
        let default = if self.scheme.is_secure() {
            DEFAULT_SECURE_PORT
        } else {
            DEFAULT_PORT
        };
        self.port.unwrap_or(default)
    }

    /// The transport: the given one, otherwise UDP, or TLS over TCP for `stuns:` and `turns:`. RFC 5928 §3 has another
    /// order if the DNS has the records.
    #[must_use]
    pub fn transport(&self) -> Transport {
        match (self.scheme.is_secure(), self.transport) {
            (false, None | Some(UriTransport::Udp)) => Transport::Udp,
            (false, Some(UriTransport::Tcp)) => Transport::Tcp,
            (true, Some(UriTransport::Udp)) => Transport::Dtls,
            (true, None | Some(UriTransport::Tcp)) => Transport::Tls,
        }
    }

    /// Its addresses, in the order of the system's resolver; SRV records are not asked for.
    ///
    /// # Errors
    /// The result of the resolver; `NotFound` if there is no address.
    pub fn resolve(&self) -> io::Result<Vec<SocketAddr>> {
        let mut addresses: Vec<SocketAddr> = match &self.host {
            Host::Ip(ip) => vec![SocketAddr::new(*ip, self.port())],
            Host::Name(name) => (name.as_str(), self.port()).to_socket_addrs()?.collect(),
        };
        addresses.dedup();
        if addresses.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(addresses)
    }

    /// Reads what people type for a target: a URI, or just `host`, `host:port`, `192.0.2.1`, `2001:db8::1` or
    /// `[2001:db8::1]:port`, which then means `scheme`.
    ///
    /// # Errors
    /// [`UriError`].
    pub fn parse_target(text: &str, scheme: Scheme) -> Result<Uri, UriError> {
        if text
            .split_once(':')
            .is_some_and(|(name, _)| Scheme::of(name).is_some())
        {
            return text.parse();
        }
        if let Some(name) = foreign_scheme(text) {
            return Err(UriError::Scheme(name.to_owned()));
        }
        if let Ok(ip) = text.parse::<Ipv6Addr>() {
            let host = Host::Ip(ip.into());
            return Ok(Uri {
                scheme,
                host,
                port: None,
                transport: None,
            });
        }
        Uri::parse_rest(scheme, text)
    }

    /// Everything after the first colon.
    fn parse_rest(scheme: Scheme, rest: &str) -> Result<Uri, UriError> {
        if rest.starts_with("//") {
            return Err(UriError::Slashes);
        }
        if rest.contains('@') {
            return Err(UriError::User);
        }
        let (authority, query) = match rest.split_once('?') {
            Some((authority, query)) => (authority, Some(query)),
            None => (rest, None),
        };
        let transport = query.map(parse_query).transpose()?;
        let (host, port) = split_port(authority)?;
        Ok(Uri {
            scheme,
            host: parse_host(host)?,
            port: port.map(parse_port).transpose()?,
            transport,
        })
    }
}

/// The scheme before the first colon of what is neither an address nor a host with its port, such as
/// `tcp:192.0.2.1:3478`.
#[must_use]
pub fn foreign_scheme(text: &str) -> Option<&str> {
    let (name, rest) = text.split_once(':')?;
    let is_address = text.parse::<Ipv6Addr>().is_ok();
    // RFC 3986 §3.1; a name with a dot is rather a host.
    let is_name = name.starts_with(|first: char| first.is_ascii_alphabetic())
        && name
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'-'));
    let is_port = !rest.is_empty()
        && rest
            .bytes()
            .all(|byte| byte.is_ascii_digit() || byte == b'-');
    (is_name && !is_address && !is_port && !rest.is_empty()).then_some(name)
}

impl FromStr for Uri {
    type Err = UriError;

    fn from_str(text: &str) -> Result<Uri, UriError> {
        let Some((name, rest)) = text.split_once(':') else {
            return Err(UriError::NoScheme(text.into()));
        };
        match Scheme::of(name) {
            Some(scheme) => Uri::parse_rest(scheme, rest),
            // What has a dot or is followed by a port is rather a host than a scheme.
            None if name.contains('.') || rest.parse::<u16>().is_ok() || name.is_empty() => {
                Err(UriError::NoScheme(text.into()))
            }
            None => Err(UriError::Scheme(name.into())),
        }
    }
}

impl fmt::Display for Uri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.scheme.name())?;
        match &self.host {
            Host::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]")?,
            Host::Ip(IpAddr::V4(ip)) => write!(f, "{ip}")?,
            Host::Name(name) => f.write_str(name)?,
        }
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        match self.transport {
            Some(UriTransport::Udp) => f.write_str("?transport=udp"),
            Some(UriTransport::Tcp) => f.write_str("?transport=tcp"),
            None => Ok(()),
        }
    }
}

fn parse_query(query: &str) -> Result<UriTransport, UriError> {
    let is = |text: &str| query.eq_ignore_ascii_case(text);
    if is("transport=udp") {
        Ok(UriTransport::Udp)
    } else if is("transport=tcp") {
        Ok(UriTransport::Tcp)
    } else {
        Err(UriError::Query(query.into()))
    }
}

fn split_port(authority: &str) -> Result<(&str, Option<&str>), UriError> {
    let after_host = match authority.strip_prefix('[') {
        Some(inner) => match inner.split_once(']') {
            Some((host, rest)) => (&authority[..host.len() + 2], rest),
            None => return Err(UriError::Host(authority.into())),
        },
        None if authority.parse::<Ipv6Addr>().is_ok() => {
            return Err(UriError::Brackets(authority.into()));
        }
        None => authority.split_at(authority.find(':').unwrap_or(authority.len())),
    };
    match after_host {
        (host, "") => Ok((host, None)),
        (host, rest) => match rest.strip_prefix(':') {
            Some(port) => Ok((host, Some(port))),
            None => Err(UriError::Host(authority.into())),
        },
    }
}

fn parse_port(port: &str) -> Result<u16, UriError> {
    match port.parse() {
        // A sign would parse too.
        Ok(number) if number != 0 && !port.starts_with('+') => Ok(number),
        _ => Err(UriError::Port(port.into())),
    }
}

fn parse_host(host: &str) -> Result<Host, UriError> {
    if host.is_empty() {
        return Err(UriError::NoHost);
    }
    if let Some(inner) = host.strip_prefix('[') {
        let ip = inner.trim_end_matches(']').parse::<Ipv6Addr>();
        return match ip {
            Ok(ip) => Ok(Host::Ip(ip.into())),
            Err(_) => Err(UriError::Host(host.into())),
        };
    }
    if let Ok(ip) = host.parse() {
        return Ok(Host::Ip(ip));
    }
    // RFC 3986 §3.2.2 allows more in a reg-name; no resolver does.
    let is_name = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
    if host.len() <= NAME_MAX && host.bytes().all(is_name) {
        Ok(Host::Name(host.into()))
    } else {
        Err(UriError::Host(host.into()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().expect(text)
    }

    fn error(text: &str) -> UriError {
        text.parse::<Uri>().expect_err(text)
    }

    #[test]
    fn the_examples_of_the_rfcs_are_read_and_written() {
        // RFC 7064 appendix A and RFC 7065 appendix A.
        for text in [
            "stun:example.org",
            "stuns:example.org",
            "stun:example.org:8000",
            "turn:example.org",
            "turns:example.org",
            "turn:example.org:8000",
            "turn:example.org?transport=udp",
            "turn:example.org?transport=tcp",
            "turns:example.org?transport=tcp",
            "turn:192.0.2.1:3478?transport=udp",
            "turn:[2001:db8::1]:3478?transport=udp",
            "stun:[::1]",
            "stun:example.org?transport=tcp",
        ] {
            assert_eq!(uri(text).to_string(), text);
        }
    }

    #[test]
    fn ports_and_transports_have_their_defaults() {
        for (text, port, transport) in [
            ("stun:h", 3478, Transport::Udp),
            ("stuns:h", 5349, Transport::Tls),
            ("turn:h", 3478, Transport::Udp),
            ("turns:h", 5349, Transport::Tls),
            ("turn:h:5000?transport=tcp", 5000, Transport::Tcp),
            ("turns:h?transport=udp", 5349, Transport::Dtls),
            ("stun:h?transport=tcp", 3478, Transport::Tcp),
            ("TURN:h?Transport=UDP", 3478, Transport::Udp),
        ] {
            let uri = uri(text);
            assert_eq!((uri.port(), uri.transport()), (port, transport), "{text}");
        }
    }

    #[test]
    fn mistakes_are_named() {
        for (text, expected) in [
            ("", UriError::NoScheme("".into())),
            ("example.org", UriError::NoScheme("example.org".into())),
            (
                "127.0.0.1:3478",
                UriError::NoScheme("127.0.0.1:3478".into()),
            ),
            (
                "localhost:3478",
                UriError::NoScheme("localhost:3478".into()),
            ),
            ("http://example.org", UriError::Scheme("http".into())),
            ("turn://example.org", UriError::Slashes),
            ("turn:user@example.org", UriError::User),
            ("turn:", UriError::NoHost),
            ("turn::3478", UriError::NoHost),
            ("turn:exa mple", UriError::Host("exa mple".into())),
            ("turn:a/b", UriError::Host("a/b".into())),
            ("turn:[::1", UriError::Host("[::1".into())),
            ("turn:[::1]3478", UriError::Host("[::1]3478".into())),
            ("turn:[nonsense]", UriError::Host("[nonsense]".into())),
            ("turn:2001:db8::1", UriError::Brackets("2001:db8::1".into())),
            ("turn:h:", UriError::Port("".into())),
            ("turn:h:0", UriError::Port("0".into())),
            ("turn:h:65536", UriError::Port("65536".into())),
            ("turn:h:+80", UriError::Port("+80".into())),
            ("turn:h:3478:1", UriError::Port("3478:1".into())),
            (
                "turn:h?transport=sctp",
                UriError::Query("transport=sctp".into()),
            ),
            ("turn:h?x", UriError::Query("x".into())),
            ("stun:h?tcp", UriError::Query("tcp".into())),
        ] {
            assert_eq!(error(text), expected, "{text}");
        }
    }

    #[test]
    fn a_target_needs_no_scheme() {
        for (text, expected) in [
            ("example.org", "turn:example.org"),
            ("example.org:99", "turn:example.org:99"),
            ("127.0.0.1:99", "turn:127.0.0.1:99"),
            ("2001:db8::1", "turn:[2001:db8::1]"),
            ("[2001:db8::1]:99", "turn:[2001:db8::1]:99"),
            ("stun:example.org", "stun:example.org"),
            ("turn:h?transport=tcp", "turn:h?transport=tcp"),
        ] {
            let target = Uri::parse_target(text, Scheme::Turn);
            assert_eq!(target.map(|uri| uri.to_string()).as_deref(), Ok(expected));
        }
        assert!(Uri::parse_target("a b", Scheme::Stun).is_err());
        for text in ["tcp:127.0.0.1:3478", "https://example.org", "quic:host"] {
            let error = Uri::parse_target(text, Scheme::Turn).unwrap_err();
            assert!(matches!(error, UriError::Scheme(_)), "{text}: {error}");
        }
        for text in [
            "localhost:3478",
            "fe80::1",
            "[::1]:3478",
            "1.2.3.4:5",
            "host",
        ] {
            assert_eq!(foreign_scheme(text), None, "{text}");
        }
    }

    #[test]
    fn an_address_resolves_to_itself() {
        let addresses = uri("turn:[::1]").resolve().expect("no look-up needed");
        assert_eq!(addresses, ["[::1]:3478".parse().expect("an address")]);
    }
}
