//! ChannelBind requests (RFC 8656 §12.2).

use std::net::SocketAddr;

use stun::{AttributeType, ChannelNumber, ErrorCode, Message, XorPeerAddress};

use super::Server;
use super::answer::Refusal;
use super::channel::{Channel, Traits};
use super::outputs::Change;
use super::policy::{PeerClass, class_of_peer};
use super::relay::Relay;
use super::request_context::RequestContext;
use crate::{Mono, Now};

impl Server {
    /// Binds a channel to a peer, or refreshes it, with its permission.
    pub(super) fn channel_bind(
        &mut self,
        now: Now,
        context: &RequestContext,
        message: &Message<'_>,
        place: u32,
    ) -> Result<(), Refusal> {
        let (number, peer) = read(message, self.config.rfc5766_channels)?;
        let is_new = self.check_binding(now, place, number, peer)?;
        let allocation = self
            .clients
            .allocation(place)
            .ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        let (relay, other) = if peer.is_ipv4() {
            (allocation.v4, allocation.v6)
        } else {
            (allocation.v6, allocation.v4)
        };
        let relay = relay.ok_or(ErrorCode::PEER_ADDRESS_FAMILY_MISMATCH)?.get();
        // Channels carry datagrams. RFC 6062 has none, and coturn refuses them with the same code.
        if self.tcp.has_relay(relay) {
            return Err(ErrorCode::FORBIDDEN.into());
        }
        let client = self
            .clients
            .get(place)
            .ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        let class = class_of_peer(&*self.config.policy, &client.identity(), peer);
        if class == PeerClass::Denied {
            return Err(ErrorCode::FORBIDDEN.into());
        }
        let has_room = self.has_room_for(now, relay, &[peer.ip()]);
        let channels = self
            .relays
            .get(relay)
            .and_then(Relay::live)
            .map_or(0, |live| live.channels.len());
        if !has_room || is_new && channels >= self.config.max_channels {
            return Err(ErrorCode::INSUFFICIENT_CAPACITY.into());
        }
        // Another client of the same port has this peer.
        if !self.shared_ports.is_unused() && !self.claim_peer(now, relay, peer) {
            return Err(ErrorCode::INSUFFICIENT_CAPACITY.into());
        }
        // The number may have been that of a channel to the other family, which is over but not swept yet.
        if let Some(other) = other {
            self.sweep(now, other.get());
        }
        self.bind(now, relay, number, peer, class == PeerClass::OwnRelay);
        let lifetime_s = self.config.bound_permission_lifetime_s();
        self.permit(now, relay, peer.ip(), lifetime_s);
        self.report_change(place, Change::Channel { number, peer });
        self.update_deadline(relay);
        self.succeed(context, |_| Ok(()));
        Ok(())
    }

    /// RFC 8656 §12.2: neither may the number be bound to another peer, nor the peer to another number. Says
    /// whether the binding is new.
    ///
    /// Numbers are the allocation's: one that is bound to an IPv4 peer cannot be bound to an IPv6 peer.
    fn check_binding(
        &mut self,
        now: Now,
        place: u32,
        number: ChannelNumber,
        peer: SocketAddr,
    ) -> Result<bool, ErrorCode<'static>> {
        let allocation = self
            .clients
            .allocation(place)
            .ok_or(ErrorCode::ALLOCATION_MISMATCH)?;
        let mut is_new = true;
        for relay in allocation.relays() {
            let Some(live) = self.relays.get_mut(relay).and_then(Relay::live_mut) else {
                continue;
            };
            let peer_of_number = live
                .channels
                .with_number(number, now.mono)
                .map(|channel| channel.peer());
            let number_of_peer = live
                .channels
                .bound_to(&peer, now.mono)
                .map(|channel| channel.number);
            if peer_of_number.is_some_and(|other| other != peer)
                || number_of_peer.is_some_and(|other| other != number)
            {
                return Err(ErrorCode::BAD_REQUEST);
            }
            is_new &= number_of_peer.is_none();
        }
        Ok(is_new)
    }

    fn bind(
        &mut self,
        now: Now,
        relay: u32,
        number: ChannelNumber,
        peer: SocketAddr,
        own_relay: bool,
    ) {
        let Some(live) = self.relays.get_mut(relay).and_then(Relay::live_mut) else {
            return;
        };
        let before = live.channels.len();
        let channel = Channel {
            peer_ip: peer.ip(),
            traits: Traits::new(own_relay),
            peer_port: peer.port(),
            number,
            policy_epoch: self.policy_epoch,
            expires: Mono::NEVER,
            permission_expires: Mono::NEVER,
        };
        live.channels.bind(channel, now.mono);
        self.stats.channels += (live.channels.len() - before) as u64;
    }
}

/// RFC 8656 §12.2: 400 unless both attributes are there, and the number is one of 0x4000 to 0x4FFF. A client of RFC
/// 5766 does not have the second limit; see [`Config::rfc5766_channels`](super::Config::rfc5766_channels).
fn read(
    message: &Message<'_>,
    rfc5766_channels: bool,
) -> Result<(ChannelNumber, SocketAddr), ErrorCode<'static>> {
    let classic = || message.find(AttributeType::PASSWORD_ALGORITHM).is_none();
    let number = match message.find(AttributeType::CHANNEL_NUMBER) {
        Some(raw) if rfc5766_channels && classic() => wide_number(raw.value),
        _ => message.get::<ChannelNumber>().ok().flatten(),
    };
    let peer = message.get::<XorPeerAddress>().ok().flatten();
    Ok((
        number.ok_or(ErrorCode::BAD_REQUEST)?,
        peer.ok_or(ErrorCode::BAD_REQUEST)?.0,
    ))
}

/// The number in a CHANNEL-NUMBER attribute (RFC 8656 §18.1), by the range of RFC 5766.
fn wide_number(value: &[u8]) -> Option<ChannelNumber> {
    match *value {
        [high, low, _, _] => ChannelNumber::of_rfc5766(u16::from_be_bytes([high, low])),
        _ => None,
    }
}
