//! CreatePermission requests (RFC 8656 §10.2): all of the peers, or none.

use std::net::IpAddr;

use stun::{AttributeType, Decode, ErrorCode, Message, XorPeerAddress};

use super::Server;
use super::answer::Refusal;
use super::config::PERMISSION_LIFETIME_S;
use super::outputs::Change;
use super::policy::{PeerClass, class_of_address};
use super::relay::Relay;
use super::request_context::RequestContext;
use crate::Now;

impl Server {
    /// Installs or refreshes permissions.
    pub(super) fn create_permission(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
        place: u32,
    ) -> Result<(), Refusal> {
        let peers = peers(message)?;
        let allocation = self
            .clients
            .allocation(place)
            .ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        let (v4, v6) = (allocation.v4, allocation.v6);
        let relay_for = |peer: &IpAddr| if peer.is_ipv4() { v4 } else { v6 };
        if !peers.iter().all(|peer| relay_for(peer).is_some()) {
            return Err(ErrorCode::PEER_ADDRESS_FAMILY_MISMATCH.into());
        }
        let is_tcp = allocation.relays().any(|relay| self.tcp.has_relay(relay));
        let mut client = self
            .clients
            .get(place)
            .ok_or(ErrorCode::ALLOCATION_MISMATCH)?
            .identity();
        if is_tcp {
            client = client.over_tcp();
        }
        let policy = &*self.config.policy;
        if peers
            .iter()
            .any(|peer| class_of_address(policy, &client, *peer) == PeerClass::Denied)
        {
            return Err(ErrorCode::FORBIDDEN.into());
        }
        // Sorted by family: IPv4 addresses come before IPv6 ones.
        let (first_v4, first_v6) = peers.split_at(peers.partition_point(IpAddr::is_ipv4));
        for (relay, peers) in [(v4, first_v4), (v6, first_v6)] {
            if relay.is_some_and(|relay| !self.has_room_for(now, relay.get(), peers)) {
                return Err(ErrorCode::INSUFFICIENT_CAPACITY.into());
            }
        }
        for peer in &peers {
            if let Some(relay) = relay_for(peer) {
                self.permit(now, relay.get(), *peer, PERMISSION_LIFETIME_S);
                self.report_change(place, Change::Permission { peer: *peer });
            }
        }
        [v4, v6]
            .into_iter()
            .flatten()
            .for_each(|relay| self.update_deadline(relay.get()));
        self.succeed(context, |_| Ok(()));
        Ok(())
    }

    /// Whether permissions for these addresses, each named once, can be added.
    pub(super) fn has_room_for(&mut self, now: Now, relay: u32, peers: &[IpAddr]) -> bool {
        self.sweep(now, relay);
        let Some(live) = self.relays.get(relay).and_then(Relay::live) else {
            return false;
        };
        let new = peers
            .iter()
            .filter(|peer| !live.permissions.contains(peer))
            .count();
        live.permissions.len() + new <= self.config.max_permissions
    }

    /// Installs or refreshes one permission for this many seconds, and updates the peer's channels.
    pub(super) fn permit(&mut self, now: Now, relay: u32, peer: IpAddr, lifetime_s: u32) {
        let Some(live) = self.relays.get_mut(relay).and_then(Relay::live_mut) else {
            return;
        };
        let before = live.permissions.len();
        let expires = live.permissions.install(
            peer,
            self.policy_epoch,
            now.mono.plus_secs(lifetime_s.into()),
        );
        live.channels.permission_refreshed(&peer, expires);
        if !self.shared_ports.is_unused() {
            self.shared_ports.permit(relay, peer);
        }
        self.stats.permissions += (live.permissions.len() - before) as u64;
        self.offload_towards(now, relay, &peer);
    }
}

/// The peers of a request, sorted and each once. RFC 8656 §10.2: 400 if there is none, or one that is
/// invalid; ports are ignored.
fn peers(message: &Message<'_>) -> Result<Vec<IpAddr>, ErrorCode<'static>> {
    let id = message.transaction_id();
    let mut peers = Vec::new();
    for attribute in message
        .attributes()
        .filter(|found| found.attribute_type == AttributeType::XOR_PEER_ADDRESS)
    {
        let peer =
            XorPeerAddress::decode(attribute.value, &id).map_err(|_| ErrorCode::BAD_REQUEST)?;
        peers.push(peer.0.ip());
    }
    peers.sort_unstable();
    peers.dedup();
    if peers.is_empty() {
        Err(ErrorCode::BAD_REQUEST)
    } else {
        Ok(peers)
    }
}
