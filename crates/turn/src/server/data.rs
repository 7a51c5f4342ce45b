//! What arrives at a relayed transport address: the hot path towards clients (RFC 8656 §11.3, §12.7).

use std::net::{IpAddr, SocketAddr};

use stun::{ChannelNumber, INDICATION_HEADER_MAX, data_indication_header};

use super::allocation::Clients;
use super::channel_data::check;
use super::config::Config;
use super::limiter::RelayDirection;
use super::policy::{PeerClass, class_of_address, class_of_peer};
use super::relay::{LiveRelay, Relay};
use super::slab::Slab;
use super::{DropReason, PeerVerdict, Server};
use crate::{ClientPath, Now, RelayKey, Run};

/// The most a UDP datagram carries over IPv4.
const UDP_MAX: usize = 65_507;
/// The longest datagram from a peer that fits behind a ChannelData header.
const CHANNEL_MAX: usize = UDP_MAX - stun::channel_data::HEADER_LEN;
/// The longest datagram from a peer that fits into a Data indication, with its padding.
const INDICATION_MAX: usize = (UDP_MAX - INDICATION_HEADER_MAX) & !3;

impl Server {
    /// Datagrams from one peer that arrived at the relay's socket, or from another relay of this server.
    pub fn handle_peer(
        &mut self,
        now: Now,
        key: RelayKey,
        from: SocketAddr,
        run: Run<'_>,
    ) -> PeerVerdict {
        // All of them have the same channel as the first one, so they go to the same peer.
        let covers = run.count();
        let (client, channel) = match self.admit_from_peer(now, key, from, run) {
            Ok(admitted) => admitted,
            Err(reason) => return self.drop_from_peer(covers, reason),
        };
        let Some(client) = self.clients.get_mut(client) else {
            return self.drop_from_peer(covers, DropReason::StaleRelay);
        };
        self.stats.to_clients.add(covers, run.bytes.len());
        client.count_to_client(covers, run.bytes.len());
        let path = client.path.path();
        // RFC 8656 §12.5: the server "MUST use the ChannelData message if a channel has been bound to the
        // peer".
        match channel {
            Some(channel) => PeerVerdict::ChannelData {
                covers,
                path,
                channel,
            },
            None => PeerVerdict::DataIndication { covers, path },
        }
    }

    #[cold]
    fn drop_from_peer(&mut self, covers: usize, reason: DropReason) -> PeerVerdict {
        self.stats.count_drops(reason, covers);
        PeerVerdict::Drop { covers, reason }
    }

    /// The place of the client that gets these datagrams, and the channel that they go through, if any.
    #[inline]
    fn admit_from_peer(
        &mut self,
        now: Now,
        key: RelayKey,
        from: SocketAddr,
        run: Run<'_>,
    ) -> Result<(u32, Option<ChannelNumber>), DropReason> {
        let live = live(&mut self.relays, now, key)?;
        let policy = Policy {
            config: &self.config,
            epoch: self.policy_epoch,
            clients: &self.clients,
        };
        let channel = channel_from(live, now, from, &policy)?;
        let longest = if channel.is_some() {
            CHANNEL_MAX
        } else {
            INDICATION_MAX
        };
        if run.first().len() > longest {
            return Err(DropReason::TooLong);
        }
        if !self.limiter.admits(
            now.mono,
            live.client,
            RelayDirection::ToClient,
            run.bytes.len(),
        ) {
            return Err(DropReason::OverRate);
        }
        Ok((live.client, channel))
    }

    /// Writes the head of the Data indication (RFC 8656 §11.3) for [`PeerVerdict::DataIndication`]: everything before
    /// the payload. Returns its length. The payload follows, padded with zeros to a multiple of 4 bytes.
    pub fn write_data_indication(
        &mut self,
        peer: SocketAddr,
        payload_len: usize,
        header: &mut [u8; 64],
    ) -> usize {
        let id = self.random.transaction_id();
        let head = header.first_chunk_mut::<INDICATION_HEADER_MAX>();
        head.and_then(|head| data_indication_header(head, &id, &peer, payload_len))
            .unwrap_or(0)
    }

