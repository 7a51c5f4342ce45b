//! Addresses, ports and peer rules as the user writes them.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::ops::RangeInclusive;

use ipnet::IpNet;
use server::turn::server::RelayTransport;

use super::setting::{FromText, Mistake};
use super::source::Located;

/// The port STUN and TURN are assigned (RFC 8489 §18.6), used in suggestions and by default.
pub(crate) const DEFAULT_PORT: u16 = 3478;

impl FromText for SocketAddr {
    const EXPECTED: &'static str =
        "an address with a port, like \"192.0.2.1:3478\" or \"[2001:db8::1]:3478\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        if let Ok(address) = text.parse() {
            return Ok(address);
        }
        let help = bracketed(text).unwrap_or_else(|| listen_address_hint(text));
        Err(Mistake::new(format!("`{text}` is not an address with a port")).help(help))
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

/// The suggestion for an IPv6 address and port without brackets, which also reads as an address alone.
fn bracketed(text: &str) -> Option<String> {
    let (host, port) = text.rsplit_once(':')?;
    let host = host.parse::<std::net::Ipv6Addr>().ok()?;
    let port = port.parse::<u16>().ok().filter(|port| *port >= 1000)?;
    Some(format!(
        "put an IPv6 address in brackets: \"[{host}]:{port}\""
    ))
}

fn listen_address_hint(text: &str) -> String {
    let bare = text
        .strip_prefix('[')
        .and_then(|t| t.strip_suffix(']'))
        .unwrap_or(text);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        let like = SocketAddr::new(ip, DEFAULT_PORT);
        return format!("add the port (STUN and TURN have 3478, SIP 5060, DNS 53): \"{like}\"");
    }
    match text.rsplit_once(':') {
        Some(("" | "*", port)) => {
            format!("to listen on every address: \"0.0.0.0:{port}\" and \"[::]:{port}\"")
        }
        Some((_, port)) if port.parse::<u16>().is_err() => {
            "a port is a number from 0 to 65535".to_owned()
        }
        _ => {
            "host names are not looked up: write the IP address, like \"192.0.2.1:3478\"".to_owned()
        }
    }
}

impl FromText for IpAddr {
    const EXPECTED: &'static str = "an IP address, like \"192.0.2.1\" or \"2001:db8::1\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        parse_ip(text)
    }

    fn to_text(&self) -> String {
        self.to_string()
    }
}

fn parse_ip(text: &str) -> Result<IpAddr, Mistake> {
    text.parse().map_err(|_| {
        let mistake = Mistake::new(format!("`{text}` is not an IP address"));
        let bare = text.trim_start_matches('[').trim_end_matches(']');
        match (text.parse::<SocketAddr>(), bare.parse::<IpAddr>()) {
            (Ok(address), _) => mistake.help(format!("leave out the port: \"{}\"", address.ip())),
            (_, Ok(ip)) => mistake.help(format!("leave out the brackets: \"{ip}\"")),
            _ => mistake.help("host names are not looked up: write an address like \"192.0.2.1\" or \"2001:db8::1\""),
        }
    })
}

/// The address that clients get instead of the one that relays are bound to (1:1 NAT).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExternalIp {
    /// What clients and peers see.
    pub(crate) public: IpAddr,
    /// The local address it stands for; without it, every relay address of the same family.
    pub(crate) private: Option<IpAddr>,
}

impl FromText for ExternalIp {
    const EXPECTED: &'static str =
        "\"PUBLIC\" or \"PUBLIC/PRIVATE\", like \"203.0.113.5/10.0.0.5\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let (public, private) = match text.split_once('/') {
            Some((public, private)) => (parse_ip(public)?, Some(parse_ip(private)?)),
            None => (parse_ip(text)?, None),
        };
        if let Some(private) = private.filter(|private| private.is_ipv4() != public.is_ipv4()) {
            return Err(Mistake::new(format!(
                "{public} and {private} are not of the same address family"
            ))
            .help("map IPv4 to IPv4 and IPv6 to IPv6, each with its own entry"));
        }
        if public.is_unspecified() || public.is_multicast() {
            return Err(Mistake::new(format!(
                "{public} is not an address that clients can send to"
            ))
            .help("write the public address of this host, like \"203.0.113.5\""));
        }
        Ok(Self { public, private })
    }

    fn to_text(&self) -> String {
        match self.private {
            Some(private) => format!("{}/{private}", self.public),
            None => self.public.to_string(),
        }
    }
}

