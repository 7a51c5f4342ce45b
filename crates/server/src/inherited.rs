//! Listener sockets that the program that started this process has bound: systemd, by a socket unit.

use crate::error::OpenSocketError;
use io::inherited::{Inherited, SocketKind, describe, serves_both_families, take};
use io::{TcpListener, UdpOptions, UdpSocket};
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

/// The sockets that the environment announces for this process (`LISTEN_FDS`, `LISTEN_FDNAMES`). A listener of the
/// server whose address and transport one of them has uses it, instead of binding a socket; each has to be used.
#[derive(Debug, Default)]
pub struct InheritedSockets {
    sockets: Vec<InheritedFd>,
}

#[derive(Debug)]
struct InheritedFd {
    fd: OwnedFd,
    number: i32,
    name: String,
    kind: SocketKind,
    local: SocketAddr,
    is_used: AtomicBool,
}

/// Why inherited sockets cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InheritedError {
    /// The announcement makes no sense, or a descriptor is not open.
    #[error("LISTEN_FDS cannot be used: {0}")]
    Environment(#[source] std::io::Error),
    /// A socket that no listener can be made of.
    #[error(
        "the inherited socket {number} ({name}) is neither a UDP socket nor a listening TCP socket: write ListenDatagram= or ListenStream= with an IP address and a port"
    )]
    NoListener {
        /// The number of its descriptor.
        number: i32,
        /// Its name.
        name: String,
    },
    /// A socket that no listener has asked for.
    #[error(
        "the inherited socket {number} ({name}), {transport} {address}, is the address of no listener: listen on exactly this address, or remove the socket from its unit"
    )]
    Unused {
        /// The number of its descriptor.
        number: i32,
        /// Its name.
        name: String,
        /// `udp` or `tcp`.
        transport: &'static str,
        /// What it is bound to.
        address: SocketAddr,
    },
    /// More sockets of one address than workers.
    #[error(
        "{sockets} inherited sockets for {transport} {address} are more than the {workers} workers can read: give one per worker"
    )]
    TooMany {
        /// `udp` or `tcp`.
        transport: &'static str,
        /// What they are bound to.
        address: SocketAddr,
        /// How many there are.
        sockets: usize,
        /// How many workers the server has.
        workers: usize,
    },
    /// Workers without a UDP socket.
    #[error(
        "{sockets} inherited sockets for udp {address}, but {workers} workers need one each, and no more can be bound ({why}): repeat ListenDatagram= {workers} times with ReusePort=yes, or use {sockets} workers"
    )]
    TooFew {
        /// What they are bound to.
        address: SocketAddr,
        /// How many there are.
        sockets: usize,
        /// How many workers the server has.
        workers: usize,
        /// Why the server cannot bind the others.
        why: String,
    },
    /// One cannot be a listener.
    #[error("the inherited sockets for {address} cannot be used: {source}")]
    Refused {
        /// What they are bound to.
        address: SocketAddr,
        /// What is wrong.
        source: OpenSocketError,
    },
}

impl InheritedSockets {
    /// Takes what the environment announces for this process. To be called once, before anything else uses descriptors.
    ///
    /// # Errors
    /// If the announcement makes no sense, or one of the sockets can be no listener.
    pub fn from_environment() -> Result<Self, InheritedError> {
        let taken = take().map_err(InheritedError::Environment)?;
        let sockets = taken.into_iter().map(given).collect::<Result<_, _>>()?;
        Ok(Self { sockets })
    }

    /// The sockets that a running server has handed over
    /// ([`Offer::take_other_sockets`](crate::handover::Offer::take_other_sockets)). Sockets that no listener has asked
    /// for are closed; the running server keeps them until it ends.
    #[must_use]
    pub fn of_predecessor(sockets: Vec<OwnedFd>) -> Self {
        let numbered = (0..).zip(sockets);
        let given = numbered.filter_map(|(number, fd)| {
            let name = "predecessor".to_owned();
            let given = given(Inherited { fd, number, name }).ok()?;
            given.is_used.store(true, Ordering::Relaxed);
            Some(given)
        });
        Self {
            sockets: given.collect(),
        }
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.sockets.len()
    }

