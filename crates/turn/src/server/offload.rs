//! Channels that the embedder relays below the engine, in the kernel: which they are, and until when.
//!
//! The engine says it, with [`Output::Offload`](super::Output) and [`Output::Onload`](super::Output), at every change:
//! what the two leave behind is at any time what `handle_client` and `handle_peer` would relay over channels, no more and
//! no less. It remembers in one bit of each channel what it has said, so that nothing is taken back that was not given.
//! A channel carries data until the first of three ends: its own, its permission's and its allocation's. That moment goes
//! along with it, so that it ends there also when the engine is asleep. Data moves none of them (RFC 8656 §9, §12).
//!
//! Only what a UDP client sends can be told apart below the engine.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::Server;
use super::channel::Channel;
use super::channel_data::check;
use super::config::Config;
use super::output::{OffloadedChannel, Traffic};
use super::outputs::{Outputs, Queued};
use super::policy::PeerClass;
use super::relay::{LiveRelay, Relay};
use crate::{AllocationKey, ClientPath, Mono, Now, Transport};

/// What is the same for all channels of one relay.
#[derive(Clone, Copy)]
struct About {
    allocation: AllocationKey,
    path: ClientPath,
    relayed: SocketAddr,
}

impl About {
    fn of(&self, channel: &Channel) -> OffloadedChannel {
        OffloadedChannel {
            allocation: self.allocation,
            path: self.path,
            relayed: self.relayed,
            peer: channel.peer(),
            number: channel.number,
        }
    }

    /// Says that the channel is to be relayed below, until that moment.
    fn offload(&self, channel: &mut Channel, deadline: Mono, outputs: &mut Outputs) {
        channel.traits.set_offloaded(true);
        outputs.push(Queued::Offload {
            channel: self.of(channel),
            own_relay: channel.traits.own_relay(),
            deadline,
        });
    }

    /// Says that it no longer is, if it was.
    fn onload(&self, channel: &mut Channel, outputs: &mut Outputs) {
        if channel.traits.offloaded() {
            channel.traits.set_offloaded(false);
            outputs.push(Queued::Onload(self.of(channel)));
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
    fn offloadable(&mut self, relay: u32) -> Option<(About, &mut LiveRelay, &mut Outputs)> {
        let live = self.relays.get_mut(relay).and_then(Relay::live_mut)?;
        let path = self.clients.get(live.client)?.path.path();
        if path.five_tuple.transport != Transport::Udp {
            return None;
        }
        let about = About {
            allocation: AllocationKey {
                index: live.client,
                generation: self.clients.generation(live.client),
            },
            path,
            relayed: live.advertised.address(),
        };
        Some((about, live, &mut self.outputs))
    }

    /// The permission for this address was made or refreshed, and perhaps a channel with it.
    pub(super) fn offload_towards(&mut self, now: Now, relay: u32, peer: &IpAddr) {
        if !self.config.offload {
            return;
        }
        let (config, epoch) = (Arc::clone(&self.config), self.policy_epoch);
        let Some((about, live, outputs)) = self.offloadable(relay) else {
            return;
        };
        for channel in live.channels.towards(peer) {
            let deadline = until(channel, live.expires);
            if deadline > now.mono && check(channel, now, &*config.policy, epoch).is_ok() {
                about.offload(channel, deadline, outputs);
            }
        }
    }

    /// The allocation was refreshed; its end was at `before`.
    pub(super) fn offload_prolonged(&mut self, now: Now, relay: u32, before: Mono) {
        if !self.config.offload {
            return;
        }
        let (config, epoch) = (Arc::clone(&self.config), self.policy_epoch);
        let Some((about, live, outputs)) = self.offloadable(relay) else {
            return;
        };
        for channel in live.channels.all() {
            let deadline = until(channel, live.expires);
            let moved = deadline != until(channel, before);
            if moved && deadline > now.mono && check(channel, now, &*config.policy, epoch).is_ok() {
                about.offload(channel, deadline, outputs);
            }
        }
    }

    /// Takes back what no longer carries data.
    pub(super) fn onload_lapsed(&mut self, now: Now, relay: u32) {
        if let Some((about, live, outputs)) = self.offloadable(relay) {
            let lapsed = |channel: &&mut Channel| until(channel, live.expires) <= now.mono;
            for channel in live.channels.all().iter_mut().filter(lapsed) {
                about.onload(channel, outputs);
            }
        }
    }

    /// Takes back all channels of a relay that is about to end.
    pub(super) fn onload_all(&mut self, relay: u32) {
        if let Some((about, live, outputs)) = self.offloadable(relay) {
            for channel in live.channels.all() {
                about.onload(channel, outputs);
            }
        }
    }

    /// There is a new configuration: with another policy, other channels may carry data, or carry it elsewhere.
    pub(super) fn offload_anew(&mut self, now: Now, before: &Config) {
        if !before.offload && !self.config.offload {
            return;
        }
        let (config, epoch) = (Arc::clone(&self.config), self.policy_epoch);
        // What has a limit is described differently from what has none.
        let again = (config.allocation_rate == 0) != (before.allocation_rate == 0);
        for relay in self.relays.indices().collect::<Vec<_>>() {
            let Some((about, live, outputs)) = self.offloadable(relay) else {
                continue;
            };
            for channel in live.channels.all() {
                let deadline = until(channel, live.expires);
                let class = if config.offload && deadline > now.mono {
                    config.policy.permits(channel.peer())
                } else {
                    PeerClass::Denied
                };
                if class == PeerClass::Denied {
                    about.onload(channel, outputs);
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
    }

    /// Says again what is relayed below, of at most `most` relays from the one at `first` on. Returns where to go on, `None` at the end.
    pub(super) fn describe_offloaded(&mut self, first: u32, most: u32) -> Option<u32> {
        let bound = u32::try_from(self.relays.bound()).unwrap_or(u32::MAX);
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

    /// Adds what was relayed below to what the allocation has relayed; also if it has just ended, as long as its
    /// `AllocationClosed` is still in the queue.
    pub(super) fn add_offloaded(
        &mut self,
        allocation: AllocationKey,
        to_peers: Traffic,
        to_client: Traffic,
    ) {
        let AllocationKey { index, generation } = allocation;
        let (peers, client) = match self.clients.get_tenant(index, generation) {
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
