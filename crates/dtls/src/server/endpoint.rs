//! The endpoint: finds the connection of a datagram, and begins new connections.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use timers::{Mono, Wheel};

use super::connection::{Connection, Context, Outcome};
use super::counters::{Counters, DropReason};
use super::half_open::HalfOpen;
use super::sources::Sources;
use super::table::{ConnectionKey, Table};
use crate::cookie::{self, CookieKey};
use crate::flight::Outgoing;
use crate::wire::client_hello::Start;
use crate::wire::handshake::{self, Fragment, kind};
use crate::wire::record::{self, ContentType, Header};
use crate::wire::{DTLS10, Reader, server_hello};
use crate::{CloseReason, Config, Path, SendError};

/// Length of a HelloVerifyRequest with its record header.
const HELLO_VERIFY: usize = record::HEADER + handshake::HEADER + 3 + cookie::LENGTH;
/// The maximum number of timers that one call handles. Others wait for the next call.
const TIMERS_PER_CALL: usize = 256;
/// The highest message sequence number of a ClientHello. A client that has repeated it more often does not return
/// cookies.
const MAX_HELLOS: u16 = 64;

/// The result of a datagram.
#[derive(Debug)]
pub enum Received<'a> {
    /// A message. Pass `rest` to [`Endpoint::handle_datagram`] next.
    Data {
        /// The connection of the message.
        connection: ConnectionKey,
        /// The decrypted message.
        message: &'a mut [u8],
        /// The records after it; usually none.
        rest: &'a mut [u8],
    },
    /// The datagram has no further message.
    Done,
}

/// A decrypted message in its datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The connection of the message.
    pub connection: ConnectionKey,
    /// The range of the decrypted message.
    pub message: Range<usize>,
    /// Index of the records after it; usually the length of the datagram.
    pub end: usize,
}

/// An event of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The handshake is complete: messages can be sent.
    Connected {
        /// The connection.
        connection: ConnectionKey,
        /// Its path.
        path: Path,
        /// The cipher suite's name in the IANA registry.
        cipher_suite: &'static str,
        /// The application protocol, if one was negotiated.
        protocol: Option<Box<[u8]>>,
        /// The server name that the client asked for (RFC 6066 §3), if any.
        server_name: Option<Box<str>>,
    },
    /// A connection has ended.
    Closed {
        /// The connection. Its key is not valid any more.
        connection: ConnectionKey,
        /// Its path.
        path: Path,
        /// Why it ended.
        reason: CloseReason,
        /// Whether [`Event::Connected`] was reported before.
        established: bool,
    },
}

/// The DTLS server of one worker. After every call, drain [`Endpoint::poll_transmit`] and [`Endpoint::poll_event`].
#[derive(Debug)]
pub struct Endpoint {
    config: Arc<Config>,
    cookies: CookieKey,
    table: Table,
    half_open: HalfOpen,
    sources: Sources,
    /// Connections with a handshake step to do. Each is in the queue at most once, because a step precedes the next
    /// message.
    work: VecDeque<ConnectionKey>,
    timers: Wheel<1_000_000>,
    outgoing: Outgoing<Path>,
    events: VecDeque<Event>,
    counters: Counters,
}

impl Endpoint {
    /// Makes an endpoint without connections. `seed` must be random: it is the key of the table's hash function.
    #[must_use]
    pub fn new(config: Arc<Config>, cookies: CookieKey, seed: [u64; 2]) -> Endpoint {
        Endpoint {
            config,
            cookies,
            table: Table::new(seed),
            half_open: HalfOpen::default(),
            sources: Sources::new(seed),
            work: VecDeque::new(),
            timers: Wheel::new(),
            outgoing: Outgoing::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Replaces the settings. Connections stay, even if they exceed the new limits.
    pub fn set_config(&mut self, config: Arc<Config>) {
        self.config = config;
    }

    /// Handles a received datagram. Decrypts it in place.
    pub fn handle_datagram<'a>(
        &mut self,
        now: Mono,
        path: &Path,
        datagram: &'a mut [u8],
    ) -> Received<'a> {
        let Some(opened) = self.open(now, path, datagram, 0) else {
            return Received::Done;
        };
        // `open` returns a message that ends before `Opened::end`.
        let (head, rest) = datagram.split_at_mut(opened.end);
        Received::Data {
            connection: opened.connection,
            message: &mut head[opened.message],
            rest,
        }
    }

