//! Bulk transfers through TCP allocations (RFC 6062), beside a bare relay that splices:
//! `cargo run --release -p hairpin-load --example tcp_bulk SECONDS ROUNDS NAME=ADDRESS,PID[,tls] ..`, with servers that
//! know the user `bob` with the password `secretpw`, and peers on loopback.
//!
//! All sides take a turn in each round, and the first round is thrown away. A turn is one connection and one direction,
//! for some seconds. It yields the goodput, and the processor time of the relaying process for each MiB. Ratios are
//! taken within a round; the table has their medians.
//!
//! Sender, receiver and relay are three threads. On two processors, the goodput depends on which two of them share one.
//! So pin the servers to one processor and this program to the other (`taskset -c`): the bare relay is pinned where the
//! first server is.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use io::{Events, Interest, Pipe, Poller, TcpConnection};
use streams::rustls::client::danger::{
    HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier,
};
use streams::rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use streams::rustls::{ClientConfig, DigitallySignedStruct, Error as TlsError, SignatureScheme};
use turn::client::{AllocateOptions, Client, ClientConfig as TurnConfig, Event, RequestedRelays};
use turn::{Mono, Now, Transport};

/// Not measured: slow start.
const WARM_UP: Duration = Duration::from_millis(300);
const CHUNK: usize = 256 << 10;

/// Who relays.
struct Side {
    name: String,
    /// Where clients connect; none for the bare relay.
    server: Option<SocketAddr>,
    /// The server. For the bare relay, the process on whose processor it runs.
    pid: u32,
    tls: bool,
    /// For each direction: MiB/s and milliseconds of processor time per GiB, by round.
    rounds: [Vec<(f64, f64)>; 2],
}

fn main() -> Result<()> {
    let mut arguments = std::env::args().skip(1);
    let first = arguments.next().unwrap_or_default();
    if first == "relay" {
        return relay(&arguments.collect::<Vec<_>>());
    }
    let seconds: f64 = first.parse().map_err(Error::other)?;
    let rounds: usize = arguments
        .next()
        .unwrap_or_default()
        .parse()
        .map_err(Error::other)?;
    let mut sides: Vec<Side> = vec![Side::bare()];
    for argument in arguments {
        sides.push(Side::parse(&argument)?);
    }
    // The bare relay runs where the first server runs.
    sides[0].pid = sides.get(1).map_or(0, |side| side.pid);
    let time = Duration::from_secs_f64(seconds);
    for round in 0..=rounds {
        for side in &mut sides {
            for to_peer in [true, false] {
                let turn = side.turn(to_peer, time)?;
                if round > 0 {
                    side.rounds[usize::from(to_peer)].push(turn);
                }
            }
        }
    }
    print_table(&sides);
    Ok(())
}

fn print_table(sides: &[Side]) {
    println!(
        "| side | direction | MiB/s | ms per GiB | goodput / bare relay | bare relay's time / time |"
    );
    println!("|---|---|---|---|---|---|");
    for side in sides {
        for (to_peer, way) in [(1, "client to peer"), (0, "peer to client")] {
            let (own, bare) = (&side.rounds[to_peer], &sides[0].rounds[to_peer]);
            let of = |pick: fn(&(f64, f64)) -> f64| median(own.iter().map(pick).collect());
            let pairs = || own.iter().zip(bare);
            let goodput = median(pairs().map(|(own, bare)| own.0 / bare.0).collect());
            let cost = median(pairs().map(|(own, bare)| bare.1 / own.1).collect());
            println!(
                "| {} | {way} | {:.0} | {:.0} | {goodput:.2} | {cost:.2} |",
                side.name,
                of(|turn| turn.0),
                of(|turn| turn.1)
            );
        }
    }
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers.get(numbers.len() / 2).copied().unwrap_or(f64::NAN)
}

impl Side {
    fn bare() -> Side {
        Side {
            name: "bare relay".to_owned(),
            server: None,
            pid: 0,
            tls: false,
            rounds: [Vec::new(), Vec::new()],
        }
    }

    fn parse(text: &str) -> Result<Side> {
        let usage = || Error::new(ErrorKind::InvalidInput, "NAME=ADDRESS,PID[,tls]");
        let (name, rest) = text.split_once('=').ok_or_else(usage)?;
        let mut parts = rest.split(',');
        let server = parts.next().and_then(|part| part.parse().ok());
        let pid = parts.next().and_then(|part| part.parse().ok());
        Ok(Side {
            name: name.to_owned(),
            server: Some(server.ok_or_else(usage)?),
            pid: pid.ok_or_else(usage)?,
            tls: parts.next() == Some("tls"),
            ..Side::bare()
        })
    }

