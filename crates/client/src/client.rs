//! A client: one 5-tuple, its task, and the requests that need no allocation.

use std::future::IntoFuture;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use stun::AddressFamily;
use tokio::time::timeout;
use turn::client::{AllocateOptions, CallError, Mapped, RequestedPort, RequestedRelays};

use crate::allocation::Allocation;
use crate::data_connection::ConnectOptions;
#[cfg(feature = "tls")]
use crate::dtls_link::DtlsLink;
use crate::endpoint::Endpoint;
use crate::error::{AllocateError, BindingError, ConnectError};
use crate::events::{Attempts, Events};
use crate::link::{Link, UdpLink};
use crate::queue::Queue;
use crate::server::{ConnectMethod, Server};
use crate::shared::{AllocationState, Core, Shared, Stats};
use crate::stream_link::StreamLink;
use crate::task;
use crate::tcp::AllocateTcp;
use crate::waiters::Waiters;

/// How long the task goes on after the last handle is dropped, to have its allocation released: three transmissions.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The task runs as long as a handle exists.
pub(crate) struct Handle {
    pub(crate) shared: Arc<Shared>,
}

impl Drop for Handle {
    fn drop(&mut self) {
        let now = self.shared.now();
        let mut core = self.shared.lock();
        core.end_at = Some(now.mono.plus(RELEASE_TIMEOUT));
        drop(core);
        self.shared.changed.notify_one();
    }
}

/// A client of one server: one 5-tuple, and so at most one allocation at a time.
///
/// A task of the tokio runtime drives it. The task ends when client, allocation and peers are dropped; before that it
/// releases the allocation, for at most 2 seconds.
pub struct Client {
    handle: Arc<Handle>,
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let core = self.handle.shared.lock();
        f.debug_struct("Client")
            .field("endpoint", &core.endpoint)
            .finish_non_exhaustive()
    }
}

impl Client {
    /// Opens a UDP socket to `server`, or connects to it over TCP, TLS or DTLS as [`Server`] says, and starts the
    /// client's task. No request is sent yet.
    ///
    /// # Errors
    /// [`ConnectError`].
    ///
    /// # Panics
    /// Outside of a tokio runtime, or in one without I/O or time.
    pub async fn connect(server: impl Into<Server>) -> Result<Client, ConnectError> {
        let server = server.into();
        let address = server.address;
        match &server.method {
            ConnectMethod::Udp => {
                let link = UdpLink::open(server.local, address).await;
                let link = link.map_err(|source| ConnectError::Socket {
                    server: address,
                    source,
                })?;
                Client::over(link, server)
            }
            #[cfg(feature = "tls")]
            ConnectMethod::Dtls(tls) => {
                let link = DtlsLink::open(tls, server.local, address);
                let link = with_timeout(address, server.connect_timeout, link).await?;
                Client::over(link, server)
            }
            method => {
                let link = with_timeout(
                    address,
                    server.connect_timeout,
                    StreamLink::open(method, server.local, address),
                )
                .await?;
                Client::over(link, server)
            }
        }
    }

    /// Starts a client whose messages are carried by `link`. It does not use [`Server::local`].
    ///
    /// # Errors
    /// [`ConnectError::Randomness`].
    ///
    /// # Panics
    /// Outside of a tokio runtime, or in one without time.
    pub fn over(link: impl Link, server: impl Into<Server>) -> Result<Client, ConnectError> {
        let Server {
            address,
            local,
            method,
            connect_timeout,
            queue,
            mut config,
        } = server.into();
        let dial = ConnectOptions {
            server: address,
            local,
            method,
            timeout: connect_timeout,
        };
        config.transport = link.transport();
        let seed = seed()?;
        let core = Core {
            endpoint: Endpoint::new(address, Arc::new(config), seed),
            waiters: Waiters::default(),
            events: Events::default(),
            attempts: Attempts::default(),
            allocation: AllocationState {
                number: 0,
                ended: None,
            },
            queue_limit: queue,
            others: Queue::new(queue),
            inboxes: Default::default(),
            stats: Stats::default(),
            scratch: Vec::new(),
            end_at: None,
            closed: false,
            lost: None,
        };
        let shared = Shared::new(core, Box::new(link), dial);
        tokio::spawn(task::drive(Arc::clone(&shared)));
        let handle = Arc::new(Handle { shared });
        Ok(Client { handle })
    }

