//! Channels that the embedder relays below the engine, in the kernel: which they are, and until when.
//!
//! The engine reports each change with [`Output::Offload`](super::Output) and [`Output::StopOffload`](super::Output).
//! At any time, the offloaded channels are exactly those that `handle_client` and `handle_peer` would relay. It
//! remembers in one bit of each channel what it has said, so that nothing is taken back that was not given. A channel
//! carries data until the first of three ends: its own, its permission's and its allocation's. That moment goes along
//! with it, so that it ends there also when the engine is asleep. Data moves none of them (RFC 8656 §9, §12).
//!
//! Only data of a UDP client can be distinguished below the engine.

use std::net::{IpAddr, SocketAddr};

use super::Server;
use super::channel::Channel;
use super::channel_data::check;
use super::config::Config;
use super::output::{OffloadedChannel, Traffic};
use super::outputs::{Outputs, Queued};
use super::policy::{PeerClass, PeerPolicy, class_of_peer};
use super::relay::{LiveRelay, Relay};
use super::user::User;
use crate::{AllocationKey, ClientPath, Mono, Now, Transport};

/// What the channels of one relay have in common.
#[derive(Clone, Copy)]
struct ChannelContext<'a> {
    allocation: AllocationKey,
    path: ClientPath,
    user: &'a User,
    relayed: SocketAddr,
}

impl ChannelContext<'_> {
    fn of(&self, channel: &Channel) -> OffloadedChannel {
        OffloadedChannel {
            allocation: self.allocation,
            path: self.path,
            relayed: self.relayed,
            peer: channel.peer(),
            number: channel.number,
        }
    }

    /// The class of a channel's peer, by this policy.
    fn class_of(&self, policy: &dyn PeerPolicy, peer: SocketAddr) -> PeerClass {
        class_of_peer(policy, &Server::identity(self.user, self.path), peer)
    }

    /// Whether the channel carries data.
    fn carries(&self, channel: &mut Channel, now: Now, config: &Config, epoch: u16) -> bool {
        check(channel, now, epoch, |peer| {
            self.class_of(&*config.policy, peer)
        })
        .is_ok()
    }

    /// Reports that the kernel may relay the channel until `deadline`.
    fn offload(&self, channel: &mut Channel, deadline: Mono, outputs: &mut Outputs) {
        channel.traits.set_offloaded(true);
        outputs.push(Queued::Offload {
            channel: self.of(channel),
            own_relay: channel.traits.own_relay(),
            deadline,
        });
    }

    /// Reports that the kernel may no longer relay the channel, if it was offloaded.
    fn stop_offload(&self, channel: &mut Channel, outputs: &mut Outputs) {
        if channel.traits.offloaded() {
            channel.traits.set_offloaded(false);
            outputs.push(Queued::StopOffload(self.of(channel)));
        }
    }
}

/// Until when a channel carries data.
fn until(channel: &Channel, allocation_expires: Mono) -> Mono {
    channel
        .expires
        .min(channel.permission_expires)
        .min(allocation_expires)
}

impl Server {
    /// A relay whose channels can be offloaded, and where to say so.
    fn offloadable(
        &mut self,
        relay: u32,
    ) -> Option<(ChannelContext<'_>, &mut LiveRelay, &mut Outputs)> {
        let live = self.relays.get_mut(relay).and_then(Relay::live_mut)?;
        let client = self.clients.get(live.client)?;
        let path = client.path.path();
        if path.five_tuple.transport != Transport::Udp {
            return None;
        }
        let about = ChannelContext {
            allocation: AllocationKey {
                index: live.client,
                generation: self.clients.generation(live.client),
            },
            path,
            user: &client.user,
            relayed: live.advertised.address(),
        };
        Some((about, live, &mut self.outputs))
    }

    /// The permission for this address was made or refreshed, and perhaps a channel with it.
    pub(super) fn offload_towards(&mut self, now: Now, relay: u32, peer: &IpAddr) {
        if !self.config.offload {
            return;
        }
        let (config, epoch) = (self.config.clone(), self.policy_epoch);
        let Some((about, live, outputs)) = self.offloadable(relay) else {
            return;
        };
        for channel in live.channels.towards(peer) {
            let deadline = until(channel, live.expires);
            if deadline > now.mono && about.carries(channel, now, &config, epoch) {
                about.offload(channel, deadline, outputs);
            }
        }
    }