    /// One transfer: MiB/s, and milliseconds of processor time per GiB.
    fn turn(&mut self, to_peer: bool, time: Duration) -> Result<(f64, f64)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let peer = listener.local_addr()?;
        let mut child = None;
        let (near, control) = match self.server {
            Some(server) => {
                let (control, data) = connect(server, self.tls, peer)?;
                (data, Some(control))
            }
            None => (bare(peer, self.pid, &mut child)?, None),
        };
        let pid = child.as_ref().map_or(self.pid, Child::id);
        let (far, _) = listener.accept()?;
        let far = Link::plain(far);
        let (from, to) = if to_peer { (near, far) } else { (far, near) };
        let sender = send(from, time + 2 * WARM_UP);
        let measured = receive(to, pid, time);
        let sent = sender
            .join()
            .map_err(|_| Error::other("the sender panicked"))?;
        drop(control);
        if let Some(mut child) = child {
            child.kill()?;
            child.wait()?;
        }
        sent.and(measured)
    }
}

/// Sends for some time, then ends the connection.
fn send(mut link: Link, time: Duration) -> JoinHandle<Result<()>> {
    std::thread::spawn(move || {
        let chunk = vec![7; CHUNK];
        let end = Instant::now() + time;
        while Instant::now() < end {
            // The receiver may have seen enough.
            if link.write(&chunk).is_err() {
                break;
            }
        }
        Ok(())
    })
}

fn receive(mut link: Link, pid: u32, time: Duration) -> Result<(f64, f64)> {
    let mut buffer = vec![0; CHUNK];
    let warm = Instant::now() + WARM_UP;
    while Instant::now() < warm {
        link.read(&mut buffer)?;
    }
    let (begun, used) = (Instant::now(), processor_ms(pid)?);
    let mut bytes = 0;
    while begun.elapsed() < time {
        match link.read(&mut buffer)? {
            0 => return Err(ErrorKind::UnexpectedEof.into()),
            read => bytes += read,
        }
    }
    let (seconds, used) = (begun.elapsed().as_secs_f64(), processor_ms(pid)? - used);
    let mebibytes = bytes as f64 / f64::from(1 << 20);
    Ok((mebibytes / seconds, used / (mebibytes / 1024.0)))
}

/// The processor time that a process has used.
fn processor_ms(pid: u32) -> Result<f64> {
    /// Of user and system time in `/proc`, whatever the kernel's own tick is.
    const TICK_MS: f64 = 10.0;
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit_once(')').map_or("", |(_, fields)| fields);
    let ticks = fields.split_whitespace().skip(11).take(2);
    let ticks: f64 = ticks.filter_map(|field| field.parse::<f64>().ok()).sum();
    Ok(ticks * TICK_MS)
}

/// The only processor on which a process may run, if there is just one.
fn processor_of(pid: u32) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let mut lines = status.lines();
    let list = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().parse().ok()
}

/// A connection through a bare relay in a process of its own, on the processor of another process.
fn bare(peer: SocketAddr, beside: u32, child: &mut Option<Child>) -> Result<Link> {
    let place = TcpListener::bind("127.0.0.1:0")?;
    let address = place.local_addr()?;
    drop(place);
    let mut arguments = vec!["relay".to_owned(), address.to_string(), peer.to_string()];
    arguments.extend(processor_of(beside).map(|processor| processor.to_string()));
    *child = Some(
        Command::new(std::env::current_exe()?)
            .args(arguments)
            .spawn()?,
    );
    let end = Instant::now() + Duration::from_secs(10);
    loop {
        match TcpStream::connect(address) {
            Ok(socket) => return Ok(Link::plain(socket)),
            Err(error) if Instant::now() > end => return Err(error),
            Err(_) => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}

/// The bare relay: one connection, both ways, by `splice`, and nothing else.
fn relay(arguments: &[String]) -> Result<()> {
    let address = |at: usize| -> Result<SocketAddr> {
        let text = arguments.get(at).ok_or(ErrorKind::InvalidInput)?;
        text.parse().map_err(Error::other)
    };
    if let Some(processor) = arguments.get(2) {
        io::affinity::pin_current_thread(processor.parse().map_err(Error::other)?)?;
    }
    let listener = io::TcpListener::bind(address(0)?, &io::TcpOptions::default())?;
    let (poller, mut events) = (Poller::new()?, Events::with_capacity(8));
    poller.add(&listener, 0, Interest::Read)?;
    poller.wait(&mut events, None)?;
    poller.remove(&listener)?;
    let (near, _) = listener.accept()?;
    let far = TcpConnection::connect(address(1)?, None)?;
    poller.add(&near, 1, Interest::Edge)?;
    poller.add(&far, 2, Interest::Edge)?;
    let mut pipes = [Pipe::new(CHUNK)?, Pipe::new(CHUNK)?];
    loop {
        let mut is_over = false;
        for (pipe, from, to) in [(0, &near, &far), (1, &far, &near)] {
            is_over |= pump(&mut pipes[pipe], from, to)?;
        }
        if is_over {
            return Ok(());
        }
        poller.wait(&mut events, None)?;
    }
}

/// Moves bytes until one of the connections would block. Returns whether the source has ended.
fn pump(pipe: &mut Pipe, from: &TcpConnection, to: &TcpConnection) -> Result<bool> {
    loop {
        let result = if pipe.held() > 0 {
            pipe.drain(to)
        } else {
            pipe.fill(from, CHUNK)
        };
        match result {
            Ok(0) => return Ok(true),
            Ok(_) => {}
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(false),
            // Either side closes as soon as enough was measured.
            Err(_) => return Ok(true),
        }
    }
}

/// A connection, perhaps with TLS.
struct Link {
    socket: TcpStream,
    tls: Option<streams::Tls>,
    received: Vec<u8>,
    out: Vec<u8>,
}

impl Link {
    fn plain(socket: TcpStream) -> Link {
        Link {
            socket,
            tls: None,
            received: Vec::new(),
            out: Vec::new(),
        }
    }

    fn open(server: SocketAddr, tls: bool) -> Result<Link> {
        let mut link = Link::plain(TcpStream::connect(server)?);
        link.socket.set_nodelay(true)?;
        if tls {
            let config = ClientConfig::builder()
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(AnyCertificate))
                .with_no_client_auth();
            let name = ServerName::try_from("localhost").map_err(Error::other)?;
            let tls = streams::Tls::client(Arc::new(config), name).map_err(Error::other)?;
            link.tls = Some(tls);
            link.take(&[])?;
            while link.tls.as_ref().is_some_and(streams::Tls::is_handshaking) {
                link.read_some()?;
            }
        }
        Ok(link)
    }

    fn take(&mut self, bytes: &[u8]) -> Result<()> {
        match &mut self.tls {
            None => self.received.extend_from_slice(bytes),
            Some(tls) => {
                tls.received(bytes, &mut self.received, &mut self.out)
                    .map_err(Error::other)?;
                self.socket.write_all(&self.out)?;
                self.out.clear();
            }
        }
        Ok(())
    }

    fn read_some(&mut self) -> Result<()> {
        let mut buffer = [0; 64 << 10];
        match self.socket.read(&mut buffer)? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            read => self.take(&buffer[..read]),
        }
    }

    /// Reads and throws away.
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize> {
        if self.tls.is_none() {
            return self.socket.read(buffer);
        }
        self.read_some()?;
        let read = self.received.len();
        self.received.clear();
        Ok(read.max(1))
    }

    fn write(&mut self, bytes: &[u8]) -> Result<()> {
        let Some(tls) = &mut self.tls else {
            return self.socket.write_all(bytes);
        };
        tls.encrypt(bytes, &mut self.out).map_err(Error::other)?;
        self.socket.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }
}

