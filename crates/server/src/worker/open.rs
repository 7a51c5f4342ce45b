//! Opening relay sockets: a port from the pool, a socket bound to it, and what to say when either runs out.

use super::sockets::{PortSocket, RelaySocket, SharedPort, Token};
use crate::addresses::{RelayAddresses, RelayIndex};
use crate::counters::Counters;
use crate::descriptors::ForClients;
use crate::hooks::RelayChoice;
use crate::ports::{Owner, PortSelection};
use crate::random::Entropy;
use crate::tcp_relays::{BACKLOG, TcpRelay};
use io::{Interest, Poller, TcpListener, UdpOptions, UdpSocket};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use stun::AddressFamily;
use turn::server::{OpenError, OpenedRelay, PortRequest, RelayRequest, RelayedAddresses};

/// Most relays that one request opens: a pair, or one of each family.
pub(crate) const MAX_RELAYS: usize = 2;

/// The results of one request, in its order.
pub(crate) type Results = ([Result<OpenedRelay, OpenError>; MAX_RELAYS], usize);

/// Opens the relay sockets of one worker.
#[derive(Debug)]
pub(crate) struct Opener {
    /// The worker's number.
    pub(crate) worker: u16,
    /// Its place among the workers of this process.
    place: usize,
    pub(crate) relays: Arc<RelayAddresses>,
    options: UdpOptions,
    descriptors: ForClients,
    /// The kernel can join datagrams.
    pub(crate) gro: bool,
    pub(crate) entropy: Entropy,
    /// Ports that another process held during the current request: kept until its end, so that none is tried twice.
    foreign: Vec<(RelayIndex, u16)>,
    /// Open, but held for a reservation token: no allocation owns them, so they are not live.
    reserved: Vec<Reserved>,
    /// The shared ports of this worker, by their numbers; empty if each relay has its own port.
    shared: Vec<PortShare>,
}

/// A shared port, and how many relays have it.
#[derive(Debug)]
struct PortShare {
    address: RelayIndex,
    port: u16,
    relays: u32,
}

/// Slots of shared ports in the table of owners begin here; those of relays stay far below.
const SHARED_SLOTS: u32 = 0xff00_0000;

/// The number of the shared port that this slot stands for.
pub(crate) fn shared_number(slot: u32) -> Option<u16> {
    let number = slot.checked_sub(SHARED_SLOTS)?;
    u16::try_from(number).ok()
}

/// Relay address, port and slot.
type Reserved = (RelayIndex, u16, u32);

impl Opener {
    /// How many ports of other processes a request passes over before it gives up. The pool remembers these ports, so
    /// the next request starts with other ports.
    const MAX_ATTEMPTS: usize = 256;

    /// All relays share the ports of `shared`, if there are any.
    pub(crate) fn new(
        (worker, place): (u16, usize),
        relays: Arc<RelayAddresses>,
        gro: bool,
        shared: &[SharedPort],
    ) -> Opener {
        let mut opener = Opener {
            worker,
            place,
            relays,
            options: UdpOptions::relay(),
            descriptors: ForClients::new(),
            gro,
            entropy: Entropy::new(),
            foreign: Vec::new(),
            reserved: Vec::new(),
            shared: Vec::new(),
        };
        opener.share(shared);
        opener
    }

    /// All relays share these ports from now on, which stay open.
    fn share(&mut self, ports: &[SharedPort]) {
        for (number, shared) in (0..).zip(ports) {
            let SharedPort { address, port, .. } = *shared;
            let owner = Owner {
                worker: self.worker,
                slot: SHARED_SLOTS + number,
            };
            self.relays.owners(address).set(port, owner);
            self.shared.push(PortShare {
                address,
                port,
                relays: 0,
            });
        }
    }

    /// Gives a relay the shared port that fewest have.
    fn open_shared(
        &mut self,
        request: RelayRequest,
        choice: RelayChoice,
        counters: &mut Counters,
    ) -> Result<RelaySocket, OpenError> {
        if request.port != PortRequest::Any {
            return Err(OpenError::NoPort);
        }
        let only = self.chosen(choice)?;
        let relays = &self.relays;
        let is_chosen = |share: &PortShare| {
            let is_it = only.is_none_or(|only| only == share.address);
            is_it && relays.address(share.address).family() == request.family
        };
        let numbered = (0..).zip(&mut self.shared);
        let chosen = numbered.filter(|(_, share)| is_chosen(share));
        let fewest = chosen.min_by_key(|(_, share)| share.relays);
        // Each relay address has every shared port: without one, it has no address of the family.
        let missing = match only {
            Some(_) => OpenError::Other,
            None => OpenError::FamilyUnsupported,
        };
        let (number, share) = fewest.ok_or(missing)?;
        share.relays += 1;
        counters.relays_opened += 1;
        Ok(RelaySocket {
            key: request.key,
            socket: PortSocket::Shared(number),
            address: share.address,
            port: share.port,
        })
    }

