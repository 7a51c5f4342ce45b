//! A hook that decides which peers a user may talk to, beside the rules.

use hairpin_server::Server;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .listen("127.0.0.1:0".parse()?)
        .user("alice", "secret")
        .user("conference", "secret")
        // Only conference servers may talk to port 9. A permission is for all ports: there the port is 0.
        .permit_peer(|client, peer| peer.port() != 9 || client.user == "conference")
        .start()?;
    println!("listening on {:?}", server.listeners());
    server.shutdown()?;
    Ok(())
}
