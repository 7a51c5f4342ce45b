//! What is bound: the listeners' sockets; and the addresses that relays will be bound to.

use super::open_sockets::take_group;
use super::{Builder, RECEIVE_BUFFER, SEND_BUFFER};
use crate::addresses::{self, RelayAddress, RelayAddresses, family_of};
use crate::error::StartError;
use crate::features::Buffers;
use io::{UdpOptions, UdpSocket};
use std::net::{IpAddr, SocketAddr};

impl Builder {
    pub(super) fn wanted_buffers(&self) -> Buffers {
        Buffers {
            receive: self.receive_buffer.unwrap_or(RECEIVE_BUFFER),
            send: self.send_buffer.unwrap_or(SEND_BUFFER),
        }
    }

    /// The relay addresses with their mappings, each proven to be usable.
    pub(super) fn relay_addresses(&self) -> Result<Vec<RelayAddress>, StartError> {
        let mut list: Vec<RelayAddress> = self
            .relay
            .iter()
            .copied()
            .map(RelayAddress::direct)
            .collect();
        let named = self.external.iter().filter_map(|(_, private)| *private);
        let missing: Vec<IpAddr> = named
            .filter(|private| list.iter().all(|relay| relay.local != *private))
            .collect();
        list.extend(missing.into_iter().map(RelayAddress::direct));
        if list.is_empty() {
            list = addresses::default_relay_addresses();
        }
        for &(public, private) in &self.external {
            map_external(&mut list, public, private)?;
        }
        match list.len() {
            0 => return Err(StartError::NoRelayAddress),
            1..=RelayAddresses::MAX => {}
            count => return Err(StartError::TooManyRelayAddresses(count)),
        }
        for (at, relay) in list.iter().enumerate() {
            check_relay_address(*relay, &list[..at])?;
        }
        Ok(list)
    }

    /// For each listener, one socket per worker, in the order of the workers. Another process of this server listens on
    /// the addresses in `shared`, too. All are bound before any worker reads: a socket that joins its group later would
    /// take over flows of the others.
    pub(super) fn bind_listeners(
        &self,
        workers: usize,
        gro: bool,
        shared: &[SocketAddr],
    ) -> Result<Vec<Vec<UdpSocket>>, StartError> {
        let udp = self.udp_addresses()?;
        let has_udp = !udp.is_empty() || !self.listen_sockets.is_empty();
        if !has_udp && self.listen_tcp.is_empty() && self.listen_tls.is_empty() {
            return Err(StartError::NoListener);
        }
        let buffers = self.wanted_buffers();
        let options = UdpOptions {
            gro,
            recv_buffer: Some(buffers.receive),
            send_buffer: Some(buffers.send),
            busy_poll_us: self.busy_poll_us,
            ..UdpOptions::listener()
        };
        // Only a wildcard leaves open what was asked.
        let options_of = |address: SocketAddr| UdpOptions {
            local_address: address.ip().is_unspecified(),
            ..options.clone()
        };
        let bound = udp.iter().map(|&(address, _)| {
            let options = options_of(address);
            match self.inherited.udp(address, workers, &options)? {
                Some(group) => Ok(group),
                None if shared.contains(&address) => bind_all(address, workers, &options),
                None => bind_group(address, workers, &options),
            }
        });
        let mut groups: Vec<Vec<UdpSocket>> = bound.collect::<Result<_, _>>()?;
        for sockets in &self.listen_sockets {
            let group = take_group(sockets, workers, &options_of)?;
            let address = group[0].local_addr();
            if groups.iter().any(|other| other[0].local_addr() == address) {
                return Err(StartError::DuplicateListener(address));
            }
            groups.push(group);
        }
        Ok(groups)
    }
}

/// Binds the sockets of one SO_REUSEPORT group.
fn bind_group(
    address: SocketAddr,
    workers: usize,
    options: &UdpOptions,
) -> Result<Vec<UdpSocket>, StartError> {
    // SO_REUSEPORT would let a second server of the same user join silently and take half of the clients. A plain
    // socket finds out whether the port is free, and which one is if any will do.
    let plain = UdpOptions {
        reuse_port: false,
        ..options.clone()
    };
    let group = || -> Result<Vec<UdpSocket>, StartError> {
        let free = UdpSocket::bind(address, &plain)
            .map_err(|source| StartError::Bind { address, source })?
            .local_addr();
        bind_all(free, workers, options)
    };
    // The port that the system chose may be in use a moment later; then another one is chosen.
    let attempts = if address.port() == 0 { 8 } else { 1 };
    let mut made = group();
    for _ in 1..attempts {
        if made.is_ok() {
            break;
        }
        made = group();
    }
    made
}

/// Binds a socket for each worker to an address that may be in use with SO_REUSEPORT.
fn bind_all(
    address: SocketAddr,
    workers: usize,
    options: &UdpOptions,
) -> Result<Vec<UdpSocket>, StartError> {
    let refused = |source| StartError::Bind { address, source };
    (0..workers)
        .map(|_| UdpSocket::bind(address, options).map_err(refused))
        .collect()
}

fn map_external(
    list: &mut [RelayAddress],
    public: IpAddr,
    private: Option<IpAddr>,
) -> Result<(), StartError> {
    if let Some(private) = private.filter(|private| private.is_ipv4() != public.is_ipv4()) {
        return Err(StartError::MixedFamilies { public, private });
    }
    let mut found = false;
    for relay in list.iter_mut() {
        // Never across families: an IPv6 relay must not be advertised by an IPv4 mapping.
        if relay.local.is_ipv4() == public.is_ipv4()
            && private.is_none_or(|private| relay.local == private)
        {
            relay.advertised = public;
            found = true;
        }
    }
    if found {
        Ok(())
    } else {
        Err(StartError::ExternalAddress {
            public,
            family: family_of(public),
        })
    }
}

fn check_relay_address(relay: RelayAddress, before: &[RelayAddress]) -> Result<(), StartError> {
    for ip in [relay.local, relay.advertised] {
        if ip.is_unspecified() || ip.is_multicast() {
            return Err(StartError::UnusableRelayAddress(ip));
        }
        if before
            .iter()
            .any(|other| other.local == ip || other.advertised == ip)
        {
            return Err(StartError::DuplicateRelayAddress(ip));
        }
    }
    let probe = UdpSocket::bind(SocketAddr::new(relay.local, 0), &UdpOptions::relay());
    probe.map(drop).map_err(|source| StartError::RelayAddress {
        address: relay.local,
        source,
    })
}
