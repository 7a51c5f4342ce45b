//! A TURN server in a loop of one's own: the engine of `hairpin-turn` and standard sockets. It serves for a second.

use std::time::{Duration, Instant, SystemTime};
use std::{collections::HashMap, net::UdpSocket, sync::Arc};
use stun::nonce::NonceKeys;
use turn::server::credentials::StaticCredentials;
use turn::server::{self, AllowEveryPeer, OpenError, OpenedRelay, Output};
use turn::{ClientPath, Mono, Now, RelayKey, Run};

type Sockets = HashMap<RelayKey, UdpSocket>;

/// Opens the socket of a relay. All relays have this one address here.
fn open(sockets: &mut Sockets, key: RelayKey) -> Result<OpenedRelay, OpenError> {
    let socket = UdpSocket::bind("127.0.0.1:0").or(Err(OpenError::Other))?;
    let is_ready = socket.set_nonblocking(true);
    let address = is_ready.and_then(|()| socket.local_addr());
    sockets.insert(key, socket);
    address.map(OpenedRelay::at).or(Err(OpenError::Other))
}

/// Carries out everything that the engine has queued, before it gets anything else.
fn drain(engine: &mut server::Server, now: Now, listener: &UdpSocket, sockets: &mut Sockets) {
    while let Some(output) = engine.poll_output() {
        match output {
            Output::Send { path, bytes } => drop(listener.send_to(bytes, path.five_tuple.remote)),
            Output::CloseRelay { relay } => drop(sockets.remove(&relay)),
            Output::OpenRelays {
                request, relays, ..
            } => {
                let opened = relays.iter().map(|relay| open(sockets, relay.key));
                let opened: Vec<_> = opened.collect();
                engine.relays_opened(now, request, &opened);
            }
            _ => {}
        }
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut users = StaticCredentials::new("example.org");
    users.add_password("alice", "secret")?;
    let keys = NonceKeys::new(&[1; 32]); // from the system's randomness, in a real program, as is the seed
    let (users, policy) = (Arc::new(users), Arc::new(AllowEveryPeer)); // a real program protects its own network
    let config = server::Config::new("example.org", keys, users, policy);
    let mut engine = server::Server::new(config.validate()?, 0, [2; 32]);
    let (listener, mut sockets) = (UdpSocket::bind("127.0.0.1:0")?, Sockets::new());
    listener.set_read_timeout(Some(Duration::from_millis(1)))?; // a real program waits for readiness
    let local = listener.local_addr()?;
    println!("serving on {local} for a second");
    let (start, mut buffer, mut message) = (Instant::now(), [0; 65_536], Vec::new());
    while start.elapsed() < Duration::from_secs(1) {
        let unix = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let (mono, unix_s) = (Mono(start.elapsed().as_nanos() as u64), unix.as_secs());
        let now = Now { mono, unix_s };
        while let Ok((length, remote)) = listener.recv_from(&mut buffer) {
            let path = ClientPath::udp(local, remote);
            let verdict = engine.handle_client(now, &path, Run::single(&buffer[..length]));
            if let Some((relay, peer, payload)) = verdict.to_peer() {
                sockets
                    .get(&relay)
                    .map(|socket| socket.send_to(&buffer[payload], peer));
            }
            drain(&mut engine, now, &listener, &mut sockets);
        }
        for (key, socket) in &sockets {
            while let Ok((length, peer)) = socket.recv_from(&mut buffer) {
                let data = &buffer[..length];
                let verdict = engine.handle_peer(now, *key, peer, Run::single(data));
                if let Some(path) = engine.write_to_client(&verdict, peer, data, &mut message) {
                    drop(listener.send_to(&message, path.five_tuple.remote));
                    message.clear();
                }
            }
        }
        engine.handle_timeout(now); // does nothing before `poll_timeout`
        drain(&mut engine, now, &listener, &mut sockets);
    }
    Ok(())
}
