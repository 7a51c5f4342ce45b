//! Real handshakes with the configuration that listeners use.

use super::tests::{made, write};
use super::*;
use std::fs;
use streams::rustls::pki_types::ServerName;
use streams::rustls::pki_types::pem::PemObject;
use streams::rustls::{ClientConfig, RootCertStore};
use streams::tls::{Failure, Tls, TlsError};

const VERSIONS: [&SupportedProtocolVersion; 2] = [&version::TLS12, &version::TLS13];

/// A client that trusts these certificates, given in PEM.
fn client(version: &'static SupportedProtocolVersion, trusted: &[&str]) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    for pem in trusted {
        let certificate = CertificateDer::from_pem_slice(pem.as_bytes()).unwrap();
        roots.add(certificate).unwrap();
    }
    ClientConfig::builder_with_protocol_versions(&[version])
        .with_root_certificates(roots)
        .with_no_client_auth()
}

/// Both ends of one connection.
#[derive(Debug)]
struct Ends {
    client: Tls,
    server: Tls,
}

/// A handshake to its end, with the tickets that follow it. The error is the one of the side that ended it.
fn connect(
    server: &Arc<ServerConfig>,
    client: &Arc<ClientConfig>,
    name: &str,
) -> Result<Ends, TlsError> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut ends = Ends {
        client: Tls::client(Arc::clone(client), name)?,
        server: Tls::server(Arc::clone(server))?,
    };
    let (mut plain, mut to_server, mut to_client) = (Vec::new(), Vec::new(), Vec::new());
    ends.client.received(&[], &mut plain, &mut to_server)?;
    while !to_server.is_empty() {
        ends.server
            .received(&to_server, &mut plain, &mut to_client)?;
        to_server.clear();
        ends.client
            .received(&to_client, &mut plain, &mut to_server)?;
        to_client.clear();
    }
    assert!(!ends.client.is_handshaking() && !ends.server.is_handshaking());
    Ok(ends)
}

impl Ends {
    /// Passes data both ways.
    fn exchange(&mut self) {
        let (mut wire, mut plain, mut answer) = (Vec::new(), Vec::new(), Vec::new());
        self.client.encrypt(b"to the server", &mut wire).unwrap();
        self.server
            .received(&wire, &mut plain, &mut answer)
            .unwrap();
        wire.clear();
        self.server.encrypt(b", and back", &mut wire).unwrap();
        self.client
            .received(&wire, &mut plain, &mut answer)
            .unwrap();
        assert_eq!(plain, b"to the server, and back");
    }

    fn certificate(&self) -> &[u8] {
        &self.client.peer_certificates()[0]
    }
}

fn der(pem: &str) -> CertificateDer<'static> {
    CertificateDer::from_pem_slice(pem.as_bytes()).unwrap()
}

#[test]
fn clients_of_both_versions_get_the_certificate_of_the_name_they_ask_for() {
    let folder = tempfile::tempdir().unwrap();
    let pairs = [
        made(&["one.example"]),
        made(&["two.example"]),
        made(&["*.wild.example"]),
    ];
    let files = pairs.iter().enumerate().map(|(number, pair)| {
        let folder = folder.path().join(number.to_string());
        fs::create_dir(&folder).unwrap();
        write(&folder, pair)
    });
    let certificates = Certificates::from_files(files.collect()).unwrap();
    let server = certificates.server_config(false);
    let trusted: Vec<&str> = pairs.iter().map(|pair| &pair.0[..]).collect();
    for version in VERSIONS {
        let client = Arc::new(client(version, &trusted));
        for (name, number) in [
            ("one.example", 0),
            ("two.example", 1),
            ("a.wild.example", 2),
        ] {
            let mut ends = connect(&server, &client, name).unwrap();
            assert_eq!(ends.certificate(), &der(trusted[number])[..], "{name}");
            ends.exchange();
        }
        // Nobody's name gets the first, which is not for it.
        let error = connect(&server, &client, "three.example").unwrap_err();
        assert_eq!(error.failure, Failure::Certificate);
    }
}

#[test]
fn a_connection_lives_across_a_swap_and_the_next_gets_the_new_certificate() {
    const NAME: &str = "turn.example.org";
    for version in VERSIONS {
        let folder = tempfile::tempdir().unwrap();
        let (old, new) = (made(&[NAME]), made(&[NAME]));
        let certificates = Certificates::from_files(vec![write(folder.path(), &old)]).unwrap();
        // Listeners keep this one: it must see the new pair, too.
        let server = certificates.server_config(false);
        let trusting = Arc::new(client(version, &[&old.0, &new.0]));
        let mut ends = connect(&server, &trusting, NAME).unwrap();
        assert_eq!(ends.certificate(), &der(&old.0)[..]);
        ends.exchange();

        write(folder.path(), &new);
        assert!(matches!(certificates.reload()[..], [Ok(_)]));
        ends.exchange();
        let stranger = Arc::new(client(version, &[&new.0]));
        let mut next = connect(&server, &stranger, NAME).unwrap();
        assert_eq!(next.certificate(), &der(&new.0)[..]);
        assert!(!next.server.is_resumed());
        next.exchange();

        // A bad pair: what was in service goes on.
        write(folder.path(), &(old.0.clone(), new.1.clone()));
        assert!(matches!(
            certificates.reload()[..],
            [Err(CertificateError::Mismatch { .. })]
        ));
        let another = Arc::new(client(version, &[&new.0]));
        let another = connect(&server, &another, NAME).unwrap();
        assert_eq!(another.certificate(), &der(&new.0)[..]);
    }
}

#[test]
fn tickets_resume_sessions_and_the_server_keeps_nothing() {
    let pair = made(&["turn.example.org"]);
    let certificates = Certificates::from_pem(pair.0.as_bytes(), pair.1.as_bytes()).unwrap();
    let server = certificates.server_config(false);
    assert!(server.ticketer.enabled() && !server.session_storage.can_cache());
    for version in VERSIONS {
        let client = Arc::new(client(version, &[&pair.0]));
        let first = connect(&server, &client, "turn.example.org").unwrap();
        assert!(!first.server.is_resumed());
        let mut second = connect(&server, &client, "turn.example.org").unwrap();
        assert!(second.server.is_resumed() && second.client.is_resumed());
        second.exchange();
    }
}

#[test]
fn the_oldest_version_and_the_application_protocol_are_enforced() {
    let pair = made(&["turn.example.org"]);
    let certificates = Certificates::from_pem(pair.0.as_bytes(), pair.1.as_bytes()).unwrap();
    let only_tls13 = certificates.server_config(true);
    let old = Arc::new(client(&version::TLS12, &[&pair.0]));
    let error = connect(&only_tls13, &old, "turn.example.org").unwrap_err();
    assert_eq!(error.failure, Failure::Incompatible);
    for (offered, agreed) in [
        (&["http/1.1", "stun.turn"][..], Ok("stun.turn")),
        (&["stun.nat-discovery"], Ok("stun.nat-discovery")),
        (&["http/1.1"], Err(Failure::Alpn)),
    ] {
        let mut client = client(&version::TLS13, &[&pair.0]);
        client.alpn_protocols = offered
            .iter()
            .map(|name| name.as_bytes().to_vec())
            .collect();
        let outcome = connect(&only_tls13, &Arc::new(client), "turn.example.org");
        let protocol = |ends: &Ends| ends.server.application_protocol().map(<[u8]>::to_vec);
        let outcome = outcome
            .map(|ends| protocol(&ends))
            .map_err(|error| error.failure);
        assert_eq!(outcome, agreed.map(|name| Some(name.as_bytes().to_vec())));
    }
}
