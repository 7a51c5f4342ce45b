//! The SIP sockets of each worker. Each address has one over UDP and one over TCP (RFC 3261 §18.2.1). TLS and WebSocket
//! have their own.

use super::layers::StreamListener;
use super::settings::SipConfig;
use super::store::{SavePlace, SharedLog, WorkerBindings};
use super::takeover::{InheritedSip, SipTakeover, SipUpgrade};
use super::{NameResolver, Secrets, Sip, reading};
use crate::connections::TlsConfigs;
use crate::error::StartError;
use crate::features::Buffers;
use crate::inherited::InheritedSockets;
use crate::steering::Numbering;
use io::{TcpListener, TcpOptions, UdpOptions, UdpSocket};
use ipnet::IpNet;
use sip::HashKey;
use sip::flow::Transport;
use sip_server::location::{Limits, MemoryLocation};
use std::net::SocketAddr;
use std::sync::Arc;
use streams::rustls::{ClientConfig, ServerConfig};

/// The sockets of one address at one worker.
#[derive(Debug)]
pub(crate) struct SipListener {
    pub(crate) udp: UdpSocket,
    pub(crate) tcp: TcpListener,
    /// The address that both are bound to.
    pub(crate) local: SocketAddr,
}

/// The addresses of the SIP listeners.
#[derive(Debug, Clone, Default)]
pub(crate) struct SipAddresses {
    /// Over UDP and TCP.
    pub(crate) plain: Vec<SocketAddr>,
    /// Over TLS or WebSocket.
    pub(crate) streams: Vec<(Transport, SocketAddr)>,
}

impl SipAddresses {
    pub(crate) fn of(&self, transport: Transport) -> Vec<SocketAddr> {
        let of = self.streams.iter().filter(|(other, _)| *other == transport);
        of.map(|(_, address)| *address).collect()
    }
}

/// The TLS configurations of SIP.
#[derive(Debug, Clone, Default)]
pub(crate) struct SipTls {
    /// For connections that others open.
    pub(crate) accept: TlsConfigs,
    /// For connections that this server opens.
    pub(crate) connect: Option<Arc<ClientConfig>>,
}

/// The SIP part of a server. It is empty without addresses.
#[derive(Debug, Default)]
pub(crate) struct SipSetup {
    /// The addresses of the listeners.
    pub(crate) addresses: SipAddresses,
    /// SIP for each worker.
    pub(crate) workers: Vec<Sip>,
    /// For an upgrade.
    pub(crate) upgrade: Option<SipUpgrade>,
}

/// The parts of the server that SIP uses at the start.
#[derive(Debug)]
pub(crate) struct SipEnvironment<'a> {
    pub(crate) inherited: &'a InheritedSockets,
    pub(crate) save_place: Option<SavePlace>,
    /// The key of addresses of record and GRUUs that all nodes of the cluster have.
    pub(crate) cluster: Option<[u8; 16]>,
    /// The numbers of the workers.
    pub(crate) numbering: Numbering,
    /// The SIP of the process that this one takes over from.
    pub(crate) taking: Option<SipTakeover>,
    /// Networks of load balancers.
    pub(crate) proxies: &'a [IpNet],
}

/// The receive buffer of a SIP socket is this many times larger than that of other listeners. SIP messages are longer,
/// and overload control must see how many wait. The kernel accounts memory for each datagram. So four times 8 MiB hold
/// 52,000 datagrams of up to 600 bytes, or 29,000 of up to 1,600. One worker handles all of them within 200 ms.
const RECV_BUFFER_FACTOR: u32 = 4;