    /// Appends to `message` what the verdict about this datagram from `peer` sends to the client, as UDP requires it.
    /// Returns the client; `None` if the datagram is to be dropped. Faster programs write the header and the datagram
    /// from where they are.
    pub fn write_to_client(
        &mut self,
        verdict: &PeerVerdict,
        peer: SocketAddr,
        datagram: &[u8],
        message: &mut Vec<u8>,
    ) -> Option<ClientPath> {
        match *verdict {
            PeerVerdict::ChannelData { path, channel, .. } => {
                let length = u16::try_from(datagram.len()).ok()?;
                message.extend_from_slice(&stun::channel_data::header(channel, length));
                message.extend_from_slice(datagram);
                Some(path)
            }
            PeerVerdict::DataIndication { path, .. } => {
                let mut header = [0; 64];
                let length = self.write_data_indication(peer, datagram.len(), &mut header);
                message.extend_from_slice(&header[..length]);
                message.extend_from_slice(datagram);
                message.extend_from_slice(&[0; 3][..stun::padding(datagram.len())]);
                Some(path)
            }
            PeerVerdict::Drop { .. } => None,
        }
    }
}

/// The policy and the clients that it can be asked about.
struct Policy<'a> {
    config: &'a Config,
    epoch: u16,
    clients: &'a Clients,
}

impl Policy<'_> {
    #[cold]
    #[inline(never)]
    fn class_of_peer(&self, client: u32, peer: SocketAddr) -> PeerClass {
        self.clients
            .get(client)
            .map_or(PeerClass::Denied, |client| {
                class_of_peer(&*self.config.policy, &client.identity(), peer)
            })
    }

    #[cold]
    #[inline(never)]
    fn class_of_address(&self, client: u32, peer: IpAddr) -> PeerClass {
        self.clients
            .get(client)
            .map_or(PeerClass::Denied, |client| {
                class_of_address(&*self.config.policy, &client.identity(), peer)
            })
    }
}

/// The relay, if it is in use.
pub(super) fn live(
    relays: &mut Slab<Relay>,
    now: Now,
    key: RelayKey,
) -> Result<&mut LiveRelay, DropReason> {
    match relays.get_of_generation(key.index, key.generation) {
        Some(Relay::Live(live)) if live.expires > now.mono => Ok(live),
        Some(Relay::Live(_)) => Err(DropReason::AllocationExpired),
        Some(Relay::Opening(_) | Relay::Reserved(_)) => Err(DropReason::RelayNotInUse),
        None => Err(DropReason::StaleRelay),
    }
}

/// The channel on which the client gets what this peer sends, if there is one. RFC 8656 §9: it gets nothing
/// without a permission.
#[inline]
fn channel_from(
    live: &mut LiveRelay,
    now: Now,
    from: SocketAddr,
    policy: &Policy<'_>,
) -> Result<Option<ChannelNumber>, DropReason> {
    let client = live.client;
    if let Some(channel) = live.channels.bound_to(&from, now.mono) {
        return match check(channel, now, policy.epoch, |peer| {
            policy.class_of_peer(client, peer)
        }) {
            Ok(()) => Ok(Some(channel.number)),
            Err(DropReason::NoPermission) => Err(DropReason::PeerWithoutPermission),
            Err(reason) => Err(reason),
        };
    }
    let permission = live
        .permissions
        .get(&from.ip(), now.mono)
        .ok_or(DropReason::PeerWithoutPermission)?;
    if permission.policy_epoch != policy.epoch {
        if policy.class_of_address(client, from.ip()) == PeerClass::Denied {
            return Err(DropReason::PeerNotAllowed);
        }
        permission.policy_epoch = policy.epoch;
    }
    Ok(None)
}
