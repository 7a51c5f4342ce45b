//! What a `sip:` URI on the command line means.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs, UdpSocket};

use anyhow::{Context, anyhow};
use load::sip::Transport;
use load::uri::{Host, Scheme, Uri, foreign_scheme};
use server::sip::{self, Candidate, Locate, LocateError, Locator, NameResolver};

use crate::cli::load::sip::{Args, Workload};
use crate::commands::load::Fault;

/// The port where none is named (RFC 3261 §19.1.2, RFC 7118 §5.1).
fn default_port(transport: Transport) -> u16 {
    match transport {
        Transport::Udp | Transport::Tcp => 5060,
        Transport::Tls => 5061,
        Transport::Ws => 80,
        Transport::Wss => 443,
    }
}

/// Where a server is, or is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SipAddress {
    pub(super) address: SocketAddr,
    pub(super) transport: Transport,
    /// The host as it was written, without its port: what a certificate must be for.
    pub(super) host: String,
    /// User part.
    pub(super) user: Option<String>,
    /// The host as it was written, if it is a name: requests are for it.
    pub(super) domain: Option<String>,
    /// Where requests go that `address` refuses, as the DNS has it.
    pub(super) further: Vec<SocketAddr>,
}

impl SipAddress {
    /// Reads the target of `args` and looks its address up.
    pub(super) fn of(args: &Args) -> Result<SipAddress, Fault> {
        let text = args.target.as_deref().unwrap_or_default();
        if let (Workload::Uas, Ok(address)) = (args.workload, text.parse()) {
            // Where one listens, port 0 is any that is free.
            return Ok(SipAddress::at(address));
        }
        let mut wanted = ParsedTarget::read(text)?;
        if let Some(transport) = args.transport {
            wanted.transport = Some(transport.into());
        }
        wanted.find()
    }

    fn at(address: SocketAddr) -> SipAddress {
        SipAddress {
            address,
            transport: Transport::Udp,
            host: address.ip().to_string(),
            user: None,
            domain: None,
            further: Vec::new(),
        }
    }

    /// Another server over the same transport.
    pub(super) fn resolve_other(&self, text: &str) -> Result<SocketAddr, Fault> {
        let mut wanted = ParsedTarget::read(text)?;
        if wanted.transport.is_some_and(|one| one != self.transport) {
            return Err(usage(format!(
                "{text}: all servers are reached over {}",
                self.transport.in_via()
            )));
        }
        wanted.transport = Some(self.transport);
        wanted.find().map(|place| place.address)
    }
}

/// What a name leads to.
#[derive(Debug)]
struct ResolvedName {
    address: SocketAddr,
    transport: Option<Transport>,
    further: Vec<SocketAddr>,
}

impl ResolvedName {
    fn one(address: SocketAddr) -> ResolvedName {
        ResolvedName {
            address,
            transport: None,
            further: Vec::new(),
        }
    }
}

/// What stands on the command line.
#[derive(Debug)]
struct ParsedTarget {
    user: Option<String>,
    /// Host and port as they were written.
    written: String,
    host: Host,
    port: Option<u16>,
    transport: Option<Transport>,
}

impl ParsedTarget {
    fn read(text: &str) -> Result<ParsedTarget, Fault> {
        let scheme = |name: &str| {
            let start = text.get(..name.len());
            start.is_some_and(|start| start.eq_ignore_ascii_case(name))
        };
        if scheme("tel:") {
            return Err(usage(format!(
                "{text}: a number says nothing of its server; say sip:HOST:PORT"
            )));
        }
        let is_sips = scheme("sips:");
        let rest = match is_sips {
            true => &text[5..],
            false if scheme("sip:") => &text[4..],
            false => text,
        };
        let (address, parameters) = rest.split_once(';').unwrap_or((rest, ""));
        let (user, host) = match address.rsplit_once('@') {
            Some((user, host)) => (Some(user.to_owned()), host),
            None => (None, address),
        };
        if let Some(name) = foreign_scheme(host) {
            return Err(usage(format!(
                "{text}: `{name}:` is not supported: write sip:HOST:PORT or sips:HOST:PORT, with ;transport=tcp, tls, ws or wss behind it"
            )));
        }
        let transport = match transport(text, parameters)? {
            // RFC 5630 §3.1.2, RFC 7118 §5.2: what sips: demands goes over TLS.
            None | Some(Transport::Tcp) if is_sips => Some(Transport::Tls),
            Some(Transport::Ws) if is_sips => Some(Transport::Wss),
            Some(Transport::Udp) if is_sips => {
                return Err(usage(format!("{text}: sips: never goes over UDP")));
            }
            transport => transport,
        };
        // Host and port are written as everywhere.
        let uri = Uri::parse_target(host, Scheme::Stun)
            .map_err(|error| usage(format!("{text}: {error}")))?;
        Ok(ParsedTarget {
            user,
            written: host.to_owned(),
            host: uri.host,
            port: uri.port,
            transport,
        })
    }

