use super::*;
use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;

fn configs() -> (Arc<ServerConfig>, Arc<ClientConfig>) {
    let made = rcgen::generate_simple_self_signed(vec!["turn.example.org".to_owned()]).unwrap();
    let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
    let certificate = made.cert.der().clone();
    let mut server = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], key)
        .unwrap();
    server.alpn_protocols = vec![b"stun.turn".to_vec()];
    let mut roots = RootCertStore::empty();
    roots.add(certificate).unwrap();
    let mut client = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    client.alpn_protocols = vec![b"stun.turn".to_vec()];
    (Arc::new(server), Arc::new(client))
}

/// One side with its buffers.
struct End {
    tls: Tls,
    plain: Vec<u8>,
    out: Vec<u8>,
    result: Result<bool, TlsError>,
}

impl End {
    fn new(tls: Tls) -> End {
        End {
            tls,
            plain: Vec::new(),
            out: Vec::new(),
            result: Ok(false),
        }
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.result = self.tls.received(bytes, &mut self.plain, &mut self.out);
    }
}

fn pair() -> (End, End) {
    let (server, client) = configs();
    let name = ServerName::try_from("turn.example.org").unwrap();
    let server = End::new(Tls::server(server).unwrap());
    let client = End::new(Tls::client(client, name).unwrap());
    (server, client)
}

/// Carries bytes to and fro, at most `most` at a time, until both are silent.
fn exchange(one: &mut End, other: &mut End, most: usize) {
    one.receive(&[]);
    other.receive(&[]);
    while !one.out.is_empty() || !other.out.is_empty() {
        for piece in std::mem::take(&mut one.out).chunks(most) {
            other.receive(piece);
        }
        for piece in std::mem::take(&mut other.out).chunks(most) {
            one.receive(piece);
        }
    }
}

#[test]
fn a_handshake_and_data_arrive_whole_or_byte_by_byte() {
    for most in [1, 7, 1_500, usize::MAX] {
        let (mut server, mut client) = pair();
        assert!(server.tls.is_handshaking());
        exchange(&mut server, &mut client, most);
        assert!(!server.tls.is_handshaking() && !client.tls.is_handshaking());
        assert_eq!(server.tls.version(), Some(ProtocolVersion::TLSv1_3));
        assert_eq!(server.tls.application_protocol(), Some(&b"stun.turn"[..]));
        assert_eq!(client.tls.peer_certificates().len(), 1);
        assert!(
            server
                .tls
                .cipher_suite()
                .is_some_and(|name| name.starts_with("TLS13_"))
        );
        let data = vec![7; 40_000];
        client.tls.encrypt(&data, &mut client.out).unwrap();
        server
            .tls
            .encrypt(b"to the client", &mut server.out)
            .unwrap();
        exchange(&mut server, &mut client, most);
        assert_eq!(server.plain, data);
        assert_eq!(client.plain, b"to the client");
        assert_eq!(server.result, Ok(false));
        client.tls.close(&mut client.out);
        exchange(&mut server, &mut client, most);
        assert_eq!(server.result, Ok(true));
    }
}

#[test]
fn sixteen_kilobytes_are_one_record() {
    let (mut server, mut client) = pair();
    exchange(&mut server, &mut client, usize::MAX);
    server
        .tls
        .encrypt(&vec![1; 1 << 14], &mut server.out)
        .unwrap();
    let length = usize::from(u16::from_be_bytes([server.out[3], server.out[4]]));
    assert_eq!(server.out.len(), 5 + length);
}

#[test]
fn nothing_is_encrypted_before_the_handshake_is_over() {
    let (mut server, _) = pair();
    let error = server.tls.encrypt(b"data", &mut server.out).unwrap_err();
    assert_eq!((error.failure, server.out.len()), (Failure::Other, 0));
}

#[test]
fn bytes_without_tls_get_an_alert() {
    let (mut server, _) = pair();
    server.receive(b"GET / HTTP/1.1\r\n\r\n");
    assert_eq!(server.result.clone().unwrap_err().failure, Failure::NotTls);
    // Content type 21: an alert.
    assert_eq!(server.out.first(), Some(&21));
}

#[test]
fn a_certificate_for_another_name_is_rejected_by_the_client_with_an_alert() {
    let (server, client) = configs();
    let mut server = End::new(Tls::server(server).unwrap());
    let name = ServerName::try_from("other.example.org").unwrap();
    let mut client = End::new(Tls::client(client, name).unwrap());
    exchange(&mut server, &mut client, usize::MAX);
    assert_eq!(
        client.result.clone().unwrap_err().failure,
        Failure::Certificate
    );
    assert_eq!(server.result.clone().unwrap_err().failure, Failure::Alert);
}

#[test]
fn a_record_that_was_changed_ends_the_connection() {
    let (mut server, mut client) = pair();
    exchange(&mut server, &mut client, usize::MAX);
    client.tls.encrypt(b"data", &mut client.out).unwrap();
    let last = client.out.len() - 1;
    client.out[last] ^= 1;
    let bytes = std::mem::take(&mut client.out);
    server.receive(&bytes);
    assert_eq!(server.result.clone().unwrap_err().failure, Failure::Decrypt);
    assert!(server.plain.is_empty());
}
