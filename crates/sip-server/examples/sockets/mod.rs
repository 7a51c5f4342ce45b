//! Sockets of the standard library around an [`Endpoint`]: UDP and TCP on one address. The examples share this file.
//! One thread per socket reads, and passes its input to the main thread through a channel. The main thread owns the
//! endpoint, writes, and waits for the next timer.

#![allow(dead_code, reason = "each example uses a part of it")]

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _, UdpSocket};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant, SystemTime};

use sip::agent::Credentials;
use sip::dispatch::{self, Dispatcher, Source};
use sip::endpoint::{Endpoint, Task};
use sip::engine::{Config, ConnectKey, Engine, Origin, SendTo, SentBy};
use sip::flow::{ConnectionKey, Flow, ListenerKey, Transport};
use sip::frame::{Frame, Framer, Opened, PONG};
use sip::routing::{DnsFailed, DnsRecords, Query};
use sip::tu::TransactionUser;
use sip::uri::Uri;
use sip::verdict::Rules;
use sip::{HashKey, Limits, Mono, Now};

/// Any of what can go wrong here.
pub(crate) type Failed = Box<dyn std::error::Error + Send + Sync>;

/// The one address that all sockets are bound to.
const LISTENER: ListenerKey = ListenerKey(0);

/// Inputs that wait for the main thread. The threads wait when there are more, and the kernel drops further datagrams.
const MAX_INPUTS: usize = 1024;
/// Connections at once, each of which has a thread.
const MAX_CONNECTIONS: usize = 256;
/// A peer that reads nothing for so long loses its connection: all others wait meanwhile.
const WRITE_TIMEOUT: Duration = Duration::from_secs(1);

/// What the threads have read.
enum Input {
    Datagram(SocketAddr, Vec<u8>),
    Accepted(TcpStream),
    Connected(ConnectKey, std::io::Result<TcpStream>),
    Message(ConnectionKey, Vec<u8>),
    Ping(ConnectionKey),
    Closed(ConnectionKey),
}

/// The sockets of one address.
pub(crate) struct Sockets {
    udp: UdpSocket,
    pub(crate) local: SocketAddr,
    streams: HashMap<ConnectionKey, (TcpStream, Flow)>,
    last: u64,
    inputs: Receiver<Input>,
    sender: SyncSender<Input>,
    started: Instant,
}

/// Secret bytes for keys, from the system.
pub(crate) fn random_key() -> Result<HashKey, Failed> {
    let mut bytes = [0; 16];
    let mut file = std::fs::File::open("/dev/urandom")?;
    file.read_exact(&mut bytes)?;
    Ok(HashKey::new(bytes))
}

impl Sockets {
    /// Binds UDP and TCP to this address, of which port 0 is any free port.
    pub(crate) fn bind(address: &str) -> Result<Sockets, Failed> {
        let address: SocketAddr = address
            .parse()
            .map_err(|_| format!("`{address}` is not an address such as 192.0.2.1:5060"))?;
        if address.ip().is_unspecified() {
            return Err("name one address: it stands in Via and Contact".into());
        }
        let (udp, tcp) = bind_both(address)?;
        let local = udp.local_addr()?;
        let (sender, inputs) = sync_channel(MAX_INPUTS);
        let (reading, to_main) = (udp.try_clone()?, sender.clone());
        std::thread::spawn(move || read_datagrams(&reading, &to_main));
        let to_main = sender.clone();
        std::thread::spawn(move || accept_streams(&tcp, &to_main));
        let (streams, last, started) = (HashMap::new(), 0, Instant::now());
        Ok(Sockets {
            udp,
            local,
            streams,
            last,
            inputs,
            sender,
            started,
        })
    }

