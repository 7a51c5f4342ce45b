//! A running server follows its certificate files without a signal.

use hairpin_server::Server;
use hairpin_server::certificates::{CertificateFiles, Certificates};
use hairpin_server::rustls::pki_types::{CertificateDer, ServerName};
use hairpin_server::rustls::{ClientConfig, ClientConnection, RootCertStore};
use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const NAME: &str = "turn.example.org";

/// A new certificate, and the same with its key as PEM.
fn made() -> (CertificateDer<'static>, String, String) {
    let made = rcgen::generate_simple_self_signed(vec![NAME.to_owned()]).expect("a certificate");
    let (certificate, pem) = (made.cert.der().clone(), made.cert.pem());
    (certificate, pem, made.signing_key.serialize_pem())
}

/// Replaces a file as a whole, as ACME clients do.
fn replace(file: &Path, text: &str) {
    let next = file.with_extension("next");
    fs::write(&next, text).expect("written");
    fs::rename(next, file).expect("renamed");
}

/// Whether a client that trusts this certificate only can make a handshake.
fn is_served(server: SocketAddr, certificate: &CertificateDer<'static>) -> bool {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    let config = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from(NAME).expect("a name");
    let mut client = ClientConnection::new(Arc::new(config), name).expect("a configuration");
    let mut socket = TcpStream::connect(server).expect("the server accepts");
    while client.is_handshaking() {
        if client.complete_io(&mut socket).is_err() {
            return false;
        }
    }
    true
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(200));
    }
}

#[test]
fn the_next_handshake_has_the_changed_certificate_and_a_bad_pair_changes_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (chain, key) = (
        folder.path().join("chain.pem"),
        folder.path().join("key.pem"),
    );
    let (first, pem, secret) = made();
    fs::write(&chain, pem).expect("written");
    fs::write(&key, secret).expect("written");
    let files = CertificateFiles {
        certificate: chain.clone(),
        key: key.clone(),
    };
    let certificates = Certificates::from_files(vec![files]).expect("a pair");
    let server = Server::builder()
        .listen_tls("127.0.0.1:0".parse().expect("an address"))
        .listen("127.0.0.1:0".parse().expect("an address"))
        .relay_address("127.0.0.1".parse().expect("an address"))
        .user("ann", "secret")
        .certificates(certificates.clone())
        .workers(1)
        .start()
        .expect("the server starts");
    let address = server.tls_listeners()[0];
    assert!(is_served(address, &first));
    let (second, pem, secret) = made();
    replace(&key, &secret);
    replace(&chain, &pem);
    wait_for("the second certificate", || is_served(address, &second));
    assert!(!is_served(address, &first));
    // A key that does not belong to it.
    replace(&key, &made().2);
    let failed = certificates.failed_reloads();
    wait_for("the bad pair is noticed", || {
        certificates.failed_reloads() > failed
    });
    assert!(is_served(address, &second));
}
