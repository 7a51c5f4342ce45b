//! A TURN server in a loop of one's own: the state machine of `hairpin-turn` and sockets of the standard library. It serves for a second.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};
use stun::nonce::NonceKeys;
use turn::server::credentials::StaticCredentials;
use turn::server::{self, ClientIdentity, ClientVerdict, OpenedRelay, Output, PeerVerdict};
use turn::{ClientPath, FiveTuple, ListenerKey, Mono, Now, RelayKey, Run, Transport};

#[derive(Debug)]
struct Everybody;

impl server::PeerPolicy for Everybody {
    fn classify(&self, _: &ClientIdentity<'_>, _: IpAddr) -> server::PeerClass {
        server::PeerClass::Peer
    }
    fn permits(&self, _: &ClientIdentity<'_>, _: SocketAddr) -> server::PeerClass {
        server::PeerClass::Peer
    }
}

/// Carries out everything that the engine has queued, before it gets anything else.
fn drain(engine: &mut server::Server, now: Now, listener: &UdpSocket, relays: &mut Relays) {
    while let Some(output) = engine.poll_output() {
        match output {
            Output::Send { path, bytes } => drop(listener.send_to(bytes, path.five_tuple.remote)),
            Output::CloseRelay { relay } => drop(relays.remove(&relay)),
            Output::OpenRelays {
                request,
                relays: wanted,
                ..
            } => {
                let open = |relay: &server::RelayRequest| {
                    let address = match relay.family {
                        stun::AddressFamily::V4 => "127.0.0.1:0",
                        stun::AddressFamily::V6 => "[::1]:0",
                    };
                    let socket = UdpSocket::bind(address).ok()?;
                    socket.set_nonblocking(true).ok()?;
                    let address = socket.local_addr().ok()?;
                    Some((relay.key, socket, address))
                };
                let opened: Vec<_> = wanted.iter().map(open).collect();
                let result = |relay: &Option<(RelayKey, UdpSocket, SocketAddr)>| {
                    let (_, _, local) = relay.as_ref().ok_or(server::OpenError::Other)?;
                    Ok(OpenedRelay {
                        local: *local,
                        advertised: *local,
                    })
                };
                let results: Vec<_> = opened.iter().map(result).collect();
                relays.extend(
                    opened
                        .into_iter()
                        .flatten()
                        .map(|(key, socket, _)| (key, socket)),
                );
                engine.relays_opened(now, request, &results);
            }
            _ => {}
        }
    }
}

type Relays = HashMap<RelayKey, UdpSocket>;

/// Hands what peers have sent to the engine, and on to the clients.
fn serve_peers(
    engine: &mut server::Server,
    now: Now,
    listener: &UdpSocket,
    relays: &Relays,
    buffer: &mut [u8],
) {
    for (key, socket) in relays {
        while let Ok((length, peer)) = socket.recv_from(buffer) {
            let data = &buffer[..length];
            match engine.handle_peer(now, *key, peer, Run::single(data)) {
                PeerVerdict::ChannelData { path, channel, .. } => {
                    let header = stun::channel_data::header(channel, length as u16);
                    let message = [&header, data].concat();
                    drop(listener.send_to(&message, path.five_tuple.remote));
                }
                PeerVerdict::DataIndication { path, .. } => {
                    let mut head = [0; 64];
                    let head_length = engine.write_data_indication(peer, length, &mut head);
                    let padding = &[0; 3][..stun::padding(length)];
                    let message = [&head[..head_length], data, padding].concat();
                    drop(listener.send_to(&message, path.five_tuple.remote));
                }
                PeerVerdict::Drop { .. } => {}
            }
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut users = StaticCredentials::new("example.org");
    users.add_password("alice", "secret")?;
    let keys = NonceKeys::new(&[1; 32]); // from the system's randomness, in a real program, as is the seed
    let config = server::Config::new("example.org", keys, Arc::new(users), Arc::new(Everybody));
    let mut engine = server::Server::new(config.validate()?, 0, [2; 32]);
    let (listener, mut relays) = (UdpSocket::bind("127.0.0.1:0")?, Relays::new());
    listener.set_nonblocking(true)?;
    println!("serving on {} for a second", listener.local_addr()?);
    let (start, mut buffer) = (Instant::now(), [0; 65_536]);
    while start.elapsed() < Duration::from_secs(1) {
        let unix_s = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)?
            .as_secs();
        let now = Now {
            mono: Mono(start.elapsed().as_nanos() as u64),
            unix_s,
        };
        while let Ok((length, remote)) = listener.recv_from(&mut buffer) {
            let five_tuple = FiveTuple {
                transport: Transport::Udp,
                local: listener.local_addr()?,
                remote,
            };
            let path = ClientPath {
                five_tuple,
                listener: ListenerKey(0),
            };
            let verdict = engine.handle_client(now, &path, Run::single(&buffer[..length]));
            if let ClientVerdict::ToPeer {
                relay,
                peer,
                payload,
                ..
            } = verdict
            {
                relays
                    .get(&relay)
                    .map(|socket| socket.send_to(&buffer[payload], peer));
            }
            drain(&mut engine, now, &listener, &mut relays);
        }
        serve_peers(&mut engine, now, &listener, &relays, &mut buffer);
        if engine
            .poll_timeout()
            .is_some_and(|deadline| deadline <= now.mono)
        {
            engine.handle_timeout(now);
        }
        drain(&mut engine, now, &listener, &mut relays);
        std::thread::sleep(Duration::from_millis(1)); // a real program waits for readiness
    }
    Ok(())
}
