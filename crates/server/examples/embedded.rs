//! A TURN server inside another program: `cargo run -p hairpin-server --example embedded`.
//!
//! It listens on a free port of loopback, admits the user `alice`, serves until Ctrl-C, and says what it did.

use hairpin_server::signals::{Signal, Signals};
use hairpin_server::{Server, StartError};
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // Signals are taken before any thread starts, so that every thread leaves them to this one.
    let mut signals = Signals::install()?;
    let server = start().inspect_err(|error| eprintln!("cannot start: {error}"))?;
    println!(
        "listening on {:?} with {} workers",
        server.listeners(),
        server.workers()
    );

    loop {
        match signals.wait(Some(Duration::from_secs(10)))? {
            Some(Signal::Hangup) => server.rotate_nonce_key()?,
            Some(_) => break,
            None => {}
        }
        if let Some(worker) = server.failed_worker() {
            eprintln!("worker {worker} has stopped");
            break;
        }
        println!("{} allocations", server.stats().allocations());
    }

    let stats = server.shutdown()?;
    let relayed =
        stats.sum(|worker| worker.engine.to_peers.packets + worker.engine.to_clients.packets);
    println!("relayed {relayed} datagrams");
    Ok(())
}

fn start() -> Result<hairpin_server::Running, StartError> {
    Server::builder()
        .listen(([127, 0, 0, 1], 0).into())
        .realm("example.org")
        .user("alice", "correct horse battery staple")
        .start()
}