    /// The server.
    #[must_use]
    pub fn server(&self) -> SocketAddr {
        self.handle.shared.lock().endpoint.server()
    }

    /// The address that messages leave from.
    ///
    /// # Errors
    /// What the system says.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.handle.shared.link.local_addr()
    }

    /// Asks for this client's address as the server sees it (a Binding request). It works without credentials at most
    /// servers.
    ///
    /// # Errors
    /// [`BindingError`].
    pub async fn binding(&self) -> Result<Mapped, BindingError> {
        let shared = &self.handle.shared;
        let outcome = {
            let mut core = shared.lock();
            if core.closed {
                return Err(BindingError::closed(&core));
            }
            core.endpoint
                .with(shared.now(), |client, now| client.binding(now));
            core.waiters.wait_binding()
        };
        shared.changed.notify_one();
        match outcome.await {
            Ok(Ok(mapped)) => Ok(*mapped),
            Ok(Err(error)) => Err(BindingError::Request(error)),
            Err(_) => Err(BindingError::closed(&shared.lock())),
        }
    }

    /// Requests an allocation. Await it, or set its properties first.
    ///
    /// If the future is dropped before it is ready, the task releases the allocation as soon as it is granted.
    pub fn allocate(&self) -> Allocate<'_> {
        Allocate {
            client: self,
            options: AllocateOptions::default(),
        }
    }

    /// Requests an allocation whose peers are reached over TCP (RFC 6062). Await it, or set its properties first. The
    /// connection to the server must be TCP or TLS.
    ///
    /// If the future is dropped before it is ready, the task releases the allocation as soon as it is granted.
    pub fn allocate_tcp(&self) -> AllocateTcp<'_> {
        AllocateTcp::new(self)
    }

    /// The transport protocol to the server.
    pub(crate) fn transport(&self) -> turn::Transport {
        self.handle.shared.link.transport()
    }

    /// What has been counted so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.handle.shared.lock().stats
    }

    pub(crate) async fn obtain(
        &self,
        options: AllocateOptions,
    ) -> Result<Allocation, AllocateError> {
        let shared = &self.handle.shared;
        let outcome = {
            let mut core = shared.lock();
            if core.closed {
                return Err(AllocateError::closed(&core));
            }
            let asked = core
                .endpoint
                .with(shared.now(), |client, now| client.allocate(now, options));
            asked.map_err(|_: CallError| AllocateError::AlreadyAllocated)?;
            core.waiters.wait_allocate()
        };
        shared.changed.notify_one();
        // A grant that is never looked at is returned when it is dropped.
        let grant = Grant { shared, outcome };
        let (number, allocated) = grant.wait().await?;
        Ok(Allocation::new(Arc::clone(&self.handle), number, allocated))
    }
}

/// Waits for a connection, at most for the connect timeout.
pub(crate) async fn with_timeout<L>(
    server: SocketAddr,
    after: Duration,
    link: impl Future<Output = Result<L, ConnectError>>,
) -> Result<L, ConnectError> {
    let link = timeout(after, link).await;
    link.map_err(|_| ConnectError::TimedOut { server, after })?
}

/// A seed for the random numbers of one client.
pub(crate) fn seed() -> Result<[u8; 32], ConnectError> {
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(|error| ConnectError::Randomness(error.to_string()))?;
    Ok(seed)
}

/// Waits for the outcome of an Allocate request.
struct Grant<'a> {
    shared: &'a Shared,
    outcome: tokio::sync::oneshot::Receiver<crate::waiters::Granted>,
}

