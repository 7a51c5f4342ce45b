//! Events go from the workers to another thread through a bounded channel; counters are read at any time.

use hairpin_server::Server;
use hairpin_server::hooks::Event;
use std::sync::mpsc;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (sender, receiver) = mpsc::sync_channel(1024);
    let server = Server::builder()
        .listen("127.0.0.1:0".parse()?)
        .user("alice", "secret")
        // A hook must not block: if the channel is full, the event is lost.
        .on_event(move |event| {
            let line = match event {
                Event::AllocationOpened { client, .. } => format!("{} begins", client.user),
                Event::AllocationClosed {
                    client, to_peers, ..
                } => format!("{} ends after {} bytes", client.user, to_peers.bytes),
                _ => return,
            };
            let _ = sender.try_send(line);
        })
        .start()?;
    let printer = std::thread::spawn(move || {
        for line in receiver {
            println!("{line}");
        }
    });
    let stats = server.stats();
    println!("{} allocations", stats.allocations());
    println!("{} challenges", stats.errors_with(401));
    // The workers end, and with them the channel.
    server.shutdown()?;
    printer.join().map_err(|_| "the printer has panicked")?;
    Ok(())
}