    /// The same as [`Endpoint::handle_datagram`], for the records from `at` on. Returns the range of the first message.
    /// The records after it begin at [`Opened::end`].
    pub fn open(
        &mut self,
        now: Mono,
        path: &Path,
        datagram: &mut [u8],
        mut at: usize,
    ) -> Option<Opened> {
        let mut connection = self.table.find(path);
        let length = datagram.len();
        while at < length {
            let Some(header) = Header::parse(&datagram[at..]) else {
                self.counters.dropped(DropReason::MalformedRecord);
                return None;
            };
            let start = at + record::HEADER;
            let end = start + header.length;
            at = end;
            // `Header::parse` has checked that the record is complete.
            let fragment = &mut datagram[start..end];
            if connection.is_none() || is_plain_handshake(&header) {
                connection = self.admit(now, path, connection, &header, fragment, length);
            }
            let key = connection?;
            match self.record(now, key, &header, fragment) {
                Outcome::Data(range) => {
                    return Some(Opened {
                        connection: key,
                        message: start + range.start..start + range.end,
                        end,
                    });
                }
                Outcome::End(_) => return None,
                _ => (),
            }
        }
        None
    }

    /// The connection of this record. For a ClientHello without a valid cookie, it sends a HelloVerifyRequest and
    /// returns `None`.
    fn admit(
        &mut self,
        now: Mono,
        path: &Path,
        existing: Option<ConnectionKey>,
        header: &Header,
        fragment: &[u8],
        datagram: usize,
    ) -> Option<ConnectionKey> {
        let hello = match read_hello(header, fragment) {
            Ok(hello) => hello,
            Err(reason) => {
                if existing.is_none() {
                    self.counters.dropped(reason);
                }
                return existing;
            }
        };
        let known = existing.and_then(|key| self.table.get(key));
        if known.is_some_and(|connection| connection.client_random == *hello.start.random) {
            return existing;
        }
        if !self.cookies.is_proven(now, path, &hello.start) {
            self.ask_for_cookie(now, path, header, &hello, datagram);
            return None;
        }
        // RFC 6347 §4.2.8: the client has lost its state, and the cookie proves that it is at this address.
        if let Some(key) = existing {
            self.end(now, key, CloseReason::Replaced);
        }
        self.begin(now, path, header, &hello)
    }

    /// Sends a HelloVerifyRequest (RFC 6347 §4.2.1).
    fn ask_for_cookie(
        &mut self,
        now: Mono,
        path: &Path,
        header: &Header,
        hello: &Hello<'_>,
        datagram: usize,
    ) {
        if datagram < HELLO_VERIFY {
            self.counters.dropped(DropReason::ShortHello);
            return;
        }
        let cookie = self.cookies.cookie(now, path, &hello.start);
        self.counters.hello_verify_requests += 1;
        self.counters.bad_cookies += u64::from(!hello.start.cookie.is_empty());
        let mut bytes = [0; HELLO_VERIFY];
        let length = HELLO_VERIFY - record::HEADER;
        // RFC 6347 §4.2.1: the record has the sequence number of the ClientHello's record.
        let record =
            record::with_version(ContentType::Handshake, DTLS10, 0, header.sequence, length);
        bytes[..record::HEADER].copy_from_slice(&record);
        let body = length - handshake::HEADER;
        let message = handshake::header(kind::HELLO_VERIFY_REQUEST, body, hello.sequence, 0, body);
        bytes[record::HEADER..][..handshake::HEADER].copy_from_slice(&message);
        bytes[HELLO_VERIFY - body..].copy_from_slice(&server_hello::hello_verify(&cookie));
        self.outgoing
            .pack(*path, self.config.limits.mtu)
            .raw(&bytes);
    }

