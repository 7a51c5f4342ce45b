//! Send indications (RFC 8656 §11.2). An invalid one is dropped without a response, and counted.

use std::net::SocketAddr;

use stun::{AttributeType, Data, FingerprintState, Message, XorPeerAddress};

use super::limiter::RelayDirection;
use super::policy::{ClientIdentity, PeerClass, PeerPolicy};
use super::relay::{LiveRelay, Relay};
use super::{ClientVerdict, DropReason, Server};
use crate::types::attribute::is_known;
use crate::{ClientPath, FiveTuple, Now, RelayKey};

/// What a Send indication asks for.
struct SendIndication<'a> {
    peer: SocketAddr,
    data: &'a [u8],
    dont_fragment: bool,
}

impl Server {
    /// Application data for a peer that need not have a channel.
    pub(super) fn send_indication(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
    ) -> ClientVerdict {
        match self.sent(now, path, message) {
            Ok(verdict) => verdict,
            // The client may have just moved here (RFC 8016).
            Err(DropReason::NoAllocation) if self.switches_to(now, &path.five_tuple) => {
                self.send_indication(now, path, message)
            }
            Err(reason) => self.drop_from_client(1, reason),
        }
    }

    /// Handles a Send indication (RFC 8656 §11.2).
    fn sent(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
    ) -> Result<ClientVerdict, DropReason> {
        let SendIndication {
            peer,
            data,
            dont_fragment,
        } = read(message, self.config.dont_fragment)?;
        let (place, user, allocation) = self
            .clients
            .allocation_of(&path.five_tuple)
            .ok_or(DropReason::NoAllocation)?;
        let relay = if peer.is_ipv4() {
            allocation.v4
        } else {
            allocation.v6
        };
        let relay = relay.ok_or(DropReason::PeerFamilyMismatch)?.get();
        if path.five_tuple.transport.is_stream() && self.tcp.has_relay(relay) {
            return Err(DropReason::NotUdp);
        }
        let Some((generation, Relay::Live(live))) = self.relays.entry_mut(relay) else {
            return Err(DropReason::NoAllocation);
        };
        let client = Server::identity(user, *path);
        let class = may_send(live, now, peer, &client, &*self.config.policy)?;
        if !self.shared_ports.is_unused() && !self.shared_ports.may_send(relay, peer) {
            return Err(DropReason::PeerClaimed);
        }
        if !self
            .limiter
            .admits(now.mono, place, RelayDirection::ToPeer, data.len())
        {
            return Err(DropReason::OverRate);
        }
        allocation.to_peers.add(1, data.len());
        // The value lies inside the message, so its place is a difference of addresses.
        let start = data.as_ptr() as usize - message.as_bytes().as_ptr() as usize;
        let payload = start..start + data.len();
        Ok(if class == PeerClass::OwnRelay {
            self.stats.to_relays.add(1, data.len());
            ClientVerdict::ToRelay {
                covers: 1,
                from: live.advertised.address(),
                peer,
                payload,
            }
        } else {
            self.stats.to_peers.add(1, data.len());
            let relay = RelayKey {
                index: relay,
                generation,
            };
            ClientVerdict::ToPeer {
                covers: 1,
                relay,
                peer,
                payload,
                dont_fragment: dont_fragment && df_applies(&path.five_tuple, &peer),
            }
        })
    }
}

/// Whether DONT-FRAGMENT applies on this path. RFC 8656 §13.1 to §13.3: if IPv6 is translated to or from, "the
/// DONT-FRAGMENT attribute MUST be ignored by the server". §15: it applies if the client's transport is TCP.
fn df_applies(five_tuple: &FiveTuple, peer: &SocketAddr) -> bool {
    five_tuple.transport.is_stream() || (five_tuple.remote.is_ipv4() && peer.is_ipv4())
}

/// Whether this may be sent to, and whether it is one of our own relays.
fn may_send(
    live: &mut LiveRelay,
    now: Now,
    peer: SocketAddr,
    client: &ClientIdentity<'_>,
    policy: &dyn PeerPolicy,
) -> Result<PeerClass, DropReason> {
    if live.expires <= now.mono {
        return Err(DropReason::AllocationExpired);
    }
    // RFC 8656 §11.2: "a Send indication never causes the server to refresh the permission".
    live.permissions
        .get(&peer.ip(), now.mono)
        .ok_or(DropReason::NoPermission)?;
    // A Teredo or 6to4 address has no permission: CreatePermission and ChannelBind refuse it.
    match policy.permits(client, peer) {
        PeerClass::Denied => Err(DropReason::PeerNotAllowed),
        // Such a datagram could not even be sent.
        _ if peer.port() == 0 => Err(DropReason::PeerNotAllowed),
        class => Ok(class),
    }
}

/// The checks that the message itself decides.
fn read<'a>(message: &Message<'a>, can_set_df: bool) -> Result<SendIndication<'a>, DropReason> {
    if message.fingerprint() == FingerprintState::Invalid {
        return Err(DropReason::WrongFingerprint);
    }
    // RFC 8489 §6.3.2: discarded if it has a comprehension-required attribute that is not known.
    if message.unknown_required(is_known).next().is_some() {
        return Err(DropReason::UnknownAttribute);
    }
    // RFC 8656 §11.2: both attributes, and both valid; no data at all is valid.
    let peer = message
        .get::<XorPeerAddress>()
        .map_err(|_| DropReason::MalformedIndication)?;
    let data = message
        .get::<Data<'a>>()
        .map_err(|_| DropReason::MalformedIndication)?;
    let (Some(peer), Some(data)) = (peer, data) else {
        return Err(DropReason::MalformedIndication);
    };
    let dont_fragment = message.contains(AttributeType::DONT_FRAGMENT);
    if dont_fragment && !can_set_df {
        return Err(DropReason::DontFragmentUnsupported);
    }
    Ok(SendIndication {
        peer: peer.0,
        data: data.0,
        dont_fragment,
    })
}
