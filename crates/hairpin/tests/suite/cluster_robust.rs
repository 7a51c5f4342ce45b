//! A cluster with attackers, with a restart and with an upgrade. The engine is a real Redis.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use crate::cluster_calls::{call, keys, reached, register_instance, registered, sip_of};
use crate::common::controlled::{
    Controlled, eventually, free_port, is_alive, kill, may_load_programs,
};
use crate::common::json;
use crate::common::nodes::{Node, Redis, soon, three_serving, wait_until_serving, with_engine};
use crate::sip_client::phone::Phone;
use streams::rustls::pki_types::ServerName;
use streams::rustls::{ClientConfig, ClientConnection, RootCertStore};

/// Connections of strangers at one port.
const STRANGERS: usize = 400;

fn tls(result: &str) -> String {
    format!("hairpin_sip_node_tls_total{{result=\"{result}\"}}")
}

/// Whether a node lists the binding of a phone.
pub(crate) fn lists(node: &Node, phone: &Phone) -> bool {
    let contact = phone.contact();
    let list = crate::common::stdout(&node.run(&["sip", "bindings"]));
    list.contains(contact.trim_matches(['<', '>']))
}

pub(crate) fn moved(node: &Node) -> f64 {
    node.metric("hairpin_sip_bindings_moved_total")
}

#[test]
fn who_writes_to_the_engine_cannot_make_a_node_remove_a_binding() {
    let redis = Redis::start();
    let nodes = three_serving(&with_engine(redis.port), &keys());
    let [a, _, c] = &nodes;
    let mut bob = Phone::udp_at(sip_of(a), "bob");
    register_instance(&mut bob, 1, "mobile1", a);
    let key = "hairpin:sip:bob@example.com";
    let stored = redis.ask(&["-n", "1", "hgetall", key]);
    let (field, entry) = stored.trim().split_once('\n').unwrap();
    let words: Vec<&str> = entry.splitn(6, ' ').collect();
    let [ends, at, cseq, _, _, text] = words[..] else {
        panic!("{entry}");
    };
    // A REGISTER at B that is to come in a minute, with another Call-ID. The text is the one of A, or nonsense.
    let later = at.parse::<u64>().unwrap() + 60_000;
    for (number, text) in [text, "nonsense"].into_iter().enumerate() {
        let forged = format!("{ends} {later} {cseq} 0123456789abcdef 62 {text}");
        redis.ask(&["-n", "1", "hset", key, field, &forged]);
        register_instance(&mut bob, 1, &format!("again{number}"), a);
    }
    // A phone that does move is removed after that.
    let mut old = Phone::udp_at(sip_of(a), "eve");
    register_instance(&mut old, 2, "desk1", a);
    let mut new = Phone::udp_at(sip_of(c), "eve");
    register_instance(&mut new, 2, "desk2", c);
    soon("the binding at A is removed", || !lists(a, &old));
    assert!(lists(a, &bob) && lists(c, &new));
    assert_eq!(moved(a), 1.0);
    soon("it is counted", || {
        a.metric("hairpin_cluster_forged_texts_total") >= 1.0
    });
    soon("C has told A", || {
        c.metric("hairpin_cluster_sip_notices_total{result=\"sent\"}") == 1.0
    });
}

#[test]
fn a_node_that_starts_again_removes_the_bindings_of_phones_that_have_moved_meanwhile() {
    let redis = Redis::start();
    let cluster = with_engine(redis.port);
    let mut a = Node::start_with_state("a", &cluster, &keys());
    let c = Node::start("c", &cluster, &keys(), None);
    for node in [&a, &c] {
        soon("both nodes", || node.names("serving").len() == 2);
    }
    let mut old = Phone::udp_at(sip_of(&a), "bob");
    register_instance(&mut old, 1, "mobile1", &a);
    let mut desk = Phone::udp_at(sip_of(&a), "bob");
    register_instance(&mut desk, 2, "desk", &a);
    let mut new = Phone::udp_at(sip_of(&c), "bob");
    a.restart(|| {
        // The engine removes nothing for REGISTERs that come within 2 s.
        std::thread::sleep(Duration::from_secs(4));
        register_instance(&mut new, 1, "mobile2", &c);
    });
    soon("A removes the binding", || moved(&a) == 1.0);
    assert!(!lists(&a, &old) && lists(&a, &desk) && lists(&c, &new));
    assert_eq!(moved(&c), 0.0);
}

