//! The channels of one relayed transport address (RFC 8656 §12).
//!
//! They are found from both sides: by number for what the client sends, by peer for what it gets. The
//! channels themselves are sorted by peer, so that those of one IP address lie together for a permission to
//! be refreshed. Where there are more than a few, a second table, sorted by number, says where; most
//! allocations have one channel, and need none.

use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

use stun::ChannelNumber;

use super::CHANNEL_LIFETIME_S;
use super::permission::reserve_tight;
use crate::Mono;

/// A channel: a number and a peer, tied together until it expires.
#[derive(Clone, Copy, Debug)]
pub(super) struct Channel {
    pub(super) peer_ip: IpAddr,
    pub(super) traits: Traits,
    pub(super) peer_port: u16,
    pub(super) number: ChannelNumber,
    /// The policy under which the peer was last found to be allowed.
    pub(super) policy_epoch: u16,
    pub(super) expires: Mono,
    /// When the permission for the peer's address expires, which may be before the channel does. Without a permission
    /// nothing passes.
    pub(super) permission_expires: Mono,
}

const _: () = assert!(size_of::<Channel>() == 40);

/// The flags of a channel, in one byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Traits(u8);

impl Traits {
    /// The peer is a relayed transport address of this server.
    const OWN_RELAY: u8 = 1;
    /// The embedder relays it below the engine: it got [`Output::Offload`](super::Output::Offload), and not yet the
    /// end.
    const OFFLOADED: u8 = 2;

    pub(super) const fn new(own_relay: bool) -> Traits {
        Traits(if own_relay { Self::OWN_RELAY } else { 0 })
    }

    pub(super) const fn own_relay(self) -> bool {
        self.0 & Self::OWN_RELAY != 0
    }

    pub(super) const fn set_own_relay(&mut self, own_relay: bool) {
        *self = Traits(self.0 & !Self::OWN_RELAY | Traits::new(own_relay).0);
    }

    pub(super) const fn offloaded(self) -> bool {
        self.0 & Self::OFFLOADED != 0
    }

    pub(super) const fn set_offloaded(&mut self, offloaded: bool) {
        self.0 = self.0 & !Self::OFFLOADED | if offloaded { Self::OFFLOADED } else { 0 };
    }
}

impl Channel {
    /// The transport address it is bound to.
    pub(super) const fn peer(&self) -> SocketAddr {
        SocketAddr::new(self.peer_ip, self.peer_port)
    }

    fn cmp_peer(&self, peer: &SocketAddr) -> std::cmp::Ordering {
        self.peer_ip
            .cmp(&peer.ip())
            .then(self.peer_port.cmp(&peer.port()))
    }
}

#[derive(Clone, Copy, Debug)]
struct ByNumber {
    number: ChannelNumber,
    place: u16,
}

/// Up to this number of channels, a linear search is used, because they are in a few cache lines.
const MAX_LINEAR_CHANNELS: usize = 4;

/// Where each number is, sorted by number.
#[derive(Debug, Default)]
struct Numbers {
    sorted: Vec<ByNumber>,
}

/// The channels, sorted by peer, and where each number is.
#[derive(Debug, Default)]
pub(super) struct Channels {
    by_peer: Vec<Channel>,
    /// Only if there are, or were, more than a few.
    by_number: Option<Box<Numbers>>,
}

impl Channels {
    pub(super) const fn len(&self) -> usize {
        self.by_peer.len()
    }

    /// The number of one of them, to have it in the cache.
    pub(super) fn any_number(&self) -> Option<ChannelNumber> {
        self.by_peer.first().map(|channel| channel.number)
    }

    /// The channel with this number, unless it is unbound.
    pub(super) fn with_number(&mut self, number: ChannelNumber, now: Mono) -> Option<&mut Channel> {
        let channel = match &self.by_number {
            None => self
                .by_peer
                .iter_mut()
                .find(|channel| channel.number == number),
            Some(numbers) => self.by_peer.get_mut(numbers.place_of(number)?),
        };
        channel.filter(|channel| channel.expires > now)
    }

    /// The channel bound to this peer, unless there is none.
    pub(super) fn bound_to(&mut self, peer: &SocketAddr, now: Mono) -> Option<&mut Channel> {
        let place = self
            .by_peer
            .binary_search_by(|channel| channel.cmp_peer(peer))
            .ok()?;
        self.by_peer
            .get_mut(place)
            .filter(|channel| channel.expires > now)
    }

    /// Binds or refreshes. The caller has expired what was due and made sure that neither number nor peer is
    /// bound otherwise.
    pub(super) fn bind(&mut self, channel: Channel, now: Mono) {
        // RFC 8656 §12: "resets the time-to-expiry timer back to 10 minutes".
        let channel = Channel {
            expires: now.plus_secs(u64::from(CHANNEL_LIFETIME_S)),
            ..channel
        };
        match self
            .by_peer
            .binary_search_by(|other| other.cmp_peer(&channel.peer()))
        {
            Ok(place) => {
                let offloaded = self.by_peer[place].traits.offloaded();
                self.by_peer[place] = channel;
                self.by_peer[place].traits.set_offloaded(offloaded);
            }
            Err(place) => {
                reserve_tight(&mut self.by_peer);
                self.by_peer.insert(place, channel);
                self.index();
            }
        }
    }

    /// Sets the new expiry of the permission in all channels to this address.
    pub(super) fn permission_refreshed(&mut self, ip: &IpAddr, expires: Mono) {
        for channel in self.towards(ip) {
            channel.permission_expires = expires;
        }
    }

