//! A peer over TCP (RFC 6062):
//! `cargo run -p hairpin-client --example tcp_peer -- ADDRESS:PORT USER PASSWORD PEER:PORT`.
//!
//! Has the server connect to PEER, sends a line, and prints what comes back until the peer has sent its last byte.

use hairpin_client::{Client, Server};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, user, password, peer] = &arguments[..] else {
        return Err("usage: tcp_peer ADDRESS:PORT USER PASSWORD PEER:PORT".into());
    };
    let server = Server::new(server.parse()?)
        .credentials(user, password)
        .tcp();
    let client = Client::connect(server).await?;
    let allocation = client.allocate_tcp().await?;
    println!("relayed address: {}", allocation.relayed());

    let mut stream = allocation.connect(peer.parse()?).await?;
    stream.write_all(b"hello over two connections\n").await?;
    // Tells the peer that nothing more follows.
    stream.shutdown().await?;
    let mut text = String::new();
    stream.read_to_string(&mut text).await?;
    println!("came back: {text}");
    drop(stream);
    allocation.close().await?;
    Ok(())
}
