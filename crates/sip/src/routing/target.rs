//! The TARGET of a URI, with which the procedure of RFC 3263 §4 begins.

use super::locate::{Locate, Scheme};
use super::name::DnsName;
use crate::flow::{PeerName, Transport};
use crate::header::{Via, ViaTransport};
use crate::uri::{SipUri, Uri};

/// Why a URI leads nowhere, regardless of the DNS.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TargetError {
    /// It is no URI of SIP, or malformed.
    #[error("not a sip or sips URI")]
    Scheme,
    /// Its host cannot be a name of the DNS.
    #[error("the host of the URI is no name")]
    Host,
    /// It names a transport that is not known here.
    #[error("the URI names a transport that is not known")]
    Transport,
}

impl Locate {
    /// What a request for this URI looks for: the Request-URI, or the URI of the topmost Route (RFC 3261 §8.1.2).
    ///
    /// # Errors
    /// [`TargetError`].
    pub fn of(uri: &[u8]) -> Result<Locate, TargetError> {
        match Uri::parse(uri) {
            Ok(Uri::Sip(uri)) => Locate::of_sip(&uri),
            _ => Err(TargetError::Scheme),
        }
    }

    /// The name that the server of this URI must prove over TLS. It is the host of the URI, regardless of maddr and DNS
    /// results (RFC 5922 §7.3).
    #[must_use]
    pub fn peer_name(uri: &[u8]) -> Option<PeerName> {
        match Uri::parse(uri) {
            Ok(Uri::Sip(uri)) => Some(PeerName::of(uri.host)),
            _ => None,
        }
    }

    /// [`Locate::of`] and [`Locate::peer_name`]. There is no name for an address that is not reached over TLS.
    pub(crate) fn with_peer_name(uri: &[u8]) -> Result<(Locate, Option<PeerName>), TargetError> {
        let Ok(Uri::Sip(uri)) = Uri::parse(uri) else {
            return Err(TargetError::Scheme);
        };
        let target = Locate::of_sip(&uri)?;
        let name = target.may_use_tls().then(|| PeerName::of(uri.host));
        Ok((target, name))
    }

    /// RFC 3263 §4.1: for an address, the scheme and the parameter `transport` alone decide.
    fn may_use_tls(&self) -> bool {
        match self {
            Locate::Address {
                transport: None,
                scheme,
                ..
            } => *scheme == Scheme::Sips,
            Locate::Address {
                transport: Some(transport),
                scheme,
                ..
            } => *scheme == Scheme::Sips || transport.is_secure(),
            Locate::Name { .. } => true,
        }
    }

    /// The destination of a response if the address of its request does not accept it (RFC 3263 §5). It is sent-by of
    /// the topmost Via, over the transport in that Via. `None` if sent-by is not a valid name.
    #[must_use]
    pub fn of_sent_by(via: &Via<'_>) -> Option<Locate> {
        let transport = Some(supported(via.transport).ok()?);
        let (port, scheme) = (via.port, Scheme::Sip);
        if let Some(ip) = via.host.ip() {
            return Some(Locate::Address {
                ip,
                port,
                transport,
                scheme,
            });
        }
        Some(Locate::Name {
            host: DnsName::new(via.host.as_bytes())?,
            port,
            transport,
            scheme,
        })
    }

    fn of_sip(uri: &SipUri<'_>) -> Result<Locate, TargetError> {
        // RFC 3263 §4: TARGET is maddr, if it is there.
        let host = uri.maddr().unwrap_or(uri.host);
        let scheme = if uri.is_sips {
            Scheme::Sips
        } else {
            Scheme::Sip
        };
        let transport = uri.transport().map(supported).transpose()?;
        let port = uri.port;
        if let Some(ip) = host.ip() {
            return Ok(Locate::Address {
                ip,
                port,
                transport,
                scheme,
            });
        }
        let host = DnsName::new(host.as_bytes()).ok_or(TargetError::Host)?;
        Ok(Locate::Name {
            host,
            port,
            transport,
            scheme,
        })
    }
}

fn supported(transport: ViaTransport<'_>) -> Result<Transport, TargetError> {
    match transport {
        ViaTransport::Udp => Ok(Transport::Udp),
        ViaTransport::Tcp => Ok(Transport::Tcp),
        ViaTransport::Tls => Ok(Transport::Tls),
        ViaTransport::Ws => Ok(Transport::Ws),
        ViaTransport::Wss => Ok(Transport::Wss),
        _ => Err(TargetError::Transport),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uris_name_hosts_ports_and_transports() {
        let name = |host: &str, port, transport, scheme| {
            Ok(Locate::Name {
                host: DnsName::new(host.as_bytes()).unwrap(),
                port,
                transport,
                scheme,
            })
        };
        let of = |uri: &str| Locate::of(uri.as_bytes());
        let plain = name("example.org", None, None, Scheme::Sip);
        assert_eq!(of("sip:bob@Example.org"), plain);
        let full = name("h.example", Some(5070), Some(Transport::Tcp), Scheme::Sip);
        assert_eq!(of("sip:h.example:5070;transport=TCP;lr"), full);
        let secure = name("h.example", None, None, Scheme::Sips);
        assert_eq!(of("sips:h.example"), secure);
        let address = Ok(Locate::Address {
            ip: "2001:db8::1".parse().unwrap(),
            port: Some(5071),
            transport: None,
            scheme: Scheme::Sip,
        });
        assert_eq!(of("sip:a@[2001:db8::1]:5071"), address);
    }

    #[test]
    fn addresses_that_are_not_reached_over_tls_have_no_name_to_prove() {
        let name = |uri: &str| {
            let (target, name) = Locate::with_peer_name(uri.as_bytes()).unwrap();
            assert_eq!(Ok(target), Locate::of(uri.as_bytes()), "{uri}");
            name.map(|name| name.as_str().to_owned())
        };
        for uri in ["sip:192.0.2.1", "sip:192.0.2.1:5070;transport=tcp"] {
            assert_eq!(name(uri), None, "{uri}");
        }
        for (uri, expected) in [
            ("sip:192.0.2.1;transport=tls", "192.0.2.1"),
            ("sips:[2001:db8::1];transport=tcp", "2001:db8::1"),
            ("sips:192.0.2.1", "192.0.2.1"),
            ("sip:Example.org", "example.org"),
            ("sip:192.0.2.1;maddr=example.org", "192.0.2.1"),
        ] {
            assert_eq!(name(uri).as_deref(), Some(expected), "{uri}");
        }
        assert!(Locate::with_peer_name(b"tel:1").is_err());
    }

    #[test]
    fn maddr_takes_the_place_of_the_host() {
        let found = Locate::of(b"sip:example.org:5070;maddr=192.0.2.7");
        let wanted = Ok(Locate::Address {
            ip: [192, 0, 2, 7].into(),
            port: Some(5070),
            transport: None,
            scheme: Scheme::Sip,
        });
        assert_eq!(found, wanted);
    }

    #[test]
    fn unroutable_targets_say_why() {
        for (uri, why) in [
            ("tel:+123", TargetError::Scheme),
            ("http://example.org", TargetError::Scheme),
            ("sip:", TargetError::Scheme),
            ("sip:a..b", TargetError::Host),
            ("sip:h.example;transport=sctp", TargetError::Transport),
        ] {
            assert_eq!(Locate::of(uri.as_bytes()), Err(why), "{uri}");
        }
    }
}