    /// Takes the TCP socket that listens on this address, if there is one: for a listener that is not the server's.
    #[must_use]
    pub fn take_tcp(&mut self, address: SocketAddr) -> Option<std::net::TcpListener> {
        let is_it =
            |given: &InheritedFd| given.kind == SocketKind::TcpListener && given.local == address;
        let at = self.sockets.iter().position(is_it)?;
        Some(self.sockets.remove(at).fd.into())
    }

    /// The sockets of this kind and address, which are used from now on.
    fn find(&self, kind: SocketKind, address: SocketAddr) -> Vec<&InheritedFd> {
        let is_it = |given: &&InheritedFd| given.kind == kind && given.local == address;
        let found: Vec<_> = self.sockets.iter().filter(is_it).collect();
        for given in &found {
            given.is_used.store(true, Ordering::Relaxed);
        }
        found
    }

    /// For each worker a UDP socket of this address; `None` if none was inherited.
    pub(crate) fn udp(
        &self,
        address: SocketAddr,
        workers: usize,
        options: &UdpOptions,
    ) -> Result<Option<Vec<UdpSocket>>, InheritedError> {
        let found = self.find(SocketKind::Udp, address);
        if found.is_empty() {
            return Ok(None);
        }
        check_count("udp", address, found.len(), workers)?;
        let refused = |source| InheritedError::Refused { address, source };
        let mut group = Vec::with_capacity(workers);
        for given in &found {
            let copy = given.copy().map_err(refused)?;
            let socket = UdpSocket::from_bound(copy, options);
            group.push(socket.map_err(|error| refused(OpenSocketError::System(error)))?);
        }
        let too_few = |why| InheritedError::TooFew {
            address,
            sockets: found.len(),
            workers,
            why,
        };
        if workers > 1 && !group[0].reuse_port() {
            return Err(too_few("they do not have SO_REUSEPORT".to_owned()));
        }
        while group.len() < workers {
            let socket = UdpSocket::bind(address, options);
            group.push(socket.map_err(|error| too_few(error.to_string()))?);
        }
        Ok(Some(group))
    }

    /// For each worker a TCP socket that listens on this address; `None` if none was inherited. Workers may share one:
    /// the kernel gives a connection to the worker that accepts it first.
    pub(crate) fn tcp(
        &self,
        address: SocketAddr,
        workers: usize,
    ) -> Result<Option<Vec<TcpListener>>, InheritedError> {
        let found = self.find(SocketKind::TcpListener, address);
        if found.is_empty() {
            return Ok(None);
        }
        check_count("tcp", address, found.len(), workers)?;
        let refused = |source| InheritedError::Refused { address, source };
        let group = found.iter().cycle().take(workers).map(|given| {
            let copy = given.copy().map_err(refused)?;
            TcpListener::from_listening(copy)
                .map_err(|error| refused(OpenSocketError::System(error)))
        });
        group.collect::<Result<_, _>>().map(Some)
    }

    /// Each socket has a listener.
    pub(crate) fn check_used(&self) -> Result<(), InheritedError> {
        let is_unused = |given: &&InheritedFd| !given.is_used.load(Ordering::Relaxed);
        let Some(given) = self.sockets.iter().find(is_unused) else {
            return Ok(());
        };
        Err(InheritedError::Unused {
            number: given.number,
            name: given.name.clone(),
            transport: match given.kind {
                SocketKind::Udp => "udp",
                SocketKind::TcpListener => "tcp",
            },
            address: given.local,
        })
    }
}

impl InheritedFd {
    /// A descriptor of its own, of a socket that serves one family.
    fn copy(&self) -> Result<OwnedFd, OpenSocketError> {
        if serves_both_families(self.fd.as_fd()) {
            return Err(OpenSocketError::BothFamilies(self.local));
        }
        self.fd.try_clone().map_err(OpenSocketError::System)
    }
}

fn given(socket: Inherited) -> Result<InheritedFd, InheritedError> {
    let Inherited { fd, number, name } = socket;
    match describe(fd.as_fd()) {
        Ok(Some((kind, local))) => Ok(InheritedFd {
            fd,
            number,
            name,
            kind,
            local,
            is_used: AtomicBool::new(false),
        }),
        _ => Err(InheritedError::NoListener { number, name }),
    }
}

fn check_count(
    transport: &'static str,
    address: SocketAddr,
    sockets: usize,
    workers: usize,
) -> Result<(), InheritedError> {
    if sockets <= workers {
        return Ok(());
    }
    Err(InheritedError::TooMany {
        transport,
        address,
        sockets,
        workers,
    })
}