    fn find(self) -> Result<SipAddress, Fault> {
        let ResolvedName {
            address,
            transport,
            further,
        } = match &self.host {
            Host::Ip(ip) => ResolvedName::one(SocketAddr::new(*ip, self.port())),
            Host::Name(name) => self.look_up(name)?,
        };
        let named = matches!(self.host, Host::Name(_));
        Ok(SipAddress {
            address,
            transport: self.transport.or(transport).unwrap_or(Transport::Udp),
            host: match &self.host {
                Host::Ip(ip) => ip.to_string(),
                Host::Name(name) => name.clone(),
            },
            user: self.user,
            domain: named.then_some(self.written),
            further,
        })
    }

    fn port(&self) -> u16 {
        let default = default_port(self.transport.unwrap_or(Transport::Udp));
        self.port.unwrap_or(default)
    }

    /// Looks up the name in the DNS by RFC 3263. If that finds nothing, it uses the resolver of the system, which has
    /// more names than the DNS.
    fn look_up(&self, name: &str) -> Result<ResolvedName, Fault> {
        // RFC 6761 §6.3: this name is nothing to ask the DNS.
        let found = match name.eq_ignore_ascii_case("localhost") {
            true => Err(LocateError::Nowhere),
            false => self.locate(name),
        };
        let unknown = match found {
            Ok(found) => return Ok(found),
            Err(error) => error,
        };
        let system = (name, self.port()).to_socket_addrs();
        let addresses: Vec<SocketAddr> = system
            .map_err(|_| unknown)
            .with_context(|| format!("cannot find the server of {name}"))?
            .collect();
        let reachable = addresses.iter().find(|address| is_reachable(**address));
        let first = reachable.or(addresses.first());
        let first = first.ok_or_else(|| Fault::Run(anyhow!("{name} has no address")))?;
        Ok(ResolvedName::one(*first))
    }

    fn locate(&self, name: &str) -> Result<ResolvedName, LocateError> {
        let port = self.port.map(|port| format!(":{port}"));
        let transport = self
            .transport
            .map(|one| format!(";transport={}", one.in_uri()));
        let scheme = match self.transport {
            Some(transport) if transport.is_secure() => "sips",
            _ => "sip",
        };
        let transport = transport.filter(|_| self.transport != Some(Transport::Tls));
        let uri = format!(
            "{scheme}:{name}{}{}",
            port.unwrap_or_default(),
            transport.unwrap_or_default()
        );
        let target = Locate::of(uri.as_bytes()).map_err(|_| LocateError::Nowhere)?;
        let seed = std::process::id().into();
        let mut locator = Locator::new(
            &[
                sip::Transport::Udp,
                sip::Transport::Tcp,
                sip::Transport::Tls,
                sip::Transport::Ws,
                sip::Transport::Wss,
            ],
            seed,
        );
        let servers = NameResolver::new(&[]).locate(&mut locator, &target)?;
        let reachable = |server: &&Candidate| is_reachable(server.remote);
        let server = servers.iter().find(reachable).or(servers.first());
        let server = server.ok_or(LocateError::Nowhere)?;
        let transport = match server.transport {
            sip::Transport::Udp => Transport::Udp,
            sip::Transport::Tcp => Transport::Tcp,
            sip::Transport::Tls => Transport::Tls,
            sip::Transport::Ws => Transport::Ws,
            sip::Transport::Wss => Transport::Wss,
        };
        let same = |other: &&Candidate| {
            other.transport == server.transport && other.remote != server.remote
        };
        let further = servers.iter().filter(same).map(|other| other.remote);
        Ok(ResolvedName {
            address: server.remote,
            transport: Some(transport),
            further: further.filter(|remote| is_reachable(*remote)).collect(),
        })
    }
}

