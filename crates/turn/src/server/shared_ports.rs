//! Relayed transport addresses that several allocations share; their peers distinguish them.
//!
//! A datagram from a peer belongs to the relay that has **claimed** that peer, address and port. A ChannelBind request
//! claims its peer, and so does a Send indication. If nobody has, it belongs to the only relay with a permission for
//! the peer's address. If several have one, it belongs to nobody: whom it is for cannot be known.
//!
//! A claim lasts as long as the relay has a permission for the peer's address, or a channel to the peer.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use super::Server;
use super::relay::Relay;
use crate::{Now, RelayKey};

/// Peers that one relay may have claimed by Send indications and channels together.
const MAX_CLAIMS: usize = 1024;

/// A relay whose port is shared.
#[derive(Debug)]
struct SharedPortRelay {
    /// The embedder's number of the port.
    port: u16,
    claims: Vec<SocketAddr>,
    /// The addresses of its permissions.
    permitted: Vec<IpAddr>,
}

/// Why a peer cannot be claimed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClaimRefused {
    /// This relay has the claim.
    Taken(u32),
    /// The relay has too many.
    TooMany,
}

/// The relays whose ports are shared, by their indices.
#[derive(Debug, Default)]
pub(super) struct SharedPorts {
    sharers: BTreeMap<u32, SharedPortRelay>,
    claims: BTreeMap<(u16, SocketAddr), u32>,
    /// The relays with a permission for an address.
    permitted: BTreeMap<(u16, IpAddr), Vec<u32>>,
}

impl SharedPorts {
    #[inline]
    pub(super) fn is_unused(&self) -> bool {
        self.sharers.is_empty()
    }

    pub(super) fn has_shared_port(&self, relay: u32) -> bool {
        !self.is_unused() && self.sharers.contains_key(&relay)
    }

    /// The relay has a permission for this address.
    pub(super) fn permit(&mut self, relay: u32, peer: IpAddr) {
        let Some(sharer) = self.sharers.get_mut(&relay) else {
            return;
        };
        if !sharer.permitted.contains(&peer) {
            sharer.permitted.push(peer);
            let relays = self.permitted.entry((sharer.port, peer));
            relays.or_default().push(relay);
        }
    }

    /// Of the relay's permissions and claims, only these are left.
    fn retain(
        &mut self,
        relay: u32,
        is_permitted: impl Fn(&IpAddr) -> bool,
        is_claimed: impl Fn(&SocketAddr) -> bool,
    ) {
        let Some(SharedPortRelay {
            port,
            claims,
            permitted,
        }) = self.sharers.get_mut(&relay)
        else {
            return;
        };
        permitted.retain(|peer| {
            let stays = is_permitted(peer);
            let key = (*port, *peer);
            if !stays && let Some(relays) = self.permitted.get_mut(&key) {
                relays.retain(|other| *other != relay);
                if relays.is_empty() {
                    self.permitted.remove(&key);
                }
            }
            stays
        });
        claims.retain(|peer| {
            let stays = is_claimed(peer);
            if !stays {
                self.claims.remove(&(*port, *peer));
            }
            stays
        });
    }

    /// The relay claims this peer. It may have done so before.
    pub(super) fn claim(&mut self, relay: u32, peer: SocketAddr) -> Result<(), ClaimRefused> {
        let Some(sharer) = self.sharers.get_mut(&relay) else {
            return Ok(());
        };
        match self.claims.get(&(sharer.port, peer)) {
            Some(holder) if *holder == relay => Ok(()),
            Some(holder) => Err(ClaimRefused::Taken(*holder)),
            None if sharer.claims.len() >= MAX_CLAIMS => Err(ClaimRefused::TooMany),
            None => {
                sharer.claims.push(peer);
                self.claims.insert((sharer.port, peer), relay);
                Ok(())
            }
        }
    }

    /// Whether a Send indication of the relay may go to this peer, which it claims.
    pub(super) fn may_send(&mut self, relay: u32, peer: SocketAddr) -> bool {
        self.claim(relay, peer).is_ok()
    }

    /// The relay that datagrams of this peer to this port belong to.
    fn relay_of(&self, port: u16, from: SocketAddr) -> Option<u32> {
        if let Some(relay) = self.claims.get(&(port, from)) {
            return Some(*relay);
        }
        match self.permitted.get(&(port, from.ip()))?.as_slice() {
            [only] => Some(*only),
            _ => None,
        }
    }

    /// The relay has ended.
    pub(super) fn forget(&mut self, relay: u32) {
        if self.has_shared_port(relay) {
            self.retain(relay, |_| false, |_| false);
            self.sharers.remove(&relay);
        }
    }
}

impl Server {
    /// This relay shares its port with others. Call it between [`Output::OpenRelays`](super::Output::OpenRelays) and
    /// [`relays_opened`](Self::relays_opened). `port` is the embedder's number of the port, another one for each
    /// address.
    pub fn share_port(&mut self, relay: RelayKey, port: u16) {
        if self.relays.generation(relay.index) == relay.generation {
            let sharer = SharedPortRelay {
                port,
                claims: Vec::new(),
                permitted: Vec::new(),
            };
            self.shared_ports.sharers.insert(relay.index, sharer);
        }
    }

    /// The relay that datagrams of this peer to this shared port are for; [`handle_peer`](Self::handle_peer) decides
    /// about them. `None` if they are nobody's.
    #[must_use]
    pub fn relay_for(&self, port: u16, from: SocketAddr) -> Option<RelayKey> {
        let relay = self.shared_ports.relay_of(port, from)?;
        Some(self.relay_key(relay))
    }

    /// Claims a peer for a relay. A claim that has just expired gives way. Returns whether the relay has the peer now.
    pub(super) fn claim_peer(&mut self, now: Now, relay: u32, peer: SocketAddr) -> bool {
        match self.shared_ports.claim(relay, peer) {
            Ok(()) => true,
            Err(ClaimRefused::TooMany) => false,
            Err(ClaimRefused::Taken(holder)) => {
                self.sweep(now, holder);
                self.shared_ports.claim(relay, peer).is_ok()
            }
        }
    }

    /// Ends the claims of a relay that neither a permission nor a channel stands for any more. What has expired is
    /// gone.
    pub(super) fn end_unused_claims(&mut self, relay: u32) {
        if !self.shared_ports.has_shared_port(relay) {
            return;
        }
        if let Some(live) = self.relays.get(relay).and_then(Relay::live) {
            let is_permitted = |peer: &IpAddr| live.permissions.contains(peer);
            let has_channel = |peer: &SocketAddr| live.channels.iter().any(|of| of.peer() == *peer);
            let is_claimed = |peer: &SocketAddr| is_permitted(&peer.ip()) || has_channel(peer);
            self.shared_ports.retain(relay, is_permitted, is_claimed);
        }
    }
}