/// Has the server connect to the peer. Returns the control connection and the data connection.
fn connect(server: SocketAddr, tls: bool, peer: SocketAddr) -> Result<(Link, Link)> {
    let mut config = TurnConfig::with_credentials("bob", "secretpw");
    config.transport = if tls { Transport::Tls } else { Transport::Tcp };
    let mut seed = [0; 32];
    getrandom::fill(&mut seed).map_err(Error::other)?;
    let mut client = Client::new(Arc::new(config), seed);
    let mut control = Link::open(server, tls)?;
    let options = AllocateOptions {
        relay: RequestedRelays::Tcp { family: None },
        ..AllocateOptions::default()
    };
    client.allocate(now(), options).map_err(Error::other)?;
    let Event::Allocated(_) = event(&mut client, &mut control)? else {
        return Err(Error::other("no allocation"));
    };
    client.connect_peer(now(), peer).map_err(Error::other)?;
    let Event::Connected { id, .. } = event(&mut client, &mut control)? else {
        return Err(Error::other("no connection with the peer"));
    };
    seed[0] ^= 1;
    let mut data_client = client.data_client(seed);
    let mut data = Link::open(server, tls)?;
    data_client.bind_connection(now(), id);
    match event(&mut data_client, &mut data)? {
        Event::ConnectionBound { .. } => Ok((control, data)),
        other => Err(Error::other(format!("no data connection: {other:?}"))),
    }
}

/// Sends what the client has to send, and waits for an event.
fn event(client: &mut Client, link: &mut Link) -> Result<Event> {
    loop {
        while let Some(request) = client.poll_transmit().map(<[u8]>::to_vec) {
            link.write(&request)?;
        }
        if let Some(event) = client.poll_event() {
            return Ok(event);
        }
        match stun::stream::frame_rfc5766(&link.received) {
            stun::stream::Frame::Message { len, padded_len } => {
                let message = link.received[..len].to_vec();
                link.received.drain(..padded_len);
                let _ = client.handle_input(now(), &message);
            }
            stun::stream::Frame::Need(_) => link.read_some()?,
            stun::stream::Frame::Invalid => return Err(ErrorKind::InvalidData.into()),
        }
    }
}

fn now() -> Now {
    Now {
        mono: Mono(io::clock::monotonic_ns()),
        unix_s: io::clock::unix_s(),
    }
}

/// Trusts any certificate: what is measured is on loopback.
#[derive(Debug)]
struct AnyCertificate;

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> std::result::Result<ServerCertVerified, TlsError> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> std::result::Result<HandshakeSignatureValid, TlsError> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![
            SignatureScheme::RSA_PSS_SHA256,
            SignatureScheme::RSA_PKCS1_SHA256,
            SignatureScheme::ECDSA_NISTP256_SHA256,
            SignatureScheme::ED25519,
        ]
    }
}
