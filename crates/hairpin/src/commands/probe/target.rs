//! Where to probe, and which of its addresses.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use load::ServerAddress;
use load::Via;
use load::uri::{Host, Scheme, Uri};

use super::srv;
use crate::cli::probe::Target as Args;
use crate::commands::via;
use crate::config;

/// Longer than any retransmission schedule; a probe that takes an hour is a mistake.
const MAX_TIMEOUT_S: u64 = 600;

/// What the arguments ask for. Making one is all that can be a usage error.
#[derive(Debug)]
pub(super) struct Target {
    uri: Uri,
    via: Via,
    family: Family,
    /// How long each step may take.
    pub(super) timeout: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Family {
    Any,
    V4,
    V6,
}

impl Target {
    /// Checks the arguments; `scheme` is what a bare host means.
    pub(super) fn new(args: &Args, scheme: Scheme) -> Result<Self> {
        let uri = Uri::parse_target(&args.target, scheme)?;
        let via = via::of(&uri, &args.tls)?;
        let seconds = config::parse_seconds(&args.timeout)
            .map_err(|mistake| anyhow::anyhow!("--timeout: {mistake}"))?;
        if !(1..=MAX_TIMEOUT_S).contains(&seconds) {
            bail!("--timeout: must be from 1s to {MAX_TIMEOUT_S}s");
        }
        let family = match (args.ipv4, args.ipv6) {
            (true, _) => Family::V4,
            (_, true) => Family::V6,
            _ => Family::Any,
        };
        Ok(Self {
            uri,
            via,
            family,
            timeout: Duration::from_secs(seconds),
        })
    }

    /// The transport between this machine and the server.
    pub(super) fn transport(&self) -> &'static str {
        match self.via {
            Via::Tcp => "tcp",
            Via::Tls(_) => "tls",
            Via::Dtls(_) => "dtls",
            _ => "udp",
        }
    }

    /// Whether it is reached over plain UDP.
    pub(super) fn is_udp(&self) -> bool {
        self.via == Via::Udp
    }

    /// Whether it is reached over DTLS.
    pub(super) fn is_dtls(&self) -> bool {
        matches!(self.via, Via::Dtls(_))
    }

    /// Its addresses of the wanted family, at least one, in the order of the resolver.
    pub(super) fn addresses(&self) -> Result<Vec<ServerAddress>> {
        let found = self
            .uri
            .resolve()
            .with_context(|| format!("cannot find the address of {}: check the name", self.uri))?;
        self.of_family(found)
    }

    /// The servers for NAT behaviour discovery, of the wanted family. RFC 5780 §5.1: a name without a port is a domain,
    /// whose SRV records are asked for. `name_server` is asked in place of those of the system.
    pub(super) fn servers_for_nat(
        &self,
        name_server: Option<SocketAddr>,
    ) -> Result<Vec<ServerAddress>> {
        match (&self.uri.host, self.uri.port) {
            (Host::Name(domain), None) => {
                self.of_family(srv::find(domain, &self.via, name_server, self.timeout)?)
            }
            _ => self.addresses(),
        }
    }

    fn of_family(&self, found: Vec<SocketAddr>) -> Result<Vec<ServerAddress>> {
        let wanted: Vec<_> = found
            .into_iter()
            .filter(|address| self.family.admits(address))
            .map(|address| ServerAddress {
                address,
                via: self.via.clone(),
            })
            .collect();
        match (wanted.is_empty(), self.family) {
            (false, _) => Ok(wanted),
            (true, Family::V6) => bail!("{} has no IPv6 address: leave out --ipv6", self.uri),
            (true, _) => bail!("{} has no IPv4 address: leave out --ipv4", self.uri),
        }
    }
}

impl Family {
    fn admits(self, address: &SocketAddr) -> bool {
        match self {
            Self::Any => true,
            Self::V4 => address.is_ipv4(),
            Self::V6 => address.is_ipv6(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(text: &str, timeout: &str, ipv6: bool) -> Result<Target> {
        let args = Args {
            target: text.to_owned(),
            timeout: timeout.to_owned(),
            ipv4: false,
            ipv6,
            json: false,
            tls: crate::cli::tls::Tls::default(),
        };
        Target::new(&args, Scheme::Turn)
    }

    #[test]
    fn malformed_targets_are_refused() {
        for text in [
            "turn:192.0.2.1?transport=udp",
            "turn:192.0.2.1?transport=tcp",
            "turns:192.0.2.1?transport=udp",
        ] {
            assert!(target(text, "5s", false).is_ok(), "{text}");
        }
        for text in [
            "turns:192.0.2.1?transport=sctp",
            "https://example.org",
            "",
            "a b",
        ] {
            assert!(target(text, "5s", false).is_err(), "{text}");
        }
    }

    #[test]
    fn timeouts_have_bounds() {
        for text in ["0s", "1d", "5x", ""] {
            assert!(target("192.0.2.1", text, false).is_err(), "{text}");
        }
    }

    #[test]
    fn addresses_are_of_the_wanted_family() {
        let any = target("192.0.2.1", "5s", false).and_then(|target| target.addresses());
        let address: SocketAddr = "192.0.2.1:3478".parse().unwrap();
        assert_eq!(any.unwrap(), [ServerAddress::from(address)]);
        let none = target("192.0.2.1", "5s", true).and_then(|target| target.addresses());
        assert!(none.unwrap_err().to_string().contains("no IPv6 address"));
    }
}