    /// An engine and a dispatcher for these sockets, around this transaction user.
    pub(crate) fn endpoint<U: TransactionUser>(
        &self,
        rules: Rules<'static>,
        key: HashKey,
        user: U,
    ) -> Endpoint<U> {
        let (host, port) = (self.local.ip(), self.local.port());
        let host = if host.is_ipv6() {
            format!("[{host}]")
        } else {
            host.to_string()
        };
        let transports = [Transport::Udp, Transport::Tcp];
        let mut config = Config::new(0, key);
        config.rules = rules;
        config.sent_by = transports
            .map(|it| SentBy::new(LISTENER, it, &host, port))
            .to_vec();
        let is_v4 = self.local.is_ipv4();
        let sources = transports.map(|transport| Source {
            listener: LISTENER,
            transport,
            is_v4,
        });
        let dispatcher = Dispatcher::new(dispatch::Config::new(sources.to_vec()), key, 1);
        Endpoint::new(Engine::new(config, 1), dispatcher, user)
    }

    pub(crate) fn now(&self) -> Now {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        Now {
            mono: Mono(1).plus(self.started.elapsed()),
            unix_s: unix.map_or(0, |it| it.as_secs()),
        }
    }

    /// Carries out what is to be done, then waits for one input, a timer, or `until`. The program calls it in a loop.
    pub(crate) fn turn<U: TransactionUser>(
        &mut self,
        endpoint: &mut Endpoint<U>,
        until: Option<Mono>,
    ) {
        self.drain(endpoint);
        let deadline = [endpoint.poll_timeout(), until].into_iter().flatten().min();
        let wait = deadline.map_or(3600 * 1_000_000_000, |at| {
            at.0.saturating_sub(self.now().mono.0)
        });
        match self.inputs.recv_timeout(Duration::from_nanos(wait)) {
            Ok(input) => self.handle(endpoint, input),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {}
        }
        let now = self.now();
        if endpoint.poll_timeout().is_some_and(|at| at <= now.mono) {
            self.drain(endpoint);
            endpoint.handle_timeout(now);
        }
        self.drain(endpoint);
    }

    /// Sends what the endpoint has queued, until nothing is left.
    pub(crate) fn drain<U: TransactionUser>(&mut self, endpoint: &mut Endpoint<U>) {
        loop {
            let (mut failed, mut queries) = (Vec::new(), Vec::new());
            endpoint.drain(self.now(), |task| match task {
                Task::Send { to, origin, bytes } => {
                    failed.extend(self.send(to, bytes).is_err().then_some(origin));
                }
                Task::Connect { key, to } => self.connect(key, to.remote),
                Task::Close(connection) => self.close(connection),
                Task::Resolve(query) => queries.push(query),
            });
            if failed.is_empty() && queries.is_empty() {
                return;
            }
            for origin in failed.into_iter().filter(|it| *it != Origin::Nobody) {
                endpoint.send_failed(self.now(), origin);
            }
            for query in queries {
                let answer = resolve(&query);
                endpoint.resolved(self.now(), query, answer);
            }
        }
    }

    fn send(&mut self, to: SendTo, bytes: &[u8]) -> std::io::Result<()> {
        match to {
            SendTo::Datagram { remote, .. } => self.udp.send_to(bytes, remote).map(drop),
            SendTo::Stream(key) => {
                let Some((stream, _)) = self.streams.get_mut(&key) else {
                    return Err(std::io::ErrorKind::NotConnected.into());
                };
                let written = stream.write_all(bytes);
                if written.is_err() {
                    // A part of the message may have been sent, so that nothing can follow. The reading thread reports
                    // the end.
                    self.close(key);
                }
                written
            }
        }
    }

    fn connect(&self, key: ConnectKey, remote: SocketAddr) {
        let to_main = self.sender.clone();
        std::thread::spawn(move || {
            let stream = TcpStream::connect_timeout(&remote, Duration::from_secs(10));
            to_main.send(Input::Connected(key, stream))
        });
    }

