//! Two hundred clients on one thread, all talking to each other through one server.

mod common;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use hairpin_load as load;
use load::client::{ClientId, Data, Driver, DriverOptions, Handler};
use load::peer::{Peer, PeerOptions};
use stun::ChannelNumber;
use turn::client::{AllocateOptions, ClientConfig, Event};

use common::{PASSWORD, RunRequest, TestServer, USER};

const CLIENTS: usize = 200;
const ROUNDS: u32 = 20;
const MAX_WAIT: Duration = Duration::from_secs(60);

/// Counts what came of the clients' wishes.
#[derive(Default)]
struct Counts {
    relayed: HashMap<ClientId, SocketAddr>,
    channels: HashMap<(ClientId, SocketAddr), ChannelNumber>,
    released: usize,
    received: HashMap<(ClientId, SocketAddr), Vec<u32>>,
    wrong: Vec<String>,
}

impl Handler for Counts {
    fn event(&mut self, _: &mut Driver, id: ClientId, event: Event) {
        match event {
            Event::Allocated(allocated) => _ = self.relayed.insert(id, allocated.relayed),
            Event::ChannelBound { channel, peer, .. } => {
                _ = self.channels.insert((id, peer), channel)
            }
            Event::Released { .. } => self.released += 1,
            other => self.wrong.push(format!("{id:?}: {other:?}")),
        }
    }

    fn data(&mut self, id: ClientId, data: Data<'_>) {
        match data.payload {
            [to0, to1, number @ ..]
                if u32::from(u16::from_be_bytes([*to0, *to1])) == id.0 && number.len() == 4 =>
            {
                let number = u32::from_be_bytes([number[0], number[1], number[2], number[3]]);
                self.received
                    .entry((id, data.peer))
                    .or_default()
                    .push(number);
            }
            other => self
                .wrong
                .push(format!("{id:?} got {other:02x?} from {}", data.peer)),
        }
    }
}

fn payload(to: ClientId, number: u32) -> Vec<u8> {
    [&(to.0 as u16).to_be_bytes()[..], &number.to_be_bytes()].concat()
}

fn allocate_all(driver: &mut Driver, counts: &mut Counts, server: SocketAddr) {
    let config = Arc::new(ClientConfig::with_credentials(USER, PASSWORD));
    let local: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    for _ in 0..CLIENTS {
        let id = driver
            .add(local, server, Arc::clone(&config))
            .expect("a socket");
        let asked = driver.with(id, |client, now| {
            client.allocate(now, AllocateOptions::default())
        });
        assert_eq!(asked, Some(Ok(())));
    }
    let done = driver.run_until(MAX_WAIT, counts, |_, counts: &Counts| {
        counts.relayed.len() == CLIENTS
    });
    assert!(
        done.expect("epoll"),
        "{} of {CLIENTS}: {:?}",
        counts.relayed.len(),
        counts.wrong
    );
}

fn bind_all(driver: &mut Driver, counts: &mut Counts, wanted: &[(ClientId, SocketAddr)]) {
    for (id, peer) in wanted {
        let bound = driver.with(*id, |client, now| client.bind_channel(now, *peer));
        assert!(matches!(bound, Some(Ok(_))));
    }
    let all = wanted.len();
    let done = driver.run_until(MAX_WAIT, counts, |_, counts: &Counts| {
        counts.channels.len() == all
    });
    assert!(
        done.expect("epoll"),
        "{} of {all}: {:?}",
        counts.channels.len(),
        counts.wrong
    );
}

fn release_all(driver: &mut Driver, counts: &mut Counts) {
    let ids: Vec<ClientId> = driver.ids().collect();
    for id in ids {
        let asked = driver.with(id, |client, now| client.release(now, None));
        assert_eq!(asked, Some(Ok(())));
    }
    let done = driver.run_until(MAX_WAIT, counts, |_, counts: &Counts| {
        counts.released == CLIENTS
    });
    assert!(
        done.expect("epoll"),
        "{} of {CLIENTS}: {:?}",
        counts.released,
        counts.wrong
    );
}

