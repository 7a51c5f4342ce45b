//! Where a response goes (RFC 3261 §18.2.2, RFC 3581 §4), and when a request needs a stream (§18.1.1).

use std::net::{IpAddr, SocketAddr};

use crate::flow::Transport;

/// RFC 3261 §18.1.1: a larger request goes over a transport with congestion control, where the path's MTU is not known.
pub const LARGEST_DATAGRAM: usize = 1300;

/// Whether a request of this size requires a stream transport instead of this one. RFC 3261 §18.1.1: if it is within
/// 200 bytes of the path MTU, or longer than 1300 bytes if the path MTU is unknown.
#[must_use]
pub fn wants_stream(transport: Transport, bytes: usize, path_mtu: Option<usize>) -> bool {
    let largest = path_mtu.map_or(LARGEST_DATAGRAM, |mtu| mtu.saturating_sub(200));
    transport == Transport::Udp && bytes > largest
}

/// The parts of the topmost Via of a request that name its sender.
#[derive(Clone, Copy, Debug, Default)]
pub struct SentBy {
    /// The port of sent-by.
    pub port: Option<u16>,
    /// `rport` is there, with or without a value.
    pub rport: bool,
    /// `maddr`, if it is an address.
    pub maddr: Option<IpAddr>,
}

/// The address of a response.
///
/// With `rport` it is the request's source (RFC 3581 §4). Otherwise it is the source's address with the port of
/// sent-by. `maddr` replaces the address (RFC 3261 §18.2.2), unless it is a multicast or broadcast address. A response
/// to such an address would let one request reach many hosts. `maddr` is also ignored if it is loopback, link-local or
/// private and the source is not.
///
/// For a stream this is where a new connection is opened when that of the request is closed.
#[must_use]
pub fn response_address(transport: Transport, source: SocketAddr, via: SentBy) -> SocketAddr {
    let port = via.port.unwrap_or(transport.default_port());
    // With its scope: a link-local address means nothing without.
    let mut at_source = source;
    at_source.set_port(port);
    if transport.is_reliable() {
        return at_source;
    }
    let may = |maddr: &IpAddr| is_unicast(*maddr) && depth(*maddr) <= depth(source.ip());
    match via.maddr.filter(may) {
        Some(maddr) => SocketAddr::new(maddr, port),
        None if via.rport => source,
        None => at_source,
    }
}

fn is_unicast(address: IpAddr) -> bool {
    let address = address.to_canonical();
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !address.is_multicast() && !address.is_unspecified() && !is_broadcast
}

/// How far inside a network an address is. A source may name a `maddr` of its own depth or less.
fn depth(address: IpAddr) -> u8 {
    let (is_private, is_link_local) = match address.to_canonical() {
        IpAddr::V4(v4) => {
            let [first, second, ..] = v4.octets();
            // RFC 6598: addresses of a provider's own.
            let is_shared = first == 100 && second & 0xc0 == 64;
            (v4.is_private() || is_shared, v4.is_link_local())
        }
        IpAddr::V6(v6) => (v6.is_unique_local(), v6.is_unicast_link_local()),
    };
    match () {
        () if address.to_canonical().is_loopback() => 3,
        () if is_link_local => 2,
        () if is_private => 1,
        () => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source() -> SocketAddr {
        ([192, 0, 2, 1], 40_000).into()
    }

    fn to(via: SentBy) -> SocketAddr {
        response_address(Transport::Udp, source(), via)
    }

    #[test]
    fn with_rport_it_goes_to_the_source_and_without_to_the_port_of_sent_by() {
        let asked = SentBy {
            port: Some(5070),
            rport: true,
            maddr: None,
        };
        assert_eq!(to(asked), source());
        let not_asked = SentBy {
            rport: false,
            ..asked
        };
        assert_eq!(to(not_asked), ([192, 0, 2, 1], 5070).into());
        assert_eq!(to(SentBy::default()), ([192, 0, 2, 1], 5060).into());
    }

    #[test]
    fn maddr_counts_unless_it_reaches_many() {
        let with = |maddr: &str| {
            to(SentBy {
                port: None,
                rport: true,
                maddr: Some(maddr.parse().unwrap()),
            })
        };
        assert_eq!(with("198.51.100.9"), ([198, 51, 100, 9], 5060).into());
        for many in [
            "224.0.1.75",
            "255.255.255.255",
            "ff02::1",
            "::ffff:224.0.0.1",
            "0.0.0.0",
        ] {
            assert_eq!(with(many), source(), "{many}");
        }
    }

    #[test]
    fn maddr_reaches_no_further_in_than_its_sender() {
        let from = |source: &str, maddr: &str| {
            let via = SentBy {
                port: None,
                rport: true,
                maddr: Some(maddr.parse().unwrap()),
            };
            let source = SocketAddr::new(source.parse().unwrap(), 40_000);
            response_address(Transport::Udp, source, via) != source
        };
        for inside in [
            "127.0.0.1",
            "10.0.0.1",
            "100.64.0.1",
            "169.254.169.254",
            "::1",
            "fd00::1",
            "fe80::1",
            "::ffff:127.0.0.1",
        ] {
            assert!(!from("192.0.2.1", inside), "{inside}");
        }
        assert!(from("10.9.9.9", "10.0.0.1") && from("127.0.0.1", "10.0.0.1"));
        assert!(from("fd00::2", "fd00::1") && !from("10.9.9.9", "127.0.0.1"));
    }

    #[test]
    fn a_new_connection_goes_to_the_port_of_sent_by() {
        let via = SentBy {
            port: None,
            rport: true,
            maddr: None,
        };
        let address = response_address(Transport::Tls, source(), via);
        assert_eq!(address, ([192, 0, 2, 1], 5061).into());
    }

    #[test]
    fn a_link_local_source_keeps_its_scope() {
        let source: SocketAddr = "[fe80::2%3]:40000".parse().unwrap();
        let via = SentBy {
            port: Some(5070),
            ..SentBy::default()
        };
        for transport in [Transport::Udp, Transport::Tcp] {
            let address = response_address(transport, source, via);
            assert_eq!(address, "[fe80::2%3]:5070".parse().unwrap());
        }
    }

    #[test]
    fn large_requests_want_a_stream() {
        assert!(!wants_stream(Transport::Udp, 1300, None));
        assert!(wants_stream(Transport::Udp, 1301, None));
        assert!(!wants_stream(Transport::Tcp, 9000, None));
        assert!(wants_stream(Transport::Udp, 1100, Some(1280)));
        assert!(!wants_stream(Transport::Udp, 8000, Some(9000)));
    }
}
