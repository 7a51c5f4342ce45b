//! The whole worker: epoll, receiving, the engine, the send queue; over loopback.

use crate::client::{Client, PASSWORD, REALM, USER, channel_data, code, relayed, send_indication};
use crate::{FLOWS, Outcome, PAYLOAD, TRAIN, measure};
use io::{RecvBatch, UdpOptions, UdpSocket};
use server::{Local, Server};
use std::error::Error;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

/// How long anything may take before the run is given up.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A client with an allocation, a channel to the peer and a permission for it.
struct Flow {
    client: Client,
    socket: UdpSocket,
    relayed: SocketAddr,
}

struct TestBed {
    server: Local,
    listener: SocketAddr,
    flows: Vec<Flow>,
    /// Has a channel.
    peer: UdpSocket,
    /// Has only a permission, the same one.
    guest: UdpSocket,
    batch: RecvBatch,
}

/// Measures everything.
pub(crate) fn run() -> Outcome<()> {
    let payload = [5; PAYLOAD];
    let data = channel_data(&payload)?;
    let to_peer = |kind: &str, message: &dyn Fn(&TestBed) -> Outcome<Vec<u8>>| {
        let name = format!("client to peer, {kind}");
        measure_bed(&format!("{name}, hot flow"), &mut |bed| {
            bed.train_to_peer(&message(bed)?)
        })?;
        measure_bed(&format!("{name}, interleaved"), &mut |bed| {
            bed.singles_to_peer(&message(bed)?)
        })
    };
    to_peer("ChannelData", &|_| Ok(data.clone()))?;
    to_peer("Send", &|bed| {
        send_indication(bed.peer.local_addr(), &payload)
    })?;
    for (kind, bound) in [("ChannelData", true), ("Data", false)] {
        let name = format!("peer to client, {kind}");
        measure_bed(&format!("{name}, hot flow"), &mut |bed| {
            bed.train_to_client(bound, &payload)
        })?;
        measure_bed(&format!("{name}, interleaved"), &mut |bed| {
            bed.singles_to_client(bound, &payload)
        })?;
    }
    measure_bed("Binding", &mut TestBed::bindings)?;
    measure_bed("401", &mut TestBed::strangers)?;
    measure_bed("allocate cycle", &mut TestBed::cycles)
}

/// Measures one scenario with a server of its own: a server learns from what comes (whether trains do, how much at a
/// time).
fn measure_bed(name: &str, round: &mut dyn FnMut(&mut TestBed) -> Outcome<usize>) -> Outcome<()> {
    let mut bed = TestBed::new()?;
    measure(name, &mut || round(&mut bed))
}

impl TestBed {
    fn new() -> Outcome<TestBed> {
        let any: SocketAddr = "127.0.0.1:0".parse()?;
        // An address that nobody else relays from: no port is taken, so none is passed over.
        let pid = std::process::id();
        let relay = IpAddr::from([127, 64 + (pid >> 8) as u8 % 64, pid as u8, 2]);
        let server = Server::builder()
            .listen(any)
            .relay_address(relay)
            .realm(REALM)
            .user(USER, PASSWORD)
            .allow_peers("127.0.0.0/8".parse()?)
            .start_local()?;
        let mut bed = TestBed {
            listener: server.listeners()[0],
            server,
            flows: Vec::new(),
            peer: UdpSocket::bind(any, &receiver())?,
            guest: UdpSocket::bind(any, &receiver())?,
            batch: RecvBatch::new(FLOWS, RecvBatch::LARGE),
        };
        for number in 0..FLOWS as u32 {
            let mut client = Client::new(number)?;
            let socket = UdpSocket::bind(any, &receiver())?;
            let request = client.stranger()?;
            client.learn(&bed.ask(&socket, &request)?)?;
            let relayed = relayed(&bed.ask(&socket, &client.allocate()?)?)?;
            let answer = bed.ask(&socket, &client.bind(bed.peer.local_addr())?)?;
            if code(&answer)? != 0 {
                return Err("no channel".into());
            }
            bed.flows.push(Flow {
                client,
                socket,
                relayed,
            });
        }
        Ok(bed)
    }

    /// One request and its answer.
    fn ask(&mut self, socket: &UdpSocket, request: &[u8]) -> Outcome<Vec<u8>> {
        socket.send_to(request, self.listener, None)?;
        let mut batch = RecvBatch::new(1, RecvBatch::SMALL);
        self.serve(|_| receive(socket, &mut batch), 1)?;
        Ok(batch.get(0).ok_or("no answer")?.bytes.to_vec())
    }