/// Binds all SIP sockets. UDP sockets get four times the receive buffer.
///
/// # Errors
/// If an address cannot be bound, or occurs twice; or if TLS has no certificate.
pub(crate) fn set_up(
    addresses: &SipAddresses,
    tls: &SipTls,
    buffers: Buffers,
    sip_config: SipConfig,
    surroundings: SipEnvironment<'_>,
) -> Result<SipSetup, StartError> {
    if addresses.plain.is_empty() && addresses.streams.is_empty() {
        return Ok(SipSetup::default());
    }
    let SipEnvironment {
        inherited,
        save_place,
        cluster,
        numbering,
        taking,
        proxies,
    } = surroundings;
    let workers = usize::from(numbering.workers);
    let (bound, listeners) = bind_all(addresses, tls, buffers, (workers, inherited))?;
    let names = NameResolver::new(&sip_config.settings.resolvers);
    let lasting = cluster.or(save_place.as_ref().map(|place| place.directory.key));
    let mut taken = InheritedSip::of(taking)?;
    let secrets = Secrets::new(numbering, names, taken.key, lasting, taken.runs);
    let sip_config = Arc::new(sip_config);
    let proxies: Arc<[IpNet]> = Arc::from(proxies);
    let sips = (numbering.first_worker..).zip(listeners);
    let sips = sips.map(|(number, listeners)| {
        let sip_config = Arc::clone(&sip_config);
        let proxies = Arc::clone(&proxies);
        Sip::new(
            number,
            listeners,
            proxies,
            sip_config,
            &secrets,
            reading::now(),
        )
    });
    let mut sips: Vec<Sip> = sips.collect::<Result<_, _>>().map_err(StartError::Worker)?;
    let (log, mut kept) = match save_place {
        None => (None, in_memory(workers, secrets.lasting)),
        Some(place) => {
            let key = secrets.lasting;
            let (log, kept) = SharedLog::open(place, key, numbering.workers, reading::now())?;
            (Some(log), kept)
        }
    };
    taken.give_bindings(&mut kept, secrets.lasting, reading::now());
    for (sip, kept) in sips.iter_mut().zip(kept) {
        sip.restore(kept);
        if let Some(other) = &taken.other_process {
            sip.join(other);
        }
    }
    Ok(SipSetup {
        addresses: bound,
        workers: sips,
        upgrade: Some(taken.upgrade(log)),
    })
}

/// The sockets of each worker: those of plain listeners, and those over TLS or WebSocket.
type WorkerSockets = Vec<(Vec<SipListener>, Vec<StreamListener>)>;

/// Binds all addresses for each of `workers` workers.
fn bind_all(
    addresses: &SipAddresses,
    tls: &SipTls,
    buffers: Buffers,
    (workers, inherited): (usize, &InheritedSockets),
) -> Result<(SipAddresses, WorkerSockets), StartError> {
    let mut of_workers: Vec<Vec<SipListener>> = (0..workers).map(|_| Vec::new()).collect();
    let mut bound = SipAddresses::default();
    for &address in &addresses.plain {
        let options = UdpOptions {
            // A message is one datagram, and the next one has another length.
            gro: false,
            recv_buffer: Some(buffers.receive.saturating_mul(RECV_BUFFER_FACTOR)),
            send_buffer: Some(buffers.send),
            // Only a wildcard socket requires the local address of each datagram.
            local_address: address.ip().is_unspecified(),
            ..UdpOptions::listener()
        };
        let group = bind(address, workers, &options, inherited)?;
        bound
            .plain
            .extend(group.first().map(|listener| listener.local));
        let places = of_workers.iter_mut().zip(group);
        places.for_each(|(list, listener)| list.push(listener));
    }
    let mut of_streams: Vec<Vec<StreamListener>> = (0..workers).map(|_| Vec::new()).collect();
    for &(transport, address) in &addresses.streams {
        let accept = tls.accept.at(address).filter(|_| transport.is_secure());
        let accept = accept.map(without_alpn);
        if transport.is_secure() && accept.is_none() {
            return Err(StartError::NoCertificate(address));
        }
        let (local, group) = match inherited.tcp(address, workers)? {
            Some(group) => (address, group),
            None => bind_stream(address, workers)
                .map_err(|source| StartError::Bind { address, source })?,
        };
        bound.streams.push((transport, local));
        for (list, socket) in of_streams.iter_mut().zip(group) {
            list.push(StreamListener {
                socket,
                local,
                transport,
                tls: accept.clone(),
                connect: tls.connect.clone(),
            });
        }
    }
    let listeners = of_workers.into_iter().zip(of_streams);
    Ok((bound, listeners.collect()))
}

