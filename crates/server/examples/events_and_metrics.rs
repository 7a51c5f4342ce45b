//! Events go from the workers to another thread through a bounded channel; counters are read at any time.

use hairpin_server::Server;
use hairpin_server::events::{self, Event};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // A worker never waits: if the channel is full, the event is lost and counted.
    let (sender, mut receiver) = events::channel(1024);
    let server = Server::builder()
        .listen("127.0.0.1:0".parse()?)
        .user("alice", "secret")
        .on_event(sender.into_hook())
        .start()?;
    let printer = std::thread::spawn(move || {
        while let Some(event) = receiver.blocking_recv() {
            match event.get() {
                Event::AllocationOpened { client, .. } => println!("{} begins", client.user),
                Event::AllocationClosed {
                    client, to_peers, ..
                } => println!("{} ends after {} bytes", client.user, to_peers.bytes),
                _ => {}
            }
        }
        println!("{} events were lost", receiver.lost());
    });
    let stats = server.stats();
    println!("{} allocations", stats.allocations());
    println!("{} challenges", stats.errors_with(401));
    // The workers end, and with them the channel.
    server.shutdown()?;
    printer.join().map_err(|_| "the printer has panicked")?;
    Ok(())
}
