//! Clients of a soak that roam with tickets, flap, lie, and reach peers over TCP without reading.

use crate::common::stream::StreamLink;
use crate::common::{Answer, Attributes, Client, Got, Random, private_loopback, socket};
use crate::{IDLE_TIMEOUT, Lab};
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::time::Duration;
use stun::{
    AttributeType, Builder, ConnectionId, Lifetime, Method, MobilityTicket, RequestedTransport,
    XorPeerAddress,
};

const CHANNEL: u16 = 0x4002;

/// Over UDP, TCP, TLS or DTLS.
pub(crate) fn client(lab: &Lab, transport: u64) -> Client {
    match transport % 4 {
        3 => {
            let local = format!("{}:0", private_loopback(3));
            Client::from(&local, lab.server.listeners()[0]).retransmitting()
        }
        other => lab.client(other),
    }
}

/// A client with an allocation. At a port that a vanished client had a moment ago the response is 437, and
/// RFC 8656 §7.4 has a client take another port.
pub(crate) fn allocated(make: impl Fn() -> Client) -> (Client, SocketAddr) {
    let (client, answer) = allocated_with(make, &|_| Ok(()));
    assert_eq!(answer.code(), 0);
    let relayed = answer.relayed();
    (client, relayed)
}

fn allocated_with(make: impl Fn() -> Client, more: Attributes<'_>) -> (Client, Answer) {
    for _ in 0..20 {
        let mut client = make();
        let answer = client.allocate_with(more);
        if answer.code() != 437 {
            return (client, answer);
        }
    }
    panic!("437 at twenty ports");
}

fn ticket_of(answer: &Answer) -> Vec<u8> {
    let ticket: Option<MobilityTicket<'_>> = answer.message().get().expect("well formed");
    ticket.expect("a ticket").0.to_vec()
}

fn move_by(client: &mut Client, ticket: &[u8]) -> Answer {
    client.request(Method::REFRESH, &|request| {
        request.push(&Lifetime(IDLE_TIMEOUT.as_secs() as u32))?;
        request.push(&MobilityTicket(ticket)).map(drop)
    })
}

fn expect_both_ways(client: &Client, peer: &UdpSocket, relayed: SocketAddr) {
    let mut buffer = [0; 64];
    client.send(CHANNEL, b"up");
    let (length, from) = peer.recv_from(&mut buffer).expect("it arrives");
    assert_eq!((&buffer[..length], from), (&b"up"[..], relayed));
    peer.send_to(b"down", relayed).expect("sent");
    assert_eq!(client.got(), Got::Channel(CHANNEL, b"down".to_vec()));
}

/// Goes from one transport to another up to three times, with data on each, and then leaves: in order, or without a
/// word.
pub(crate) fn roams(lab: &Lab, random: &mut Random) {
    let transport = random.next();
    let wish = |request: &mut Builder<'_>| {
        let empty = AttributeType::MOBILITY_TICKET;
        request.push_raw(empty, &[]).map(drop)
    };
    let (mut at, allocated) = allocated_with(|| client(lab, transport), &wish);
    // Several workers need a table of steered clients for it, and so a privilege.
    if allocated.code() == 405 {
        return;
    }
    assert_eq!(allocated.code(), 0);
    let (mut ticket, relayed) = (ticket_of(&allocated), allocated.relayed());
    let peer = socket(&format!("{}:0", private_loopback(2)));
    assert_eq!(at.bind(CHANNEL, peer.local_addr().expect("bound")), 0);
    expect_both_ways(&at, &peer, relayed);
    for _ in 0..random.next() % 4 {
        let transport = random.next();
        let mut next = client(lab, transport);
        let answer = move_by(&mut next, &ticket);
        // 405: a DTLS session stays with its worker, and the allocation may have another one; and no request goes to a
        // worker that does not keep up. 437: somebody who has vanished had this port, and still has an allocation
        // there.
        let stays = matches!(answer.code(), 405 | 437);
        if stays {
            expect_both_ways(&at, &peer, relayed);
            continue;
        }
        assert_eq!(answer.code(), 0);
        ticket = ticket_of(&answer);
        // A client that flaps: it had another address for a moment, and is back without having sent data there.
        if random.next().is_multiple_of(3) {
            expect_both_ways(&at, &peer, relayed);
        }
        expect_both_ways(&next, &peer, relayed);
        at = next;
    }
    if random.next().is_multiple_of(2) {
        at.release();
    }
}

