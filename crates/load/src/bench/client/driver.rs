//! Many TURN clients in one loop: each walks the same few requests, none blocks another.

use std::collections::VecDeque;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::time::{Duration, Instant};

use ::io::{Events, Interest, Poller};
use stun::{
    ChannelNumber, Class, ErrorCode, Message, Nonce, PasswordAlgorithm, Realm, TransactionId,
    XorRelayedAddress, long_term_key,
};

use super::request::{self, Authority};
use crate::bench::error::{Doing, SideError};
use crate::bench::layout;
use crate::bench::side::{PASSWORD, USERNAME};

/// RFC 8489 §6.2.1 starts at 500 ms; on a link without loss and delay a fifth of that is long.
const RETRANSMIT: Duration = Duration::from_millis(100);
/// Sends of one request before it is given up.
const TRIES: u32 = 30;
/// Answers of 401 or 438 to one request before it is given up: one each is normal.
const CHALLENGES: u32 = 3;

/// What every client is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Goal {
    /// Allocate, bind the channel, stay.
    Hold,
    /// Bind the channel again, stay.
    Renew,
    /// Allocate, delete, and begin again from another port.
    Churn,
}

/// The request that a client waits for the answer to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
    Waiting,
    Allocating,
    Binding,
    Releasing,
    Done,
}

/// What churn came to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Churned {
    /// Allocations made and deleted.
    pub(crate) cycles: u64,
    /// Cycles that failed or timed out.
    pub(crate) errors: u64,
    /// How long it took.
    pub(crate) elapsed: Duration,
}

#[derive(Debug)]
struct Client {
    /// `None` while nothing is asked of the server: descriptors are few.
    socket: Option<UdpSocket>,
    step: Step,
    authority: Option<Authority>,
    transaction: TransactionId,
    request: Vec<u8>,
    sent: Instant,
    tries: u32,
    challenges: u32,
    relay: Option<SocketAddr>,
}

/// The clients and what drives them.
#[derive(Debug)]
pub(super) struct Driver {
    goal: Goal,
    poller: Poller,
    clients: Vec<Client>,
    transactions: u64,
    /// Realm and key of the first challenge: the key is the same for every client.
    known: Option<Authority>,
}

/// What an answer means for its client.
enum Progress {
    Busy,
    Finished,
}

impl Driver {
    pub(super) fn new(sockets: Vec<UdpSocket>, goal: Goal) -> io::Result<Driver> {
        let poller = Poller::new()?;
        let mut clients = Vec::with_capacity(sockets.len());
        for (token, socket) in (0..).zip(sockets) {
            poller.add(&socket, token, Interest::Read)?;
            clients.push(Client::new(socket));
        }
        Ok(Driver {
            goal,
            poller,
            clients,
            transactions: 0,
            known: None,
        })
    }

    /// Gives every client a new goal, to be reached by [`Driver::finish_all`].
    pub(super) fn restart(&mut self, goal: Goal) {
        self.goal = goal;
        self.clients
            .iter_mut()
            .for_each(|client| client.step = Step::Waiting);
    }

    pub(super) fn relays(&self) -> Vec<SocketAddr> {
        self.clients
            .iter()
            .filter_map(|client| client.relay)
            .collect()
    }

    pub(super) fn sockets(&self) -> impl Iterator<Item = &UdpSocket> {
        self.clients
            .iter()
            .filter_map(|client| client.socket.as_ref())
    }

    /// Closes the sockets of all clients but the first `held`.
    pub(super) fn close_sockets(&mut self, held: usize) {
        let rest = self.clients.iter_mut().skip(held);
        rest.for_each(|client| client.socket = None);
    }

    /// The clients without a socket.
    pub(super) fn closed(&self) -> Vec<usize> {
        (0..self.clients.len())
            .filter(|client| self.clients[*client].socket.is_none())
            .collect()
    }

    /// Gives a client a socket again, at the address that the server knows.
    pub(super) fn reopen(&mut self, client: usize, socket: UdpSocket) -> io::Result<()> {
        // Few clients: far below 2^64.
        self.poller.add(&socket, client as u64, Interest::Read)?;
        self.clients[client].socket = Some(socket);
        Ok(())
    }

