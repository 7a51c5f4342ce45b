//! Which channel leads to which peer, by the last response (RFC 8656 §12).

use std::net::SocketAddr;

use stun::{AddressFamily, ChannelNumber};

use super::permission::RETRY_S;
use crate::Mono;

/// RFC 8656 §12: "A channel binding lasts for 10 minutes unless refreshed".
const LIFETIME_S: u64 = 600;
/// A failed refresh has this long to be repeated before the channel lapses.
const MARGIN_S: u64 = 60;
/// RFC 8656 §12: after expiry "the client MUST wait 5 minutes" before it binds the number or the peer otherwise.
const QUARANTINE_S: u64 = 300;
const FIRST: u16 = 0x4000;
const COUNT: usize = 0x1000;

#[derive(Debug)]
struct Channel {
    peer: SocketAddr,
    expires_at: Mono,
    /// How long the server may hold the binding, confirmed or not.
    taken_until: Mono,
    refresh_at: Mono,
    /// A request for it waits or is on its way.
    pending: bool,
    /// Its owner waits for an event.
    announce: bool,
}

impl Channel {
    /// The number may serve another peer, and the peer another number.
    fn is_free(&self, now: Mono) -> bool {
        !self.pending && self.taken_until.plus_secs(QUARANTINE_S) <= now
    }
}

/// The channels of an allocation. The client assigns numbers in order, so that a number is an index.
#[derive(Debug, Default)]
pub(super) struct Channels {
    list: Vec<Channel>,
}

impl Channels {
    /// The peer whose data on this channel is welcome, bound or asked for and not yet refused, and whether a request is
    /// in progress.
    pub(super) fn peer(&self, channel: ChannelNumber, now: Mono) -> Option<(SocketAddr, bool)> {
        let channel = self.list.get(channel.index())?;
        // RFC 8656 §12: data may come as soon as the request has been sent.
        (channel.pending || channel.expires_at > now).then_some((channel.peer, channel.pending))
    }

    /// Whether data may be sent on it: the server has confirmed the binding and it has not lapsed.
    pub(super) fn is_bound(&self, channel: ChannelNumber, now: Mono) -> bool {
        self.list
            .get(channel.index())
            .is_some_and(|channel| channel.expires_at > now)
    }

    /// The channel of this peer, bound or being bound.
    pub(super) fn of_peer(&self, peer: &SocketAddr, now: Mono) -> Option<ChannelNumber> {
        let found = self
            .list
            .iter()
            .position(|channel| channel.peer == *peer && !channel.is_free(now))?;
        number(found)
    }

    /// A number for this peer, the one it has if it has one, and whether a request must be sent. `None` if all are
    /// taken.
    pub(super) fn ask(&mut self, peer: SocketAddr, now: Mono) -> Option<(ChannelNumber, bool)> {
        let same = self.list.iter().position(|channel| channel.peer == peer);
        let index = same.or_else(|| self.free_slot(peer, now))?;
        let channel = &mut self.list[index];
        channel.peer = peer;
        channel.announce = true;
        let send = !std::mem::replace(&mut channel.pending, true);
        Some((number(index)?, send))
    }

    fn free_slot(&mut self, peer: SocketAddr, now: Mono) -> Option<usize> {
        if self.list.len() < COUNT {
            self.list.push(Channel {
                peer,
                expires_at: Mono(0),
                taken_until: Mono(0),
                refresh_at: Mono::NEVER,
                pending: false,
                announce: false,
            });
            return Some(self.list.len() - 1);
        }
        self.list.iter().position(|channel| channel.is_free(now))
    }

    /// The server has bound it, by a request first sent at `started`. True if the owner waits for the result.
    pub(super) fn bound(
        &mut self,
        channel: ChannelNumber,
        started: Mono,
        keep_alive: bool,
    ) -> bool {
        let Some(channel) = self.list.get_mut(channel.index()) else {
            return false;
        };
        channel.expires_at = started.plus_secs(LIFETIME_S);
        channel.taken_until = channel.expires_at;
        channel.refresh_at = match keep_alive {
            true => started.plus_secs(LIFETIME_S - MARGIN_S),
            false => Mono::NEVER,
        };
        channel.pending = false;
        std::mem::take(&mut channel.announce)
    }

    /// The request failed. True if the owner must get the failure; otherwise the request is repeated.
    ///
    /// Without a response, the server may have bound the channel nevertheless. So its number is reserved for as long as
    /// that binding could last.
    pub(super) fn failed(&mut self, channel: ChannelNumber, now: Mono, transient: bool) -> bool {
        let Some(channel) = self.list.get_mut(channel.index()) else {
            return false;
        };
        channel.pending = false;
        channel.refresh_at = Mono::NEVER;
        if transient {
            channel.taken_until = now.plus_secs(LIFETIME_S);
        }
        let repeat_at = now.plus_secs(RETRY_S);
        if transient && channel.expires_at > repeat_at {
            channel.refresh_at = repeat_at;
            return false;
        }
        true
    }

    /// Lets it lapse instead of refreshing it.
    pub(super) fn release(&mut self, channel: ChannelNumber) {
        if let Some(channel) = self.list.get_mut(channel.index()) {
            channel.refresh_at = Mono::NEVER;
        }
    }

