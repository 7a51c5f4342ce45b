//! ChannelData over TCP or TLS: one read, one send and one write per connection and wake-up. Over TLS, what is written
//! is encrypted at once, so in records of up to 16 KiB.
//!
//! It grants every request without credentials, so that the generator's own client sets it up.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;

use ::io::{
    Events, Interest, Poller, RecvBatch, SendOptions, SendQueue, SendTo, TcpConnection,
    TcpListener, TcpOptions, UdpSocket,
};
use streams::Tls;
use streams::rustls::ServerConfig;
use streams::rustls::crypto::aws_lc_rs::Ticketer;
use streams::rustls::pki_types::PrivatePkcs8KeyDer;
use streams::tls::TlsError;
use stun::stream::{Frame, frame};
use stun::{ChannelNumber, Class, Lifetime, Message, Method};
use stun::{XorMappedAddress, XorPeerAddress, XorRelayedAddress};

use super::options;
use crate::bench::certificate;
use crate::bench::layout::{relay_ip, server_address};

const LISTENER: u64 = 0;
/// Bytes of one read.
const MAX_READ_BYTES: usize = 64 << 10;
/// Above this number of unwritten bytes, a connection loses what comes from its peer.
const MAX_UNWRITTEN: usize = 1 << 20;
const LIFETIME_S: u32 = 600;

/// The TLS configuration of a server with a certificate of its own.
fn tls_config() -> io::Result<Arc<ServerConfig>> {
    let made = certificate::generate()?;
    let key = PrivatePkcs8KeyDer::from(made.signing_key.serialize_der());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key.into());
    let mut config = config.map_err(io::Error::other)?;
    if let Ok(ticketer) = Ticketer::new() {
        config.ticketer = ticketer;
    }
    Ok(Arc::new(config))
}

/// Relays until the process is killed.
pub(super) fn run(over_tls: bool) -> io::Result<()> {
    let listener = TcpListener::bind(server_address(), &TcpOptions::default())?;
    let poller = Poller::new()?;
    poller.add(&listener, LISTENER, Interest::Read)?;
    let mut relay = Relay {
        poller,
        tls: over_tls.then(tls_config).transpose()?,
        plain: Vec::new(),
        clients: Vec::new(),
        queue: SendQueue::new(&SendOptions::default()),
        dirty: Vec::new(),
        received: vec![0; MAX_READ_BYTES],
    };
    let mut batch = RecvBatch::new(64, RecvBatch::LARGE);
    let mut events = Events::with_capacity(256);
    loop {
        relay.poller.wait(&mut events, None)?;
        batch.clear();
        for event in events.iter() {
            match event.token {
                LISTENER => relay.accept(&listener),
                token if token % 2 == 1 => {
                    if event.writable {
                        relay.dirty.push(client_of(token));
                    }
                    if event.readable || event.closed {
                        relay.read(client_of(token));
                    }
                }
                token => {
                    if let Some(client) = relay.client(client_of(token))
                        && let Some(socket) = &client.relay
                    {
                        // Nothing to read, or no slot left: another turn comes.
                        let _ = socket.recv(token, &mut batch);
                    }
                }
            }
        }
        for datagrams in batch.iter() {
            relay.frame(client_of(datagrams.tag), datagrams.segments());
        }
        relay.write_all();
    }
}

/// The tokens of a client are one odd number for its connection and the next even one for its relay socket.
fn client_of(token: u64) -> usize {
    (token - 1) as usize / 2
}

struct Client {
    connection: TcpConnection,
    tls: Option<Tls>,
    remote: SocketAddr,
    relay: Option<UdpSocket>,
    channel: Option<(u16, SocketAddr)>,
    /// The first bytes of a message.
    kept: Vec<u8>,
    /// Over TLS, what is not encrypted.
    queued: Vec<u8>,
    unwritten: Vec<u8>,
    waits: bool,
}

impl Client {
    fn queue(&mut self) -> &mut Vec<u8> {
        match &self.tls {
            Some(_) => &mut self.queued,
            None => &mut self.unwritten,
        }
    }

    /// Encrypts what is queued. An error means that the connection has failed.
    fn encrypt(&mut self) -> Result<(), TlsError> {
        match &mut self.tls {
            Some(tls) if !self.queued.is_empty() => {
                let encrypted = tls.encrypt(&self.queued, &mut self.unwritten);
                self.queued.clear();
                encrypted
            }
            _ => Ok(()),
        }
    }
}

struct Relay {
    poller: Poller,
    tls: Option<Arc<ServerConfig>>,
    /// What one read has decrypted.
    plain: Vec<u8>,
    clients: Vec<Option<Client>>,
    queue: SendQueue,
    /// Clients to write to.
    dirty: Vec<usize>,
    received: Vec<u8>,
}

impl Relay {
    fn client(&mut self, index: usize) -> Option<&mut Client> {
        self.clients.get_mut(index)?.as_mut()
    }

    fn accept(&mut self, listener: &TcpListener) {
        while let Ok((connection, remote)) = listener.accept() {
            let token = self.clients.len() as u64 * 2 + 1;
            let added = self.poller.add(&connection, token, Interest::Read);
            let tls = self
                .tls
                .as_ref()
                .and_then(|config| Tls::server(Arc::clone(config)).ok());
            self.clients.push(added.is_ok().then_some(Client {
                connection,
                tls,
                remote,
                relay: None,
                channel: None,
                kept: Vec::new(),
                queued: Vec::new(),
                unwritten: Vec::new(),
                waits: false,
            }));
        }
    }