/// Bindings of each worker that are in no log; none yet.
fn in_memory(workers: usize, key: HashKey) -> Vec<WorkerBindings> {
    let none = |_| WorkerBindings::InMemory(MemoryLocation::new(key, Limits::default()));
    (0..workers).map(none).collect()
}

/// How many UDP ports are tried until one is free over TCP, too.
const MAX_ATTEMPTS: usize = 64;

/// Binds an address for all workers, with the same port over UDP and TCP. All are bound before any is read. A socket
/// that joins its group later would take flows from the others.
fn bind(
    address: SocketAddr,
    workers: usize,
    options: &UdpOptions,
    inherited: &InheritedSockets,
) -> Result<Vec<SipListener>, StartError> {
    let refused = |source| StartError::Bind { address, source };
    let udp = inherited.udp(address, workers, options)?;
    let tcp = inherited.tcp(address, workers)?;
    let mut tries = 0;
    let free = loop {
        let unbound = (udp.is_none(), tcp.is_none());
        match free_port(address, options, unbound) {
            Ok(free) => break free,
            // With port 0, the kernel chooses a port for UDP. Over TCP it may be in use.
            Err(_) if address.port() == 0 && tries < MAX_ATTEMPTS => tries += 1,
            Err(error) => return Err(refused(error)),
        }
    };
    let workers = 0..workers;
    let bind_udp = || {
        workers
            .clone()
            .map(|_| UdpSocket::bind(free, options))
            .collect()
    };
    let udp: Vec<_> = udp.map_or_else(bind_udp, Ok).map_err(refused)?;
    let bind_tcp = || {
        let one = |_| TcpListener::bind(free, &TcpOptions::default());
        workers.clone().map(one).collect()
    };
    let tcp: Vec<_> = tcp.map_or_else(bind_tcp, Ok).map_err(refused)?;
    let pairs = udp.into_iter().zip(tcp);
    let listener = |(udp, tcp)| SipListener {
        udp,
        tcp,
        local: free,
    };
    Ok(pairs.map(listener).collect())
}

/// A copy of the configuration without ALPN (RFC 7301 §3.2). Browsers offer `http/1.1` for WSS, and SIP clients offer
/// any protocol. The protocols of TURN would refuse them.
fn without_alpn(config: Arc<ServerConfig>) -> Arc<ServerConfig> {
    let mut config = Arc::unwrap_or_clone(config);
    config.alpn_protocols = Vec::new();
    Arc::new(config)
}

/// The sockets of one SO_REUSEPORT group, and their address. A plain socket checks first whether the port is free.
fn bind_stream(
    address: SocketAddr,
    workers: usize,
) -> std::io::Result<(SocketAddr, Vec<TcpListener>)> {
    let plain = TcpOptions {
        reuse_port: false,
        ..TcpOptions::default()
    };
    let free = TcpListener::bind(address, &plain)?.local_addr();
    let sockets = (0..workers).map(|_| TcpListener::bind(free, &TcpOptions::default()));
    Ok((free, sockets.collect::<std::io::Result<_>>()?))
}

/// The address with a port that no other socket uses over `udp` and `tcp`. With SO_REUSEPORT, a second server of the
/// same user could join the group unnoticed, and take half of the messages.
fn free_port(
    address: SocketAddr,
    options: &UdpOptions,
    (udp, tcp): (bool, bool),
) -> std::io::Result<SocketAddr> {
    let mut free = address;
    if udp {
        let plain = UdpOptions {
            reuse_port: false,
            ..options.clone()
        };
        free = UdpSocket::bind(address, &plain)?.local_addr();
    }
    if tcp {
        let plain = TcpOptions {
            reuse_port: false,
            ..TcpOptions::default()
        };
        TcpListener::bind(free, &plain)?;
    }
    Ok(free)
}
