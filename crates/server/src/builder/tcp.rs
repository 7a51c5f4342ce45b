//! The TCP sockets of STUN and TURN: for each address one per worker, plain, TLS, or both.

use super::Builder;
use crate::certificates::Certificates;
use crate::connections::{Protocols, StreamListener, TlsConfigs};
use crate::error::StartError;
use crate::sip::SipTls;
use io::{TcpListener, TcpOptions};
use std::net::SocketAddr;
use std::sync::Arc;
use streams::domains::client_config;

/// For each worker its sockets; and the addresses of plain TCP and of TLS.
type BoundStreams = (Vec<Vec<StreamListener>>, Vec<SocketAddr>, Vec<SocketAddr>);

impl Builder {
    /// What each TLS listener is configured with: the own configuration of a listener, or that of all others.
    fn tls_configs(&self) -> TlsConfigs {
        let certificates = self.certificates.as_ref();
        let made = || {
            let certificates = certificates.filter(|certificates| !certificates.is_empty())?;
            Some(certificates.server_config(false))
        };
        let mut configs = TlsConfigs {
            of_all: self.tls.clone().or_else(made),
            of_some: self.tls_of.clone(),
        };
        for listener in certificates
            .map(Certificates::listeners)
            .unwrap_or_default()
        {
            if !self.tls_of.iter().any(|(known, _)| *known == listener) {
                let own = certificates.map(|all| all.at(listener).server_config(false));
                configs.of_some.extend(own.map(|own| (listener, own)));
            }
        }
        configs
    }

    /// What SIP's TLS is configured with, in both directions.
    pub(super) fn sip_tls_configs(&self) -> SipTls {
        let mut accept = match &self.sip_tls {
            // It may verify clients, which the others do not.
            Some(config) => TlsConfigs {
                of_all: Some(Arc::clone(config)),
                of_some: Vec::new(),
            },
            None => self.tls_configs(),
        };
        // The first of a listener applies.
        accept.of_some.splice(..0, self.sip_tls_of.iter().cloned());
        SipTls {
            accept,
            connect: self.sip_next_hops.as_ref().map(|(roots, own)| {
                let own = own.clone().map(|own| Arc::new(own) as _);
                Arc::new(client_config(Arc::clone(roots), own))
            }),
        }
    }

    /// All are bound before any worker accepts: a socket that joins its group later would take over connections of the
    /// others.
    pub(super) fn bind_streams(&self, workers: usize) -> Result<BoundStreams, StartError> {
        let configs = self.tls_configs();
        let is_without = |address: &&SocketAddr| configs.at(**address).is_none();
        if let Some(address) = self.listen_tls.iter().find(is_without) {
            return Err(StartError::NoCertificate(*address));
        }
        for list in [&self.listen_tcp, &self.listen_tls] {
            let is_again = |(at, address): &(usize, &SocketAddr)| {
                address.port() != 0 && list[..*at].contains(address)
            };
            if let Some((_, address)) = list.iter().enumerate().find(is_again) {
                return Err(StartError::DuplicateListener(*address));
            }
        }
        let is_shared =
            |address: &SocketAddr| address.port() != 0 && self.listen_tcp.contains(address);
        let plain = self.listen_tcp.iter().map(|&address| {
            (
                address,
                true,
                self.listen_tls.contains(&address) && address.port() != 0,
            )
        });
        let only_tls = self.listen_tls.iter().filter(|address| !is_shared(address));
        let wanted = plain.chain(only_tls.map(|&address| (address, false, true)));
        let mut of_workers: Vec<Vec<StreamListener>> = (0..workers).map(|_| Vec::new()).collect();
        let (mut tcp, mut tls) = (Vec::new(), Vec::new());
        for (address, has_plain, has_tls) in wanted {
            let protocols = Protocols {
                plain: has_plain,
                tls: configs.at(address).filter(|_| has_tls),
                proxies: Arc::from(&self.proxies[..]),
            };
            let group = match self.inherited.tcp(address, workers)? {
                Some(group) => group,
                None => bind_group(address, workers)
                    .map_err(|source| StartError::Bind { address, source })?,
            };
            let local = group.first().map_or(address, TcpListener::local_addr);
            tcp.extend(has_plain.then_some(local));
            tls.extend(has_tls.then_some(local));
            for (list, socket) in of_workers.iter_mut().zip(group) {
                let protocols = protocols.clone();
                list.push(StreamListener { socket, protocols });
            }
        }
        Ok((of_workers, tcp, tls))
    }
}

/// The sockets of one SO_REUSEPORT group. With SO_REUSEPORT, a second server of the same user would join silently and
/// get a part of the connections. So a plain socket first tests whether the port is free.
fn bind_group(address: SocketAddr, workers: usize) -> std::io::Result<Vec<TcpListener>> {
    let plain = TcpOptions {
        reuse_port: false,
        ..TcpOptions::default()
    };
    let free = TcpListener::bind(address, &plain)?.local_addr();
    (0..workers)
        .map(|_| TcpListener::bind(free, &TcpOptions::default()))
        .collect()
}
