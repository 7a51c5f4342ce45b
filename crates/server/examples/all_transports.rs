//! TURN over UDP, TCP, TLS and DTLS: `cargo run -p hairpin-server --example all_transports [-- CHAIN.pem KEY.pem]`.
//!
//! UDP and DTLS share a port, as TCP and TLS do: the first byte tells them apart. Without arguments it makes a
//! certificate for `localhost` and ends at once. With them it serves until Ctrl-C.

use hairpin_server::certificates::{CertificateFiles, Certificates};
use hairpin_server::signals::Signals;
use hairpin_server::{Running, Server};
use std::error::Error;
use std::net::{SocketAddr, TcpListener};

fn main() -> Result<(), Box<dyn Error>> {
    let mut signals = Signals::install()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let certificates = match &arguments[..] {
        [chain, key] => Certificates::from_files(vec![CertificateFiles {
            certificate: chain.into(),
            key: key.into(),
            ..CertificateFiles::default()
        }])?,
        _ => Certificates::self_signed(&["localhost".to_owned()])?,
    };
    let server = start(certificates)?;
    println!("UDP {:?}", server.listeners());
    println!("TCP {:?}", server.tcp_listeners());
    println!("TLS {:?}", server.tls_listeners());
    println!("DTLS {:?}", server.dtls_listeners());
    if !arguments.is_empty() {
        signals.wait(None)?;
    }
    let stats = server.shutdown()?;
    println!("{} DTLS connections", stats.dtls().established);
    Ok(())
}

fn start(certificates: Certificates) -> Result<Running, Box<dyn Error>> {
    // A real program has a fixed port, such as 3478.
    let address: SocketAddr = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
    let server = Server::builder()
        .listen(address)
        .listen_dtls(address)
        .listen_tcp(address)
        .listen_tls(address)
        .certificates(certificates)
        .realm("example.org")
        .user("alice", "correct horse battery staple")
        .start()?;
    Ok(server)
}