    fn read(&mut self, index: usize) {
        let mut received = std::mem::take(&mut self.received);
        let length = self
            .client(index)
            .map(|client| client.connection.read(&mut received));
        match length {
            Some(Ok(0)) => self.clients[index] = None,
            Some(Ok(length)) if self.tls.is_some() => self.decrypt(index, &received[..length]),
            Some(Ok(length)) => self.take(index, &received[..length]),
            Some(Err(error)) if error.kind() != io::ErrorKind::WouldBlock => {
                self.clients[index] = None;
            }
            _ => {}
        }
        self.received = received;
    }

    fn decrypt(&mut self, index: usize, received: &[u8]) {
        let mut plain = std::mem::take(&mut self.plain);
        plain.clear();
        let Some(Some(client)) = self.clients.get_mut(index) else {
            return;
        };
        if let Some(tls) = &mut client.tls {
            let decrypted = tls.received(received, &mut plain, &mut client.unwritten);
            self.dirty.push(index);
            if decrypted != Ok(false) {
                self.clients[index] = None;
            }
        }
        self.take(index, &plain);
        self.plain = plain;
    }

    fn take(&mut self, index: usize, received: &[u8]) {
        let Some(client) = self.client(index) else {
            return;
        };
        let mut kept = std::mem::take(&mut client.kept);
        let mut rest = received;
        if !kept.is_empty() {
            kept.extend_from_slice(received);
            rest = &kept;
        }
        loop {
            rest = self.relay(index, rest);
            match frame(rest) {
                Frame::Message { len, padded_len } => {
                    let _ = self.answer(index, &rest[..len]);
                    rest = &rest[padded_len..];
                }
                Frame::Need(_) => break,
                Frame::Invalid => return self.clients[index] = None,
            }
        }
        if let Some(client) = self.client(index) {
            client.kept = rest.to_vec();
        }
    }

    /// Sends the ChannelData messages at the start of `bytes`. Returns what follows them.
    fn relay<'b>(&mut self, index: usize, bytes: &'b [u8]) -> &'b [u8] {
        let Some(Some(client)) = self.clients.get(index) else {
            return &[];
        };
        let mut rest = bytes;
        let mut out = self.queue.start();
        while let Frame::Message { len, padded_len } = frame(rest)
            && rest[0] >= 0x40
        {
            if let (Some(socket), Some((_, peer))) = (&client.relay, client.channel) {
                out.push(&SendTo::new(socket, peer), &rest[4..len]);
            }
            rest = &rest[padded_len..];
        }
        out.flush();
        rest
    }

    /// Answers a request with success.
    fn answer(&mut self, index: usize, request: &[u8]) -> Option<()> {
        let request = Message::parse(request).ok()?;
        let token = index as u64 * 2 + 2;
        let Some(Some(client)) = self.clients.get_mut(index) else {
            return None;
        };
        if request.class() != Class::Request {
            return None;
        }
        let mut buffer = [0; 128];
        let id = request.transaction_id();
        let mut response =
            stun::Builder::new(&mut buffer, Class::Success, request.method(), &id).ok()?;
        match request.method() {
            Method::ALLOCATE => {
                let socket =
                    UdpSocket::bind(SocketAddr::new(relay_ip(), 0), &options(false, true)).ok()?;
                self.poller.add(&socket, token, Interest::Read).ok()?;
                response
                    .push(&XorRelayedAddress(socket.local_addr()))
                    .ok()?;
                response.push(&XorMappedAddress(client.remote)).ok()?;
                response.push(&Lifetime(LIFETIME_S)).ok()?;
                client.relay = Some(socket);
            }
            Method::CHANNEL_BIND => {
                let channel = request.get::<ChannelNumber>().ok()??;
                let peer = request.get::<XorPeerAddress>().ok()??;
                client.channel = Some((channel.get(), peer.0));
            }
            Method::REFRESH => {
                let asked = request.get::<Lifetime>().ok()?;
                let lifetime = asked.map_or(LIFETIME_S, |asked| asked.0.min(LIFETIME_S));
                response.push(&Lifetime(lifetime)).ok()?;
                if lifetime == 0 {
                    client.relay = None;
                }
            }
            _ => {
                response.push(&XorMappedAddress(client.remote)).ok()?;
            }
        }
        client.queue().extend_from_slice(response.finish());
        self.dirty.push(index);
        Some(())
    }

    /// Queues what a relay socket has received.
    fn frame<'d>(&mut self, index: usize, payloads: impl Iterator<Item = &'d [u8]>) {
        let Some(client) = self.client(index) else {
            return;
        };
        let Some((channel, _)) = client.channel else {
            return;
        };
        for payload in payloads {
            if client.unwritten.len() + client.queued.len() > MAX_UNWRITTEN {
                return;
            }
            let queue = client.queue();
            // A datagram is shorter than 64 KiB.
            let length = payload.len() as u16;
            queue.extend_from_slice(&channel.to_be_bytes());
            queue.extend_from_slice(&length.to_be_bytes());
            queue.extend_from_slice(payload);
            let padding = &[0; 3][..stun::padding(payload.len())];
            queue.extend_from_slice(padding);
        }
        self.dirty.push(index);
    }

    fn write_all(&mut self) {
        for index in self.dirty.drain(..) {
            let Some(Some(client)) = self.clients.get_mut(index) else {
                continue;
            };
            if client.encrypt().is_err() {
                self.clients[index] = None;
                continue;
            }
            if !client.unwritten.is_empty() {
                let written = client.connection.write(&[IoSlice::new(&client.unwritten)]);
                client.unwritten.drain(..written.unwrap_or(0));
            }
            let waits = !client.unwritten.is_empty();
            if std::mem::replace(&mut client.waits, waits) != waits {
                let interest = if waits {
                    Interest::ReadWrite
                } else {
                    Interest::Read
                };
                let token = index as u64 * 2 + 1;
                let _ = self.poller.modify(&client.connection, token, interest);
            }
        }
    }
}
