//! What arrives at a relayed transport address: the hot path towards clients (RFC 8656 §11.3, §12.7), and ICMP errors (§11.5).

use std::net::SocketAddr;

use stun::{
    Builder, Class, INDICATION_HEADER_MAX, Icmp, Method, XorPeerAddress, data_indication_header,
};

use super::channel_data::check;
use super::policy::PeerClass;
use super::relay::Relay;
use super::{DropReason, IcmpError, Server, Verdict};
use crate::{Now, RelayKey, Run};

/// The most a UDP datagram carries over IPv4.
const UDP_MAX: usize = 65_507;
/// The longest datagram from a peer that fits behind a ChannelData header.
const CHANNEL_MAX: usize = UDP_MAX - stun::channel_data::HEADER_LEN;
/// The longest datagram from a peer that fits into a Data indication, with its padding.
const INDICATION_MAX: usize = (UDP_MAX - INDICATION_HEADER_MAX) & !3;

/// RFC 8656 §18.13: the types whose Error Data is the MTU of the next hop: ICMPv4 (3, 4) and ICMPv6 2.
const V4_UNREACHABLE: u8 = 3;
const V4_FRAGMENTATION_NEEDED: u8 = 4;
const V6_PACKET_TOO_BIG: u8 = 2;

impl Server {
    /// Datagrams from one peer.
    pub(super) fn peer_datagrams(
        &mut self,
        now: Now,
        key: RelayKey,
        from: SocketAddr,
        run: Run<'_>,
    ) -> Verdict {
        // All of them go the same way: whatever channel the first one belongs to, the others do.
        let covers = run.count();
        match self.towards_client(now, key, from, run) {
            Ok(verdict) => verdict,
            Err(reason) => self.discard(covers, reason),
        }
    }

    fn towards_client(
        &mut self,
        now: Now,
        key: RelayKey,
        from: SocketAddr,
        run: Run<'_>,
    ) -> Result<Verdict, DropReason> {
        let live = match self.relays.get_tenant(key.index, key.generation) {
            Some(Relay::Live(live)) if live.expires > now.mono => live,
            Some(Relay::Live(_)) => return Err(DropReason::AllocationExpired),
            Some(_) => return Err(DropReason::RelayNotInUse),
            None => return Err(DropReason::StaleRelay),
        };
        let place = live.client;
        let (policy, epoch) = (&*self.config.policy, self.policy_epoch);
        let channel = match live.channels.bound_to(&from, now.mono) {
            Some(channel) => {
                check(channel, now, policy, epoch).map_err(|reason| match reason {
                    DropReason::NoPermission => DropReason::PeerWithoutPermission,
                    other => other,
                })?;
                Some(channel.number)
            }
            None => {
                let permission = live.permissions.get(&from.ip(), now.mono);
                let permission = permission.ok_or(DropReason::PeerWithoutPermission)?;
                if permission.policy_epoch != epoch {
                    if policy.classify(from.ip()) == PeerClass::Denied {
                        return Err(DropReason::PeerNotAllowed);
                    }
                    permission.policy_epoch = epoch;
                }
                None
            }
        };
        let longest = if channel.is_some() {
            CHANNEL_MAX
        } else {
            INDICATION_MAX
        };
        if run.first().len() > longest {
            return Err(DropReason::TooLong);
        }
        let covers = run.count();
        let client = self.clients.get_mut(place).ok_or(DropReason::StaleRelay)?;
        let path = client.path.path();
        self.stats.to_clients.add(covers, run.bytes.len());
        client.count_to_client(covers, run.bytes.len());
        // RFC 8656 §12.5: the server "MUST use the ChannelData message if a channel has been bound to the peer".
        Ok(match channel {
            Some(channel) => Verdict::ToClient {
                covers,
                path,
                channel,
            },
            None => Verdict::Indicate { covers, path },
        })
    }

    /// The head of a Data indication (RFC 8656 §11.3).
    pub(super) fn data_indication(
        &mut self,
        peer: SocketAddr,
        payload_len: usize,
        header: &mut [u8; 64],
    ) -> usize {
        let id = self.random.transaction_id();
        let head = header.first_chunk_mut::<INDICATION_HEADER_MAX>();
        head.and_then(|head| data_indication_header(head, &id, &peer, payload_len))
            .unwrap_or(0)
    }

    /// An ICMP error: passed on to the client as a Data indication, also where there is a channel (RFC 8656 §12.5).
    pub(super) fn icmp(
        &mut self,
        now: Now,
        key: RelayKey,
        peer: SocketAddr,
        icmp: IcmpError,
    ) -> Result<(), DropReason> {
        // RFC 8656 §11.5: "type is either 3 or 11 for an ICMPv4 packet or either 1, 2, or 3 for an ICMPv6 packet".
        let is_relayed = match peer {
            SocketAddr::V4(_) => matches!(icmp.kind, V4_UNREACHABLE | 11),
            SocketAddr::V6(_) => matches!(icmp.kind, 1..=3),
        };
        if !is_relayed {
            return Err(DropReason::IcmpNotRelayed);
        }
        let relay = self
            .relays
            .get_tenant(key.index, key.generation)
            .ok_or(DropReason::StaleRelay)?;
        let live = relay.live_mut().ok_or(DropReason::RelayNotInUse)?;
        if live.expires <= now.mono {
            return Err(DropReason::AllocationExpired);
        }
        // The permission that counts is that of the peer it was sent to, not of whoever sent the ICMP message.
        live.permissions
            .get(&peer.ip(), now.mono)
            .ok_or(DropReason::PeerWithoutPermission)?;
        let path = self
            .clients
            .get(live.client)
            .ok_or(DropReason::StaleRelay)?
            .path
            .path();
        let id = self.random.transaction_id();
        let attribute = Icmp {
            icmp_type: icmp.kind,
            icmp_code: icmp.code,
            error_data: error_data(&peer, icmp),
        };
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

/// RFC 8656 §18.13: the MTU where the message is about size, zero otherwise.
const fn error_data(peer: &SocketAddr, icmp: IcmpError) -> u32 {
    let is_about_size = match peer {
        SocketAddr::V4(_) => icmp.kind == V4_UNREACHABLE && icmp.code == V4_FRAGMENTATION_NEEDED,
        SocketAddr::V6(_) => icmp.kind == V6_PACKET_TOO_BIG,
    };
    if is_about_size { icmp.mtu } else { 0 }
}
