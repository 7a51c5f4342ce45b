//! Many TLS and DTLS handshakes at once: what a client over UDP notices of them.

use crate::common::dtls::{self, DtlsLink};
use crate::common::stream::{NAME, StreamLink};
use crate::common::{Client, PASSWORD, StopAtEnd, USER, at, ip, socket, start};
use hairpin_server::Server;
use hairpin_server::certificates::Certificates;
use hairpin_server::rustls::client::Resumption;
use hairpin_server::rustls::{ClientConfig, RootCertStore};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use stun::Method;

/// Round trips that a percentile is taken of.
const SAMPLES: usize = 2_000;

/// On a busy machine, a thread waits this long for a processor even in calm.
const NOISE: Duration = Duration::from_millis(10);

/// A client that trusts this chain and makes whole handshakes only.
fn tls_config(certificates: &Certificates) -> Arc<ClientConfig> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates.default_chain() {
        roots.add(certificate).expect("a certificate");
    }
    let mut config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

/// The median and the 99th percentile of Binding round trips over UDP.
fn round_trips(server: SocketAddr) -> (Duration, Duration) {
    let mut client = Client::new(server);
    let mut times: Vec<Duration> = (0..SAMPLES)
        .map(|_| {
            let begun = Instant::now();
            let answer = client.request(Method::BINDING, &|_| Ok(()));
            assert_eq!(answer.code(), 0);
            begun.elapsed()
        })
        .collect();
    times.sort();
    (times[SAMPLES / 2], times[SAMPLES * 99 / 100])
}

#[test]
fn a_flood_of_handshakes_delays_udp_little() {
    let (certificates, dtls_config) = dtls::configs();
    let config = tls_config(&certificates);
    let server = start(
        Server::builder()
            .listen(at("127.0.0.1:0"))
            .listen_tls(at("127.0.0.1:0"))
            .listen_dtls(at("127.0.0.1:0"))
            .certificates(certificates)
            .relay_address(ip("127.0.0.1"))
            .user(USER, PASSWORD)
            .workers(1),
    );
    let (udp, tls, dtls) = (
        server.listeners()[0],
        server.tls_listeners()[0],
        server.dtls_listeners()[0],
    );
    assert_eq!(NAME, dtls::NAME);
    let calm = round_trips(udp);
    let (stop, made) = (&AtomicBool::new(false), &AtomicU64::new(0));
    let flooded = std::thread::scope(|scope| {
        let stopper = StopAtEnd(stop);
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Ordering::Relaxed) {
                    drop(StreamLink::tls(tls, &config));
                    made.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                DtlsLink::new(socket("127.0.0.1:0"), dtls, &dtls_config).close();
                made.fetch_add(1, Ordering::Relaxed);
            }
        });
        // The flood has begun when the first handshakes are over.
        crate::common::eventually("the flood begins", || made.load(Ordering::Relaxed) >= 30);
        let flooded = round_trips(udp);
        drop(stopper);
        flooded
    });
    let made = made.load(Ordering::Relaxed);
    println!("median and p99 over UDP in calm {calm:?}, during {made} handshakes {flooded:?}");
    assert!(flooded.1 <= (calm.1 * 2).max(NOISE), "{calm:?} {flooded:?}");
}
