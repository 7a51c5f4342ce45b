//! The header of the PROXY protocol, version 2. A load balancer writes it before the bytes of a connection or a
//! datagram. It holds the addresses of the client and the server. Version 1, which is text, is not supported.
//!
//! ```text
//! signature (12) | version, command (1) | family, protocol (1) | length (2) | addresses and extensions (length)
//! ```

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The signature that every header begins with.
pub const SIGNATURE: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";

/// Length of the fixed part in bytes.
const FIXED_BYTES: usize = 16;

/// The longest accepted header in bytes: addresses and nearly a kilobyte of extensions. The protocol allows 64 KiB.
const MAX_HEADER_BYTES: usize = 1_024;

/// The result of [`parse`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Proxy {
    /// The header is incomplete: call [`parse`] again with at least this number of bytes.
    Need(usize),
    /// A complete header.
    Header {
        /// Its length in bytes.
        len: usize,
        /// Client and server address as the load balancer sees them. `None` for the command LOCAL: the connection is
        /// the load balancer's own, for example a health check.
        addresses: Option<Addresses>,
    },
    /// There is no valid header of version 2: close the connection, or drop the datagram.
    Invalid,
}

/// The two ends of a connection to a load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Addresses {
    /// The client.
    pub client: SocketAddr,
    /// The address that the client connected to.
    pub server: SocketAddr,
}

/// The protocol between client and load balancer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carried {
    /// A stream: TCP.
    Stream,
    /// Datagrams: UDP.
    Datagrams,
}

/// Parses the header at the start of `bytes`, which come from a connection or a datagram.
#[must_use]
pub fn parse(bytes: &[u8], carried: Carried) -> Proxy {
    let Some(fixed) = bytes.first_chunk::<FIXED_BYTES>() else {
        let shared = bytes.len().min(SIGNATURE.len());
        return if bytes[..shared] == SIGNATURE[..shared] {
            Proxy::Need(FIXED_BYTES)
        } else {
            Proxy::Invalid
        };
    };
    let [version, family, l0, l1] = [fixed[12], fixed[13], fixed[14], fixed[15]];
    let len = FIXED_BYTES + usize::from(u16::from_be_bytes([l0, l1]));
    if !fixed.starts_with(SIGNATURE) || version >> 4 != 2 || len > MAX_HEADER_BYTES {
        return Proxy::Invalid;
    }
    let Some(body) = bytes.get(FIXED_BYTES..len) else {
        return Proxy::Need(len);
    };
    let addresses = match version & 15 {
        0 => None,
        1 => match addresses(body, family, carried) {
            Some(addresses) => Some(addresses),
            None => return Proxy::Invalid,
        },
        _ => return Proxy::Invalid,
    };
    Proxy::Header { len, addresses }
}

fn addresses(body: &[u8], family: u8, carried: Carried) -> Option<Addresses> {
    let protocol = match carried {
        Carried::Stream => 1,
        Carried::Datagrams => 2,
    };
    if family & 15 != protocol {
        return None;
    }
    match family >> 4 {
        1 => {
            let [client, server] = [ip::<4>(body, 0)?, ip::<4>(body, 4)?].map(Ipv4Addr::from);
            ends(body.get(8..12)?, client.into(), server.into())
        }
        2 => {
            let [client, server] = [ip::<16>(body, 0)?, ip::<16>(body, 16)?].map(Ipv6Addr::from);
            ends(body.get(32..36)?, client.into(), server.into())
        }
        _ => None,
    }
}

fn ip<const LEN: usize>(body: &[u8], at: usize) -> Option<[u8; LEN]> {
    body.get(at..at + LEN)?.try_into().ok()
}

fn ends(ports: &[u8], client: IpAddr, server: IpAddr) -> Option<Addresses> {
    let &[c0, c1, s0, s1] = ports else {
        return None;
    };
    let client = SocketAddr::new(client, u16::from_be_bytes([c0, c1]));
    let server = SocketAddr::new(server, u16::from_be_bytes([s0, s1]));
    // The server cannot send to port 0, nor apply limits per source to an unspecified or multicast address.
    let is_usable =
        client.port() != 0 && !client.ip().is_unspecified() && !client.ip().is_multicast();
    is_usable.then_some(Addresses { client, server })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(version: u8, family: u8, body: &[u8]) -> Vec<u8> {
        let length = u16::try_from(body.len()).unwrap().to_be_bytes();
        [SIGNATURE, &[version, family], &length, body].concat()
    }

    const V4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 2, 0x12, 0x34, 0x0d, 0x96];

    #[test]
    fn both_families_and_extensions_are_read() {
        let v4 = header(0x21, 0x11, &[&V4[..], &[3, 0, 4, 1, 2, 3, 4]].concat());
        let found = Proxy::Header {
            len: v4.len(),
            addresses: Some(Addresses {
                client: "192.0.2.1:4660".parse().unwrap(),
                server: "198.51.100.2:3478".parse().unwrap(),
            }),
        };
        assert_eq!(parse(&[&v4[..], b"rest"].concat(), Carried::Stream), found);
        for end in 0..v4.len() {
            let need = if end < FIXED_BYTES {
                FIXED_BYTES
            } else {
                v4.len()
            };
            assert_eq!(
                parse(&v4[..end], Carried::Stream),
                Proxy::Need(need),
                "{end}"
            );
        }
        let client: SocketAddr = "[2001:db8::1]:7".parse().unwrap();
        let server: SocketAddr = "[2001:db8::2]:443".parse().unwrap();
        let mut body = Vec::new();
        for end in [client, server] {
            let IpAddr::V6(ip) = end.ip() else {
                unreachable!()
            };
            body.extend(ip.octets());
        }
        body.extend([0, 7, 1, 187]);
        let v6 = header(0x21, 0x22, &body);
        let addresses = Some(Addresses { client, server });
        assert_eq!(
            parse(&v6, Carried::Datagrams),
            Proxy::Header { len: 52, addresses }
        );
    }

    #[test]
    fn a_local_connection_has_no_addresses() {
        let local = header(0x20, 0, &[]);
        let found = Proxy::Header {
            len: 16,
            addresses: None,
        };
        assert_eq!(parse(&local, Carried::Stream), found);
    }

    #[test]
    fn unusable_proxy_headers_are_refused() {
        let mut nobody = V4;
        nobody[..4].fill(0);
        let mut no_port = V4;
        no_port[8..10].fill(0);
        for bytes in [
            header(0x11, 0x11, &V4),
            header(0x22, 0x11, &V4),
            header(0x21, 0x12, &V4),
            header(0x21, 0x31, &V4),
            header(0x21, 0x11, &V4[..11]),
            header(0x21, 0x11, &nobody),
            header(0x21, 0x11, &no_port),
            header(0x21, 0x11, &[0; 1_100]),
            b"PROXY TCP4 192.0.2.1 198.51.100.2 1 2\r\n".to_vec(),
            b"\r\n\r\nX".to_vec(),
        ] {
            assert_eq!(parse(&bytes, Carried::Stream), Proxy::Invalid, "{bytes:?}");
        }
    }
}