    fn close(&mut self, connection: ConnectionKey) {
        if let Some((stream, _)) = self.streams.remove(&connection) {
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }

    /// Keeps a connection and starts its reading thread.
    fn keep(&mut self, stream: TcpStream, opened: Opened) -> std::io::Result<Flow> {
        if self.streams.len() >= MAX_CONNECTIONS {
            return Err(std::io::Error::other("too many connections"));
        }
        self.last += 1;
        let key = ConnectionKey(self.last);
        let flow = Flow {
            transport: Transport::Tcp,
            listener: LISTENER,
            connection: Some(key),
            local: self.local,
            remote: stream.peer_addr()?,
        };
        stream.set_write_timeout(Some(WRITE_TIMEOUT))?;
        let (reading, to_main) = (stream.try_clone()?, self.sender.clone());
        std::thread::spawn(move || {
            read_stream(reading, key, opened, &to_main);
            to_main.send(Input::Closed(key))
        });
        self.streams.insert(key, (stream, flow));
        Ok(flow)
    }

    fn handle<U: TransactionUser>(&mut self, endpoint: &mut Endpoint<U>, input: Input) {
        let now = self.now();
        match input {
            Input::Datagram(remote, bytes) => {
                let (transport, local) = (Transport::Udp, self.local);
                let flow = Flow {
                    transport,
                    listener: LISTENER,
                    connection: None,
                    local,
                    remote,
                };
                endpoint.handle_message(now, &flow, &bytes);
            }
            Input::Message(key, bytes) => {
                if let Some((_, flow)) = self.streams.get(&key) {
                    endpoint.handle_message(now, flow, &bytes);
                }
            }
            Input::Ping(key) => drop(self.send(SendTo::Stream(key), PONG)),
            Input::Accepted(stream) => {
                if let Ok(flow) = self.keep(stream, Opened::ByPeer) {
                    endpoint.accepted(now, &flow);
                }
            }
            Input::Connected(key, stream) => {
                match stream.and_then(|stream| self.keep(stream, Opened::ByUs)) {
                    Ok(flow) => endpoint.connected(now, key, &flow),
                    Err(_) => endpoint.connect_failed(now, key),
                }
            }
            Input::Closed(key) => {
                self.close(key);
                endpoint.disconnected(now, key);
            }
        }
    }
}

/// UDP and TCP on one port: of port 0, the port that is free for both.
fn bind_both(address: SocketAddr) -> Result<(UdpSocket, TcpListener), Failed> {
    for _ in 0..100 {
        let udp = UdpSocket::bind(address).map_err(|why| format!("UDP {address}: {why}"))?;
        match (TcpListener::bind(udp.local_addr()?), address.port()) {
            (Ok(tcp), _) => return Ok((udp, tcp)),
            (Err(why), 1..) => return Err(format!("TCP {address}: {why}").into()),
            (Err(_), 0) => {}
        }
    }
    Err("no port is free for UDP and TCP".into())
}

fn accept_streams(tcp: &TcpListener, to_main: &SyncSender<Input>) {
    for stream in tcp.incoming() {
        let Ok(stream) = stream else {
            // No file descriptor is left, for example. The error comes at once until one is free.
            std::thread::sleep(Duration::from_millis(100));
            continue;
        };
        if to_main.send(Input::Accepted(stream)).is_err() {
            return;
        }
    }
}

fn read_datagrams(udp: &UdpSocket, to_main: &SyncSender<Input>) {
    let mut buffer = vec![0; 65_536];
    loop {
        // An ICMP error of an earlier datagram comes as an error; the next read goes on.
        let Ok((length, remote)) = udp.recv_from(&mut buffer) else {
            continue;
        };
        let bytes = buffer[..length].to_vec();
        if to_main.send(Input::Datagram(remote, bytes)).is_err() {
            return;
        }
    }
}

/// Cuts a stream into messages, until it ends or cannot be cut.
fn read_stream(
    mut stream: TcpStream,
    key: ConnectionKey,
    opened: Opened,
    to_main: &SyncSender<Input>,
) {
    let (mut framer, limits) = (Framer::new(opened), Limits::DEFAULT);
    let (mut bytes, mut buffer) = (Vec::new(), [0; 16_384]);
    while let Ok(length @ 1..) = stream.read(&mut buffer) {
        bytes.extend_from_slice(&buffer[..length]);
        loop {
            let (taken, input) = match framer.next(&bytes, &limits) {
                Ok(Frame::Need(_)) => break,
                Ok(Frame::Message { len }) => {
                    (len, Some(Input::Message(key, bytes[..len].to_vec())))
                }
                Ok(Frame::Ping { len }) => (len, Some(Input::Ping(key))),
                Ok(Frame::LineEnd { len }) => (len, None),
                Err(_) => return,
            };
            bytes.drain(..taken);
            if input.is_some_and(|input| to_main.send(input).is_err()) {
                return;
            }
        }
    }
}

/// Resolves addresses with the system's resolver. It cannot query NAPTR and SRV, so these answers are empty. It blocks:
/// a program with many calls must resolve on a separate thread.
fn resolve(query: &Query) -> Result<(DnsRecords, Duration), DnsFailed> {
    let answer = match query {
        Query::Naptr(_) => DnsRecords::Naptr(Vec::new()),
        Query::Srv(_) => DnsRecords::Srv(Vec::new()),
        Query::Addresses(name) => {
            let found = (name.as_str(), 0)
                .to_socket_addrs()
                .map_err(|_| DnsFailed)?;
            DnsRecords::Addresses(found.map(|address| address.ip()).collect())
        }
    };
    Ok((answer, Duration::from_secs(60)))
}

/// The arguments of an example: `--name value` pairs, then words.
pub(crate) struct Arguments {
    pairs: HashMap<String, String>,
    pub(crate) words: Vec<String>,
}

impl Arguments {
    /// Reads them; with `--help`, or with a name that is not among these, the error is the usage.
    pub(crate) fn read(names: &[&str], usage: &str) -> Result<Arguments, Failed> {
        let (mut pairs, mut words) = (HashMap::new(), Vec::new());
        let mut arguments = std::env::args().skip(1);
        while let Some(argument) = arguments.next() {
            let Some(name) = argument.strip_prefix("--") else {
                words.push(argument);
                continue;
            };
            let value = arguments.next().filter(|_| names.contains(&name));
            let value = value.ok_or_else(|| format!("usage: {usage}"))?;
            pairs.insert(name.to_owned(), value);
        }
        Ok(Arguments { pairs, words })
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.pairs.get(name).map(String::as_str)
    }

