//! A STUN server without users: Binding requests are answered, and nobody can allocate.

use hairpin_server::Server;
use std::net::UdpSocket;
use std::time::Duration;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let server = Server::builder().listen("127.0.0.1:0".parse()?).start()?;

    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.set_read_timeout(Some(Duration::from_secs(5)))?;
    let mut request = [0; stun::HEADER_LEN];
    let id = stun::TransactionId(*b"twelve bytes");
    let request = stun::Builder::new(
        &mut request,
        stun::Class::Request,
        stun::Method::BINDING,
        &id,
    )?
    .finish();
    socket.send_to(request, server.listeners()[0])?;
    let mut response = [0; 100];
    let (length, _) = socket.recv_from(&mut response)?;
    let response = stun::Message::parse(&response[..length])?;
    let mapped: Option<stun::XorMappedAddress> = response.get()?;
    println!("the server sees this client at {mapped:?}");
    server.shutdown()?;
    Ok(())
}
