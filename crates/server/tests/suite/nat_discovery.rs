//! NAT behaviour discovery (RFC 5780) over real sockets: two addresses and two ports of loopback.

use crate::common::stream::{self, StreamLink};
use crate::common::{Client, private_loopback};
use hairpin_server::{NatDiscovery, NatDiscoveryError, Running, Server, StartError};
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;
use stun::{
    Builder, ChangeRequest, Class, MappedAddress, Message, Method, OtherAddress, Padding,
    ResponseOrigin, ResponsePort, TransactionId, XorMappedAddress,
};

/// The four addresses: `at(address, port)`.
#[derive(Clone, Copy)]
struct Four {
    first: u8,
    ports: [u16; 2],
}

impl Four {
    fn at(&self, address: usize, port: usize) -> SocketAddr {
        let last = self.first + u8::try_from(address).expect("0 or 1");
        SocketAddr::new(private_loopback(last), self.ports[port])
    }
}

fn discovery(change: impl FnOnce(&mut NatDiscovery)) -> NatDiscovery {
    let mut wanted = NatDiscovery::default();
    change(&mut wanted);
    wanted
}

fn server(four: Four, workers: usize, padding: bool) -> Running {
    let wanted = discovery(|wanted| {
        wanted.udp = vec![four.at(1, 1)];
        wanted.padding = padding;
    });
    let builder = Server::builder()
        .listen(four.at(0, 0))
        .relay_address(four.at(0, 0).ip())
        .nat_discovery(wanted)
        .workers(workers);
    crate::common::start(builder)
}

fn client(last: u8) -> UdpSocket {
    let socket = UdpSocket::bind((private_loopback(last), 0)).expect("loopback has free ports");
    let timeout = Duration::from_secs(10);
    socket.set_read_timeout(Some(timeout)).expect("a timeout");
    socket
}

fn request(number: u8, attributes: impl FnOnce(&mut Builder<'_>)) -> Vec<u8> {
    let mut buffer = [0; 4096];
    let id = TransactionId([number; 12]);
    let builder = Builder::new(&mut buffer, Class::Request, Method::BINDING, &id);
    let mut builder = builder.expect("room");
    attributes(&mut builder);
    builder.finish().to_vec()
}

/// The next response at this socket: its bytes, and where it came from.
fn response(socket: &UdpSocket) -> (Vec<u8>, SocketAddr) {
    let mut buffer = [0; 4096];
    let (length, from) = socket.recv_from(&mut buffer).expect("a response");
    (buffer[..length].to_vec(), from)
}

fn get<A: for<'a> stun::Decode<'a>>(bytes: &[u8]) -> A {
    let message = Message::parse(bytes).expect("well formed");
    message.get().expect("well formed").expect("the attribute")
}

#[test]
fn responses_leave_from_the_other_address_and_port_of_every_worker() {
    let four = Four {
        first: 201,
        ports: [3478, 3479],
    };
    let server = server(four, 3, false);
    assert_eq!(server.listeners().len(), 4);
    // Many clients, so that the kernel's hash gives each worker some of them.
    for number in 0..24_u8 {
        let socket = client(203);
        for (address, port) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
            for (change_ip, change_port) in
                [(false, false), (true, false), (false, true), (true, true)]
            {
                let change = ChangeRequest {
                    change_ip,
                    change_port,
                };
                let bytes = request(number, |builder| _ = builder.push(&change).expect("room"));
                socket
                    .send_to(&bytes, four.at(address, port))
                    .expect("sent");
                let (bytes, from) = response(&socket);
                let expected = four.at(
                    address ^ usize::from(change_ip),
                    port ^ usize::from(change_port),
                );
                assert_eq!(from, expected);
                assert_eq!(get::<ResponseOrigin>(&bytes).0, expected);
                assert_eq!(
                    get::<OtherAddress>(&bytes).0,
                    four.at(1 - address, 1 - port)
                );
                let local = socket.local_addr().expect("bound");
                assert_eq!(get::<XorMappedAddress>(&bytes).0, local);
                assert_eq!(get::<MappedAddress>(&bytes).0, local);
            }
        }
    }
    let server_stats = server.shutdown().expect("workers end");
    let answered =
        |worker: &hairpin_server::stats::WorkerStats| worker.engine.successes(Method::BINDING);
    let all: Vec<u64> = server_stats.workers.iter().map(answered).collect();
    assert_eq!(all.iter().sum::<u64>(), 24 * 16);
    assert!(
        all.iter().all(|count| *count > 0),
        "every worker answered: {all:?}"
    );
}

