//! Send indications (RFC 8656 §11.2): everything that is wrong with one is a silent end, and a counter.

use std::net::SocketAddr;

use stun::{AttributeType, Data, FingerprintState, Message, XorPeerAddress};

use super::policy::PeerClass;
use super::request::is_known;
use super::{DropReason, Server, Verdict};
use crate::{ClientPath, Now};

/// What a Send indication asks for.
struct Wanted<'a> {
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
    ) -> Verdict {
        match self.sent(now, path, message) {
            Ok(verdict) => verdict,
            Err(reason) => self.discard(1, reason),
        }
    }

    fn sent(
        &mut self,
        now: Now,
        path: &ClientPath,
        message: &Message<'_>,
    ) -> Result<Verdict, DropReason> {
        let wanted = read(message, self.config.dont_fragment)?;
        let Wanted {
            peer,
            data,
            dont_fragment,
        } = wanted;
        let place = self
            .clients
            .find(&path.five_tuple)
            .ok_or(DropReason::NoAllocation)?;
        let allocation = self
            .clients
            .allocation(place)
            .ok_or(DropReason::NoAllocation)?;
        let relay = if peer.is_ipv4() {
            allocation.v4
        } else {
            allocation.v6
        };
        let relay = relay.ok_or(DropReason::PeerFamilyMismatch)?.get();
        let from = self.check_permission(now, relay, peer)?;
        let class = self.config.policy.permits(peer);
        if class == PeerClass::Denied || peer.port() == 0 {
            return Err(DropReason::PeerNotAllowed);
        }
        self.count_to_peers(place, 1, data.len() as u64);
        // The value lies inside the message, so its place is a difference of addresses.
        let start = data.as_ptr() as usize - message.as_bytes().as_ptr() as usize;
        let payload = start..start + data.len();
        Ok(match class {
            PeerClass::OwnRelay => Verdict::ToRelay {
                covers: 1,
                from,
                peer,
                payload,
            },
            _ => Verdict::ToPeer {
                covers: 1,
                relay: self.relay_key(relay),
                peer,
                payload,
                dont_fragment,
            },
        })
    }

    /// Checks that there is a permission; returns the relay's address. A Send indication never refreshes it.
    fn check_permission(
        &mut self,
        now: Now,
        relay: u32,
        peer: SocketAddr,
    ) -> Result<SocketAddr, DropReason> {
        let live = self
            .relays
            .get_mut(relay)
            .and_then(|relay| relay.live_mut())
            .ok_or(DropReason::NoAllocation)?;
        if live.expires <= now.mono {
            return Err(DropReason::AllocationExpired);
        }
        live.permissions
            .get(&peer.ip(), now.mono)
            .ok_or(DropReason::NoPermission)?;
        Ok(live.advertised.address())
    }
}

/// The checks that the message itself decides.
fn read<'a>(message: &Message<'a>, can_set_df: bool) -> Result<Wanted<'a>, DropReason> {
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
    Ok(Wanted {
        peer: peer.0,
        data: data.0,
        dont_fragment,
    })
}
