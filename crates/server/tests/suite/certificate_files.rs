//! A running server follows its certificate files without a signal.

use crate::common::dtls::DtlsLink;
use crate::common::socket;
use crate::sip_client::test_uas;
use hairpin_server::certificates::{CertificateFiles, Certificates};
use hairpin_server::rustls::client::WebPkiServerVerifier;
use hairpin_server::rustls::crypto::aws_lc_rs;
use hairpin_server::rustls::pki_types::{CertificateDer, ServerName};
use hairpin_server::rustls::{ClientConfig, ClientConnection, RootCertStore};
use hairpin_server::{Server, StartError};
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

/// Trusts this certificate only.
fn roots(certificate: &CertificateDer<'static>) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a certificate");
    roots
}

/// Whether a client that trusts this certificate only can make a handshake.
fn is_served(server: SocketAddr, certificate: &CertificateDer<'static>) -> bool {
    let config = ClientConfig::builder()
        .with_root_certificates(roots(certificate))
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

/// The same over DTLS.
fn is_served_dtls(server: SocketAddr, certificate: &CertificateDer<'static>) -> bool {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let roots = Arc::new(roots(certificate));
    let verifier = WebPkiServerVerifier::builder_with_provider(roots, provider);
    let config = Arc::new(dtls::ClientConfig::new(verifier.build().expect("a root")));
    let mut link = DtlsLink::begin(socket("127.0.0.1:0"), server, &config);
    while !link.is_established() {
        if !link.read() {
            assert!(link.closed.is_some(), "the server responds");
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
        ..CertificateFiles::default()
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

#[test]
fn a_listener_with_a_certificate_of_its_own_has_no_other_one() {
    let folder = tempfile::tempdir().expect("a folder");
    let place = |name: &str, (_, pem, secret): &(CertificateDer<'static>, String, String)| {
        let files = CertificateFiles {
            certificate: folder.path().join(format!("{name}.crt")),
            key: folder.path().join(format!("{name}.key")),
            ..CertificateFiles::default()
        };
        replace(&files.key, secret);
        replace(&files.certificate, pem);
        files
    };
    let (of_all, of_one) = (made(), made());
    let [usual, own]: [SocketAddr; 2] =
        ["127.0.0.1:0", "127.0.0.2:0"].map(|text| text.parse().expect("an address"));
    let files = vec![
        place("all", &of_all),
        CertificateFiles {
            listeners: vec![own],
            ..place("one", &of_one)
        },
    ];
    let mut builder = Server::builder()
        .relay_address("127.0.0.1".parse().expect("an address"))
        .user("ann", "secret")
        .sip(test_uas())
        .certificates(Certificates::from_files(files).expect("pairs"))
        .workers(1);
    for address in [usual, own] {
        builder = builder.listen_tls(address).listen_dtls(address);
        builder = builder.sip_listen_tls(address).sip_listen_wss(address);
    }
    let server = builder.start().expect("the server starts");
    let over_tls = [
        server.tls_listeners(),
        server.sip_tls_listeners(),
        server.sip_wss_listeners(),
    ];
    let check = |of_one: &CertificateDer<'static>| {
        for address in over_tls.concat() {
            let is_own = address.ip() == own.ip();
            assert_eq!(is_served(address, of_one), is_own, "{address}");
            assert_eq!(is_served(address, &of_all.0), !is_own, "{address}");
        }
        for &address in server.dtls_listeners() {
            let is_own = address.ip() == own.ip();
            assert_eq!(is_served_dtls(address, of_one), is_own, "{address}");
            assert_eq!(is_served_dtls(address, &of_all.0), !is_own, "{address}");
        }
    };
    assert_eq!(
        (over_tls.concat().len(), server.dtls_listeners().len()),
        (6, 2)
    );
    check(&of_one.0);
    let next = made();
    place("one", &next);
    let at = over_tls[0].iter().find(|address| address.ip() == own.ip());
    let at = *at.expect("a listener");
    wait_for("the next certificate", || is_served(at, &next.0));
    check(&next.0);
}

#[test]
fn a_listener_without_a_certificate_stops_the_start() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_, pem, secret) = made();
    let files = CertificateFiles {
        certificate: folder.path().join("chain.pem"),
        key: folder.path().join("key.pem"),
        listeners: vec!["127.0.0.2:0".parse().expect("an address")],
    };
    replace(&files.certificate, &pem);
    replace(&files.key, &secret);
    let certificates = Certificates::from_files(vec![files]).expect("a pair");
    let usual = "127.0.0.1:0".parse().expect("an address");
    let builder = || {
        Server::builder()
            .listen(usual)
            .relay_address(usual.ip())
            .user("ann", "secret")
            .certificates(certificates.clone())
    };
    for builder in [
        builder().listen_tls(usual),
        builder().listen_dtls(usual),
        builder().sip_listen_wss(usual).sip(test_uas()),
    ] {
        match builder.start() {
            Err(StartError::NoCertificate(address)) => assert_eq!(address, usual),
            other => panic!("it needs a certificate: {other:?}"),
        }
    }
}