impl fmt::Display for ExternalIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.to_text())
    }
}

/// The address that clients get instead of a relay address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ExternalAddress {
    /// A fixed address.
    Fixed(ExternalIp),
    /// What STUN servers see.
    Auto,
    /// The addresses of this DNS name.
    Name(String),
}

impl ExternalAddress {
    const AUTO: &str = "auto";

    pub(crate) const fn fixed(&self) -> Option<ExternalIp> {
        match self {
            ExternalAddress::Fixed(external) => Some(*external),
            _ => None,
        }
    }
}

impl FromText for ExternalAddress {
    const EXPECTED: &'static str =
        "\"PUBLIC\", \"PUBLIC/PRIVATE\" like \"203.0.113.5/10.0.0.5\", \"auto\" or a DNS name";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        if text == Self::AUTO {
            Ok(Self::Auto)
        } else if is_dns_name(text) {
            Ok(Self::Name(text.to_owned()))
        } else {
            ExternalIp::from_text(text).map(Self::Fixed)
        }
    }

    fn to_text(&self) -> String {
        match self {
            ExternalAddress::Fixed(external) => external.to_text(),
            ExternalAddress::Auto => Self::AUTO.to_owned(),
            ExternalAddress::Name(name) => name.clone(),
        }
    }
}

/// Whether it can be a name of a host, and is no address: its last label has a letter.
pub(super) fn is_dns_name(text: &str) -> bool {
    let is_label = |label: &str| {
        let is_part = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(is_part)
    };
    let host = text.strip_suffix('.').unwrap_or(text);
    let last = host.rsplit('.').next().unwrap_or_default();
    host.len() <= 253
        && host.split('.').all(is_label)
        && last.bytes().any(|byte| byte.is_ascii_alphabetic())
}

/// Where to ask for external addresses, at the start and later.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ExternalSources {
    /// STUN servers; none, if they are not to be asked.
    pub(crate) servers: Vec<StunServer>,
    /// A DNS name.
    pub(crate) name: Option<String>,
}

impl ExternalSources {
    pub(super) fn of(list: &[Located<ExternalAddress>], servers: Vec<StunServer>) -> Self {
        let mut sources = Self::default();
        for external in list {
            match &external.value {
                ExternalAddress::Fixed(_) => {}
                ExternalAddress::Auto => sources.servers.clone_from(&servers),
                ExternalAddress::Name(name) => sources.name = Some(name.clone()),
            }
        }
        sources
    }
}

/// A STUN server: an address or a DNS name, and a port, 3478 unless it says otherwise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct StunServer {
    pub(crate) host: String,
    pub(crate) port: u16,
}

impl StunServer {
    const PORT: u16 = DEFAULT_PORT;
}

impl FromText for StunServer {
    const EXPECTED: &'static str = "a STUN server, like \"stun.example.org\" or \"192.0.2.1:3478\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let wrong = || {
            Mistake::new(format!("`{text}` is not a STUN server"))
                .help("write HOST or HOST:PORT, like \"stun.example.org:3478\"")
        };
        if let Ok(address) = text.parse::<SocketAddr>() {
            let (host, port) = (address.ip().to_string(), address.port());
            return if port == 0 {
                Err(wrong())
            } else {
                Ok(Self { host, port })
            };
        }
        if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            let host = ip.to_string();
            return Ok(Self {
                host,
                port: Self::PORT,
            });
        }
        let (host, port) = match text.split_once(':') {
            Some((host, port)) => (host, port.parse().map_err(|_| wrong())?),
            None => (text, Self::PORT),
        };
        if port == 0 || !is_dns_name(host) {
            return Err(wrong());
        }
        Ok(Self {
            host: host.to_owned(),
            port,
        })
    }

    fn to_text(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// The ports of relayed transport addresses, both ends included.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PortRange(pub(crate) RangeInclusive<u16>);

impl FromText for PortRange {
    const EXPECTED: &'static str = "a range of ports, like \"49152-65535\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let range = parse_ports(text)?;
        // RFC 8656 §7.2: relayed ports should not be well-known ones, which clients could pose as.
        if *range.start() < 1024 {
            let message = "ports below 1024 belong to well-known services and are not relayed from";
            return Err(Mistake::new(message).help("begin at 1024 or above, like \"49152-65535\""));
        }
        // RFC 8656 §7.2: EVEN-PORT with R=1 needs a pair: an even port and the next higher one.
        if range.start() == range.end() {
            return Err(Mistake::new("a range must have at least two ports")
                .help("give a range like \"49152-65535\""));
        }
        Ok(Self(range))
    }

    fn to_text(&self) -> String {
        format!("{}-{}", self.0.start(), self.0.end())
    }
}

