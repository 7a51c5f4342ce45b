//! Names of flows (RFC 5626 §5.2). A binding keeps the flow of its REGISTER, and a Path or Record-Route URI has the
//! name as its user.
//!
//! ```text
//! kind  worker  listener  run  connection  local address      remote address     MAC
//!  8     16       16      32   64 or none  48 (v4), 176 (v6)  48 (v4), 176 (v6)   64 bits
//! ```
//!
//! A token is that in base64 (RFC 4648 §5), which needs no escape in the user of a URI. Any worker can read it, also
//! after a restart and with another number of workers; nobody without the key can make one up.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sip::HashKey;
use sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};

/// Bytes of the longest flow as it is kept.
pub(crate) const FLOW_LEN: usize = 1 + 2 + 2 + 4 + 8 + 2 * ADDRESS_LEN;
const ADDRESS_LEN: usize = 16 + 2 + 4;
const MAC_LEN: usize = 8;
/// Characters of the longest token.
pub const MAX_TOKEN: usize = (FLOW_LEN + MAC_LEN).div_ceil(3) * 4;

/// The transport is in the lower bits of the first byte.
const TRANSPORTS: [Transport; 5] = [
    Transport::Udp,
    Transport::Tcp,
    Transport::Tls,
    Transport::Ws,
    Transport::Wss,
];
const TRANSPORT_BITS: u8 = 0b111;
const LOCAL_IS_V6: u8 = 0x10;
const REMOTE_IS_V6: u8 = 0x20;
const HAS_CONNECTION: u8 = 0x40;

/// A flow, and who has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowId {
    /// The worker that has the connection.
    pub worker: u16,
    /// The run of the server in which `worker` and the keys of the listener and the connection are valid. Each run has
    /// another number.
    pub run: u32,
    /// The flow.
    pub flow: Flow,
}

/// The runs of the server whose connections may still exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Runs {
    /// The run of this process.
    pub own: u32,
    /// During an upgrade, the run of the other process.
    pub other: Option<u32>,
}

impl Runs {
    /// The runs of a process without another one.
    #[must_use]
    pub const fn of(own: u32) -> Runs {
        Runs { own, other: None }
    }
}

/// What is left of a flow in a run of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowAvailability {
    /// It is of this run, or a connection of the other process: its worker can find out whether the connection still
    /// exists.
    Current,
    /// Datagrams of an earlier run: they go to the remote address from a listener at the local one, which any worker
    /// has.
    Datagrams,
    /// A connection of an earlier run, which is closed. A request for it gets 430 (RFC 5626 §5.3.1).
    Gone,
}

impl FlowId {
    /// The part of the flow that still exists in these runs.
    #[must_use]
    pub fn state(&self, runs: Runs) -> FlowAvailability {
        match self.flow.connection {
            _ if self.run == runs.own => FlowAvailability::Current,
            None => FlowAvailability::Datagrams,
            Some(_) if runs.other == Some(self.run) => FlowAvailability::Current,
            Some(_) => FlowAvailability::Gone,
        }
    }

    /// Writes the flow as it is kept.
    pub(crate) fn write<'b>(&self, buffer: &'b mut [u8; FLOW_LEN]) -> &'b [u8] {
        let flow = &self.flow;
        let transport = TRANSPORTS.iter().position(|known| *known == flow.transport);
        let mut kind = transport.unwrap_or_default() as u8;
        for (bit, is_set) in [
            (LOCAL_IS_V6, flow.local.is_ipv6()),
            (REMOTE_IS_V6, flow.remote.is_ipv6()),
            (HAS_CONNECTION, flow.connection.is_some()),
        ] {
            kind |= if is_set { bit } else { 0 };
        }
        let mut out = Writer { buffer, len: 0 };
        out.put(&[kind]);
        out.put(&self.worker.to_be_bytes());
        out.put(&flow.listener.0.to_be_bytes());
        out.put(&self.run.to_be_bytes());
        if let Some(connection) = flow.connection {
            out.put(&connection.0.to_be_bytes());
        }
        out.put_address(flow.local);
        out.put_address(flow.remote);
        let Writer { buffer, len } = out;
        buffer.get(..len).unwrap_or_default()
    }

    /// Reads the whole of what [`FlowId::write`] has written.
    pub(crate) fn read(bytes: &[u8]) -> Option<FlowId> {
        let mut rest = Reader(bytes);
        let [kind] = rest.take()?;
        let transport = *TRANSPORTS.get(usize::from(kind & TRANSPORT_BITS))?;
        let worker = u16::from_be_bytes(rest.take()?);
        let listener = ListenerKey(u16::from_be_bytes(rest.take()?));
        let run = u32::from_be_bytes(rest.take()?);
        let connection = match kind & HAS_CONNECTION != 0 {
            true => Some(ConnectionKey(u64::from_be_bytes(rest.take()?))),
            false => None,
        };
        let local = rest.take_address(kind & LOCAL_IS_V6 != 0)?;
        let remote = rest.take_address(kind & REMOTE_IS_V6 != 0)?;
        let flow = Flow {
            transport,
            listener,
            connection,
            local,
            remote,
        };
        rest.0.is_empty().then_some(FlowId { worker, run, flow })
    }
}

