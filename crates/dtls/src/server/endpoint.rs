//! The endpoint: which connection a datagram is for, and what may begin one.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use timers::{Mono, Wheel};

use super::connection::{Connection, Context, Outcome};
use super::counters::{Counters, DropReason};
use super::half_open::HalfOpen;
use super::table::{ConnectionKey, Table};
use crate::cookie::{self, CookieKey};
use crate::flight::Outgoing;
use crate::wire::client_hello::Start;
use crate::wire::handshake::{self, Fragment, kind};
use crate::wire::record::{self, ContentType, Header};
use crate::wire::{DTLS10, Reader, server_hello};
use crate::{CloseReason, Config, Path, SendError};

/// A HelloVerifyRequest in its record.
const HELLO_VERIFY: usize = record::HEADER + handshake::HEADER + 3 + cookie::LENGTH;
/// Timers that one call serves. Others wait for the next call.
const TIMERS_PER_CALL: usize = 256;
/// A client that was asked for its cookie more often than this has not understood.
const MOST_HELLOS: u16 = 64;

/// What a datagram held.
#[derive(Debug)]
pub enum Received<'a> {
    /// A message. What follows it in the datagram is to be handed to [`Endpoint::handle_datagram`] next.
    Data {
        /// The connection that it came on.
        connection: ConnectionKey,
        /// Decrypted.
        message: &'a mut [u8],
        /// The records behind it; mostly none.
        rest: &'a mut [u8],
    },
    /// Nothing more for the caller.
    Done,
}

/// Where a message is in its datagram.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Opened {
    /// The connection that it came on.
    pub connection: ConnectionKey,
    /// Decrypted.
    pub message: Range<usize>,
    /// Where the records behind it begin; mostly the datagram's length.
    pub end: usize,
}

/// What became of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The handshake has ended: messages can be sent.
    Connected {
        /// The connection.
        connection: ConnectionKey,
        /// Where it is.
        path: Path,
        /// The cipher suite's name in the IANA registry.
        cipher_suite: &'static str,
        /// The application protocol, if the client offered one of ours.
        protocol: Option<Box<[u8]>>,
    },
    /// A connection has ended.
    Closed {
        /// The connection, whose key means nothing any more.
        connection: ConnectionKey,
        /// Where it was.
        path: Path,
        /// Why.
        reason: CloseReason,
        /// Whether it had been [`Event::Connected`].
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
    /// Connections with a costly step to do. Each is in here at most once, for a step precedes the next message.
    work: VecDeque<ConnectionKey>,
    timers: Wheel<1_000_000>,
    outgoing: Outgoing<Path>,
    events: VecDeque<Event>,
    counters: Counters,
}

impl Endpoint {
    /// An endpoint without connections. `seed` is random: it keys the table.
    #[must_use]
    pub fn new(config: Arc<Config>, cookies: CookieKey, seed: [u64; 2]) -> Endpoint {
        Endpoint {
            config,
            cookies,
            table: Table::new(seed),
            half_open: HalfOpen::default(),
            work: VecDeque::new(),
            timers: Wheel::new(),
            outgoing: Outgoing::new(),
            events: VecDeque::new(),
            counters: Counters::default(),
        }
    }

    /// Other settings from now on. Connections stay, also where there are more than the new limits allow.
    pub fn set_config(&mut self, config: Arc<Config>) {
        self.config = config;
    }