/// Reads `PORT` or `FIRST-LAST`.
fn parse_ports(text: &str) -> Result<RangeInclusive<u16>, Mistake> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (Ok(first), Ok(last)) = (first.trim().parse::<u16>(), last.trim().parse::<u16>()) else {
        return Err(
            Mistake::new(format!("`{text}` is not a range of ports")).help(
                "write the first and the last port, like \"49152-65535\"; ports go up to 65535",
            ),
        );
    };
    if first > last {
        return Err(Mistake::new(format!(
            "the range ends before it begins: {first} is above {last}"
        ))
        .help(format!("did you mean \"{last}-{first}\"?")));
    }
    Ok(first..=last)
}

/// Peers that are admitted or denied: a network and, if given, a range of ports.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct PeerRule {
    /// The network; host bits are zero.
    pub(crate) net: IpNet,
    /// Ports it holds for, both ends included.
    pub(crate) ports: RangeInclusive<u16>,
    /// What it holds for, if not for both.
    pub(crate) transport: Option<RelayTransport>,
}

/// What a rule for one transport alone begins with.
const TRANSPORTS: [(&str, RelayTransport); 2] =
    [("udp:", RelayTransport::Udp), ("tcp:", RelayTransport::Tcp)];

/// A name server: its port is 53 unless said otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct NameServer(pub(crate) SocketAddr);

impl NameServer {
    const PORT: u16 = 53;
}

impl FromText for NameServer {
    const EXPECTED: &'static str =
        "the address of a name server, like \"192.0.2.53\" or \"[2001:db8::53]:5353\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let bare = text
            .strip_prefix('[')
            .and_then(|text| text.strip_suffix(']'))
            .unwrap_or(text);
        let address = match bare.parse::<IpAddr>() {
            Ok(ip) => Ok(SocketAddr::new(ip, Self::PORT)),
            Err(_) => text.parse::<SocketAddr>(),
        };
        let Ok(address) = address else {
            return Err(
                Mistake::new(format!("`{text}` is not the address of a name server")).help(
                    "write an IP address, like \"192.0.2.53\" or, with a port, \"192.0.2.53:5353\"",
                ),
            );
        };
        if address.port() == 0 || address.ip().is_unspecified() || address.ip().is_multicast() {
            return Err(Mistake::new(format!("nobody can be asked at {address}"))
                .help("name one host, and a port that is not 0"));
        }
        Ok(Self(address))
    }

    fn to_text(&self) -> String {
        match self.0.port() {
            Self::PORT => self.0.ip().to_string(),
            _ => self.0.to_string(),
        }
    }
}

const ALL_PORTS: RangeInclusive<u16> = 0..=u16::MAX;

/// A network, without ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network(pub(crate) IpNet);

impl FromText for Network {
    const EXPECTED: &'static str = "a network, like \"10.0.0.0/8\" or \"2001:db8::1\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let rule = PeerRule::from_text(text)?;
        if rule.ports != ALL_PORTS || rule.transport.is_some() {
            let mistake = Mistake::new(format!("`{text}` has a transport or ports"));
            return Err(mistake.help("give the network alone"));
        }
        Ok(Self(rule.net))
    }

    fn to_text(&self) -> String {
        let ports = ALL_PORTS;
        let transport = None;
        PeerRule {
            net: self.0,
            ports,
            transport,
        }
        .to_text()
    }
}

