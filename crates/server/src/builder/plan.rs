//! What workers get: each a poller, a mailbox, its sockets of all listeners, an engine and buffers.

use crate::addresses::RelayAddresses;
use crate::connections::{Arena, Connections, WorkerLimits};
use crate::error::StartError;
use crate::handover::Predecessor;
use crate::live::PublishedConfig;
use crate::mailbox::Mailbox;
use crate::offload::WorkerTables;
use crate::ports::PortRange;
use crate::published::{PublishedCounters, Publisher};
use crate::random;
use crate::rates::{Numbers, RateTable, Rates};
use crate::steering::{Numbering, Placement, Tables};
use crate::tcp_relays::TcpRelays;
use crate::worker::{
    BatchLimit, BatchStore, Core, Flows, Forwarding, Listener, Mailboxes, Opener, RelayTable,
    SharedPort, Sockets, Token, Worker, WorkerMessage, now,
};
use io::{Offloads, Poller, RecvBatch, SendOptions, SendQueue, UdpOptions, UdpSocket};
use std::net::SocketAddr;
use std::sync::Arc;
use stun::AddressFamily;
use turn::server::{Server as Engine, ValidConfig};

/// Messages that may wait for one worker.
const MAILBOX_MESSAGES: usize = 4096;

/// The workers, and their mailboxes in the same order.
pub(super) type Workers = (Vec<Worker>, Arc<[Mailbox<WorkerMessage>]>);

/// What all workers are made of.
pub(super) struct Plan {
    pub(super) relays: Arc<RelayAddresses>,
    /// `None`: each engine keeps the limits of its own allocations.
    pub(super) rates: Option<Arc<RateTable>>,
    pub(super) config: ValidConfig,
    pub(super) published: Arc<PublishedConfig>,
    pub(super) offloads: Option<Offloads>,
    /// Relays may join datagrams where the kernel can.
    pub(super) relay_gro: bool,
    /// The most datagrams of a batch, if not as many as there is room for.
    pub(super) batch_limit: Option<usize>,
    pub(super) published_counters: Arc<[PublishedCounters]>,
    pub(super) streams: WorkerLimits,
    /// The ports that all relays share, if they do.
    pub(super) shared_ports: Option<PortRange>,
    /// The process that this one takes over from.
    pub(super) predecessor: Option<Arc<Predecessor>>,
}

/// What one worker is made of.
struct WorkerParts {
    /// Its place among the workers of this process.
    place: u8,
    numbering: Numbering,
    poller: Poller,
    mailbox: Mailbox<WorkerMessage>,
    listeners: Vec<Listener>,
    mailboxes: Mailboxes,
    placement: Placement,
    part: Option<WorkerTables>,
    shared: Vec<SharedPort>,
}

impl Plan {
    /// Makes the workers. `groups` has one list of sockets per listener, with one socket per worker. `parts` has one
    /// entry per worker, or none if user space relays everything.
    pub(super) fn workers(
        &self,
        groups: Vec<Vec<UdpSocket>>,
        count: usize,
        tables: &mut Tables,
        parts: Vec<WorkerTables>,
    ) -> Result<Workers, StartError> {
        let pollers: Vec<Poller> = (0..count)
            .map(|_| Poller::new())
            .collect::<Result<_, _>>()
            .map_err(StartError::Worker)?;
        let mailbox = |poller| Mailbox::new(MAILBOX_MESSAGES, poller, Token::Mailbox.as_u64());
        let boxes: Arc<[Mailbox<WorkerMessage>]> = pollers
            .iter()
            .map(mailbox)
            .collect::<Result<_, _>>()
            .map_err(StartError::Worker)?;
        let mut listeners: Vec<Vec<Listener>> = (0..count).map(|_| Vec::new()).collect();
        for group in groups {
            listeners
                .iter_mut()
                .zip(group)
                .for_each(|(list, socket)| list.push(Listener::new(socket)));
        }
        if let Some(part) = parts.first() {
            part.next_hops.set_workers(Arc::clone(&boxes));
        }
        let mut parts = parts.into_iter();
        let numbering = tables.numbering;
        let placed = (0_u8..).zip(pollers).zip(listeners);
        let stores = BatchStore::for_workers(count);
        let workers = placed
            .zip(stores)
            .map(|(((place, poller), listeners), store)| {
                let predecessor = self.predecessor.clone();
                let mailboxes = Mailboxes::new(Arc::clone(&boxes), numbering, predecessor, store);
                let shared = self.shared_ports_of(usize::from(place), count)?;
                self.worker(WorkerParts {
                    place,
                    numbering,
                    poller,
                    mailbox: boxes[usize::from(place)].clone(),
                    listeners,
                    mailboxes,
                    placement: Placement::new(u16::from(place), tables),
                    part: parts.next(),
                    shared,
                })
            });
        Ok((workers.collect::<Result<_, _>>()?, Arc::clone(&boxes)))
    }