    /// A datagram came. It is decrypted where it is.
    pub fn handle_datagram<'a>(
        &mut self,
        now: Mono,
        path: &Path,
        datagram: &'a mut [u8],
    ) -> Received<'a> {
        let Some(opened) = self.open(now, path, datagram, 0) else {
            return Received::Done;
        };
        let (head, rest) = datagram.split_at_mut(opened.end);
        Received::Data {
            connection: opened.connection,
            message: &mut head[opened.message],
            rest,
        }
    }

    /// The same as [`Endpoint::handle_datagram`], for the records from `at` on, and says where the first message is. What
    /// follows it begins at [`Opened::end`].
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

    /// Which connection this record is for. A ClientHello without a good cookie is answered and forgotten.
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
        // RFC 6347 §4.2.8: the client has lost its state and has proven that it is there.
        if let Some(key) = existing {
            self.end(now, key, CloseReason::Replaced);
        }
        self.begin(now, path, header, &hello)
    }

    /// RFC 6347 §4.2.1: HelloVerifyRequest.
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
        // RFC 6347 §4.2.1: with the record number of the ClientHello.
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

    fn begin(
        &mut self,
        now: Mono,
        path: &Path,
        header: &Header,
        hello: &Hello<'_>,
    ) -> Option<ConnectionKey> {
        let limits = self.config.limits;
        let address = path.remote.ip();
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
        // The path of data: the timer stays, and finds out when it fires.
        if let Outcome::Data(_) = outcome {
            return outcome;
        }
        self.settle(now, key, outcome)
    }

    /// Books what came out of a connection, and moves its timer.
    fn settle(&mut self, now: Mono, key: ConnectionKey, outcome: Outcome) -> Outcome {
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
        self.timers.remove(key.index);
        self.events.push_back(Event::Closed {
            connection: key,
            path: connection.path,
            reason,
            established,
        });
    }

    /// Whether [`Endpoint::step`] has something to do.
    #[must_use]
    pub fn has_work(&self) -> bool {
        !self.work.is_empty()
    }

    /// Does one costly step of one handshake: a key pair and a signature, or an agreement. Steps are done here alone and
    /// in order, so the caller decides how much time handshakes get. False: there was nothing to do.
    pub fn step(&mut self, now: Mono) -> bool {
        while let Some(key) = self.work.pop_front() {
            let Some(connection) = self.table.get_mut(key) else {
                continue;
            };
            let mut context = context(&self.config, &mut self.outgoing, &mut self.counters, now);
            let outcome = connection.step(&mut context);
            self.settle(now, key, outcome);
            return true;
        }
        false
    }

    /// Encrypts one message, given in parts, into `out`, and returns the length of the datagram. `out` must be longer than
    /// the message by [`crate::OVERHEAD`].
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

    /// Ends a connection; its client is told.
    pub fn close(&mut self, now: Mono, connection: ConnectionKey) {
        self.end(now, connection, CloseReason::Local);
    }

    /// Ends all connections; their clients are told.
    pub fn close_all(&mut self, now: Mono) {
        for index in 0..self.table.places() {
            if let Some(key) = self.table.at(index) {
                self.end(now, key, CloseReason::Local);
            }
        }
    }

    /// The next datagram to send, and where.
    pub fn poll_transmit(&mut self) -> Option<(Path, &[u8])> {
        self.outgoing.poll()
    }

    /// What has become of connections.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// When [`Endpoint::handle_timeout`] is to be called.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Mono> {
        self.timers.next_deadline()
    }

    /// Time has passed: flights are sent again, handshakes and idle connections end.
    pub fn handle_timeout(&mut self, now: Mono) {
        self.handle_timeout_unless(now, |_| false);
    }

    /// The same, but an idle connection that is in use for something else (an allocation) stays for another idle timeout.
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
            self.settle(now, key, outcome);
        }
        self.outgoing.tidy();
    }

    /// The connection on a path.
    #[must_use]
    pub fn find(&self, path: &Path) -> Option<ConnectionKey> {
        self.table.find(path)
    }

    /// Where a connection is.
    #[must_use]
    pub fn path(&self, connection: ConnectionKey) -> Option<Path> {
        self.table.get(connection).map(|connection| connection.path)
    }

    /// Connections, handshakes included.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.table.len()
    }

    /// Handshakes that have not ended.
    #[must_use]
    pub fn half_open(&self) -> usize {
        self.half_open.len()
    }

    /// What has happened since the beginning.
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

/// The first fragment of a ClientHello, which must reach to the end of the cipher suites and compression methods: these are
/// what the cookie is computed over.
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
    // Our first record has this number, and later ones count up from it.
    if header.sequence > u32::MAX.into() || message.sequence > MOST_HELLOS {
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
