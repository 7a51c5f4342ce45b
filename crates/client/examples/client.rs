//! A TURN client: `cargo run -p hairpin-client --example client -- SERVER USER PASSWORD [PEER]`.
//!
//! It prints the addresses that the server gave, sends a datagram to PEER (default: its own relayed address) and waits
//! for one.

use std::net::SocketAddr;
use std::time::Duration;

use hairpin_client::{Client, Server};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, user, password, peer @ ..] = &arguments[..] else {
        return Err("usage: client SERVER USER PASSWORD [PEER]".into());
    };
    // The client takes addresses: the program resolves names.
    let address = tokio::net::lookup_host(server).await?.next();
    let address = address.ok_or("the server's name has no address")?;
    let client = Client::connect(Server::new(address).credentials(user, password)).await?;

    let allocation = client.allocate().await?;
    println!("mapped address:  {}", allocation.mapped());
    println!("relayed address: {}", allocation.relayed());

    let peer: SocketAddr = match peer.first() {
        Some(peer) => peer.parse()?,
        None => allocation.relayed(),
    };
    let peer = allocation.peer(peer).await?;
    peer.send(b"hello from the client").await?;

    let mut buffer = [0; 1500];
    let len = tokio::time::timeout(Duration::from_secs(5), peer.recv(&mut buffer)).await??;
    println!(
        "{} sent: {}",
        peer.address(),
        String::from_utf8_lossy(&buffer[..len])
    );

    allocation.close().await?;
    println!("{:?}", client.stats());
    Ok(())
}