    /// Opens what `requests` asks for, each on the address of its entry in `choices`. Opened sockets go to `opened` and
    /// are watched from now on.
    pub(crate) fn open(
        &mut self,
        requests: &[RelayRequest],
        choices: &[RelayChoice; MAX_RELAYS],
        now_s: u64,
        poller: &Poller,
        counters: &mut Counters,
        opened: &mut impl FnMut(RelaySocket),
    ) -> Results {
        let mut results = [Err(OpenError::Other); MAX_RELAYS];
        let count = requests.len().min(MAX_RELAYS);
        match *requests {
            // RFC 8656 §7.2: EVEN-PORT with R wants ports N and N+1 of one address.
            [_, second] if second.port == PortRequest::Next && !self.shared.is_empty() => {
                results = [Err(OpenError::NoPort); MAX_RELAYS];
            }
            [first, second] if second.port == PortRequest::Next => {
                let pair = self.open_pair([first, second], choices[0], now_s, poller, counters);
                results = match pair {
                    Ok([even, odd]) => {
                        self.announce(&even);
                        self.reserved.push((odd.address, odd.port, odd.key.index));
                        [even, odd].map(|relay| Ok(self.opened_relay(relay, opened)))
                    }
                    Err(error) => [Err(error); MAX_RELAYS],
                };
            }
            _ => {
                for ((result, request), choice) in results.iter_mut().zip(requests).zip(choices) {
                    let relay = if self.shared.is_empty() {
                        let relay = self.open_one(*request, *choice, now_s, poller, counters);
                        relay.inspect(|relay| self.announce(relay))
                    } else {
                        self.open_shared(*request, *choice, counters)
                    };
                    *result = relay.map(|relay| self.opened_relay(relay, opened));
                }
            }
        }
        for error in results[..count]
            .iter()
            .filter_map(|result| result.as_ref().err())
        {
            count_error(*error, counters);
        }
        self.give_back_foreign(counters);
        (results, count)
    }

    fn give_back_foreign(&mut self, counters: &mut Counters) {
        counters.foreign_ports += self.foreign.len() as u64;
        for (address, port) in self.foreign.drain(..) {
            self.relays.pool(address).give_back_foreign(port);
        }
    }

    /// Opens a TCP relay (RFC 6062). Only the kernel reaches it: peers connect through the kernel.
    pub(crate) fn open_tcp(
        &mut self,
        request: RelayRequest,
        choice: RelayChoice,
        now_s: u64,
        counters: &mut Counters,
    ) -> Result<TcpRelay, OpenError> {
        let place = (request.family, choice);
        let relay = self.search(place, PortSelection::Any, now_s, |opener, address, port| {
            let listener = opener.bind_with(address, port, |local| {
                TcpListener::bind_and_share(local, BACKLOG)
            })?;
            Ok(TcpRelay {
                key: request.key,
                listener,
                address,
                port,
            })
        });
        self.give_back_foreign(counters);
        relay
            .inspect(|relay| {
                counters.relays_opened += 1;
                self.relays.listening(relay.address).insert(relay.port);
            })
            .inspect_err(|error| count_error(*error, counters))
    }

    /// The two addresses of a TCP relay.
    pub(crate) fn addresses_of(&self, relay: &TcpRelay) -> OpenedRelay {
        let address = self.relays.address(relay.address);
        OpenedRelay {
            local: SocketAddr::new(address.local, relay.port),
            advertised: SocketAddr::new(address.advertised, relay.port),
        }
    }

    /// Closes a TCP relay's listener and lets its port rest.
    pub(crate) fn close_tcp(&mut self, relay: TcpRelay, counters: &mut Counters) {
        counters.relays_closed += 1;
        let TcpRelay {
            listener,
            address,
            port,
            ..
        } = relay;
        self.relays.listening(address).remove(port);
        drop(listener);
        self.relays.pool(address).release(port);
    }

    /// Closes a relay's socket and lets its port rest.
    pub(crate) fn close(&mut self, relay: RelaySocket) {
        let RelaySocket {
            socket,
            address,
            port,
            ..
        } = relay;
        if let PortSocket::Shared(number) = socket {
            if let Some(share) = self.shared.get_mut(usize::from(number)) {
                share.relays -= 1;
            }
            return;
        }
        self.withdraw(address, port);
        drop(socket);
        self.relays.pool(address).release(port);
    }

