//! One client with a channel to one peer, and every byte between them.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

use stun::channel_data::ChannelData;
use stun::{AddressFamily, RequestedAddressFamily};

use crate::common::{Client, at};
use crate::network::{Network, within};

/// Longer than anything takes on a busy machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(5);
/// How long nothing has to come for nothing to come at all.
const SILENCE: Duration = Duration::from_millis(200);
/// Datagrams in transit at a time: fewer than the smallest queue on their way holds.
const WINDOW: u32 = 32;
/// Payloads in bytes: shorter than an Ethernet frame, odd ones, and ones that IPv6 or a channel's header takes beyond
/// the MTU, so that some are fragments on one side of the server.
const LENGTHS: [usize; 10] = [8, 9, 10, 11, 31, 120, 161, 700, 1200, 1450];
const NUMBER: u16 = 0x4abc;

/// Address families of the client and of its relay and peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Families {
    pub(crate) client_v6: bool,
    pub(crate) peer_v6: bool,
}

impl Families {
    pub(crate) const ALL: [Families; 4] = [
        families(false, false),
        families(true, true),
        families(false, true),
        families(true, false),
    ];
}

const fn families(client_v6: bool, peer_v6: bool) -> Families {
    Families { client_v6, peer_v6 }
}

/// Which way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    ToPeer,
    ToClient,
}

/// A client, its allocation, its channel and its peer.
pub(crate) struct Call {
    pub(crate) client: Client,
    /// The client's socket.
    wire: UdpSocket,
    server: SocketAddr,
    relay: SocketAddr,
    peer: UdpSocket,
    sent: u32,
}

impl Call {
    /// Allocates and binds the channel.
    pub(crate) fn set_up(network: &Network, families: Families) -> Call {
        let socket = |namespace, address: &str| {
            let socket = within(namespace, || UdpSocket::bind(at(address))).expect("a socket");
            socket
                .set_read_timeout(Some(TEST_TIMEOUT))
                .expect("a timeout");
            socket
        };
        let (own, server) = match families.client_v6 {
            false => ("10.7.1.2:0", at("10.7.1.1:3478")),
            true => ("[fd07:1::2]:0", at("[fd07:1::1]:3478")),
        };
        let peer = match families.peer_v6 {
            false => "10.7.3.2:0",
            true => "[fd07:3::2]:0",
        };
        let wire = socket(&network.client, own);
        let peer = socket(&network.peer, peer);
        let mut client = Client::over(wire.try_clone().expect("a descriptor"), server);
        let family = match families.peer_v6 {
            false => AddressFamily::V4,
            true => AddressFamily::V6,
        };
        let answer = client
            .allocate_with(&|builder| builder.push(&RequestedAddressFamily(family)).map(drop));
        assert_eq!(answer.code(), 0, "allocated");
        let mut call = Call {
            relay: answer.relayed(),
            client,
            wire,
            server,
            peer,
            sent: 0,
        };
        call.bind();
        call
    }

    /// Binds the channel, or binds it again.
    pub(crate) fn bind(&mut self) {
        let peer = self.peer_address();
        assert_eq!(self.client.bind(NUMBER, peer), 0, "bound");
    }

    /// Permits the peer, or permits it again.
    pub(crate) fn permit(&mut self) {
        let peer = self.peer_address();
        assert_eq!(self.client.permit(peer), 0, "permitted");
    }

    /// Sends so many datagrams one way, and looks at every byte that comes out.
    pub(crate) fn pass(&mut self, way: Way, datagrams: u32) {
        let end = self.sent + datagrams;
        while self.sent < end {
            let window = self.sent..end.min(self.sent + WINDOW);
            for number in window.clone() {
                self.send(way, number);
            }
            let mut missing: Vec<u32> = window.clone().collect();
            while !missing.is_empty() {
                let number = self
                    .receive(way)
                    .unwrap_or_else(|| panic!("{way:?}: {missing:?} of {window:?} did not arrive"));
                let place = missing.iter().position(|wanted| *wanted == number);
                missing.remove(place.unwrap_or_else(|| panic!("{number} came twice, or late")));
            }
            self.sent = window.end;
        }
    }

    /// Asserts that nothing comes through.
    pub(crate) fn is_silent(&mut self, way: Way) {
        for _ in 0..20 {
            self.send(way, self.sent);
            self.sent += 1;
        }
        let to = match way {
            Way::ToPeer => &self.peer,
            Way::ToClient => &self.wire,
        };
        to.set_read_timeout(Some(SILENCE)).expect("a timeout");
        let mut buffer = [0; 2048];
        let mut came = 0;
        loop {
            match to.recv_from(&mut buffer) {
                Ok(_) => came += 1,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // The server's host says that nobody listens.
                Err(_) => {}
            }
        }
        to.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
        assert_eq!(came, 0, "{way:?}: datagrams came through");
    }

