//! TLS between nodes: who is refused, how certificates are renewed, and nodes without TLS. The engine is a real Redis.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::cluster_calls::{call, call_over, invite, keys, reached, registered, sip_of};
use crate::common::nodes::{Node, Redis, soon, wait_until_serving, with_engine};
use crate::common::tls::AnyCertificate;
use crate::sip_client::phone::Phone;
use crate::sip_client::status;
use hairpin_server::sip::Fingerprint;
use streams::rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use streams::rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};

/// Seconds that a certificate is in use (`cluster_keys`).
const EPOCH_S: u64 = 30 * 86_400;
/// From the start of the nodes to their next certificates.
const UNTIL_RENEWAL_S: u64 = 30;

fn tls(result: &str) -> String {
    format!("hairpin_sip_node_tls_total{{result=\"{result}\"}}")
}

/// One node for each of these keys and clocks. They know each other.
fn nodes<const N: usize>(
    redis: &Redis,
    all: [(&str, &str, String); N],
    clock: Option<&str>,
) -> [Node; N] {
    let nodes = all.map(|(name, transport, keys)| {
        let cluster = with_engine(redis.port);
        let cluster = format!("{cluster}\nsip_transport = \"{transport}\"");
        Node::start(name, &cluster, &keys, clock)
    });
    wait_until_serving(&nodes);
    nodes
}

/// The final response to a call.
fn refused(caller: &mut Phone, user: &str, id: &str) -> u16 {
    let asked = invite(caller, user, id);
    loop {
        let response = caller.expect("SIP/2.0 ");
        let is_of_call = response.contains(&format!("Call-ID: {id}@test"));
        if is_of_call && !matches!(status(&response), 100 | 407) {
            caller.acknowledge(&asked, &response);
            return status(&response);
        }
    }
}

/// What a node has logged, after its end.
fn log_of(mut node: Node) -> String {
    node.serve.signal("TERM");
    node.serve.ended().1
}

/// A certificate of nobody.
fn stranger() -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let made = rcgen::generate_simple_self_signed(vec!["node".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    (made.cert.der().clone(), key)
}

/// A connection to the SIP of a node that does not come from a node. Returns the fingerprint of the node's certificate,
/// and how many bytes the node sends behind the handshake.
fn intrude(to: SocketAddr, with_certificate: bool) -> (String, usize) {
    let config = ClientConfig::builder()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate));
    let config = match with_certificate {
        true => {
            let (certificate, key) = stranger();
            config
                .with_client_auth_cert(vec![certificate], key)
                .unwrap()
        }
        false => config.with_no_client_auth(),
    };
    let name = ServerName::IpAddress(to.ip().into());
    let mut tls = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut socket = TcpStream::connect(to).unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(20)))
        .unwrap();
    while tls.is_handshaking() {
        tls.complete_io(&mut socket).unwrap();
    }
    let shown = Fingerprint::of(&tls.peer_certificates().unwrap()[0]);
    let options = "OPTIONS sip:example.com SIP/2.0\r\nVia: SIP/2.0/TLS 127.0.0.1:1;branch=z9hG4bKx\r\n\
                   From: <sip:x@example.com>;tag=x\r\nTo: <sip:example.com>\r\nCall-ID: x\r\nCSeq: 1 OPTIONS\r\n\
                   Max-Forwards: 70\r\nContent-Length: 0\r\n\r\n";
    let _ = tls.writer().write_all(options.as_bytes());
    let _ = tls.complete_io(&mut socket);
    let mut plain = Vec::new();
    // It ends with the alert, or with the end of the connection.
    while tls.complete_io(&mut socket).is_ok_and(|(read, _)| read > 0) {}
    let _ = tls.reader().read_to_end(&mut plain);
    (shown.to_string(), plain.len())
}

#[test]
fn a_client_whose_certificate_no_node_publishes_cannot_speak_as_a_node() {
    let redis = Redis::start();
    let [a, b] = nodes(&redis, [("a", "auto", keys()), ("b", "tls", keys())], None);
    let published = |name: &str| {
        let all = a.nodes();
        let node = all["nodes"].as_array().unwrap().iter();
        let node = node.clone().find(|node| node["name"] == name).unwrap();
        node["fingerprints"].clone()
    };
    for node in [&a, &b] {
        for with_certificate in [true, false] {
            let before = node.metric(&tls("refused"));
            let (shown, bytes) = intrude(sip_of(node), with_certificate);
            assert_eq!(bytes, 0, "a stranger gets no response");
            let name = if std::ptr::eq(node, &a) { "a" } else { "b" };
            let published = published(name);
            let mut published = published.as_array().unwrap().iter();
            assert!(published.any(|one| *one == shown), "{shown}");
            soon("it is counted", || {
                node.metric(&tls("refused")) == before + 1.0
            });
        }
    }
    // Nodes are not disturbed.
    let mut bob = registered(Phone::udp_at(sip_of(&a), "bob"), &a);
    let mut ann = registered(Phone::udp_at(sip_of(&b), "ann"), &b);
    call(&mut ann, &mut bob, "one");
    let line = "refused a TLS connection of a SIP client: no node of the cluster publishes its certificate";
    assert!(log_of(a).contains(line));
}

