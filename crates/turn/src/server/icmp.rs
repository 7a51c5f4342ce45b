//! ICMP errors for what was sent to peers (RFC 8656 §11.5). The client gets a Data indication with ICMP. No permission
//! and no channel ends by an ICMP error.

use std::net::SocketAddr;

use stun::{Builder, Class, Icmp, Method, XorPeerAddress};

use super::data::live;
use super::limiter::RelayDirection;
use super::policy::{PeerClass, PeerPolicy, class_of_address, class_of_peer};
use super::{ClientIdentity, DropReason, Server};
use crate::{Now, RelayKey};

/// An ICMP error that came back for a datagram sent from a relay (RFC 8656 §11.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IcmpError {
    /// The ICMP or ICMPv6 type.
    pub kind: u8,
    /// The code within the type.
    pub code: u8,
    /// The next hop's MTU, where the message is about size; else 0.
    pub mtu: u32,
}

const V4_UNREACHABLE: u8 = 3;
const V4_FRAGMENTATION_NEEDED: u8 = 4;
const V4_TIME_EXCEEDED: u8 = 11;
const V6_UNREACHABLE: u8 = 1;
const V6_PACKET_TOO_BIG: u8 = 2;
const V6_TIME_EXCEEDED: u8 = 3;

/// The bytes that an indication counts towards the rate limit of the allocation: those of its ICMP attribute.
const ICMP_INDICATION_LEN: usize = 8;

impl IcmpError {
    /// RFC 8656 §11.5: "type is either 3 or 11 for an ICMPv4 packet or either 1, 2, or 3 for an ICMPv6
    /// packet".
    const fn is_relayed(self, peer: &SocketAddr) -> bool {
        match peer {
            SocketAddr::V4(_) => matches!(self.kind, V4_UNREACHABLE | V4_TIME_EXCEEDED),
            SocketAddr::V6(_) => matches!(
                self.kind,
                V6_UNREACHABLE | V6_PACKET_TOO_BIG | V6_TIME_EXCEEDED
            ),
        }
    }

    /// RFC 8656 §18.13: the MTU where the message is about size, zero otherwise.
    const fn error_data(self, peer: &SocketAddr) -> u32 {
        let is_about_size = match peer {
            SocketAddr::V4(_) => {
                self.kind == V4_UNREACHABLE && self.code == V4_FRAGMENTATION_NEEDED
            }
            SocketAddr::V6(_) => self.kind == V6_PACKET_TOO_BIG,
        };
        if is_about_size { self.mtu } else { 0 }
    }
}

/// Whether the policy denies this peer. Then the client gets no indication. Port 0 means that the port is unknown: the
/// kernel of this host has raised the error, because a datagram is longer than the MTU of the interface.
fn is_denied(policy: &dyn PeerPolicy, client: &ClientIdentity<'_>, peer: SocketAddr) -> bool {
    let class = match peer.port() {
        0 => class_of_address(policy, client, peer.ip()),
        _ => class_of_peer(policy, client, peer),
    };
    class == PeerClass::Denied
}

impl Server {
    /// Handles an ICMP error for a datagram that was sent from the relay's socket to `peer` (RFC 8656 §11.5). The
    /// client gets a Data indication, also if the peer has a channel (RFC 8656 §12.5).
    ///
    /// # Errors
    /// The reason why the client gets no indication. Counted in [`Stats`](super::Stats).
    pub fn handle_icmp(
        &mut self,
        now: Now,
        relay: RelayKey,
        peer: SocketAddr,
        icmp: IcmpError,
    ) -> Result<(), DropReason> {
        let outcome = self.relay_icmp(now, relay, peer, icmp);
        if let Err(reason) = outcome {
            self.stats.count_drops(reason, 1);
        }
        outcome
    }

    /// Queues a Data indication with an ICMP error for the client (RFC 8656 §11.5). `peer` is where the datagram was
    /// sent to. Returns the reason if the client gets none, such as a missing permission for `peer`.
    fn relay_icmp(
        &mut self,
        now: Now,
        key: RelayKey,
        peer: SocketAddr,
        icmp: IcmpError,
    ) -> Result<(), DropReason> {
        if !icmp.is_relayed(&peer) {
            return Err(DropReason::IcmpNotRelayed);
        }
        let live = live(&mut self.relays, now, key)?;
        // The permission must be for the peer that the datagram was sent to, not for the sender of the ICMP message.
        live.permissions
            .get(&peer.ip(), now.mono)
            .ok_or(DropReason::PeerWithoutPermission)?;
        let place = live.client;
        let client = self.clients.get(place).ok_or(DropReason::StaleRelay)?;
        // A reload may have denied the peer since.
        if is_denied(&*self.config.policy, &client.identity(), peer) {
            return Err(DropReason::PeerNotAllowed);
        }
        let path = client.path.path();
        // An indication is traffic towards the client like any other.
        if !self.limiter.admits(
            now.mono,
            place,
            RelayDirection::ToClient,
            ICMP_INDICATION_LEN,
        ) {
            return Err(DropReason::OverRate);
        }
        let attribute = Icmp {
            icmp_type: icmp.kind,
            icmp_code: icmp.code,
            error_data: icmp.error_data(&peer),
        };
        let id = self.random.transaction_id();
        let mut buffer = [0; 128];
        let written = Builder::new(&mut buffer, Class::Indication, Method::DATA, &id).and_then(
            |mut message| {
                message.push(&XorPeerAddress(peer))?.push(&attribute)?;
                Ok(message.finish())
            },
        );
        self.outputs.send(path, written.unwrap_or_default());
        Ok(())
    }
}
