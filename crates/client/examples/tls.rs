//! A TURN client over TLS:
//! `cargo run -p hairpin-client --features tls --example tls -- HOST:PORT USER PASSWORD [ROOTS.pem]`.
//!
//! The server's certificate must be for HOST, and signed by a root certificate of the system or by one in ROOTS.pem.

use std::path::Path;
use std::time::Duration;

use hairpin_client::{Client, Server, Tls};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, user, password, roots @ ..] = &arguments[..] else {
        return Err("usage: tls HOST:PORT USER PASSWORD [ROOTS.pem]".into());
    };
    let (host, _) = server.rsplit_once(':').ok_or("the port is missing")?;
    let tls = match roots.first() {
        Some(roots) => Tls::with_root_file(host, Path::new(roots))?,
        None => Tls::new(host)?,
    };
    let address = tokio::net::lookup_host(server).await?.next();
    let address = address.ok_or("the server's name has no address")?;
    let server = Server::new(address).credentials(user, password).tls(tls);

    let client = Client::connect(server).await?;
    let allocation = client.allocate().await?;
    println!("relayed address: {}", allocation.relayed());

    // Data to its own relayed address comes back: relays carry UDP, whatever the client speaks to its server.
    let peer = allocation.peer(allocation.relayed()).await?;
    peer.send(b"hello over TLS").await?;
    let mut buffer = [0; 1500];
    let len = tokio::time::timeout(Duration::from_secs(5), peer.recv(&mut buffer)).await??;
    println!("came back: {}", String::from_utf8_lossy(&buffer[..len]));
    allocation.close().await?;
    Ok(())
}
