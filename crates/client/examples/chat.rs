//! Two tasks of one tokio program that talk through a TURN server, each with an allocation of its own:
//! `cargo run -p hairpin-client --example chat -- SERVER USER PASSWORD`.

use std::net::SocketAddr;

use hairpin_client::{Allocation, Client, Server};
use tokio::sync::oneshot;

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Answers every datagram of any permitted peer, until told to stop.
async fn answer(allocation: Allocation, mut stop: oneshot::Receiver<()>) -> Result<u32, Failure> {
    let (mut buffer, mut answered) = ([0; 1500], 0);
    loop {
        // `select!` drops the future that is not ready; no datagram is lost with it.
        tokio::select! {
            received = allocation.recv_from(&mut buffer) => {
                let (len, peer) = received?;
                allocation.send_to(&buffer[..len].to_ascii_uppercase(), peer).await?;
                answered += 1;
            }
            _ = &mut stop => break,
        }
    }
    allocation.close().await?;
    Ok(answered)
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [server, user, password] = &arguments[..] else {
        return Err("usage: chat SERVER USER PASSWORD".into());
    };
    let server = Server::new(server.parse::<SocketAddr>()?).credentials(user, password);

    // A client is one 5-tuple and has one allocation.
    let (near, far) = (
        Client::connect(server.clone()).await?,
        Client::connect(server).await?,
    );
    let (ours, theirs) = (near.allocate().await?, far.allocate().await?);

    let (relayed, (stop, stopped)) = (theirs.relayed(), oneshot::channel());
    theirs.permit(&[ours.relayed().ip()]).await?;
    let answering = tokio::spawn(answer(theirs, stopped));

    let peer = ours.peer(relayed).await?;
    let mut buffer = [0; 1500];
    for word in ["one", "two", "three"] {
        peer.send(word.as_bytes()).await?;
        let len = peer.recv(&mut buffer).await?;
        println!("{word} -> {}", String::from_utf8_lossy(&buffer[..len]));
    }

    // If the task has failed, nobody receives this; the task's error is the one to return.
    let _ = stop.send(());
    println!("answered {} datagrams", answering.await??);
    Ok(())
}