    /// Lets the server work until `expected` datagrams have come out of it.
    fn serve(
        &mut self,
        mut receive: impl FnMut(&mut TestBed) -> Outcome<usize>,
        expected: usize,
    ) -> Outcome<()> {
        let start = Instant::now();
        let mut received = 0;
        while received < expected {
            turn(&mut self.server)?;
            received += receive(self)?;
            if start.elapsed() > TEST_TIMEOUT {
                return Err(format!("{received} of {expected} datagrams came").into());
            }
        }
        Ok(())
    }

    fn train_to_peer(&mut self, message: &[u8]) -> Outcome<usize> {
        let socket = &self.flows[0].socket;
        socket.send_train(
            &message.repeat(TRAIN),
            u16::try_from(message.len())?,
            self.listener,
        )?;
        self.serve(TestBed::at_peer, TRAIN)?;
        Ok(TRAIN)
    }

    fn singles_to_peer(&mut self, message: &[u8]) -> Outcome<usize> {
        for flow in &self.flows {
            flow.socket.send_to(message, self.listener, None)?;
        }
        self.serve(TestBed::at_peer, FLOWS)?;
        Ok(FLOWS)
    }

    fn train_to_client(&mut self, bound: bool, payload: &[u8]) -> Outcome<usize> {
        let (from, to) = (self.sender(bound), self.flows[0].relayed);
        from.send_train(&payload.repeat(TRAIN), u16::try_from(payload.len())?, to)?;
        self.serve(TestBed::at_clients, TRAIN)?;
        Ok(TRAIN)
    }

    fn singles_to_client(&mut self, bound: bool, payload: &[u8]) -> Outcome<usize> {
        for flow in &self.flows {
            self.sender(bound).send_to(payload, flow.relayed, None)?;
        }
        self.serve(TestBed::at_clients, FLOWS)?;
        Ok(FLOWS)
    }

    fn bindings(&mut self) -> Outcome<usize> {
        self.everybody(Client::binding, 0)?;
        Ok(FLOWS)
    }

    fn strangers(&mut self) -> Outcome<usize> {
        self.everybody(Client::stranger, 401)?;
        Ok(FLOWS)
    }

    /// 401, Allocate, Refresh(0); the allocations there are already have to go first.
    fn cycles(&mut self) -> Outcome<usize> {
        if self.server.stats().relays_open > 0 {
            self.everybody(Client::release, 0)?;
            return Ok(0);
        }
        self.everybody(Client::stranger, 401)?;
        self.everybody(Client::allocate, 0)?;
        self.everybody(Client::release, 0)?;
        Ok(FLOWS)
    }

    /// Every client sends a request; all answers must have this code.
    fn everybody(
        &mut self,
        request: impl Fn(&mut Client) -> Outcome<Vec<u8>>,
        expected: u16,
    ) -> Outcome<()> {
        for flow in &mut self.flows {
            let request = request(&mut flow.client)?;
            flow.socket.send_to(&request, self.listener, None)?;
        }
        self.batch.clear();
        self.serve(TestBed::gather, FLOWS)?;
        for answer in self.batch.iter() {
            let code = code(answer.bytes)?;
            if code != expected {
                return Err(format!("answered with {code} instead of {expected}").into());
            }
        }
        Ok(())
    }

    fn sender(&self, bound: bool) -> &UdpSocket {
        if bound { &self.peer } else { &self.guest }
    }

    fn at_peer(&mut self) -> Outcome<usize> {
        self.batch.clear();
        receive(&self.peer, &mut self.batch)
    }

    fn at_clients(&mut self) -> Outcome<usize> {
        self.batch.clear();
        self.gather()
    }

    /// What has come to the clients, kept.
    fn gather(&mut self) -> Outcome<usize> {
        let mut received = 0;
        for flow in &self.flows {
            received += receive(&flow.socket, &mut self.batch)?;
        }
        Ok(received)
    }
}

/// One turn, between marks of its own.
pub(crate) fn turn(server: &mut Local) -> Result<(), Box<dyn Error>> {
    let seen = |name: &str| Path::new(name).exists();
    seen("/hairpin-turn/begin");
    let result = server.turn(Duration::ZERO);
    seen("/hairpin-turn/end");
    Ok(result?)
}

/// Options of a socket that takes trains.
pub(crate) fn receiver() -> UdpOptions {
    UdpOptions {
        gro: true,
        ..UdpOptions::default()
    }
}

/// How many datagrams wait at `socket`; they are added to `batch`.
pub(crate) fn receive(socket: &UdpSocket, batch: &mut RecvBatch) -> Outcome<usize> {
    let before = batch.len();
    match socket.recv(0, batch) {
        Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => return Err(error.into()),
        _ => {}
    }
    let received = batch.iter().skip(before);
    Ok(received.map(|datagrams| datagrams.segments().count()).sum())
}