#[test]
fn many_client_hellos_at_a_plain_port_stop_neither_phones_nor_nodes() {
    let redis = Redis::start();
    let cluster = with_engine(redis.port);
    let nodes = ["a", "b"].map(|name| Node::start(name, &cluster, &keys(), None));
    wait_until_serving(&nodes);
    let [a, b] = nodes;
    let config = ClientConfig::builder()
        .with_root_certificates(RootCertStore::empty())
        .with_no_client_auth();
    let name = ServerName::IpAddress(sip_of(&a).ip().into());
    let mut stranger = ClientConnection::new(Arc::new(config), name).unwrap();
    let mut hello = Vec::new();
    stranger.write_tls(&mut hello).unwrap();
    let strangers = (0..STRANGERS).map(|_| {
        let mut socket = TcpStream::connect(sip_of(&a)).unwrap();
        socket.write_all(&hello).unwrap();
        socket
    });
    let strangers: Vec<TcpStream> = strangers.collect();
    let mut bob = registered(Phone::tcp_at(sip_of(&a), "bob"), &a);
    let mut ann = registered(Phone::udp_at(sip_of(&b), "ann"), &b);
    call(&mut ann, &mut bob, "one");
    call(&mut bob, &mut ann, "two");
    // Each gets a handshake record. Then it sends what nobody can decrypt.
    for mut socket in strangers {
        let time = Some(Duration::from_secs(30));
        socket.set_read_timeout(time).unwrap();
        let mut first = [0];
        socket.read_exact(&mut first).unwrap();
        assert_eq!(first, [22]);
        socket.write_all(&[23, 3, 3, 0, 32]).unwrap();
        socket.write_all(&[0; 32]).unwrap();
        let _ = socket.read_to_end(&mut Vec::new());
    }
    soon("all are counted", || {
        a.metric(&tls("failed")) == STRANGERS as f64
    });
    assert_eq!(a.metric(&tls("refused")), 0.0);
    call(&mut ann, &mut bob, "three");
}

/// A node that can be upgraded: its ports are in its configuration.
fn upgradable(redis: &Redis) -> (Controlled, SocketAddr) {
    let folder = tempfile::tempdir().unwrap();
    let [turn, sip] = [(); 2].map(|()| SocketAddr::from(([127, 0, 0, 1], free_port())));
    let more = keys().replace("127.0.0.1:0", &sip.to_string());
    let text = format!(
        "[server]\nworkers = 1\ncontrol_socket = {:?}\nstate_dir = {:?}\n[listen]\nudp = [\"{turn}\"]\n\
         [relay]\nports = \"61000-65535\"\naddresses = [\"127.0.0.1\"]\n[offload]\nmode = \"off\"\n\
         [admin]\nlisten = \"off\"\n[cluster]\nnode = \"a\"\n{}\n{more}\n",
        Controlled::socket_in(folder.path()),
        folder.path().join("state").display().to_string(),
        with_engine(redis.port),
    );
    (Controlled::start(folder, &text), sip)
}

#[test]
fn an_upgraded_node_keeps_its_certificate_its_phones_and_its_calls() {
    if !may_load_programs() {
        return eprintln!("skipped: this process may not load programs");
    }
    let redis = Redis::start();
    let (a, sip_a) = upgradable(&redis);
    let b = Node::start("b", &with_engine(redis.port), &keys(), None);
    soon("both nodes", || b.names("serving").len() == 2);
    let certificates = || {
        let all = b.nodes();
        let mut all = all["nodes"].as_array().unwrap().iter();
        let node = all.find(|node| node["name"] == "a").unwrap();
        node["fingerprints"].clone()
    };
    let before = certificates();
    let mut bob = Phone::tcp_at(sip_a, "bob");
    bob.register();
    let mut eve = Phone::udp_at(sip_a, "eve");
    eve.register();
    let mut ann = registered(Phone::udp_at(sip_of(&b), "ann"), &b);
    let asked = reached(&mut ann, &mut bob, "long");
    bob.respond(&asked, "200 OK");
    let ok = ann.expect("SIP/2.0 200");
    ann.in_dialog(&ok, "ACK");
    bob.expect("ACK ");
    let first = u64::from(a.first.id());
    let second = a.upgrade();
    assert_ne!(first, second);
    // The call from before, and calls through the new process, in both directions.
    bob.hang_up(&asked);
    let bye = ann.expect("BYE ");
    ann.respond(&bye, "200 OK");
    bob.expect("SIP/2.0 200");
    call(&mut ann, &mut eve, "there");
    call(&mut eve, &mut ann, "back");
    call(&mut ann, &mut bob, "connection");
    assert_eq!(certificates(), before);
    assert_eq!(b.names("serving"), ["a", "b"]);
    // The new process refuses B until its first exchange with the engine, but B knows the certificate of A.
    assert_eq!(b.metric(&tls("refused")), 0.0);
    let of_a = json(&a.run(&["nodes", "--json"]));
    assert_eq!(of_a["nodes"].as_array().unwrap().len(), 2);
    // It would keep its connection to B until `sip.idle`.
    kill(first, "-TERM");
    eventually("the old process ends", || !is_alive(first));
    call(&mut ann, &mut eve, "after");
    kill(second, "-TERM");
    eventually("the new process ends", || !is_alive(second));
}