struct Writer<'b> {
    buffer: &'b mut [u8; FLOW_LEN],
    len: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        let end = self.len + bytes.len();
        // The buffer holds the longest flow.
        if let Some(room) = self.buffer.get_mut(self.len..end) {
            room.copy_from_slice(bytes);
            self.len = end;
        }
    }

    fn put_address(&mut self, address: SocketAddr) {
        match address {
            SocketAddr::V4(v4) => self.put(&v4.ip().octets()),
            SocketAddr::V6(v6) => {
                self.put(&v6.ip().octets());
                // A link-local address is valid on one interface only, which the scope ID names.
                self.put(&v6.scope_id().to_be_bytes());
            }
        }
        self.put(&address.port().to_be_bytes());
    }
}

struct Reader<'b>(&'b [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }

    fn take_address(&mut self, is_v6: bool) -> Option<SocketAddr> {
        if !is_v6 {
            let ip = Ipv4Addr::from(self.take::<4>()?);
            let port = u16::from_be_bytes(self.take()?);
            return Some(SocketAddr::new(IpAddr::V4(ip), port));
        }
        let ip = Ipv6Addr::from(self.take::<16>()?);
        let scope = u32::from_be_bytes(self.take()?);
        let port = u16::from_be_bytes(self.take()?);
        Some(SocketAddrV6::new(ip, port, 0, scope).into())
    }
}

/// The keys of the MACs in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenKeys {
    current: HashKey,
    /// Tokens that were signed with these keys are valid as well.
    others: Option<[HashKey; 2]>,
}

impl TokenKeys {
    /// One key. Tokens of earlier runs are valid only if those runs had the same key.
    #[must_use]
    pub const fn new(key: HashKey) -> TokenKeys {
        TokenKeys {
            current: key,
            others: None,
        }
    }

    /// The keys of three consecutive epochs. The middle one signs. So a token is valid for at least one more epoch. It
    /// is also valid at a node whose clock is in the epoch before or after.
    #[must_use]
    pub const fn of_epochs([previous, current, next]: [HashKey; 3]) -> TokenKeys {
        TokenKeys {
            current,
            others: Some([previous, next]),
        }
    }

    /// Keys that are derived from these.
    pub(crate) fn map(&self, derive: impl Fn(HashKey) -> HashKey) -> TokenKeys {
        TokenKeys {
            current: derive(self.current),
            others: self.others.map(|others| others.map(derive)),
        }
    }

    pub(crate) fn mac(&self, bytes: &[u8]) -> u64 {
        self.current.mac(bytes)
    }

    /// Whether one of the keys has made this MAC.
    pub(crate) fn is_mac(&self, mac: u64, bytes: &[u8]) -> bool {
        let others = self.others.iter().flatten();
        let mut all = std::iter::once(&self.current).chain(others);
        // The comparison of two numbers takes the same time for all values.
        all.any(|key| key.mac(bytes) == mac)
    }
}

/// Makes and reads flow tokens.
#[derive(Clone, Copy, Debug)]
pub struct FlowTokens {
    keys: TokenKeys,
}

impl FlowTokens {
    /// With these keys.
    #[must_use]
    pub fn new(keys: TokenKeys) -> FlowTokens {
        FlowTokens {
            keys: keys.map(|key| key.derive(5626)),
        }
    }

