//! ChannelData from a client (RFC 8656 §12.6): the hot path towards peers. One look-up of the 5-tuple and one
//! of the channel for a whole run of datagrams; nothing is copied, nothing is allocated.

use std::net::SocketAddr;

use stun::ChannelNumber;
use stun::channel_data::{ChannelData, HEADER_LEN};

use super::channel::Channel;
use super::limiter::RelayDirection;
use super::policy::{PeerClass, class_of_peer};
use super::relay::Relay;
use super::{ClientVerdict, DropReason, Server};
use crate::{ClientPath, Now, RelayKey, Run};

/// The datagrams at the front of a run that have the same channel and length.
struct EqualDatagrams {
    number: ChannelNumber,
    covers: usize,
    /// Bytes of payload in each but the last.
    payload: usize,
    /// Bytes of payload in all of them.
    total: usize,
}

impl Server {
    /// ChannelData: the datagrams at the front of the run that go the same way.
    pub(super) fn channel_data(
        &mut self,
        now: Now,
        path: &ClientPath,
        run: Run<'_>,
    ) -> ClientVerdict {
        let Some(equal) = cut(run) else {
            return self.drop_from_client(1, DropReason::MalformedChannelData);
        };
        match self.over_channel(now, path, &equal) {
            Ok(verdict) => verdict,
            // The client may have just moved here (RFC 8016).
            Err(DropReason::NoAllocation) if self.switches_to(now, &path.five_tuple) => {
                self.channel_data(now, path, run)
            }
            Err(reason) => self.drop_from_client(equal.covers, reason),
        }
    }

    /// The verdict on ChannelData messages of one channel and of equal length.
    fn over_channel(
        &mut self,
        now: Now,
        path: &ClientPath,
        equal: &EqualDatagrams,
    ) -> Result<ClientVerdict, DropReason> {
        let (place, user, allocation) = self
            .clients
            .allocation_of(&path.five_tuple)
            .ok_or(DropReason::NoAllocation)?;
        let policy = &*self.config.policy;
        let mut reason = DropReason::AllocationExpired;
        for relay in allocation.relays() {
            let Some((generation, Relay::Live(live))) = self.relays.entry_mut(relay) else {
                continue;
            };
            if live.expires <= now.mono {
                continue;
            }
            reason = DropReason::ChannelNotBound;
            let Some(channel) = live.channels.with_number(equal.number, now.mono) else {
                continue;
            };
            check(channel, now, self.policy_epoch, |peer| {
                class_of_peer(policy, &Server::identity(user, *path), peer)
            })?;
            if !self
                .limiter
                .admits(now.mono, place, RelayDirection::ToPeer, equal.total)
            {
                return Err(DropReason::OverRate);
            }
            allocation.to_peers.add(equal.covers, equal.total);
            let (covers, peer, payload) = (
                equal.covers,
                channel.peer(),
                HEADER_LEN..HEADER_LEN + equal.payload,
            );
            return Ok(if channel.traits.own_relay() {
                self.stats.to_relays.add(equal.covers, equal.total);
                ClientVerdict::ToRelay {
                    covers,
                    from: live.advertised.address(),
                    peer,
                    payload,
                }
            } else {
                self.stats.to_peers.add(equal.covers, equal.total);
                let relay = RelayKey {
                    index: relay,
                    generation,
                };
                ClientVerdict::ToPeer {
                    covers,
                    relay,
                    peer,
                    payload,
                    dont_fragment: false,
                }
            });
        }
        Err(reason)
    }
}

/// Whether a channel may carry data at this moment: its permission has not expired (RFC 8656 §9), and the policy allows
/// its peer. `class_of` asks the policy, once per policy.
#[inline]
pub(super) fn check(
    channel: &mut Channel,
    now: Now,
    epoch: u16,
    class_of: impl FnOnce(SocketAddr) -> PeerClass,
) -> Result<(), DropReason> {
    if channel.permission_expires <= now.mono {
        return Err(DropReason::NoPermission);
    }
    if channel.policy_epoch != epoch {
        let class = class_of(channel.peer());
        if class == PeerClass::Denied {
            return Err(DropReason::PeerNotAllowed);
        }
        channel.traits.set_own_relay(class == PeerClass::OwnRelay);
        channel.policy_epoch = epoch;
    }
    Ok(())
}

