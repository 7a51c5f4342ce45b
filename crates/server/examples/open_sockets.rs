//! Sockets that are open already. This program opens them itself; with systemd, the crate `listenfd` takes those of
//! `LISTEN_FDS` (a `.socket` unit with `ReusePort=yes`, `BindIPv6Only=ipv6-only`, and one `ListenDatagram=` line for
//! each worker).

use hairpin_server::Server;
use socket2::{Domain, Protocol, Socket, Type};
use std::net::SocketAddr;

/// One socket per worker, all on one port: the kernel spreads clients over them.
/// A port below 1024 needs CAP_NET_BIND_SERVICE here, and not in the server.
fn open(mut address: SocketAddr, workers: usize) -> std::io::Result<Vec<Socket>> {
    let mut sockets = Vec::new();
    for _ in 0..workers {
        let domain = Domain::for_address(address);
        let socket = Socket::new(domain, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_port(true)?;
        if address.is_ipv6() {
            socket.set_only_v6(true)?;
        }
        socket.bind(&address.into())?;
        // If the port was 0, the next socket gets the one that the kernel has chosen.
        address = socket.local_addr()?.as_socket().unwrap_or(address);
        sockets.push(socket);
    }
    Ok(sockets)
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder()
        .listen_sockets(open("127.0.0.1:0".parse()?, 2)?)
        .listen_sockets(open("[::1]:0".parse()?, 2)?)
        .user("alice", "secret")
        .start()?;
    println!(
        "{} workers serve {:?}",
        server.workers(),
        server.listeners()
    );
    server.shutdown()?;
    Ok(())
}
