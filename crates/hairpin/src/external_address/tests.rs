use super::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

/// A STUN server on loopback that claims to see requests come from 192.0.2.x. Before that, it sends garbage and a
/// response to another request. 0: it does not respond.
struct Server {
    address: SocketAddr,
    seen: Arc<AtomicU8>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(seen: u8) -> Server {
        let socket = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        let address = socket.local_addr().expect("bound");
        let often = Some(Duration::from_millis(20));
        socket.set_read_timeout(often).expect("a timeout");
        let seen = Arc::new(AtomicU8::new(seen));
        let stop = Arc::new(AtomicBool::new(false));
        let (last, stopped) = (Arc::clone(&seen), Arc::clone(&stop));
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 1_500];
            while !stopped.load(Ordering::Relaxed) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                let last = last.load(Ordering::Relaxed);
                let request = Message::parse(&buffer[..length]).expect("a request");
                if last == 0 || request.method() != Method::BINDING {
                    continue;
                }
                let ids = [TransactionId([7; 12]), request.transaction_id()];
                let _ = socket.send_to(b"garbage", from);
                for (id, last) in ids.iter().zip([99, last]) {
                    let mut response = [0; 64];
                    let mapped = SocketAddr::from(([192, 0, 2, last], from.port()));
                    let class = Class::Success;
                    let mut builder = stun::Builder::new(&mut response, class, Method::BINDING, id)
                        .expect("room");
                    builder.push(&XorMappedAddress(mapped)).expect("room");
                    let _ = socket.send_to(builder.finish(), from);
                }
            }
        });
        Server {
            address,
            seen,
            stop,
            thread: Some(thread),
        }
    }

    fn name(&self) -> StunServer {
        StunServer {
            host: self.address.ip().to_string(),
            port: self.address.port(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn question(servers: &[&Server]) -> AddressQuery {
    AddressQuery {
        sources: ExternalSources {
            servers: servers.iter().map(|server| server.name()).collect(),
            name: None,
        },
        relays: vec!["127.0.0.1".parse().expect("an address")],
    }
}

fn only(found: &[ExternalIp]) -> IpAddr {
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].private, Some(IpAddr::from([127, 0, 0, 1])));
    found[0].public
}

#[test]
fn the_first_server_that_answers_counts() {
    let [silent, server, other] = [Server::start(0), Server::start(5), Server::start(6)];
    let found = question(&[&silent, &server, &other])
        .ask()
        .expect("an answer");
    assert_eq!(only(&found), IpAddr::from([192, 0, 2, 5]));
    let error = question(&[&silent]).ask().expect_err("nobody answers");
    let text = format!("{error:#}");
    assert!(
        text.contains("127.0.0.1") && text.contains(&silent.address.to_string()),
        "{text}"
    );
}

#[test]
fn a_watch_reports_changes_and_failures_and_ends() {
    let server = Server::start(5);
    let watch = Watch::start(question(&[&server]), Duration::from_millis(10)).expect("a thread");
    let next = || {
        watch
            .checks
            .recv_timeout(Duration::from_secs(20))
            .expect("a check")
    };
    assert_eq!(
        only(&next().expect("an answer")),
        IpAddr::from([192, 0, 2, 5])
    );
    server.seen.store(8, Ordering::Relaxed);
    while only(&next().expect("an answer")) != IpAddr::from([192, 0, 2, 8]) {}
    server.seen.store(0, Ordering::Relaxed);
    while next().is_ok() {}
    drop(watch);
}

#[test]
fn a_name_maps_each_family_that_it_has() {
    let mut question = question(&[]);
    question.sources.name = Some("localhost".to_owned());
    let found = question.ask().expect("every host knows it");
    assert_eq!(only(&found), IpAddr::from([127, 0, 0, 1]));
    question.sources.name = Some("no-such-host.invalid".to_owned());
    let error = format!("{:#}", question.ask().expect_err("nobody knows it"));
    assert!(error.contains("no-such-host.invalid"), "{error}");
}