    /// Lets every client reach its goal, `window` at a time.
    pub(super) fn finish_all(&mut self, window: usize) -> Result<(), SideError> {
        let mut idle: VecDeque<usize> = (0..self.clients.len()).collect();
        let mut active = Vec::new();
        let mut events = Events::with_capacity(window);
        loop {
            while active.len() < window {
                let Some(next) = idle.pop_front() else { break };
                self.start(next)?;
                active.push(next);
            }
            if active.is_empty() {
                return Ok(());
            }
            self.poller
                .wait(&mut events, Some(RETRANSMIT))
                .doing("wait for answers")?;
            for event in events.iter() {
                if let Ok(client) = usize::try_from(event.token) {
                    self.receive(client)?;
                }
            }
            active.retain(|client| self.clients[*client].step != Step::Done);
            active
                .iter()
                .try_for_each(|client| self.clients[*client].retransmit())?;
        }
    }

    /// Churns until `duration` is over. `open` makes the socket of the next cycle.
    pub(super) fn churn(
        &mut self,
        duration: Duration,
        mut open: impl FnMut() -> io::Result<UdpSocket>,
    ) -> Result<Churned, SideError> {
        let start = Instant::now();
        let mut churned = Churned {
            cycles: 0,
            errors: 0,
            elapsed: duration,
        };
        let mut events = Events::with_capacity(self.clients.len());
        (0..self.clients.len()).try_for_each(|client| self.start(client))?;
        let mut swept = start;
        while start.elapsed() < duration {
            self.poller
                .wait(&mut events, Some(Duration::from_millis(20)))
                .doing("wait for answers")?;
            for event in events.iter() {
                if let Ok(client) = usize::try_from(event.token) {
                    let outcome = self.receive(client);
                    self.count(client, outcome, &mut churned, &mut open)?;
                }
            }
            if swept.elapsed() > RETRANSMIT {
                swept = Instant::now();
                for client in 0..self.clients.len() {
                    let outcome = self.clients[client].retransmit().map(|()| Progress::Busy);
                    self.count(client, outcome, &mut churned, &mut open)?;
                }
            }
        }
        churned.elapsed = start.elapsed();
        Ok(churned)
    }

    /// Counts a cycle that is over, and lets its client begin the next.
    fn count(
        &mut self,
        client: usize,
        outcome: Result<Progress, SideError>,
        churned: &mut Churned,
        open: &mut impl FnMut() -> io::Result<UdpSocket>,
    ) -> Result<(), SideError> {
        match outcome {
            Ok(Progress::Busy) => return Ok(()),
            Ok(Progress::Finished) => churned.cycles += 1,
            Err(_) => churned.errors += 1,
        }
        self.replace(client, open().doing("open a client socket")?)
    }

    /// Begins again from another port; the old socket leaves the poller by being closed.
    fn replace(&mut self, client: usize, socket: UdpSocket) -> Result<(), SideError> {
        // Few clients: far below 2^64.
        self.poller
            .add(&socket, client as u64, Interest::Read)
            .doing("watch a client socket")?;
        self.clients[client] = Client::new(socket);
        self.start(client)
    }

    fn start(&mut self, client: usize) -> Result<(), SideError> {
        let step = if self.goal == Goal::Renew {
            Step::Binding
        } else {
            Step::Allocating
        };
        self.send(client, step)
    }

    fn send(&mut self, number: usize, step: Step) -> Result<(), SideError> {
        self.transactions += 1;
        let mut id = *b"hpb\0\0\0\0\0\0\0\0\0";
        id[4..].copy_from_slice(&self.transactions.to_be_bytes());
        let client = &mut self.clients[number];
        client.step = step;
        client.transaction = TransactionId(id);
        let authority = client.authority.as_ref();
        // As many clients as ports, so the number fits; and every number of the layout is a
        // channel.
        let flow = number as u16;
        let channel = ChannelNumber::new(layout::channel(flow)).unwrap_or(ChannelNumber::MIN);
        let built = match step {
            Step::Binding => {
                request::channel_bind(&client.transaction, authority, channel, layout::peer(flow))
            }
            Step::Releasing => request::release(&client.transaction, authority),
            _ => request::allocate(&client.transaction, authority),
        };
        client.request = built.map_err(io::Error::other).doing("write a request")?;
        client.tries = 0;
        client.transmit();
        Ok(())
    }