    /// Opens the shared ports that are this worker's: each has its part of them, on every relay address.
    fn shared_ports_of(
        &self,
        worker: usize,
        workers: usize,
    ) -> Result<Vec<SharedPort>, StartError> {
        let mut shared = Vec::new();
        let Some(range) = self.shared_ports else {
            return Ok(shared);
        };
        let own = (range.first()..=range.last()).skip(worker).step_by(workers);
        for port in own {
            for family in [AddressFamily::V4, AddressFamily::V6] {
                for address in self.relays.of_family(family) {
                    let local = SocketAddr::new(self.relays.address(address).local, port);
                    let socket = UdpSocket::bind(local, &UdpOptions::relay());
                    let socket = socket.map_err(|source| StartError::Bind {
                        address: local,
                        source,
                    })?;
                    let mut listener = Listener::new(socket);
                    if !self.relay_gro {
                        listener.separate();
                    }
                    shared.push(SharedPort {
                        listener,
                        address,
                        port,
                    });
                }
            }
        }
        Ok(shared)
    }

    /// Makes a worker of its parts and of what all workers share.
    fn worker(&self, parts: WorkerParts) -> Result<Worker, StartError> {
        let WorkerParts {
            place,
            numbering,
            poller,
            mailbox,
            listeners,
            mailboxes,
            placement,
            part,
            shared,
        } = parts;
        let seed = random::seed().map_err(StartError::Randomness)?;
        let gro = self.relay_gro && self.offloads.is_some_and(|offloads| offloads.gro);
        let (gso, max_segments) = self
            .offloads
            .map_or((false, 1), |offloads| (offloads.gso, offloads.max_segments));
        let batch = receive_batch(gso, self.batch_limit).map_err(StartError::Worker)?;
        let number = numbering.number(place.into());
        // Tickets and tokens have one byte for it, which the numbering allows for.
        let short = u8::try_from(number).unwrap_or(u8::MAX);
        let mut engine = Engine::new(self.config.clone(), short, seed);
        let numbers = self.share_rates(&mut engine);
        let flows = part
            .zip(numbers)
            .map(|(part, numbers)| Box::new(self.flows(part, numbers)));
        let core = Core {
            now: now(),
            engine,
            opener: Opener::new(
                (number, place.into()),
                Arc::clone(&self.relays),
                gro,
                &shared,
            ),
            mailboxes,
            poller,
            counters: Default::default(),
            changes: Vec::new(),
            placement,
            connections: Connections::new(Vec::new(), self.streams.clone()),
            tcp: TcpRelays::new(),
            forwarding: Forwarding::new(),
            dtls: None,
            flows,
            hooks: self.published.hooks(),
            shares_relays: self.predecessor.is_some(),
        };
        Ok(Worker {
            core,
            mailbox,
            sockets: Sockets {
                listeners,
                relays: RelayTable::default(),
                shared,
            },
            queue: send_queue(gso, max_segments),
            batch_limit: BatchLimit::new(batch.room()),
            batch,
            configuration: self.published.subscribe(),
            publisher: Publisher::new(Arc::clone(&self.published_counters), place.into()),
            has_connections: false,
            arena: Arena::new(false),
            batches: Vec::new(),
            holding: None,
            sip: None,
            messages_left: false,
            rechecks_left: false,
            batches_held: false,
            stopping: false,
        })
    }

    /// Has an engine use the rate limits that the workers share.
    fn share_rates(&self, engine: &mut Engine) -> Option<Arc<Numbers>> {
        let table = self.rates.as_ref()?;
        let numbers = table.numbers();
        let rates = Rates::new(Arc::clone(table), Arc::clone(&numbers));
        engine.share_buckets(Box::new(rates));
        Some(numbers)
    }

    /// Has a worker's channels relayed in the kernel.
    fn flows(&self, part: WorkerTables, numbers: Arc<Numbers>) -> Flows {
        let mut flows = Flows::new(
            Box::new(part.table),
            part.next_hops,
            numbers,
            Arc::clone(&self.relays),
        );
        flows.set_limited(self.config.limits_rate());
        flows
    }
}

/// What a worker sends by.
fn send_queue(gso: bool, max_segments: usize) -> SendQueue {
    SendQueue::new(&SendOptions {
        gso,
        max_segments,
        capacity: BatchLimit::MAX,
    })
}

/// What a worker receives into.
fn receive_batch(gso: bool, limit: Option<usize>) -> std::io::Result<RecvBatch> {
    // A worker that keeps up requires little room. More room helps only if the datagrams in a batch can be sent
    // together. It is address space that a strict system may refuse.
    let most = if gso {
        BatchLimit::MAX
    } else {
        BatchLimit::MIN
    };
    let most = limit.map_or(most, |limit| limit.min(most));
    RecvBatch::try_new(most, RecvBatch::LARGE)
        .or_else(|_| RecvBatch::try_new(BatchLimit::MIN, RecvBatch::LARGE))
}