    /// Begins a connection for a ClientHello with a valid cookie, within the limits. `None`: the ClientHello was
    /// dropped.
    fn begin(
        &mut self,
        now: Mono,
        path: &Path,
        header: &Header,
        hello: &Hello<'_>,
    ) -> Option<ConnectionKey> {
        let limits = self.config.limits;
        let address = path.remote.ip();
        if self.sources.count(address) >= limits.connections_per_source.max(1) {
            self.counters.dropped(DropReason::TooManyOfSource);
            return None;
        }
        while let Some(oldest) =
            self.half_open
                .excess(address, limits.half_open, limits.half_open_per_prefix)
        {
            self.end(now, oldest, CloseReason::TooManyHandshakes);
        }
        if self.table.len() >= limits.connections {
            self.counters.dropped(DropReason::TooManyConnections);
            return None;
        }
        self.counters.handshakes += 1;
        let context = context(&self.config, &mut self.outgoing, &mut self.counters, now);
        let connection =
            Connection::new(&context, *path, *hello.start.random, header, hello.sequence);
        let deadline = connection.deadline(&self.config);
        let key = self.table.insert(connection);
        self.half_open.add(key, address);
        self.sources.add(address);
        self.timers.set(key.index, deadline);
        Some(key)
    }

    fn record(
        &mut self,
        now: Mono,
        key: ConnectionKey,
        header: &Header,
        fragment: &mut [u8],
    ) -> Outcome {
        let Some(connection) = self.table.get_mut(key) else {
            return Outcome::Nothing;
        };
        let mut context = context(&self.config, &mut self.outgoing, &mut self.counters, now);
        let outcome = connection.record(&mut context, header, fragment);
        // Data does not move the timer, to save time. When the timer fires, it reads the new deadline.
        if let Outcome::Data(_) = outcome {
            return outcome;
        }
        self.apply_outcome(now, key, outcome)
    }

    /// Applies what a record, a step or a timer has changed at a connection, and sets its timer. Returns the outcome
    /// unchanged.
    fn apply_outcome(&mut self, now: Mono, key: ConnectionKey, outcome: Outcome) -> Outcome {
        match &outcome {
            Outcome::End(reason) => {
                self.end(now, key, *reason);
                return outcome;
            }
            Outcome::Work => self.work.push_back(key),
            Outcome::Established(agreed) => {
                self.half_open.remove(key);
                self.counters.established += 1;
                if let Some(connection) = self.table.get(key) {
                    self.events.push_back(Event::Connected {
                        connection: key,
                        path: connection.path,
                        cipher_suite: agreed.suite.name,
                        protocol: agreed.protocol.clone(),
                        server_name: agreed.server_name.clone(),
                    });
                }
            }
            Outcome::Nothing | Outcome::Data(_) => (),
        }
        if let Some(connection) = self.table.get(key) {
            self.timers
                .set(key.index, connection.deadline(&self.config));
        }
        outcome
    }

    /// Removes a connection: queues an alert for the client, if one is due, and the event.
    fn end(&mut self, now: Mono, key: ConnectionKey, reason: CloseReason) {
        let Some(mut connection) = self.table.remove(key) else {
            return;
        };
        let mut context = context(&self.config, &mut self.outgoing, &mut self.counters, now);
        connection.notify_end(&mut context, reason);
        let established = connection.is_established();
        if !established {
            self.half_open.remove(key);
        }
        self.sources.remove(connection.path.remote.ip());
        self.timers.remove(key.index);
        self.events.push_back(Event::Closed {
            connection: key,
            path: connection.path,
            reason,
            established,
        });
    }

    /// Whether [`Endpoint::step`] has a step to do.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    /// Does one step of one handshake: a key pair and a signature, or a key agreement. Only this call does such steps,
    /// in order of arrival. So the caller limits the CPU time of handshakes. Returns false if there was no step to do.
    pub fn step(&mut self, now: Mono) -> bool {
        while let Some(key) = self.work.pop_front() {
            let Some(connection) = self.table.get_mut(key) else {
                continue;
            };
            let mut context = context(&self.config, &mut self.outgoing, &mut self.counters, now);
            let outcome = connection.step(&mut context);
            self.apply_outcome(now, key, outcome);
            return true;
        }
        false
    }

    /// Encrypts one message, given in parts, into `out`, and returns the length of the datagram. `out` must be longer
    /// than the message by [`crate::OVERHEAD`].
    ///
    /// # Errors
    /// The connection is not established, or the message does not fit.
    pub fn seal(
        &mut self,
        connection: ConnectionKey,
        parts: &[&[u8]],
        out: &mut [u8],
    ) -> Result<usize, SendError> {
        let connection = self
            .table
            .get_mut(connection)
            .ok_or(SendError::NotConnected)?;
        connection.seal(parts, out)
    }