    /// Marks what is due for a refresh as pending and hands it to `request`.
    pub(super) fn handle_timeout(
        &mut self,
        now: Mono,
        mut request: impl FnMut(ChannelNumber, SocketAddr),
    ) {
        for (index, channel) in self.list.iter_mut().enumerate() {
            if channel.refresh_at > now || channel.pending {
                continue;
            }
            channel.refresh_at = Mono::NEVER;
            channel.pending = true;
            if let Some(number) = number(index) {
                request(number, channel.peer);
            }
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) has something to do.
    pub(super) fn next_deadline(&self) -> Mono {
        let waiting = self.list.iter().filter(|channel| !channel.pending);
        waiting
            .map(|channel| channel.refresh_at)
            .min()
            .unwrap_or(Mono::NEVER)
    }

    /// Drops all whose relayed address was released; `None` means all.
    pub(super) fn remove_family(&mut self, family: Option<AddressFamily>) {
        let Some(family) = family else {
            self.list = Vec::new();
            return;
        };
        // Numbers are indices: an entry cannot leave, but it can be over.
        for channel in self
            .list
            .iter_mut()
            .filter(|channel| AddressFamily::of(&channel.peer.ip()) == family)
        {
            channel.refresh_at = Mono::NEVER;
            channel.expires_at = Mono(0);
            channel.taken_until = Mono(0);
            channel.pending = false;
        }
    }
}

fn number(index: usize) -> Option<ChannelNumber> {
    ChannelNumber::new(FIRST.checked_add(u16::try_from(index).ok()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at_s(seconds: u64) -> Mono {
        Mono(0).plus_secs(seconds)
    }

    fn peer(port: u16) -> SocketAddr {
        ([192, 0, 2, 7], port).into()
    }

    fn due(channels: &mut Channels, now: Mono) -> Vec<u16> {
        let mut due = Vec::new();
        channels.handle_timeout(now, |channel, _| due.push(channel.get()));
        due
    }

    #[test]
    fn numbers_are_handed_out_in_order_and_a_peer_keeps_its_own() {
        let mut channels = Channels::default();
        let (first, send) = channels.ask(peer(1), at_s(0)).expect("free");
        assert_eq!((first.get(), send), (0x4000, true));
        let (second, _) = channels.ask(peer(2), at_s(0)).expect("free");
        assert_eq!(second.get(), 0x4001);
        assert_eq!(
            channels.ask(peer(1), at_s(0)),
            Some((first, false)),
            "a request is on its way"
        );
        assert_eq!(channels.of_peer(&peer(2), at_s(0)), Some(second));
    }

    #[test]
    fn data_is_welcome_before_the_binding_is_confirmed_but_not_sent() {
        let mut channels = Channels::default();
        let (channel, _) = channels.ask(peer(1), at_s(0)).expect("free");
        assert_eq!(channels.peer(channel, at_s(0)), Some((peer(1), true)));
        assert!(!channels.is_bound(channel, at_s(0)));
        assert!(channels.bound(channel, at_s(0), true));
        assert!(channels.is_bound(channel, at_s(599)) && !channels.is_bound(channel, at_s(600)));
    }

    #[test]
    fn a_channel_is_refreshed_after_nine_minutes() {
        let mut channels = Channels::default();
        let (channel, _) = channels.ask(peer(1), at_s(0)).expect("free");
        channels.bound(channel, at_s(0), true);
        assert_eq!(channels.next_deadline(), at_s(540));
        assert_eq!(due(&mut channels, at_s(540)), [0x4000]);
        assert!(!channels.failed(channel, at_s(560), true));
        assert_eq!(due(&mut channels, at_s(565)), [0x4000]);
        assert!(channels.failed(channel, at_s(599), true), "no time is left");
        assert_eq!(channels.next_deadline(), Mono::NEVER);
    }

    #[test]
    fn a_channel_that_waits_for_a_response_has_no_deadline() {
        let mut channels = Channels::default();
        let (channel, _) = channels.ask(peer(1), at_s(0)).expect("free");
        channels.bound(channel, at_s(0), true);
        // The owner prolongs it just before it would be refreshed.
        assert_eq!(channels.ask(peer(1), at_s(530)), Some((channel, true)));
        assert_eq!(channels.next_deadline(), Mono::NEVER);
        assert!(due(&mut channels, at_s(541)).is_empty());
        assert!(channels.bound(channel, at_s(530), true));
        assert_eq!(channels.next_deadline(), at_s(1070));
    }

    #[test]
    fn a_binding_that_was_never_confirmed_may_still_exist() {
        let mut channels = Channels::default();
        let (channel, _) = channels.ask(peer(1), at_s(0)).expect("free");
        assert!(channels.failed(channel, at_s(40), true));
        assert_eq!(channels.peer(channel, at_s(40)), None);
        assert_eq!(channels.of_peer(&peer(1), at_s(939)), Some(channel));
        assert_eq!(channels.of_peer(&peer(1), at_s(940)), None);
    }

    #[test]
    fn a_number_rests_for_five_minutes_after_it_lapsed() {
        let mut channels = Channels::default();
        for port in 1..=4096 {
            let (channel, _) = channels.ask(peer(port), at_s(0)).expect("free");
            channels.bound(channel, at_s(0), false);
        }
        assert_eq!(channels.ask(peer(5000), at_s(0)), None);
        assert_eq!(channels.ask(peer(5000), at_s(899)), None);
        let (channel, _) = channels.ask(peer(5000), at_s(900)).expect("free again");
        assert_eq!(channel.get(), 0x4000);
    }
}