    /// Takes over a relay that another worker opened. `None` if it cannot be watched: then it is closed.
    pub(crate) fn adopt(&mut self, relay: RelaySocket, poller: &Poller) -> Option<RelaySocket> {
        let token = Token::Relay(relay.key).as_u64();
        let is_watched = match &relay.socket {
            PortSocket::Own(socket) => poller.add(socket, token, Interest::Read).is_ok(),
            PortSocket::Shared(_) => false,
        };
        if !is_watched {
            self.close(relay);
            return None;
        }
        self.announce(&relay);
        Some(relay)
    }

    /// An allocation has these relayed addresses: one that was reserved is live from now on.
    pub(crate) fn allocated(&mut self, relayed: RelayedAddresses) {
        if self.reserved.is_empty() {
            return;
        }
        for relayed in [relayed.v4, relayed.v6].into_iter().flatten() {
            let Some(address) = self.relays.find(relayed.ip()) else {
                continue;
            };
            let is_it = |&(a, port, _): &Reserved| a == address && port == relayed.port();
            if let Some(at) = self.reserved.iter().position(is_it) {
                let (_, port, slot) = self.reserved.swap_remove(at);
                self.relays.owners(address).set(
                    port,
                    Owner {
                        worker: self.worker,
                        slot,
                    },
                );
            }
        }
    }

    /// No worker of this process reaches the relay any more.
    pub(crate) fn withdraw(&mut self, address: RelayIndex, port: u16) {
        self.reserved.retain(|&(a, p, _)| (a, p) != (address, port));
        self.relays.owners(address).clear(port);
    }

    /// Says that the relay is live: other relays reach it inside this process.
    fn announce(&self, relay: &RelaySocket) {
        let owner = Owner {
            worker: self.worker,
            slot: relay.key.index,
        };
        self.relays.owners(relay.address).set(relay.port, owner);
    }

    /// Passes the relay on, with its two addresses.
    fn opened_relay(
        &self,
        relay: RelaySocket,
        opened: &mut impl FnMut(RelaySocket),
    ) -> OpenedRelay {
        let (address, port) = (self.relays.address(relay.address), relay.port);
        opened(relay);
        OpenedRelay {
            local: SocketAddr::new(address.local, port),
            advertised: SocketAddr::new(address.advertised, port),
        }
    }

    fn open_one(
        &mut self,
        request: RelayRequest,
        choice: RelayChoice,
        now_s: u64,
        poller: &Poller,
        counters: &mut Counters,
    ) -> Result<RelaySocket, OpenError> {
        let want = if request.port == PortRequest::Any {
            PortSelection::Any
        } else {
            PortSelection::Even
        };
        let place = (request.family, choice);
        self.search(place, want, now_s, |opener, address, port| {
            let socket = opener.bind(address, port)?;
            opener.watch(
                RelaySocket {
                    key: request.key,
                    socket: PortSocket::Own(socket),
                    address,
                    port,
                },
                poller,
                counters,
            )
        })
    }

    /// Binds two sockets with an even port and the next one, or none.
    fn open_pair(
        &mut self,
        requests: [RelayRequest; 2],
        choice: RelayChoice,
        now_s: u64,
        poller: &Poller,
        counters: &mut Counters,
    ) -> Result<[RelaySocket; 2], OpenError> {
        let [even, odd] = requests.map(|request| request.key);
        self.search(
            (requests[0].family, choice),
            PortSelection::Pair,
            now_s,
            |opener, address, port| {
                // Both or none: if one fails, the other port stays unused.
                let first = opener
                    .bind(address, port)
                    .inspect_err(|_| opener.relays.pool(address).give_back_unused(port + 1))?;
                let second = match opener.bind(address, port + 1) {
                    Ok(second) => second,
                    Err(refusal) => {
                        drop(first);
                        opener.relays.pool(address).give_back_unused(port);
                        return Err(refusal);
                    }
                };
                let first = opener.watch(
                    RelaySocket {
                        key: even,
                        socket: PortSocket::Own(first),
                        address,
                        port,
                    },
                    poller,
                    counters,
                );
                let second = opener.watch(
                    RelaySocket {
                        key: odd,
                        socket: PortSocket::Own(second),
                        address,
                        port: port + 1,
                    },
                    poller,
                    counters,
                );
                match (first, second) {
                    (Ok(first), Ok(second)) => Ok([first, second]),
                    (Ok(relay), Err(refusal)) | (Err(refusal), Ok(relay)) => {
                        opener.close(relay);
                        Err(refusal)
                    }
                    (Err(refusal), Err(_)) => Err(refusal),
                }
            },
        )
    }

    /// The relay address that was chosen, if it is not any.
    fn chosen(&self, choice: RelayChoice) -> Result<Option<RelayIndex>, OpenError> {
        match choice {
            RelayChoice::Any => Ok(None),
            RelayChoice::Address(ip) => {
                let found = self.relays.find(ip).ok_or(OpenError::Other)?;
                Ok(Some(found))
            }
            RelayChoice::None => Err(OpenError::FamilyUnsupported),
        }
    }