/// Comes and goes at once, again and again, with an allocation each time.
pub(crate) fn flaps(lab: &Lab, random: &mut Random) {
    let transport = random.next();
    for _ in 0..5 {
        let (mut client, _) = allocated(|| client(lab, transport));
        if random.next().is_multiple_of(2) {
            client.release();
        }
    }
}

/// Has an allocation, and sends with a wrong MAC, a made-up ticket, a wrong password, and garbage. The allocation must
/// not mind.
pub(crate) fn lies(lab: &Lab, random: &mut Random) {
    let transport = random.next();
    let (mut honest, _) = allocated(|| client(lab, transport));
    let mut forged = honest.signed(Method::REFRESH, &|request| {
        request.push(&Lifetime(0)).map(drop)
    });
    let last = forged.len() - 1;
    forged[last] ^= 1;
    honest.transmit(&forged);
    assert_eq!(honest.next_answer().code(), 401, "a wrong MAC");
    let garbage: Vec<u8> = (0..60).map(|_| random.next() as u8).collect();
    let mut roamer = client(lab, random.next());
    let code = move_by(&mut roamer, &garbage).code();
    assert!(matches!(code, 400 | 405), "a made-up ticket: {code}");
    let mut stranger = client(lab, random.next()).with_user("mallory", "guessed");
    assert_eq!(stranger.try_allocate().code(), 401);
    if transport % 4 == 3 {
        // Over UDP, what is no message is dropped; a connection would end.
        honest.transmit(&garbage);
    }
    honest.release();
}

/// A TCP allocation (RFC 6062): connects to a peer that sends a lot, reads nothing, and vanishes; or behaves.
pub(crate) fn connects_to_a_peer(lab: &Lab, random: &mut Random) {
    let transport = random.next() % 2;
    let tcp = |request: &mut Builder<'_>| request.push(&RequestedTransport::TCP).map(drop);
    let mut control = lab.client(transport);
    let answer = control.request(Method::ALLOCATE, &tcp);
    if answer.code() == 437 {
        return;
    }
    assert_eq!(answer.code(), 0);
    let listener = TcpListener::bind((private_loopback(2), 0)).expect("a port");
    let peer = listener.local_addr().expect("bound");
    let answer = control.request(Method::CONNECT, &|request| {
        request.push(&XorPeerAddress(peer)).map(drop)
    });
    assert_eq!(answer.code(), 0);
    let id: Option<ConnectionId> = answer.message().get().expect("well formed");
    let (mut socket, _) = listener.accept().expect("a connection");
    let limit = Some(Duration::from_millis(200));
    socket.set_write_timeout(limit).expect("not zero");
    if random.next().is_multiple_of(4) {
        // Nobody binds it: it ends with its allocation.
        return;
    }
    let mut data = lab.client(random.next() % 2);
    let answer = data.request(Method::CONNECTION_BIND, &|request| {
        request.push(&id.expect("an ID")).map(drop)
    });
    // No connection goes to a worker that does not keep up.
    if answer.code() == 400 {
        return;
    }
    assert_eq!(answer.code(), 0);
    match random.next() % 3 {
        0 => {
            // More than sockets and a pipe hold: the peer is slowed down until the allocation ends.
            let _ = socket.write_all(&[1; 4 << 20]);
        }
        1 => crate::reset(&data.connection().socket),
        _ => echo(&mut data.connection(), &mut socket),
    }
}

fn echo(data: &mut StreamLink, socket: &mut std::net::TcpStream) {
    let mut bytes = [0; 3000];
    data.send(&[7; 3000]);
    socket
        .set_read_timeout(Some(IDLE_TIMEOUT * 5))
        .expect("not zero");
    // The allocation may end before, on a machine that is busy.
    if socket.read_exact(&mut bytes).is_ok() && socket.write_all(&bytes).is_ok() {
        let _ = data.try_send(b"x");
    }
}