#[test]
fn two_hundred_clients_talk_across_one_server_and_nothing_is_lost_or_mixed_up() {
    let server = TestServer::start(&RunRequest::default());
    let mut driver = Driver::new(&DriverOptions::default()).expect("epoll");
    let mut counts = Counts::default();
    allocate_all(&mut driver, &mut counts, server.address);
    // Everybody talks to the next and to the one after.
    let id = |index: usize| ClientId((index % CLIENTS) as u32);
    let mut wanted = Vec::new();
    for index in 0..CLIENTS {
        for step in [1, 2] {
            wanted.push((id(index), counts.relayed[&id(index + step)]));
            wanted.push((id(index + step), counts.relayed[&id(index)]));
        }
    }
    bind_all(&mut driver, &mut counts, &wanted);
    for number in 0..ROUNDS {
        let payloads: Vec<Vec<u8>> = (0..CLIENTS)
            .map(|index| payload(id(index), number))
            .collect();
        let mut sender = driver.sender();
        for index in 0..CLIENTS {
            for to in [id(index + 1), id(index + 2)] {
                let channel = counts.channels[&(id(index), counts.relayed[&to])];
                sender
                    .channel(id(index), channel, &payloads[to.0 as usize])
                    .expect("bound");
            }
        }
        let flushed = sender.flush();
        assert_eq!(flushed.sent, 2 * CLIENTS as u64);
        drop(sender);
        // One round at a time: the server is a test's, with one thread and no care for its buffers.
        let all = (number as usize + 1) * 2 * CLIENTS;
        let received = |counts: &Counts| counts.received.values().map(Vec::len).sum::<usize>();
        let done = driver.run_until(MAX_WAIT, &mut counts, |_, counts| received(counts) == all);
        assert!(done.expect("epoll"), "{} of {all}", received(&counts));
    }
    release_all(&mut driver, &mut counts);
    assert_eq!(counts.wrong, Vec::<String>::new());
    for index in 0..CLIENTS {
        for step in [1, 2] {
            let flow = (id(index + step), counts.relayed[&id(index)]);
            assert_eq!(counts.received[&flow], (0..ROUNDS).collect::<Vec<_>>());
        }
    }
    let stats = *driver.stats();
    assert_eq!(stats.data, u64::from(ROUNDS) * 2 * CLIENTS as u64);
    assert_eq!(
        (
            stats.foreign,
            stats.strangers,
            stats.truncated,
            stats.overflow
        ),
        (0, 0, 0, 0)
    );
}

#[test]
fn many_clients_share_one_peer() {
    let server = TestServer::start(&RunRequest::default());
    let loopback: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let peer = Peer::start(&PeerOptions::echo(vec![loopback])).expect("loopback");
    let echo = peer.addresses()[0];
    let mut driver = Driver::new(&DriverOptions::default()).expect("epoll");
    let mut counts = Counts::default();
    allocate_all(&mut driver, &mut counts, server.address);
    let ids: Vec<ClientId> = driver.ids().collect();
    let wanted: Vec<_> = ids.iter().map(|id| (*id, echo)).collect();
    bind_all(&mut driver, &mut counts, &wanted);
    let payloads: Vec<Vec<u8>> = ids.iter().map(|id| payload(*id, 7)).collect();
    let mut sender = driver.sender();
    for (id, payload) in ids.iter().zip(&payloads) {
        sender
            .indication(*id, echo, payload)
            .expect("permitted by the channel");
    }
    drop(sender);
    let done = driver.run_until(MAX_WAIT, &mut counts, |_, counts: &Counts| {
        counts.received.len() == CLIENTS
    });
    assert!(
        done.expect("epoll"),
        "{} of {CLIENTS}",
        counts.received.len()
    );
    assert_eq!(counts.wrong, Vec::<String>::new());
    assert!(
        counts
            .received
            .iter()
            .all(|((_, from), numbers)| *from == echo && *numbers == [7])
    );
}

#[test]
fn a_client_can_leave_and_come_back() {
    let server = TestServer::start(&RunRequest::default());
    let mut driver = Driver::new(&DriverOptions::default()).expect("epoll");
    let mut counts = Counts::default();
    let config = Arc::new(ClientConfig::with_credentials(USER, PASSWORD));
    let local: SocketAddr = "127.0.0.1:0".parse().expect("an address");
    let id = driver.add(local, server.address, config).expect("a socket");
    let _ = driver.with(id, |client, now| {
        client.allocate(now, AllocateOptions::default())
    });
    let done = driver.run_until(MAX_WAIT, &mut counts, |_, counts: &Counts| {
        counts.relayed.len() == 1
    });
    assert!(done.expect("epoll"));
    let parts = driver.release(id).expect("it is there");
    assert!(driver.release(id).is_none() && driver.client(id).is_none());
    let again = driver.adopt(parts).expect("epoll");
    assert_ne!(again, id);
    let _ = driver.with(again, |client, now| client.release(now, None));
    let done = driver.run_until(MAX_WAIT, &mut counts, |_, counts: &Counts| {
        counts.released == 1
    });
    assert!(done.expect("epoll"));
}