    /// Tries ports of every relay address of `family` that was chosen until one can be had.
    fn search<T>(
        &mut self,
        (family, choice): (AddressFamily, RelayChoice),
        want: PortSelection,
        now_s: u64,
        mut attempt: impl FnMut(&mut Opener, RelayIndex, u16) -> Result<T, Refusal>,
    ) -> Result<T, OpenError> {
        let relays = Arc::clone(&self.relays);
        let mut failure = OpenError::FamilyUnsupported;
        let mut attempts = Self::MAX_ATTEMPTS;
        let only = self.chosen(choice)?;
        let addresses = relays
            .of_family(family)
            .filter(|address| only.is_none_or(|only| only == *address));
        let count = addresses.clone().count();
        if only.is_some() && count == 0 {
            return Err(OpenError::Other);
        }
        // Several addresses share the load: each search starts at a random one.
        let first = self.entropy.below(count);
        for address in addresses.cycle().skip(first).take(count) {
            failure = OpenError::NoPort;
            while attempts > 0 {
                let Some(port) =
                    relays
                        .pool(address)
                        .take(self.place, want, now_s, &mut self.entropy)
                else {
                    break;
                };
                match attempt(self, address, port) {
                    Ok(relay) => return Ok(relay),
                    Err(Refusal::Foreign) => attempts -= 1,
                    Err(Refusal::Fatal(error)) => return Err(error),
                }
            }
        }
        Err(failure)
    }

    /// Binds a socket. On failure the port has been returned.
    fn bind(&mut self, address: RelayIndex, port: u16) -> Result<UdpSocket, Refusal> {
        let options = self.options.clone();
        self.bind_with(address, port, |local| UdpSocket::bind(local, &options))
    }

    fn bind_with<S: AsFd>(
        &mut self,
        address: RelayIndex,
        port: u16,
        bind: impl FnOnce(SocketAddr) -> std::io::Result<S>,
    ) -> Result<S, Refusal> {
        let local = SocketAddr::new(self.relays.address(address).local, port);
        let socket = bind(local).and_then(|socket| match self.descriptors.may_have(&socket) {
            true => Ok(socket),
            false => Err(std::io::Error::from_raw_os_error(libc_errno::EMFILE)),
        });
        socket.map_err(|error| {
            if error.kind() == std::io::ErrorKind::AddrInUse {
                self.foreign.push((address, port));
                Refusal::Foreign
            } else {
                self.relays.pool(address).give_back_unused(port);
                tracing::debug!(%local, %error, "relay socket not opened");
                Refusal::Fatal(classify(&error))
            }
        })
    }

    fn watch(
        &mut self,
        relay: RelaySocket,
        poller: &Poller,
        counters: &mut Counters,
    ) -> Result<RelaySocket, Refusal> {
        let PortSocket::Own(socket) = &relay.socket else {
            return Ok(relay);
        };
        match poller.add(socket, Token::Relay(relay.key).as_u64(), Interest::Read) {
            Ok(()) => {
                counters.relays_opened += 1;
                Ok(relay)
            }
            Err(error) => {
                self.close(relay);
                Err(Refusal::Fatal(classify(&error)))
            }
        }
    }
}

/// Why a port cannot be used.
#[derive(Debug, Clone, Copy)]
enum Refusal {
    /// Another process holds it: try another.
    Foreign,
    /// Other ports would fail, too.
    Fatal(OpenError),
}

/// epoll returns ENOSPC for too many watches. ENOBUFS and ENOMEM mean that the kernel has no memory.
fn classify(error: &std::io::Error) -> OpenError {
    const SHORTAGES: [i32; 5] = [
        libc_errno::EMFILE,
        libc_errno::ENFILE,
        libc_errno::ENOBUFS,
        libc_errno::ENOMEM,
        libc_errno::ENOSPC,
    ];
    match error.raw_os_error() {
        Some(code) if SHORTAGES.contains(&code) => OpenError::NoDescriptor,
        _ => OpenError::Other,
    }
}

/// The numbers of these errors on Linux, where this crate runs.
mod libc_errno {
    pub(super) const ENOMEM: i32 = 12;
    pub(super) const ENFILE: i32 = 23;
    pub(super) const EMFILE: i32 = 24;
    pub(super) const ENOSPC: i32 = 28;
    pub(super) const ENOBUFS: i32 = 105;
}

fn count_error(error: OpenError, counters: &mut Counters) {
    match error {
        OpenError::NoPort => counters.no_port += 1,
        OpenError::NoDescriptor => counters.no_descriptor += 1,
        _ => counters.open_failed += 1,
    }
}
