use super::*;
use crate::Tls;
use crate::tls::Failure;
use rcgen::{CertificateParams, KeyPair, SanType, string::Ia5String};
use rustls::ServerConfig;
use rustls::pki_types::PrivateKeyDer;

/// A certificate that is its own root, with these alternative names.
fn made(names: &[SanType]) -> (CertificateDer<'static>, PrivateKeyDer<'static>) {
    let mut params = CertificateParams::default();
    params.subject_alt_names = names.to_vec();
    let key = KeyPair::generate().unwrap();
    let certificate = params.self_signed(&key).unwrap();
    let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
    (certificate.der().clone(), key)
}

fn ia5(text: &str) -> Ia5String {
    Ia5String::try_from(text).unwrap()
}

fn uri(text: &str) -> SanType {
    SanType::URI(ia5(text))
}

fn dns(text: &str) -> SanType {
    SanType::DnsName(ia5(text))
}

fn domains(names: &[SanType]) -> Vec<String> {
    sip_domains(&made(names).0)
}

// RFC 5922 §7.1.
#[test]
fn uris_of_domains_count_and_dns_names_only_without_them() {
    let dns_name = dns("Server.Example.org");
    assert_eq!(
        domains(std::slice::from_ref(&dns_name)),
        ["server.example.org"]
    );
    let both = [
        dns_name.clone(),
        uri("SIP:Example.com"),
        uri("sip:example.net:5070;x=y"),
    ];
    assert_eq!(domains(&both), ["example.com", "example.net"]);
    // Not the scheme, a user, an address: then DNS names count.
    for other in [
        "sips:example.com",
        "https://example.com",
        "sip:ann@example.com",
        "sip:[2001:db8::1]",
        "sip:",
    ] {
        assert_eq!(
            domains(&[uri(other), dns_name.clone()]),
            ["server.example.org"],
            "{other}"
        );
    }
}

// RFC 5922 §7.2.
#[test]
fn a_wildcard_is_nobodys_domain() {
    assert!(domains(&[dns("*.example.org")]).is_empty());
    assert_eq!(
        domains(&[dns("*.example.org"), dns("a.example.org")]),
        ["a.example.org"]
    );
    assert!(sip_domains(&CertificateDer::from(vec![1, 2, 3])).is_empty());
}

/// How a handshake ends with a server that has a certificate for `names`, when `wanted` is connected to.
fn connect(names: &[SanType], wanted: &str) -> Result<(), Failure> {
    let (certificate, key) = made(names);
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).unwrap();
    let server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let name = ServerName::try_from(wanted.to_owned()).unwrap();
    let client = Arc::new(client_config(Arc::new(roots), None));
    let mut client = Tls::client(client, name).unwrap();
    let mut server = Tls::server(Arc::new(server)).unwrap();
    let (mut plain, mut there, mut back) = (Vec::new(), Vec::new(), Vec::new());
    let mut result = client.received(&[], &mut plain, &mut there);
    while result.is_ok() && !there.is_empty() {
        server.received(&there, &mut plain, &mut back).unwrap();
        there.clear();
        result = client.received(&back, &mut plain, &mut there);
        back.clear();
    }
    result.map(drop).map_err(|error| error.failure)
}

// RFC 5922 §7.3.
#[test]
fn a_server_must_prove_the_domain_that_was_asked_for_in_its_entirety() {
    let certificate = [dns("*.example.org"), dns("sip.example.com")];
    assert_eq!(connect(&certificate, "SIP.example.com"), Ok(()));
    for other in ["example.com", "a.sip.example.com", "a.example.org"] {
        assert_eq!(
            connect(&certificate, other),
            Err(Failure::Certificate),
            "{other}"
        );
    }
    // The name of the server that the DNS leads to is none of the domain's.
    let served = [uri("sip:example.com"), dns("server.example.net")];
    assert_eq!(connect(&served, "example.com"), Ok(()));
    assert_eq!(
        connect(&served, "server.example.net"),
        Err(Failure::Certificate)
    );
}

#[test]
fn an_address_must_be_among_the_addresses_of_the_certificate() {
    let certificate = [SanType::IpAddress([192, 0, 2, 1].into()), dns("192.0.2.2")];
    assert_eq!(connect(&certificate, "192.0.2.1"), Ok(()));
    assert_eq!(
        connect(&certificate, "192.0.2.2"),
        Err(Failure::Certificate)
    );
}