impl FromText for PeerRule {
    const EXPECTED: &'static str = "a network, like \"10.0.0.0/8\", \"10.1.2.3:5000-6000\", \"[fd00::1]:443\" or \"tcp:10.0.0.0/8\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let mut found = TRANSPORTS.into_iter();
        let found = found.find_map(|(mark, transport)| Some((transport, text.strip_prefix(mark)?)));
        let (transport, text) = match found {
            Some((transport, rest)) => (Some(transport), rest),
            None => (None, text),
        };
        let (net, ports) = split_ports(text);
        let ports = ports.map_or(Ok(ALL_PORTS), parse_ports)?;
        let net = net
            .strip_prefix('[')
            .map_or(net.to_owned(), |inner| inner.replacen(']', "", 1));
        let parsed = net
            .parse::<IpNet>()
            .or_else(|_| net.parse::<IpAddr>().map(IpNet::from));
        let Ok(parsed) = parsed else {
            return Err(not_a_network(text, &net));
        };
        if parsed.trunc() != parsed {
            return Err(Mistake::new(format!(
                "`{net}` has bits set beyond its prefix of {}",
                parsed.prefix_len()
            ))
            .help(format!(
                "the network is \"{}\", the single address \"{}\"",
                parsed.trunc(),
                parsed.addr()
            )));
        }
        Ok(Self {
            net: parsed,
            ports,
            transport,
        })
    }

    fn to_text(&self) -> String {
        let single = self.net.prefix_len() == self.net.max_prefix_len();
        let net = match (self.net.addr(), single) {
            (IpAddr::V6(ip), true) if self.ports != ALL_PORTS => format!("[{ip}]"),
            (ip, true) => ip.to_string(),
            (_, false) => self.net.to_string(),
        };
        let mut marks = TRANSPORTS.into_iter();
        let mark = marks.find(|(_, transport)| Some(*transport) == self.transport);
        let net = format!("{}{net}", mark.map_or("", |(mark, _)| mark));
        match (self.ports.start(), self.ports.end()) {
            _ if self.ports == ALL_PORTS => net,
            (first, last) if first == last => format!("{net}:{first}"),
            (first, last) => format!("{net}:{first}-{last}"),
        }
    }
}

/// Cuts `NET:PORTS` in two; the colons of a bare IPv6 address are not mistaken for the separator.
fn split_ports(text: &str) -> (&str, Option<&str>) {
    let after_address = match (text.rfind('/'), text.rfind(']')) {
        (Some(at), _) | (None, Some(at)) => at,
        (None, None) if text.matches(':').count() > 1 => return (text, None),
        (None, None) => 0,
    };
    match text[after_address..].find(':') {
        Some(at) => (
            &text[..after_address + at],
            Some(&text[after_address + at + 1..]),
        ),
        None => (text, None),
    }
}