    /// The channels towards this address.
    pub(super) fn towards(&mut self, ip: &IpAddr) -> &mut [Channel] {
        let places = places_of(&self.by_peer, ip);
        &mut self.by_peer[places]
    }

    /// All channels, also expired ones.
    pub(super) fn all(&mut self) -> &mut [Channel] {
        &mut self.by_peer
    }

    /// All channels, also expired ones.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Channel> {
        self.by_peer.iter()
    }

    /// Removes the expired channels, calls `ended` for each, and returns their number.
    pub(super) fn expire(&mut self, now: Mono, mut ended: impl FnMut(&Channel)) -> usize {
        let before = self.by_peer.len();
        self.by_peer.retain(|channel| {
            let stays = channel.expires > now;
            if !stays {
                ended(channel);
            }
            stays
        });
        if self.by_peer.len() < before {
            self.index();
        }
        before - self.by_peer.len()
    }

    /// When the first of them expires.
    pub(super) fn earliest(&self) -> Mono {
        self.by_peer
            .iter()
            .map(|channel| channel.expires)
            .min()
            .unwrap_or(Mono::NEVER)
    }

    /// Makes the table by number anew, if one is needed.
    fn index(&mut self) {
        if self.by_peer.len() <= MAX_LINEAR_CHANNELS {
            self.by_number = None;
            return;
        }
        let sorted = &mut self.by_number.get_or_insert_default().sorted;
        sorted.clear();
        sorted.reserve_exact(self.by_peer.capacity());
        let places = self.by_peer.iter().enumerate();
        sorted.extend(places.map(|(place, channel)| ByNumber {
            number: channel.number,
            place: place as u16,
        }));
        sorted.sort_unstable_by_key(|entry| entry.number);
    }
}

impl Numbers {
    fn place_of(&self, number: ChannelNumber) -> Option<usize> {
        let found = self
            .sorted
            .binary_search_by_key(&number, |entry| entry.number);
        Some(usize::from(self.sorted.get(found.ok()?)?.place))
    }
}

/// Where the channels towards this address are: they lie together.
fn places_of(by_peer: &[Channel], ip: &IpAddr) -> Range<usize> {
    let start = by_peer.partition_point(|channel| channel.peer_ip < *ip);
    let length = by_peer[start..].partition_point(|channel| channel.peer_ip == *ip);
    start..start + length
}

#[cfg(test)]
mod tests {
    use super::*;

    fn channel(number: u16, host: u8, port: u16) -> Channel {
        Channel {
            peer_ip: IpAddr::from([192, 0, 2, host]),
            traits: Traits::default(),
            peer_port: port,
            number: ChannelNumber::new(number).expect("a channel number"),
            policy_epoch: 0,
            expires: Mono(0),
            permission_expires: Mono(0),
        }
    }

    #[test]
    fn channels_are_found_by_number_and_by_peer() {
        let mut channels = Channels::default();
        let numbers = [
            (5, 1, 9),
            (1, 2, 9),
            (3, 1, 8),
            (7, 9, 9),
            (2, 4, 1),
            (6, 1, 7),
        ];
        let all = numbers.map(|(number, host, port)| channel(0x4000 + number, host, port));
        for bound in 0..all.len() {
            channels.bind(all[bound], Mono(0));
            assert_eq!(channels.by_number.is_some(), bound >= MAX_LINEAR_CHANNELS);
            for (place, wanted) in all.iter().enumerate() {
                let found = channels.with_number(wanted.number, Mono(1));
                let peer = (place <= bound).then(|| wanted.peer());
                assert_eq!(found.map(|found| found.peer()), peer);
                let found = channels.bound_to(&wanted.peer(), Mono(1));
                let number = (place <= bound).then_some(wanted.number);
                assert_eq!(found.map(|found| found.number), number);
            }
        }
        let unused = ChannelNumber::new(0x4004).expect("a channel number");
        assert!(channels.with_number(unused, Mono(1)).is_none());
        channels.expire(Mono(0).plus_secs(u64::from(CHANNEL_LIFETIME_S)), |_| {});
        assert!(channels.by_number.is_none() && channels.len() == 0);
    }

    #[test]
    fn a_refreshed_permission_reaches_the_channels_of_its_address_only() {
        let mut channels = Channels::default();
        for (number, host, port) in [
            (0x4000, 1, 1),
            (0x4001, 2, 1),
            (0x4002, 2, 2),
            (0x4003, 3, 1),
        ] {
            channels.bind(channel(number, host, port), Mono(0));
        }
        channels.permission_refreshed(&IpAddr::from([192, 0, 2, 2]), Mono(77));
        let reached: Vec<u8> = channels
            .by_peer
            .iter()
            .map(|channel| u8::from(channel.permission_expires == Mono(77)))
            .collect();
        assert_eq!(reached, [0, 1, 1, 0]);
    }

    #[test]
    fn an_expired_number_can_be_bound_to_another_peer() {
        let mut channels = Channels::default();
        channels.bind(channel(0x4000, 1, 1), Mono(0));
        let later = Mono(0).plus_secs(u64::from(CHANNEL_LIFETIME_S));
        assert_eq!(channels.expire(later, |_| {}), 1);
        channels.bind(channel(0x4000, 2, 1), later);
        let number = ChannelNumber::MIN;
        assert_eq!(
            channels
                .with_number(number, later)
                .map(|found| found.peer_ip),
            Some(IpAddr::from([192, 0, 2, 2]))
        );
    }
}