#[test]
fn a_server_at_the_address_of_a_node_gets_no_request_without_its_certificate() {
    let redis = Redis::start();
    // It is where A says that it is: on the way to A.
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let advertise = format!("tolerance = \"0s\"\nadvertise = [\"{address}\"]");
    let of_a = keys().replace("tolerance = \"0s\"", &advertise);
    let [a, b] = nodes(&redis, [("a", "auto", of_a), ("b", "auto", keys())], None);
    let (sender, seen) = mpsc::channel();
    std::thread::spawn(move || {
        let (certificate, key) = stranger();
        let config = ServerConfig::builder().with_no_client_auth();
        let config = config.with_single_cert(vec![certificate], key).unwrap();
        let config = Arc::new(config);
        for socket in listener.incoming() {
            let mut socket = socket.unwrap();
            let mut tls = ServerConnection::new(Arc::clone(&config)).unwrap();
            let error = loop {
                match tls.complete_io(&mut socket) {
                    Ok((0, 0)) => break "no error".to_owned(),
                    Ok(_) => {}
                    Err(error) => break error.to_string(),
                }
            };
            let mut plain = Vec::new();
            let _ = tls.reader().read_to_end(&mut plain);
            if sender.send((error, plain.len())).is_err() {
                return;
            }
        }
    });
    let _bob = registered(Phone::udp_at(sip_of(&a), "bob"), &a);
    let mut ann = registered(Phone::udp_at(sip_of(&b), "ann"), &b);
    let started = Instant::now();
    let mut attempt = 0;
    // If the machine is busy, the engine may not respond in time. Then it is 480, too, and nobody is asked.
    while b.metric(&tls("refused")) == 0.0 {
        attempt += 1;
        assert_eq!(refused(&mut ann, "bob", &format!("try{attempt}")), 480);
        assert!(started.elapsed() < Duration::from_secs(60));
    }
    let (error, bytes) = seen.recv_timeout(Duration::from_secs(20)).unwrap();
    assert_eq!(bytes, 0, "{error}");
    assert!(error.contains("AccessDenied"), "{error}");
    let line = "refused another node: its certificate differs from the published one; no request was sent to it";
    assert!(log_of(b).contains(line));
}

#[test]
fn a_renewal_of_certificates_loses_no_call_rfc3261_12_2() {
    let redis = Redis::start();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let ahead = EPOCH_S - now.as_secs() % EPOCH_S - UNTIL_RENEWAL_S;
    let both = [("a", "tls", keys()), ("b", "tls", keys())];
    let [a, b] = nodes(&redis, both, Some(&format!("+{ahead}")));
    let shown = |node| intrude(sip_of(node), false).0;
    let before = [shown(&a), shown(&b)];
    let mut bob = registered(Phone::udp_at(sip_of(&a), "bob"), &a);
    let mut ann = registered(Phone::udp_at(sip_of(&b), "ann"), &b);
    let asked = reached(&mut ann, &mut bob, "long");
    bob.respond(&asked, "200 OK");
    let ok = ann.expect("SIP/2.0 200");
    ann.in_dialog(&ok, "ACK");
    bob.expect("ACK ");
    let started = Instant::now();
    for (node, before) in [&a, &b].into_iter().zip(&before) {
        while shown(node) == *before {
            assert!(started.elapsed() < Duration::from_secs(90), "no renewal");
            std::thread::sleep(Duration::from_millis(200));
        }
        // Both are published before and after it.
        let all = node.nodes();
        let all = all["nodes"].as_array().unwrap();
        assert!(
            all.iter()
                .all(|it| it["fingerprints"].as_array().unwrap().len() == 2)
        );
    }
    // A has no connection to B yet.
    bob.hang_up(&asked);
    let bye = ann.expect("BYE ");
    ann.respond(&bye, "200 OK");
    bob.expect("SIP/2.0 200");
    call(&mut ann, &mut bob, "after");
    call(&mut bob, &mut ann, "back");
    for node in [&a, &b] {
        assert_eq!(node.metric(&tls("refused_by_other")), 0.0);
    }
    assert!(log_of(a).contains("renewed the node certificate"));
}

#[test]
fn nodes_without_tls_are_called_plain_unless_tls_is_required() {
    let redis = Redis::start();
    let all = [
        ("a", "plain", keys()),
        ("b", "auto", keys()),
        ("c", "tls", keys()),
    ];
    let [a, b, c] = nodes(&redis, all, None);
    let mut bob = registered(Phone::udp_at(sip_of(&a), "bob"), &a);
    let mut ann = registered(Phone::udp_at(sip_of(&b), "ann"), &b);
    let mut eve = registered(Phone::udp_at(sip_of(&c), "eve"), &c);
    call_over(false, &mut ann, &mut bob, "there");
    call_over(false, &mut bob, &mut ann, "back");
    assert_eq!(a.metric(&tls("completed")), 0.0);
    call(&mut ann, &mut eve, "secure");
    // C does not call A, and accepts nothing of it.
    assert_eq!(refused(&mut eve, "bob", "from-c"), 480);
    assert_eq!(refused(&mut bob, "eve", "to-c"), 403);
}
