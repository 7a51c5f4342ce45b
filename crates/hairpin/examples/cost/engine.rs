//! The engine alone: no socket, no queue, one client.

use crate::client::{Client, PASSWORD, REALM, USER, channel_data, code, relayed, send_indication};
use crate::{Outcome, PAYLOAD, TRAIN, measure};
use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use stun::nonce::NonceKeys;
use turn::server::credentials::StaticCredentials;
use turn::server::{
    AllowEveryPeer, ClientVerdict, Config, DropReason, OpenedRelay, Output, PeerVerdict, Server,
};
use turn::{ClientPath, FiveTuple, ListenerKey, Mono, Now, RelayKey, Run, Transport};

/// Operations in one round.
const ROUND: usize = 64;

const NOW: Now = Now {
    mono: Mono(0),
    unix_s: 1_800_000_000,
};

struct TestBed {
    server: Server,
    client: Client,
    path: ClientPath,
    relay: RelayKey,
    /// The answer given last.
    answer: Vec<u8>,
}

/// What the engine is given.
#[derive(Clone, Copy)]
enum Given<'a> {
    /// From the client.
    Client(Run<'a>),
    /// From this peer.
    Peer(SocketAddr, Run<'a>),
}

/// One input and everything that follows from it. Returns how many datagrams it covered. Not inlined: the tools find it
/// by its name.
#[inline(never)]
fn engine_turn(bed: &mut TestBed, given: Given<'_>) -> Result<usize, DropReason> {
    let TestBed {
        server,
        path,
        relay,
        answer,
        ..
    } = bed;
    let covers = match given {
        Given::Client(run) => match server.handle_client(NOW, path, run) {
            ClientVerdict::Drop { reason, .. } => return Err(reason),
            verdict => verdict.covers(),
        },
        Given::Peer(from, run) => {
            let verdict = server.handle_peer(NOW, *relay, from, run);
            if let PeerVerdict::Drop { reason, .. } = verdict {
                return Err(reason);
            }
            if let PeerVerdict::DataIndication { covers, .. } = verdict {
                let mut head = [0; 64];
                for _ in 0..covers {
                    black_box(server.write_data_indication(from, run.stride, &mut head));
                }
            }
            verdict.covers()
        }
    };
    loop {
        let (request, key) = match server.poll_output() {
            None => break,
            Some(Output::Send { bytes, .. }) => {
                answer.clear();
                answer.extend_from_slice(bytes);
                continue;
            }
            Some(Output::OpenRelays {
                request, relays, ..
            }) => (request, relays[0].key),
            Some(_) => continue,
        };
        *relay = key;
        let address = SocketAddr::from(([203, 0, 113, 1], 50_000));
        let opened = OpenedRelay {
            local: address,
            advertised: address,
        };
        server.relays_opened(NOW, request, &[Ok(opened)]);
    }
    Ok(covers)
}

/// Measures everything.
pub(crate) fn run() -> Outcome<()> {
    let mut bed = TestBed::new()?;
    let peer = SocketAddr::from(([198, 51, 100, 7], 700));
    let guest = SocketAddr::from(([198, 51, 100, 7], 701));
    bed.allocate(peer)?;
    let payload = [5; PAYLOAD];
    let data = channel_data(&payload)?;
    let train = data.repeat(TRAIN);
    let send = send_indication(peer, &payload)?;
    let payloads = payload.repeat(TRAIN);
    for (name, given) in [
        (
            "ChannelData to peer, train",
            Given::Client(run_of(&train, data.len())),
        ),
        (
            "ChannelData to peer, single",
            Given::Client(Run::single(&data)),
        ),
        ("Send indication", Given::Client(Run::single(&send))),
        (
            "ChannelData to client, train",
            Given::Peer(peer, run_of(&payloads, PAYLOAD)),
        ),
        (
            "ChannelData to client, single",
            Given::Peer(peer, Run::single(&payload)),
        ),
        (
            "Data indication, train",
            Given::Peer(guest, run_of(&payloads, PAYLOAD)),
        ),
        (
            "Data indication, single",
            Given::Peer(guest, Run::single(&payload)),
        ),
    ] {
        measure(&format!("engine: {name}"), &mut || bed.repeat(given))?;
    }
    measure("engine: Binding", &mut || bed.requests(Client::binding, 0))?;
    measure("engine: 401", &mut || bed.requests(Client::stranger, 401))?;
    measure("engine: forged nonce", &mut || {
        bed.requests(Client::forger, 438)
    })?;
    bed.ask(Client::release, 0)?;
    measure("engine: allocate cycle", &mut || bed.cycles())
}

fn run_of(bytes: &[u8], stride: usize) -> Run<'_> {
    Run {
        stride,
        ..Run::single(bytes)
    }
}

impl TestBed {
    fn new() -> Outcome<TestBed> {
        let mut users = StaticCredentials::new(REALM);
        users.add_password(USER, PASSWORD)?;
        let nonce_keys = NonceKeys::new(&[1; 32]);
        let config = Config::new(REALM, nonce_keys, Arc::new(users), Arc::new(AllowEveryPeer));
        let five_tuple = FiveTuple {
            transport: Transport::Udp,
            local: SocketAddr::from(([192, 0, 2, 1], 3478)),
            remote: SocketAddr::from(([198, 51, 100, 1], 40_000)),
        };
        Ok(TestBed {
            server: Server::new(config.validate()?, 0, [2; 32]),
            client: Client::new(1)?,
            path: ClientPath {
                five_tuple,
                listener: ListenerKey(0),
            },
            relay: RelayKey {
                index: 0,
                generation: 0,
            },
            answer: Vec::new(),
        })
    }

    fn allocate(&mut self, peer: SocketAddr) -> Outcome<()> {
        self.ask(Client::stranger, 401)?;
        self.client.learn(&self.answer)?;
        self.ask(Client::allocate, 0)?;
        relayed(&self.answer)?;
        self.ask(|client| client.bind(peer), 0)
    }

    /// A request; its answer must have this code.
    fn ask(
        &mut self,
        request: impl Fn(&mut Client) -> Outcome<Vec<u8>>,
        expected: u16,
    ) -> Outcome<()> {
        let request = request(&mut self.client)?;
        engine_turn(self, Given::Client(Run::single(&request))).map_err(DropReason::name)?;
        match code(&self.answer)? {
            code if code == expected => Ok(()),
            code => Err(format!("answered with {code} instead of {expected}").into()),
        }
    }

    fn requests(
        &mut self,
        request: impl Fn(&mut Client) -> Outcome<Vec<u8>>,
        expected: u16,
    ) -> Outcome<usize> {
        for _ in 0..ROUND {
            self.ask(&request, expected)?;
        }
        Ok(ROUND)
    }

    fn cycles(&mut self) -> Outcome<usize> {
        for _ in 0..ROUND {
            self.ask(Client::stranger, 401)?;
            self.ask(Client::allocate, 0)?;
            self.ask(Client::release, 0)?;
        }
        Ok(ROUND)
    }

    /// Hands in the same datagrams over and over; all of them must be relayed.
    fn repeat(&mut self, given: Given<'_>) -> Outcome<usize> {
        let mut datagrams = 0;
        for _ in 0..ROUND {
            datagrams += engine_turn(self, given).map_err(DropReason::name)?;
        }
        Ok(datagrams)
    }
}
