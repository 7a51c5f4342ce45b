//! RFC 8656 in lists.

use std::net::{IpAddr, SocketAddr};

use stun::AddressFamily;

use super::{CLIENTS, MAX_CHANNELS, MAX_PERMISSIONS};

/// A relayed transport address, as RFC 8656 §6 describes it.
#[derive(Clone, Debug)]
pub struct ModelRelay {
    pub address: SocketAddr,
    pub expires: u64,
    pub permissions: Vec<(IpAddr, u64)>,
    pub channels: Vec<(u16, SocketAddr, u64)>,
}

#[derive(Clone, Debug)]
pub struct ModelAllocation {
    user: usize,
    pub relays: Vec<ModelRelay>,
}

/// A port in reserve (RFC 8656 §7.2).
#[derive(Clone, Debug)]
pub struct ModelReservation {
    pub token: [u8; 8],
    user: usize,
    pub address: SocketAddr,
    expires: u64,
}

#[derive(Default)]
pub struct Model {
    pub channel_keeps_permission: bool,
    pub now: u64,
    pub allocations: [Option<ModelAllocation>; CLIENTS.len()],
    pub reservations: Vec<ModelReservation>,
    /// Whether a reload denies [`DENIED_LATER`](super::DENIED_LATER) now.
    pub denies: bool,
}

pub fn family_of(address: SocketAddr) -> AddressFamily {
    AddressFamily::of(&address.ip())
}

fn lifetime(asked: Option<u32>) -> u64 {
    u64::from(asked.unwrap_or(0).clamp(600, 3600))
}

impl Model {
    /// Removes whatever is over.
    pub fn expire(&mut self) {
        let now = self.now;
        self.reservations.retain(|reserved| reserved.expires > now);
        for allocation in &mut self.allocations {
            if let Some(some) = allocation {
                some.relays.retain(|relay| relay.expires > now);
                for relay in &mut some.relays {
                    relay.permissions.retain(|(_, expires)| *expires > now);
                    relay.channels.retain(|(_, _, expires)| *expires > now);
                }
            }
            if allocation
                .as_ref()
                .is_some_and(|some| some.relays.is_empty())
            {
                *allocation = None;
            }
        }
    }

    /// RFC 8656 §5: the allocation, if this user may do something to it.
    fn owned(&mut self, client: usize, user: usize) -> Result<&mut ModelAllocation, u16> {
        match &mut self.allocations[client] {
            None => Err(437),
            Some(allocation) if allocation.user != user => Err(441),
            Some(allocation) => Ok(allocation),
        }
    }

    pub fn allocate(
        &mut self,
        client: usize,
        user: usize,
        relayed: &[SocketAddr],
        asked: Option<u32>,
    ) {
        let expires = self.now + lifetime(asked);
        let relay = |address: &SocketAddr| ModelRelay {
            address: *address,
            expires,
            permissions: Vec::new(),
            channels: Vec::new(),
        };
        self.allocations[client] = Some(ModelAllocation {
            user,
            relays: relayed.iter().map(relay).collect(),
        });
    }

    /// RFC 8656 §7.2: the port above is held for 30 seconds.
    pub fn reserve(&mut self, user: usize, relayed: SocketAddr, token: [u8; 8]) {
        let address = SocketAddr::new(relayed.ip(), relayed.port() + 1);
        let expires = self.now + 30;
        self.reservations.push(ModelReservation {
            token,
            user,
            address,
            expires,
        });
    }

    /// The address that this user gets for a token, and its reservation is over.
    pub fn claim(&mut self, user: usize, token: [u8; 8]) -> Option<SocketAddr> {
        let is_meant =
            |reserved: &ModelReservation| reserved.token == token && reserved.user == user;
        let place = self.reservations.iter().position(is_meant)?;
        Some(self.reservations.remove(place).address)
    }

    /// Whether an allocation has this relayed transport address.
    pub fn is_live(&self, relayed: SocketAddr) -> bool {
        let relays = self
            .allocations
            .iter()
            .flatten()
            .flat_map(|some| &some.relays);
        relays.into_iter().any(|relay| relay.address == relayed)
    }

    fn is_denied(&self, peer: &SocketAddr) -> bool {
        let ip = peer.ip().to_string();
        ip.starts_with("10.") || self.denies && ip == super::DENIED_LATER
    }

    pub fn refresh(
        &mut self,
        client: usize,
        user: usize,
        family: Option<AddressFamily>,
        asked: Option<u32>,
    ) -> u16 {
        let now = self.now;
        let allocation = match self.owned(client, user) {
            Ok(allocation) => allocation,
            Err(code) => return code,
        };
        let is_meant =
            |relay: &ModelRelay| family.is_none_or(|family| family_of(relay.address) == family);
        if !allocation.relays.iter().any(is_meant) {
            return 443;
        }
        for relay in allocation.relays.iter_mut().filter(|relay| is_meant(relay)) {
            relay.expires = if asked == Some(0) {
                now
            } else {
                now + lifetime(asked)
            };
        }
        self.expire();
        0
    }