    /// Writes the token of a flow: the user of a Path or Record-Route URI.
    #[must_use]
    pub fn write<'b>(&self, flow: &FlowId, token: &'b mut [u8; MAX_TOKEN]) -> &'b [u8] {
        let mut buffer = [0; FLOW_LEN];
        let bytes = flow.write(&mut buffer);
        let mut signed = [0; FLOW_LEN + MAC_LEN];
        let end = bytes.len() + MAC_LEN;
        signed[..bytes.len()].copy_from_slice(bytes);
        signed[bytes.len()..end].copy_from_slice(&self.keys.mac(bytes).to_be_bytes());
        // The token has room for the longest.
        let written = URL_SAFE_NO_PAD.encode_slice(&signed[..end], token);
        &token[..written.unwrap_or_default()]
    }

    /// The flow of a token; `None` if this server did not make the token. RFC 5626 §5.3.1 requires 403 then.
    #[must_use]
    pub fn read(&self, token: &[u8]) -> Option<FlowId> {
        let mut signed = [0; MAX_TOKEN];
        let len = URL_SAFE_NO_PAD.decode_slice(token, &mut signed).ok()?;
        let (bytes, mac) = signed.get(..len)?.split_last_chunk::<MAC_LEN>()?;
        let is_genuine = self.keys.is_mac(u64::from_be_bytes(*mac), bytes);
        is_genuine.then(|| FlowId::read(bytes))?
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(transport: Transport, local: &str, remote: &str) -> FlowId {
        FlowId {
            worker: 0x0102,
            run: 0x0304_0506,
            flow: Flow {
                transport,
                listener: ListenerKey(0x0708),
                connection: transport
                    .is_reliable()
                    .then_some(ConnectionKey(0x090a_0b0c_0d0e_0f10)),
                local: local.parse().unwrap(),
                remote: remote.parse().unwrap(),
            },
        }
    }

    fn all() -> Vec<FlowId> {
        let addresses = [
            ("192.0.2.1:5060", "198.51.100.7:40000"),
            ("[2001:db8::1]:5061", "[2001:db8::2]:1"),
            ("[fe80::1%3]:5060", "[fe80::2%3]:5060"),
        ];
        let mut flows = Vec::new();
        for transport in TRANSPORTS {
            flows.extend(addresses.map(|(local, remote)| flow(transport, local, remote)));
        }
        flows
    }

    fn tokens() -> FlowTokens {
        FlowTokens::new(TokenKeys::new(HashKey::new([1; 16])))
    }

    #[test]
    fn a_token_names_worker_connection_and_addresses_rfc5626_5_2() {
        for flow in all() {
            let mut token = [0; MAX_TOKEN];
            let token = tokens().write(&flow, &mut token);
            assert_eq!(tokens().read(token), Some(flow));
            // Fit for the user of a URI without an escape.
            let is_user = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
            assert!(token.iter().all(is_user));
        }
    }

    #[test]
    fn a_changed_token_is_a_forgery_rfc5626_5_3_1() {
        let mut buffer = [0; MAX_TOKEN];
        let whole = tokens().write(&all()[0], &mut buffer).to_vec();
        for at in 0..whole.len() {
            for other in [b'A', b'z', b'0', b'_', b'='] {
                let mut changed = whole.clone();
                changed[at] = other;
                let is_same = changed == whole;
                assert_eq!(tokens().read(&changed).is_some(), is_same, "{at}");
            }
            assert_eq!(tokens().read(&whole[..at]), None, "{at}");
        }
        assert_eq!(tokens().read(&[b'A'; 1000]), None);
        let other_key = FlowTokens::new(TokenKeys::new(HashKey::new([2; 16])));
        assert_eq!(other_key.read(&whole), None);
    }

    #[test]
    fn a_token_is_valid_in_its_own_epoch_and_in_the_ones_around_it() {
        let epoch = |number: u8| {
            let around = [number - 1, number, number + 1];
            FlowTokens::new(TokenKeys::of_epochs(
                around.map(|it| HashKey::new([it; 16])),
            ))
        };
        let mut buffer = [0; MAX_TOKEN];
        let token = epoch(5).write(&all()[0], &mut buffer).to_vec();
        for (number, is_valid) in [(3, false), (4, true), (5, true), (6, true), (7, false)] {
            let expected = is_valid.then_some(all()[0]);
            assert_eq!(epoch(number).read(&token), expected, "{number}");
        }
    }

    #[test]
    fn connections_end_with_their_run_and_datagrams_do_not_rfc5626_5_3_1() {
        let run = 0x0304_0506;
        for flow in all() {
            assert_eq!(flow.state(Runs::of(run)), FlowAvailability::Current);
            let is_udp = flow.flow.transport == Transport::Udp;
            let later = match is_udp {
                true => FlowAvailability::Datagrams,
                false => FlowAvailability::Gone,
            };
            assert_eq!(flow.state(Runs::of(run + 1)), later);
            // Another process has the connection during an upgrade; every process has sockets for datagrams.
            let beside = match is_udp {
                true => FlowAvailability::Datagrams,
                false => FlowAvailability::Current,
            };
            let other = Some(run);
            assert_eq!(
                flow.state(Runs {
                    own: run + 1,
                    other
                }),
                beside
            );
        }
    }

    #[test]
    fn no_bytes_make_a_flow_that_was_not_written() {
        let mut buffer = [0; FLOW_LEN];
        for flow in all() {
            let bytes = flow.write(&mut buffer).to_vec();
            assert_eq!(FlowId::read(&bytes), Some(flow));
            for len in 0..bytes.len() {
                assert_eq!(FlowId::read(&bytes[..len]), None);
            }
            assert_eq!(FlowId::read(&[&bytes[..], &[0]].concat()), None);
        }
    }
}
