//! Both families, a range of relay ports, and a public address in front of a private one (1:1 NAT).

use hairpin_server::Server;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .listen("127.0.0.1:0".parse()?)
        .listen("[::1]:0".parse()?)
        .relay_address("127.0.0.1".parse()?)
        .relay_address("::1".parse()?)
        // Clients and peers are told 198.51.100.1; the sockets are bound to 127.0.0.1.
        .external_address("198.51.100.1".parse()?, Some("127.0.0.1".parse()?))
        .relay_ports(50_000, 50_999)
        .user("alice", "secret")
        .start()?;
    println!("relays {:?}", server.relay_addresses());
    server.shutdown()?;
    Ok(())
}