    pub fn permit(&mut self, client: usize, user: usize, peers: &[SocketAddr]) -> u16 {
        let now = self.now;
        let denied = peers.iter().any(|peer| self.is_denied(peer));
        let allocation = match self.owned(client, user) {
            Ok(allocation) => allocation,
            Err(code) => return code,
        };
        if peers.is_empty() {
            return 400;
        }
        let families: Vec<AddressFamily> = allocation
            .relays
            .iter()
            .map(|relay| family_of(relay.address))
            .collect();
        if peers
            .iter()
            .any(|peer| !families.contains(&family_of(*peer)))
        {
            return 443;
        }
        if denied {
            return 403;
        }
        let mut after = allocation.clone();
        for peer in peers {
            for relay in after
                .relays
                .iter_mut()
                .filter(|relay| family_of(relay.address) == family_of(*peer))
            {
                install(relay, peer.ip(), now + 300);
            }
        }
        if after
            .relays
            .iter()
            .any(|relay| relay.permissions.len() > MAX_PERMISSIONS)
        {
            return 508;
        }
        *allocation = after;
        0
    }

    pub fn bind(&mut self, client: usize, user: usize, number: u16, peer: SocketAddr) -> u16 {
        let now = self.now;
        let denied = self.is_denied(&peer);
        let bound_permission = if self.channel_keeps_permission {
            600
        } else {
            300
        };
        let allocation = match self.owned(client, user) {
            Ok(allocation) => allocation,
            Err(code) => return code,
        };
        let mut channels = allocation.relays.iter().flat_map(|relay| &relay.channels);
        if !(0x4000..=0x4fff).contains(&number)
            || channels.any(|(n, p, _)| (*n == number) != (*p == peer))
        {
            return 400;
        }
        let same_family = |relay: &&mut ModelRelay| family_of(relay.address) == family_of(peer);
        let Some(relay) = allocation.relays.iter_mut().find(same_family) else {
            return 443;
        };
        if denied {
            return 403;
        }
        let mut after = relay.clone();
        install(&mut after, peer.ip(), now + bound_permission);
        after.channels.retain(|(n, _, _)| *n != number);
        after.channels.push((number, peer, now + 600));
        if after.permissions.len() > MAX_PERMISSIONS || after.channels.len() > MAX_CHANNELS {
            return 508;
        }
        *relay = after;
        0
    }

    fn permitted(&self, relay: &ModelRelay, peer: SocketAddr) -> bool {
        relay.permissions.iter().any(|(ip, _)| *ip == peer.ip()) && !self.is_denied(&peer)
    }

    /// The channels of a client that carry data: number, relay, peer, and for how many seconds more.
    pub fn carrying(
        &self,
        client: usize,
    ) -> impl Iterator<Item = (u16, SocketAddr, SocketAddr, u64)> {
        let relays = self.allocations[client]
            .iter()
            .flat_map(|some| &some.relays);
        relays.flat_map(|relay| {
            let admitted = relay
                .channels
                .iter()
                .filter(|(_, peer, _)| !self.is_denied(peer));
            admitted.filter_map(|(number, peer, expires)| {
                let mut permissions = relay.permissions.iter();
                let (_, permission) = permissions.find(|(ip, _)| *ip == peer.ip())?;
                let end = (*expires).min(*permission).min(relay.expires);
                Some((*number, relay.address, *peer, end - self.now))
            })
        })
    }

    /// From which relay to which peer ChannelData goes, if anywhere.
    pub fn channel_data(&self, client: usize, number: u16) -> Option<(SocketAddr, SocketAddr)> {
        let relays = &self.allocations[client].as_ref()?.relays;
        let bound = |relay: &ModelRelay| {
            let channel = relay.channels.iter().find(|(n, _, _)| *n == number)?;
            self.permitted(relay, channel.1)
                .then_some((relay.address, channel.1))
        };
        relays.iter().find_map(bound)
    }

    /// From which relay a Send indication goes on, if from any. `is_own` says that the peer is a relayed transport
    /// address of the server.
    pub fn send(&self, client: usize, peer: SocketAddr, is_own: bool) -> Option<SocketAddr> {
        if is_own && !self.is_live(peer) {
            return None;
        }
        let relays = &self.allocations[client].as_ref()?.relays;
        let relay = relays
            .iter()
            .find(|relay| family_of(relay.address) == family_of(peer))?;
        self.permitted(relay, peer).then_some(relay.address)
    }

    /// Whether the client gets what a peer sends, and on which channel.
    pub fn arrive(
        &self,
        client: usize,
        family: AddressFamily,
        peer: SocketAddr,
    ) -> Option<Option<u16>> {
        let relays = &self.allocations[client].as_ref()?.relays;
        let relay = relays
            .iter()
            .find(|relay| family_of(relay.address) == family)?;
        let channel = relay
            .channels
            .iter()
            .find(|(_, p, _)| *p == peer)
            .map(|(number, ..)| *number);
        self.permitted(relay, peer).then_some(channel)
    }
}

/// Installs a permission, or refreshes it without making it shorter.
fn install(relay: &mut ModelRelay, peer: IpAddr, expires: u64) {
    match relay.permissions.iter_mut().find(|(ip, _)| *ip == peer) {
        Some((_, before)) => *before = expires.max(*before),
        None => relay.permissions.push((peer, expires)),
    }
}
