//! Inside a program of tasks: the workers are threads of their own, events come to a task, and only `shutdown` waits.

use hairpin_server::events::{self, EventReceiver};
use hairpin_server::{Server, stun};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::UdpSocket;

/// Says what happens, until the server has ended.
async fn print_events(mut events: EventReceiver) {
    while let Some(event) = events.recv().await {
        println!("{:?}", event.get());
    }
    println!("{} events were lost", events.lost());
}

/// Another task of the program, which asks the server for its own address.
async fn own_address(server: SocketAddr) -> Result<SocketAddr, Box<dyn std::error::Error>> {
    let socket = UdpSocket::bind("127.0.0.1:0").await?;
    let mut buffer = [0; 100];
    let id = stun::TransactionId(*b"twelve bytes");
    let (class, method) = (stun::Class::Request, stun::Method::BINDING);
    let request = stun::Builder::new(&mut buffer, class, method, &id)?.finish();
    socket.send_to(request, server).await?;
    let received = socket.recv_from(&mut buffer);
    let (length, _) = tokio::time::timeout(Duration::from_secs(5), received).await??;
    let response = stun::Message::parse(&buffer[..length])?;
    let mapped: Option<stun::XorMappedAddress> = response.get()?;
    Ok(mapped.ok_or("no XOR-MAPPED-ADDRESS")?.0)
}

async fn run() -> Result<(), Box<dyn std::error::Error>> {
    let (sender, receiver) = events::channel(1024);
    // Opening sockets takes less than a millisecond.
    let server = Server::builder()
        .listen("127.0.0.1:0".parse()?)
        .user("alice", "correct horse battery staple")
        .on_event(sender.into_hook())
        .start()?;
    let printer = tokio::spawn(print_events(receiver));
    println!("this is {}", own_address(server.listeners()[0]).await?);
    // It waits until the workers have ended: not on a thread that runs tasks.
    tokio::task::spawn_blocking(move || server.shutdown()).await??;
    printer.await?;
    Ok(())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    // In a program with the feature `macros` of tokio: `#[tokio::main]`.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    runtime.block_on(run())
}