#[test]
fn a_response_goes_to_the_response_port() {
    let four = Four {
        first: 205,
        ports: [3478, 3479],
    };
    let server = server(four, 2, false);
    let (asking, receiving) = (client(207), client(207));
    let port = receiving.local_addr().expect("bound").port();
    let bytes = request(1, |builder| {
        _ = builder.push(&ResponsePort(port)).expect("room")
    });
    asking.send_to(&bytes, four.at(0, 0)).expect("sent");
    let (bytes, from) = response(&receiving);
    assert_eq!(from, four.at(0, 0));
    let mapped = get::<XorMappedAddress>(&bytes).0;
    assert_eq!(mapped, asking.local_addr().expect("bound"));
    server.shutdown().expect("workers end");
}

#[test]
fn a_padded_request_gets_a_padded_response() {
    let four = Four {
        first: 209,
        ports: [3478, 3479],
    };
    let server = server(four, 1, true);
    let socket = client(211);
    let bytes = request(1, |builder| {
        builder.push(&Padding(&[0; 2000])).expect("room");
    });
    socket.send_to(&bytes, four.at(0, 0)).expect("sent");
    let (bytes, _) = response(&socket);
    let message = Message::parse(&bytes).expect("well formed");
    let padding: Option<Padding<'_>> = message.get().expect("well formed");
    assert_eq!(padding.expect("PADDING").0.len(), 1500);
    server.shutdown().expect("workers end");
}

#[test]
fn tcp_and_tls_have_their_own_four_listeners() {
    let four = Four {
        first: 213,
        ports: [3478, 3479],
    };
    let tls = Four {
        ports: [5349, 5350],
        ..four
    };
    let (server_config, client_config) = stream::configs();
    let wanted = discovery(|wanted| {
        wanted.tcp = vec![four.at(1, 1)];
        wanted.tls = vec![tls.at(1, 1)];
    });
    let builder = Server::builder()
        .listen(four.at(0, 0))
        .listen_tcp(four.at(0, 0))
        .listen_tls(tls.at(0, 0))
        .tls(server_config)
        .relay_address(four.at(0, 0).ip())
        .nat_discovery(wanted)
        .workers(2);
    let server = crate::common::start(builder);
    assert_eq!(
        (server.tcp_listeners().len(), server.tls_listeners().len()),
        (4, 4)
    );
    for (address, port) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        let plain = StreamLink::tcp(four.at(address, port));
        let secured = StreamLink::tls(tls.at(address, port), &client_config);
        for (link, four) in [(plain, four), (secured, tls)] {
            let mut client = Client::stream(link);
            let answer = client.request(Method::BINDING, &|_| Ok(()));
            let other: Option<OtherAddress> = answer.message().get().expect("well formed");
            assert_eq!(other, Some(OtherAddress(four.at(1 - address, 1 - port))));
        }
    }
    // UDP has one address here.
    let mut client = Client::from(&format!("{}:0", private_loopback(215)), four.at(0, 0));
    let change = ChangeRequest {
        change_ip: true,
        change_port: true,
    };
    let answer = client.request(Method::BINDING, &|builder| builder.push(&change).map(drop));
    assert_eq!(answer.code(), 420);
    server.shutdown().expect("workers end");
}

#[test]
fn an_address_that_cannot_be_bound_stops_the_start() {
    let four = Four {
        first: 217,
        ports: [3478, 3479],
    };
    let taken = UdpSocket::bind(four.at(1, 0)).expect("free");
    let wanted = discovery(|wanted| wanted.udp = vec![four.at(1, 1)]);
    let builder = Server::builder()
        .listen(four.at(0, 0))
        .nat_discovery(wanted);
    // RFC 5780 §6: without the same ports on both addresses nothing of it may be served.
    let error = builder.workers(1).start().expect_err("the port is taken");
    assert!(matches!(error, StartError::Bind { address, .. } if address == four.at(1, 0)));
    drop(taken);
    let wanted = discovery(|wanted| wanted.udp = vec![four.at(1, 0)]);
    let error = Server::builder()
        .listen(four.at(0, 0))
        .nat_discovery(wanted)
        .start();
    let same_port = NatDiscoveryError::NotOther {
        first: four.at(0, 0),
        other: four.at(1, 0),
    };
    assert!(matches!(error, Err(StartError::NatDiscovery(error)) if error == same_port));
}