    /// The allocation was refreshed; its end was at `before`.
    pub(super) fn offload_prolonged(&mut self, now: Now, relay: u32, before: Mono) {
        if !self.config.offload {
            return;
        }
        let (config, epoch) = (self.config.clone(), self.policy_epoch);
        let Some((about, live, outputs)) = self.offloadable(relay) else {
            return;
        };
        for channel in live.channels.all() {
            let deadline = until(channel, live.expires);
            let moved = deadline != until(channel, before);
            if moved && deadline > now.mono && about.carries(channel, now, &config, epoch) {
                about.offload(channel, deadline, outputs);
            }
        }
    }

    /// Takes back what no longer carries data.
    pub(super) fn stop_lapsed_offloads(&mut self, now: Now, relay: u32) {
        if let Some((about, live, outputs)) = self.offloadable(relay) {
            let lapsed = |channel: &&mut Channel| until(channel, live.expires) <= now.mono;
            for channel in live.channels.all().iter_mut().filter(lapsed) {
                about.stop_offload(channel, outputs);
            }
        }
    }

    /// Ends the offload of all channels of a relay that is about to be closed.
    pub(super) fn stop_offloads(&mut self, relay: u32) {
        if let Some((about, live, outputs)) = self.offloadable(relay) {
            for channel in live.channels.all() {
                about.stop_offload(channel, outputs);
            }
        }
    }

    /// Classifies the channels of one relay by the present configuration, after a change of policy or rate limit.
    /// `again` repeats the output for channels that are offloaded already.
    pub(super) fn reclassify(&mut self, now: Now, relay: u32, again: bool) {
        let (config, epoch) = (self.config.clone(), self.policy_epoch);
        let Some((about, live, outputs)) = self.offloadable(relay) else {
            return;
        };
        for channel in live.channels.all() {
            let deadline = until(channel, live.expires);
            let class = if config.offload && deadline > now.mono {
                about.class_of(&*config.policy, channel.peer())
            } else {
                PeerClass::Denied
            };
            if class == PeerClass::Denied {
                about.stop_offload(channel, outputs);
                continue;
            }
            let own_relay = class == PeerClass::OwnRelay;
            let changed = own_relay != channel.traits.own_relay();
            channel.traits.set_own_relay(own_relay);
            channel.policy_epoch = epoch;
            if again || changed || !channel.traits.offloaded() {
                about.offload(channel, deadline, outputs);
            }
        }
    }

    /// Repeats [`Output::Offload`](super::Output::Offload) for what is offloaded, because the embedder's view of the
    /// network has changed. One call does so for at most `most` relays, beginning with the one at index `first`, 0 at
    /// first. Returns the index to continue with, `None` at the end.
    pub fn repeat_offloads(&mut self, first: u32, most: u32) -> Option<u32> {
        let bound = u32::try_from(self.relays.slots_end()).unwrap_or(u32::MAX);
        let end = first.saturating_add(most).min(bound);
        for relay in first..end {
            let Some((about, live, outputs)) = self.offloadable(relay) else {
                continue;
            };
            for channel in live.channels.all() {
                if channel.traits.offloaded() {
                    about.offload(channel, until(channel, live.expires), outputs);
                }
            }
        }
        (end < bound).then_some(end)
    }

    /// The response to [`Output::StopOffload`](super::Output::StopOffload): what the kernel has relayed since the
    /// channel was offloaded, in datagrams and bytes of application data. It counts for the allocation and its log
    /// line, not for [`Stats`](super::Stats). An allocation that has just ended still counts it while its
    /// `AllocationClosed` is in the queue.
    pub fn add_offloaded_traffic(
        &mut self,
        allocation: AllocationKey,
        to_peers: Traffic,
        to_client: Traffic,
    ) {
        let AllocationKey { index, generation } = allocation;
        let (peers, client) = match self.clients.get_of_generation(index, generation) {
            Some(client) => match client.allocation_mut() {
                Some(allocation) => (&mut allocation.to_peers, &mut allocation.to_client),
                None => return,
            },
            None => match self.outputs.closing(allocation) {
                Some(closed) => (&mut closed.to_peers, &mut closed.to_client),
                None => return,
            },
        };
        peers.merge(to_peers);
        client.merge(to_client);
    }
}