    /// Sends datagrams that no link on the way has to fragment.
    pub(crate) fn pass_short(&mut self, way: Way, datagrams: u32) {
        for _ in 0..datagrams {
            while payload(self.sent).len() > 1200 {
                self.sent += 1;
            }
            self.pass(way, 1);
        }
    }

    /// The same, of a server whose process is stopped: all of them come but perhaps one. One in 65,536 complete
    /// checksums looks like one that is to be completed, and then XDP leaves the packet to user space.
    pub(crate) fn pass_without_process(&mut self, way: Way, datagrams: u32) {
        let mut missing = Vec::new();
        for _ in 0..datagrams {
            while payload(self.sent).len() > 1200 {
                self.sent += 1;
            }
            self.send(way, self.sent);
            match self.receive(way) {
                Some(number) => assert_eq!(number, self.sent, "{way:?}: late"),
                None => missing.push(self.sent),
            }
            assert!(missing.len() < 2, "{way:?}: {missing:?} did not arrive");
            self.sent += 1;
        }
    }

    /// Forgets what has arrived.
    pub(crate) fn discard(&self) {
        let mut buffer = [0; 2048];
        for socket in [&self.peer, &self.wire] {
            socket.set_nonblocking(true).expect("a socket");
            while socket.recv_from(&mut buffer).is_ok() {}
            socket.set_nonblocking(false).expect("a socket");
        }
    }

    /// Refreshes the allocation.
    pub(crate) fn refresh(&mut self) {
        let answer = self.client.request(stun::Method::REFRESH, &|_| Ok(()));
        assert_eq!(answer.code(), 0, "refreshed");
    }

    /// Both ways silent.
    pub(crate) fn is_over(&mut self) {
        self.is_silent(Way::ToPeer);
        self.is_silent(Way::ToClient);
    }

    fn peer_address(&self) -> SocketAddr {
        self.peer.local_addr().expect("bound")
    }

    fn send(&self, way: Way, number: u32) {
        let payload = payload(number);
        // What ICMP reported about an earlier datagram is told by the next call: then once more.
        let twice = |send: &dyn Fn() -> std::io::Result<usize>| send().or_else(|_| send());
        let sent = match way {
            Way::ToPeer => {
                // At most 1,450.
                let length = (payload.len() as u16).to_be_bytes();
                let mut message = [&NUMBER.to_be_bytes()[..], &length, &payload].concat();
                // RFC 8656 §12.5: over UDP padding is not needed, and may be there.
                if number.is_multiple_of(3) {
                    message.resize(message.len().next_multiple_of(4), 0);
                }
                twice(&|| self.wire.send_to(&message, self.server))
            }
            Way::ToClient => twice(&|| self.peer.send_to(&payload, self.relay)),
        };
        sent.expect("sent");
    }

    /// The number of the next datagram; `None` if none comes.
    fn receive(&self, way: Way) -> Option<u32> {
        let mut buffer = [0; 2048];
        match way {
            Way::ToPeer => {
                let (length, from) = self.peer.recv_from(&mut buffer).ok()?;
                assert_eq!(from, self.relay, "from the relayed address");
                Some(number_of(&buffer[..length]))
            }
            Way::ToClient => {
                let (length, from) = self.wire.recv_from(&mut buffer).ok()?;
                assert_eq!(from, self.server, "from the server");
                let data = ChannelData::parse_datagram(&buffer[..length]).expect("ChannelData");
                assert_eq!(data.number.get(), NUMBER, "on the channel");
                Some(number_of(data.payload))
            }
        }
    }

    /// What the client is told in the next Data indication.
    pub(crate) fn comes_as_indication(&mut self) {
        self.send(Way::ToClient, self.sent);
        let got = self.client.got();
        let wanted = crate::common::Got::Data(self.peer_address(), payload(self.sent));
        assert_eq!(got, wanted);
        self.sent += 1;
    }
}

/// The payload with this number: the number, and bytes that no other has in these places.
fn payload(number: u32) -> Vec<u8> {
    let length = LENGTHS[number as usize % LENGTHS.len()];
    let mut state = u64::from(number).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let filling = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    let mut payload = number.to_be_bytes().to_vec();
    payload.extend(filling.flatten().take(length - 4));
    payload
}

/// The number of a payload that is whole.
fn number_of(received: &[u8]) -> u32 {
    let head = received.first_chunk().expect("a number");
    let number = u32::from_be_bytes(*head);
    assert!(received == payload(number), "datagram {number} was changed");
    number
}
