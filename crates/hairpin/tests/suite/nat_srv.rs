//! `hairpin probe nat` finds servers by SRV records (RFC 5780 §5.1), over UDP, TCP and TLS. Server and name server are
//! on loopback.

use std::fs::{self, Permissions};
use std::net::{TcpListener, UdpSocket};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Output;

use crate::common::{Serve, fails, json, run, stderr, stdout};
use crate::dns_server::{DnsServer, Zone};
use rcgen::{CertificateParams, KeyPair};

/// RFC 5780 §9.2.
const SERVICES: [&str; 3] = [
    "_stun-behavior._udp",
    "_stun-behavior._tcp",
    "_stun-behaviors._tcp",
];

/// A port that is free at both addresses, over UDP and TCP.
fn port() -> u16 {
    for _ in 0..64 {
        let first = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = first.local_addr().expect("bound").port();
        let others = [
            TcpListener::bind(("127.0.0.2", port)).is_ok(),
            UdpSocket::bind(("127.0.0.1", port)).is_ok(),
            UdpSocket::bind(("127.0.0.2", port)).is_ok(),
        ];
        if others == [true; 3] {
            return port;
        }
    }
    panic!("no port is free at both addresses");
}

/// A server with two addresses for UDP, TCP and TLS, and its ports: UDP and TCP, TLS.
fn server() -> (Serve, tempfile::TempDir, [u16; 2]) {
    let folder = tempfile::tempdir().expect("a folder");
    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["example.test".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("a certificate").pem();
    let path = |name: &str| folder.path().join(name);
    for (name, text) in [("tls.crt", certificate), ("tls.key", key.serialize_pem())] {
        fs::write(path(name), text).expect("written");
        fs::set_permissions(path(name), Permissions::from_mode(0o600)).expect("changed");
    }
    let [one, two, tls_one, tls_two] = [(); 4].map(|()| port());
    let config = format!(
        "[listen]\nudp = [\"127.0.0.1:{one}\"]\ntcp = [\"127.0.0.1:{one}\"]\ntls = [\"127.0.0.1:{tls_one}\"]\n\
         [relay]\naddresses = [\"127.0.0.1\"]\n[nat_discovery]\nudp = [\"127.0.0.2:{two}\"]\ntcp = [\"127.0.0.2:{two}\"]\n\
         tls = [\"127.0.0.2:{tls_two}\"]\n[admin]\nlisten = \"off\"\n[auth]\nsecrets = [\"0123456789abcdef\"]\n\
         [tls]\ncertificates = [{{ certificate = {:?}, key = {:?} }}]\n",
        path("tls.crt"),
        path("tls.key"),
    );
    let file = path("hairpin.toml");
    fs::write(&file, config).expect("written");
    let server = Serve::start(&["--config", file.to_str().expect("UTF-8")]);
    (server, folder, [one, tls_one])
}

fn name_server([port, tls]: [u16; 2]) -> DnsServer {
    let host = "a.example.test";
    let [udp, tcp, secure] = SERVICES.map(|service| format!("{service}.example.test"));
    let zone = Zone::new()
        // Nobody listens at the first server; the second one answers.
        .srv(&udp, [1, 0, self::port()], host)
        .srv(&udp, [2, 0, port], host)
        .srv(&tcp, [0, 0, port], host)
        .srv(&secure, [0, 0, tls], host)
        .srv("_stun-behavior._udp.none.test", [0, 0, 0], ".")
        .host(host, "127.0.0.1");
    DnsServer::new(zone)
}

fn probe(dns: &DnsServer, target: &str, more: &[&str]) -> Output {
    let name_server = dns.address().to_string();
    let mut args = vec!["probe", "nat", target, "--name-server", &name_server];
    args.extend(more);
    run(&args)
}

#[test]
fn servers_are_found_by_srv_records_over_udp_tcp_and_tls_rfc5780_5_1() {
    let (_server, folder, ports) = server();
    let dns = name_server(ports);
    let certificate = folder.path().join("tls.crt");
    let ca = ["--json", "--ca", certificate.to_str().expect("UTF-8")];
    for (target, more, at, filtering) in [
        (
            "example.test",
            &ca[..1],
            ports[0],
            Some("endpoint-independent"),
        ),
        ("stun:example.test?transport=tcp", &ca[..1], ports[0], None),
        ("stuns:example.test", &ca, ports[1], None),
    ] {
        let output = probe(&dns, target, more);
        assert_eq!(
            output.status.code(),
            Some(0),
            "{target}: {}",
            stderr(&output)
        );
        let found = json(&output);
        assert_eq!(found["server"], format!("127.0.0.1:{at}"), "{found}");
        assert_eq!(found["mapping"], "endpoint-independent", "{found}");
        assert_eq!(found["filtering"].as_str(), filtering, "{found}");
        assert_eq!(found["nat"], false, "{found}");
    }
    let asked = dns.asked().join(" ").to_ascii_lowercase();
    for name in SERVICES {
        assert!(
            asked.contains(&format!("srv {name}.example.test")),
            "{asked}"
        );
    }
    let text = stdout(&probe(&dns, "stun:example.test?transport=tcp", &[]));
    assert!(text.contains("result       no NAT for TCP"), "{text}");
}

#[test]
fn a_domain_without_the_service_differs_from_one_without_records_rfc2782() {
    let dns = name_server([1, 1]);
    fails(&probe(&dns, "none.test", &[]), 1, "has no such service");
    fails(&probe(&dns, "nobody.test", &[]), 1, "has no address");
    let asked = dns.asked().join(" ").to_ascii_lowercase();
    assert!(asked.contains("a nobody.test"), "{asked}");
}

#[test]
fn dtls_is_no_transport_of_nat_behaviour_discovery_rfc5780_9_2() {
    let output = run(&["probe", "nat", "stuns:example.test?transport=udp"]);
    fails(&output, 2, "no NAT behaviour discovery over DTLS");
    let lifetime = run(&[
        "probe",
        "nat",
        "stun:192.0.2.1?transport=tcp",
        "--lifetime",
        "5s",
    ]);
    fails(&lifetime, 2, "over UDP");
}