    /// Ends a connection. Its client gets a close_notify alert.
    pub fn close(&mut self, now: Mono, connection: ConnectionKey) {
        self.end(now, connection, CloseReason::Local);
    }

    /// Ends all connections. Their clients get close_notify alerts.
    pub fn close_all(&mut self, now: Mono) {
        for index in 0..self.table.places() {
            if let Some(key) = self.table.at(index) {
                self.end(now, key, CloseReason::Local);
            }
        }
    }

    /// The next datagram to send, and its path.
    pub fn poll_transmit(&mut self) -> Option<(Path, &[u8])> {
        self.outgoing.poll()
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// The time at which the caller must call [`Endpoint::handle_timeout`].
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        self.timers.next_deadline()
    }

    /// Handles timers that are due: retransmits flights, and ends late handshakes and idle connections.
    pub fn handle_timeout(&mut self, now: Mono) {
        self.handle_timeout_unless(now, |_| false);
    }

    /// The same, but an idle connection that has another use, such as an allocation, stays for another idle timeout.
    pub fn handle_timeout_unless(&mut self, now: Mono, is_in_use: impl Fn(&Path) -> bool) {
        for _ in 0..TIMERS_PER_CALL {
            let Some(index) = self.timers.pop_due(now) else {
                break;
            };
            let Some(key) = self.table.at(index) else {
                continue;
            };
            let Some(connection) = self.table.get_mut(key) else {
                continue;
            };
            let mut context = context(&self.config, &mut self.outgoing, &mut self.counters, now);
            let mut outcome = connection.timeout(&mut context);
            if matches!(outcome, Outcome::End(CloseReason::Idle)) && is_in_use(&connection.path) {
                connection.keep(now);
                outcome = Outcome::Nothing;
            }
            self.apply_outcome(now, key, outcome);
        }
        self.outgoing.release_memory();
    }

    /// The connection on a path.
    #[must_use]
    pub fn find(&self, path: &Path) -> Option<ConnectionKey> {
        self.table.find(path)
    }

    /// The path of a connection.
    #[must_use]
    pub fn path(&self, connection: ConnectionKey) -> Option<Path> {
        self.table.get(connection).map(|connection| connection.path)
    }

    /// The paths of all connections, handshakes included.
    pub fn paths(&self) -> impl Iterator<Item = Path> {
        self.table.paths()
    }

    /// The number of connections, handshakes included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// The number of handshakes in progress.
    #[must_use]
    pub fn half_open(&self) -> usize {
        self.half_open.len()
    }

    /// Counters since the start of the endpoint.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }
}

fn context<'a>(
    config: &'a Config,
    outgoing: &'a mut Outgoing<Path>,
    counters: &'a mut Counters,
    now: Mono,
) -> Context<'a> {
    Context {
        now,
        config,
        outgoing,
        counters,
    }
}

fn is_plain_handshake(header: &Header) -> bool {
    header.epoch == 0 && header.content == ContentType::Handshake
}

struct Hello<'a> {
    start: Start<'a>,
    /// Sequence number of the message.
    sequence: u16,
}

/// Reads the first fragment of a ClientHello. It must have all cipher suites and compression methods, because the
/// cookie is computed over them.
fn read_hello<'a>(header: &Header, fragment: &'a [u8]) -> Result<Hello<'a>, DropReason> {
    if !is_plain_handshake(header) {
        return Err(DropReason::UnknownSource);
    }
    let message =
        Fragment::take(&mut Reader::new(fragment)).ok_or(DropReason::MalformedHandshake)?;
    if message.kind != kind::CLIENT_HELLO {
        return Err(DropReason::UnknownSource);
    }
    if message.offset != 0 {
        return Err(DropReason::FragmentedHello);
    }
    // The server's first record has this number, and later records have greater ones.
    if header.sequence > u32::MAX.into() || message.sequence > MAX_HELLOS {
        return Err(DropReason::MalformedHandshake);
    }
    let start = Start::take(&mut Reader::new(message.bytes));
    let reason = if message.is_whole() {
        DropReason::MalformedHandshake
    } else {
        DropReason::FragmentedHello
    };
    Ok(Hello {
        start: start.ok_or(reason)?,
        sequence: message.sequence,
    })
}