fn not_a_network(text: &str, net: &str) -> Mistake {
    let mistake = Mistake::new(format!("`{text}` is not a network"));
    let Some((address, prefix)) = net.split_once('/') else {
        return mistake.help("write it like \"10.0.0.0/8\", \"192.0.2.7\" or \"fd00::/8\", with \":FIRST-LAST\" for ports");
    };
    match address.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => mistake.help(format!("an IPv4 prefix is 0 to 32, not `{prefix}`")),
        Ok(IpAddr::V6(_)) => mistake.help(format!("an IPv6 prefix is 0 to 128, not `{prefix}`")),
        Err(_) => mistake.help(format!("`{address}` is not an IP address")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(text: &str) -> String {
        PeerRule::from_text(text).map_or_else(|_| "refused".to_owned(), |rule| rule.to_text())
    }

    #[test]
    fn peer_rules_read_back_as_they_are_written() {
        for text in [
            "10.0.0.0/8",
            "10.0.0.0/8:1024-65535",
            "10.1.2.3:80",
            "10.1.2.3",
            "fd00::/8",
            "fd00::/8:443",
            "fd00::1",
            "[fd00::1]:1-2",
            "0.0.0.0/0",
            "tcp:10.0.0.0/8",
            "udp:[fd00::1]:1-2",
            "tcp:fd00::/8",
        ] {
            assert_eq!(rule(text), text);
        }
        assert_eq!(rule("[fd00::]/8:443"), "fd00::/8:443");
    }

    #[test]
    fn name_servers_read_back_as_they_are_written_and_what_is_none_is_refused() {
        let server = |text: &str| {
            NameServer::from_text(text).map_or_else(|_| "refused".to_owned(), |s| s.to_text())
        };
        for text in [
            "192.0.2.53",
            "192.0.2.53:5353",
            "2001:db8::53",
            "[2001:db8::53]:5353",
        ] {
            assert_eq!(server(text), text);
        }
        assert_eq!(server("192.0.2.53:53"), "192.0.2.53");
        assert_eq!(server("[2001:db8::53]"), "2001:db8::53");
        for text in [
            "",
            "dns.example",
            "192.0.2.53:0",
            "0.0.0.0",
            "192.0.2.53:x",
            "224.0.0.251",
        ] {
            assert_eq!(server(text), "refused", "{text}");
        }
    }

    #[test]
    fn peer_rules_without_sense_are_refused() {
        for text in [
            "",
            "x",
            "10.0.0.1/8",
            "10.0.0.0/33",
            "10.0.0.0/",
            "10.0.0.0/8:",
            "10.0.0.0/8:9-1",
            "10.0.0.0/8:70000",
            "]:1",
            "/",
            "tcp:",
            "tcp:tcp:10.0.0.0/8",
            "sctp:10.0.0.0/8",
        ] {
            assert_eq!(rule(text), "refused", "{text}");
        }
    }

    #[test]
    fn external_addresses_may_be_asked_for() {
        let read = |text: &str| ExternalAddress::from_text(text).ok();
        assert_eq!(read("auto"), Some(ExternalAddress::Auto));
        for name in ["turn.example.org", "host", "a-1.example.org."] {
            assert_eq!(read(name), Some(ExternalAddress::Name(name.to_owned())));
        }
        for text in [
            "203.0.113",
            "203.0.113.5.6",
            "",
            "a b",
            "a..b",
            "fd00::zz",
            "1.2.3.4:5",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        assert!(matches!(
            read("203.0.113.5/10.0.0.5"),
            Some(ExternalAddress::Fixed(_))
        ));
        let server = |text: &str| {
            StunServer::from_text(text)
                .ok()
                .map(|server| server.to_text())
        };
        for (text, read) in [
            ("stun.example.org", "stun.example.org:3478"),
            ("stun.example.org:19302", "stun.example.org:19302"),
            ("192.0.2.1", "192.0.2.1:3478"),
            ("[2001:db8::1]:5000", "[2001:db8::1]:5000"),
            ("2001:db8::1", "[2001:db8::1]:3478"),
        ] {
            assert_eq!(server(text).as_deref(), Some(read), "{text}");
        }
        for text in [
            "",
            "a:b",
            "host:0",
            "192.0.2.1:0",
            "stun:stun.example.org",
            "a b",
        ] {
            assert_eq!(server(text), None, "{text}");
        }
    }

    #[test]
    fn external_addresses_stay_in_their_family() {
        assert!(ExternalIp::from_text("203.0.113.5/10.0.0.5").is_ok());
        assert!(ExternalIp::from_text("203.0.113.5").is_ok());
        assert!(ExternalIp::from_text("203.0.113.5/fd00::5").is_err());
        assert!(ExternalIp::from_text("0.0.0.0").is_err());
        assert!(ExternalIp::from_text("a/b").is_err());
    }

    #[test]
    fn port_ranges_are_checked() {
        assert!(PortRange::from_text("49152-65535").is_ok());
        for text in [
            "",
            "5000",
            "0-9",
            "80-9000",
            "9001-9000",
            "5000-65536",
            "a-b",
            "5000-",
        ] {
            assert!(PortRange::from_text(text).is_err(), "{text}");
        }
    }
}
