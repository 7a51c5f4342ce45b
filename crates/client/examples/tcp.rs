//! A TURN client over TCP: `cargo run -p hairpin-client --example tcp -- ADDRESS:PORT USER PASSWORD`.

use std::time::Duration;

use hairpin_client::{Client, Server};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, user, password] = &arguments[..] else {
        return Err("usage: tcp ADDRESS:PORT USER PASSWORD".into());
    };
    let server = Server::new(server.parse()?)
        .credentials(user, password)
        .tcp();

    let client = Client::connect(server).await?;
    let allocation = client.allocate().await?;
    println!("relayed address: {}", allocation.relayed());

    // Data to its own relayed address comes back: relays carry UDP, whatever the client speaks to its server.
    let peer = allocation.peer(allocation.relayed()).await?;
    peer.send(b"hello over TCP").await?;
    let mut buffer = [0; 1500];
    let len = tokio::time::timeout(Duration::from_secs(5), peer.recv(&mut buffer)).await??;
    println!("came back: {}", String::from_utf8_lossy(&buffer[..len]));
    allocation.close().await?;
    Ok(())
}