    /// Takes what has arrived for a client.
    fn receive(&mut self, number: usize) -> Result<Progress, SideError> {
        let mut buffer = [0; 2048];
        // An error is an ICMP message (the retransmission will show whether it matters) or nothing
        // to read.
        while let Some(length) = self.clients[number].take(&mut buffer) {
            let Ok(message) = Message::parse(&buffer[..length]) else {
                continue;
            };
            if message.transaction_id() != self.clients[number].transaction {
                continue;
            }
            match message.class() {
                Class::Success => self.succeeded(number, &message)?,
                Class::Error => self.challenged(number, &message)?,
                _ => continue,
            }
            if self.clients[number].step == Step::Done {
                return Ok(Progress::Finished);
            }
        }
        Ok(Progress::Busy)
    }

    fn succeeded(&mut self, number: usize, message: &Message<'_>) -> Result<(), SideError> {
        let client = &mut self.clients[number];
        client.challenges = 0;
        match (client.step, self.goal) {
            (Step::Allocating, goal) => {
                client.relay = message
                    .get::<XorRelayedAddress>()
                    .ok()
                    .flatten()
                    .map(|relay| relay.0);
                self.send(
                    number,
                    if goal == Goal::Churn {
                        Step::Releasing
                    } else {
                        Step::Binding
                    },
                )
            }
            _ => {
                client.step = Step::Done;
                Ok(())
            }
        }
    }

    /// 401 and 438 bring a nonce to go on with (RFC 8489 §9.2.5); every other error ends the
    /// client's way.
    fn challenged(&mut self, number: usize, message: &Message<'_>) -> Result<(), SideError> {
        let code = message.get::<ErrorCode<'_>>().ok().flatten();
        let (code, reason) = code.map_or((0, "(no ERROR-CODE)"), |code| (code.code, code.reason));
        let refused = || SideError::Refused {
            method: message.method().to_string(),
            code,
            reason: reason.to_owned(),
        };
        let client = &mut self.clients[number];
        client.challenges += 1;
        let (Ok(Some(nonce)), true) = (
            message.get::<Nonce<'_>>(),
            matches!(code, 401 | 438) && client.challenges < CHALLENGES,
        ) else {
            return Err(refused());
        };
        let realm = message
            .get::<Realm<'_>>()
            .ok()
            .flatten()
            .map(|realm| realm.0);
        let mut authority = match (realm, &self.known, &client.authority) {
            (Some(realm), Some(known), _) if known.realm == realm => known.clone(),
            (Some(realm), ..) => self
                .known
                .insert(authority(realm).ok_or_else(refused)?)
                .clone(),
            (None, _, Some(own)) => own.clone(),
            (None, _, None) => return Err(refused()),
        };
        authority.nonce = nonce.0.to_vec();
        client.authority = Some(authority);
        let step = client.step;
        self.send(number, step)
    }
}

/// The long-term credential's key in a realm; `None` for a realm that OpaqueString refuses.
fn authority(realm: &str) -> Option<Authority> {
    let key = long_term_key(PasswordAlgorithm::Md5, USERNAME, realm, PASSWORD).ok()?;
    Some(Authority {
        realm: realm.to_owned(),
        nonce: Vec::new(),
        key: key.hmac_sha1(),
    })
}

impl Client {
    fn new(socket: UdpSocket) -> Client {
        Client {
            socket: Some(socket),
            step: Step::Waiting,
            authority: None,
            transaction: TransactionId([0; 12]),
            request: Vec::new(),
            sent: Instant::now(),
            tries: 0,
            challenges: 0,
            relay: None,
        }
    }

    fn take(&self, buffer: &mut [u8]) -> Option<usize> {
        self.socket.as_ref()?.recv(buffer).ok()
    }

    fn transmit(&mut self) {
        // What cannot be sent now is sent again like what got lost.
        let _ = self
            .socket
            .as_ref()
            .map(|socket| socket.send(&self.request));
        self.sent = Instant::now();
        self.tries += 1;
    }

    fn retransmit(&mut self) -> Result<(), SideError> {
        if self.step == Step::Done || self.sent.elapsed() < RETRANSMIT {
            return Ok(());
        }
        if self.tries >= TRIES {
            let source = io::Error::new(io::ErrorKind::TimedOut, "no answer to a request in 3 s");
            return Err(SideError::Io {
                what: "allocate",
                source,
            });
        }
        self.transmit();
        Ok(())
    }
}
