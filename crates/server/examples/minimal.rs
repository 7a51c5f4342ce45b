//! The smallest TURN server: one listener, one user. `cargo run -p hairpin-server --example minimal`

use hairpin_server::Server;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .listen("127.0.0.1:0".parse()?)
        .realm("example.org")
        .user("alice", "correct horse battery staple")
        .start()?;
    println!("listening on {:?}", server.listeners());
    // A real program waits here; see the example `embedded`.
    server.shutdown()?;
    Ok(())
}