    /// `--user` and `--password`, for `--realm` or the domain of this identity.
    pub(crate) fn credentials(&self, identity: &str) -> Vec<Credentials> {
        let domain = match Uri::parse(identity.as_bytes()) {
            Ok(Uri::Sip(uri)) => String::from_utf8_lossy(uri.host.as_bytes()).into_owned(),
            _ => String::new(),
        };
        let realm = self.get("realm").map_or(domain, str::to_owned);
        let pair = self.get("user").zip(self.get("password"));
        let credentials = pair.map(|(username, password)| Credentials {
            realm: Some(realm),
            username: username.to_owned(),
            password: password.to_owned(),
        });
        credentials.into_iter().collect()
    }

    /// A time in seconds.
    pub(crate) fn seconds(&self, name: &str, default: u64) -> Result<Duration, Failed> {
        let text = self.get(name).map_or(Ok(default), str::parse);
        let seconds = text.map_err(|_| format!("--{name} needs a number of seconds"))?;
        Ok(Duration::from_secs(seconds))
    }
}

/// The end of an example: what failed, in words.
pub(crate) fn report(result: Result<(), Failed>) -> std::process::ExitCode {
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(failed) => {
            eprintln!("error: {failed}");
            std::process::ExitCode::FAILURE
        }
    }
}