impl Grant<'_> {
    async fn wait(mut self) -> Result<(u64, Box<turn::client::Allocated>), AllocateError> {
        match (&mut self.outcome).await {
            Ok(Ok(granted)) => Ok(granted),
            Ok(Err((error, advice))) => Err(AllocateError::Request { error, advice }),
            Err(_) => Err(AllocateError::closed(&self.shared.lock())),
        }
    }
}

impl Drop for Grant<'_> {
    /// If the grant has come and no caller has taken it, the allocation is released.
    fn drop(&mut self) {
        self.outcome.close();
        if let Ok(Ok((number, _))) = self.outcome.try_recv() {
            crate::allocation::release(self.shared, number);
        }
    }
}

/// A request for an allocation; see [`Client::allocate`].
#[must_use = "it asks for nothing until it is awaited"]
#[derive(Debug)]
pub struct Allocate<'a> {
    client: &'a Client,
    options: AllocateOptions,
}

impl<'a> Allocate<'a> {
    /// A relayed transport address of this family (REQUESTED-ADDRESS-FAMILY). Default: the server's choice, which is
    /// IPv4.
    pub fn family(mut self, family: AddressFamily) -> Self {
        let port = match self.options.relay {
            RequestedRelays::One { port, .. } => port,
            _ => RequestedPort::Any,
        };
        self.options.relay = RequestedRelays::One {
            family: Some(family),
            port,
        };
        self
    }

    /// Requests one IPv4 and one IPv6 relayed address (ADDITIONAL-ADDRESS-FAMILY).
    pub fn dual(mut self) -> Self {
        let even_port = matches!(
            self.options.relay,
            RequestedRelays::One {
                port: RequestedPort::Even,
                ..
            }
        );
        self.options.relay = RequestedRelays::Both { even_port };
        self
    }

    /// An even port (EVEN-PORT).
    pub fn even_port(mut self) -> Self {
        self.options.relay = match self.options.relay {
            RequestedRelays::One { family, .. } => RequestedRelays::One {
                family,
                port: RequestedPort::Even,
            },
            RequestedRelays::Both { .. } => RequestedRelays::Both { even_port: true },
            reserved => reserved,
        };
        self
    }

    /// An even port, and the next higher one reserved: [`Allocation::reservation`] claims it.
    pub fn even_port_and_next(mut self) -> Self {
        let family = match self.options.relay {
            RequestedRelays::One { family, .. } => family,
            _ => None,
        };
        self.options.relay = RequestedRelays::One {
            family,
            port: RequestedPort::EvenAndNext,
        };
        self
    }

    /// The address that another allocation of the same user reserved (RESERVATION-TOKEN).
    pub fn reserved(mut self, token: [u8; 8]) -> Self {
        self.options.relay = RequestedRelays::Reserved(token);
        self
    }

    /// How long it is to last between refreshes, in whole seconds (LIFETIME). The server may change it. Default: the
    /// server's, usually 10 minutes.
    pub fn lifetime(mut self, lifetime: Duration) -> Self {
        self.options.lifetime_s = Some(u32::try_from(lifetime.as_secs()).unwrap_or(u32::MAX));
        self
    }

    /// Requires a server that can set DF towards peers (DONT-FRAGMENT).
    pub fn dont_fragment(mut self) -> Self {
        self.options.dont_fragment = true;
        self
    }

    pub(crate) fn relay(mut self, relay: RequestedRelays) -> Self {
        self.options.relay = relay;
        self
    }

    /// Sets all properties at once, with the type of [`turn::client`].
    pub fn options(mut self, options: AllocateOptions) -> Self {
        self.options = options;
        self
    }
}

impl<'a> IntoFuture for Allocate<'a> {
    type Output = Result<Allocation, AllocateError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send + 'a>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.client.obtain(self.options))
    }
}

impl BindingError {
    fn closed(core: &Core) -> BindingError {
        let lost = core.lost.clone();
        lost.map_or(BindingError::Closed, BindingError::Disconnected)
    }
}

impl AllocateError {
    fn closed(core: &Core) -> AllocateError {
        let lost = core.lost.clone();
        lost.map_or(AllocateError::Closed, AllocateError::Disconnected)
    }
}