fn usage(text: String) -> Fault {
    Fault::Usage(anyhow!(text))
}

/// Whether there is a route, for IPv6 above all.
fn is_reachable(address: SocketAddr) -> bool {
    let any: IpAddr = match address {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    // Connecting sends nothing.
    let asked: io::Result<()> = UdpSocket::bind((any, 0)).and_then(|it| it.connect(address));
    asked.is_ok()
}

fn transport(text: &str, parameters: &str) -> Result<Option<Transport>, Fault> {
    let mut transport = None;
    for parameter in parameters.split(';').filter(|one| !one.is_empty()) {
        transport = match parameter.to_ascii_lowercase().as_str() {
            "transport=udp" => Some(Transport::Udp),
            "transport=tcp" => Some(Transport::Tcp),
            "transport=tls" => Some(Transport::Tls),
            "transport=ws" => Some(Transport::Ws),
            "transport=wss" => Some(Transport::Wss),
            other => {
                return Err(Fault::Usage(anyhow!(
                    "{text}: `{other}`: only transport=udp, tcp, tls, ws and wss are understood"
                )));
            }
        };
    }
    Ok(transport)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<SipAddress, String> {
        let place = ParsedTarget::read(text).and_then(ParsedTarget::find);
        place.map_err(|fault| match fault {
            Fault::Usage(error) | Fault::Run(error) => format!("{error:#}"),
        })
    }

    #[test]
    fn uris_and_addresses_are_read() {
        let place = read("sip:bob@127.0.0.1:5070;transport=tcp").unwrap();
        assert_eq!(place.address, "127.0.0.1:5070".parse().unwrap());
        assert_eq!(place.transport, Transport::Tcp);
        assert_eq!((place.user.as_deref(), place.domain), (Some("bob"), None));
        assert_eq!(
            read("[::1]").unwrap().address,
            "[::1]:5060".parse().unwrap()
        );
        let named = read("localhost").unwrap();
        assert_eq!(named.domain.as_deref(), Some("localhost"));
        assert!(named.address.ip().is_loopback() && named.address.port() == 5060);
        let tcp = read("SIP:localhost:5070;transport=TCP").unwrap();
        assert_eq!(tcp.transport, Transport::Tcp);
        assert_eq!(tcp.domain.as_deref(), Some("localhost:5070"));
    }

    #[test]
    fn tls_and_websockets_have_ports_of_their_own_and_sips_is_tls_rfc5630_3_1_2() {
        for (text, transport, port) in [
            ("sips:127.0.0.1", Transport::Tls, 5061),
            ("SIPS:127.0.0.1;transport=tcp", Transport::Tls, 5061),
            ("sips:127.0.0.1;transport=ws", Transport::Wss, 443),
            ("sip:localhost;transport=tls", Transport::Tls, 5061),
            ("sip:127.0.0.1;transport=ws", Transport::Ws, 80),
            ("sip:127.0.0.1:8443;transport=wss", Transport::Wss, 8443),
        ] {
            let place = read(text).unwrap();
            assert_eq!(
                (place.transport, place.address.port()),
                (transport, port),
                "{text}"
            );
        }
        assert_eq!(read("sips:LocalHost:5071").unwrap().host, "LocalHost");
    }

    #[test]
    fn unsupported_targets_are_refused() {
        for (text, part) in [
            ("sips:127.0.0.1;transport=udp", "never goes over UDP"),
            ("tel:+123", "says nothing of its server"),
            ("tcp:127.0.0.1:5060", "`tcp:` is not supported"),
            ("sip:127.0.0.1;transport=sctp", "transport=sctp"),
            ("sip:127.0.0.1;lr", "lr"),
            ("127.0.0.1:x", "127.0.0.1:x"),
            ("", ""),
        ] {
            let refusal = read(text).unwrap_err();
            assert!(refusal.contains(part), "{text}: {refusal}");
        }
    }
}