/// Reads the first datagram's header and counts how many datagrams behind it have the same one. `None` if it
/// is malformed.
fn cut(run: Run<'_>) -> Option<EqualDatagrams> {
    let first = run.first();
    let head = ChannelData::parse_datagram_rfc5766(first).ok()?;
    let (number, payload) = (head.number, head.payload.len());
    let mut equal = EqualDatagrams {
        number,
        covers: 1,
        payload,
        total: payload,
    };
    let header = first.get(..HEADER_LEN)?;
    for datagram in run.bytes.chunks(run.stride.max(1)).skip(1) {
        let same = datagram.len() == run.stride && datagram.get(..HEADER_LEN) == Some(header);
        if same {
            equal.total += payload;
        } else if let Some(last) = shorter(datagram, number, run.stride == HEADER_LEN + payload) {
            equal.total += last;
        } else {
            break;
        }
        equal.covers += 1;
    }
    Some(equal)
}

/// The payload length of a last datagram that is shorter than the others, if it can be sent with them.
/// This requires that no datagram has padding, so that each payload ends with its datagram.
fn shorter(datagram: &[u8], number: ChannelNumber, unpadded: bool) -> Option<usize> {
    let head = ChannelData::parse_datagram_rfc5766(datagram).ok()?;
    let fits =
        unpadded && head.number == number && head.payload.len() + HEADER_LEN == datagram.len();
    fits.then_some(head.payload.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Datagrams with these channels, length fields and lengths, in a run with the first one's length as its
    /// stride.
    fn counted(datagrams: &[(u16, u16, usize)]) -> Option<(usize, usize, usize)> {
        let mut bytes = Vec::new();
        for (number, length, size) in datagrams {
            let start = bytes.len();
            bytes.extend_from_slice(&number.to_be_bytes());
            bytes.extend_from_slice(&length.to_be_bytes());
            bytes.resize(start + size, 0);
        }
        let equal = cut(Run {
            bytes: &bytes,
            stride: datagrams[0].2,
            tos: 0,
        })?;
        Some((equal.covers, equal.payload, equal.total))
    }

    #[test]
    fn equal_datagrams_go_together_and_a_shorter_last_one_with_them() {
        let full = (0x4000, 100, 104);
        assert_eq!(counted(&[full]), Some((1, 100, 100)));
        assert_eq!(counted(&[full, full, full]), Some((3, 100, 300)));
        assert_eq!(counted(&[full, full, (0x4000, 7, 11)]), Some((3, 100, 207)));
        assert_eq!(counted(&[full, (0x4000, 0, 4)]), Some((2, 100, 100)));
    }

    #[test]
    fn another_channel_length_or_padding_ends_the_cut() {
        let full = (0x4000, 100, 104);
        assert_eq!(
            counted(&[full, (0x4001, 100, 104), full]),
            Some((1, 100, 100))
        );
        assert_eq!(
            counted(&[full, (0x4000, 99, 104), full]),
            Some((1, 100, 100))
        );
        assert_eq!(counted(&[full, (0x4001, 7, 11)]), Some((1, 100, 100)));
        assert_eq!(
            counted(&[full, (0x4000, 7, 12)]),
            Some((1, 100, 100)),
            "padded"
        );
        assert_eq!(
            counted(&[full, (0x4000, 200, 90)]),
            Some((1, 100, 100)),
            "shorter than it says"
        );
        let padded = (0x4000, 97, 104);
        assert_eq!(
            counted(&[padded, padded, (0x4000, 7, 11)]),
            Some((2, 97, 194))
        );
        assert_eq!(counted(&[(0x4000, 101, 104)]), None);
        assert_eq!(counted(&[(0x8000, 100, 104)]), None);
    }
}
