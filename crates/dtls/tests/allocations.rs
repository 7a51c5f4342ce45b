//! What the path of a message allocates: nothing. And what a connection weighs.

#![allow(
    clippy::disallowed_methods,
    reason = "it reads how much memory is in use"
)]
#![allow(clippy::unwrap_used, reason = "a test says no more")]

mod support;

use hairpin_dtls::{Limits, Received};
use support::*;
use timers::Mono;

#[test]
fn a_message_is_encrypted_and_decrypted_without_an_allocation() {
    let (mut endpoint, mut client) = connected(&Authority::ecdsa(), Limits::default());
    let key = endpoint.find(&path(1)).unwrap();
    let (mut up, mut down) = (vec![0; 1500], vec![0; 1500]);
    let message = [5; 1000];
    let path = path(1);
    let info = allocation_counter::measure(|| {
        for _ in 0..100 {
            let length = client.seal(&[&message], &mut up).unwrap();
            let Received::Data { message: came, .. } =
                endpoint.handle_datagram(Mono(1), &path, &mut up[..length])
            else {
                panic!("lost");
            };
            assert_eq!(came.len(), message.len());
            let length = endpoint
                .seal(key, &[&message[..4], &message[4..]], &mut down)
                .unwrap();
            assert!(
                client
                    .handle_datagram(Mono(1), &mut down[..length])
                    .is_some()
            );
        }
    });
    assert_eq!(info.count_total, 0);
}

#[test]
fn a_hello_without_a_cookie_allocates_nothing_once_the_buffer_is_there() {
    let authority = Authority::ecdsa();
    let mut endpoint = authority.endpoint(Limits::default());
    let mut hello = client_transmits(&mut authority.client(Mono(0))).remove(0);
    let path = path(1);
    let mut ask = || {
        endpoint.handle_datagram(Mono(0), &path, &mut hello);
        assert!(endpoint.poll_transmit().is_some());
    };
    ask();
    let info = allocation_counter::measure(|| (0..100).for_each(|_| ask()));
    // The context of an HMAC is on the heap of aws-lc, which no Rust allocator sees.
    assert_eq!(info.count_total, 0);
}

/// Memory of this process that is in use, in bytes.
fn resident() -> usize {
    let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
    4096 * pages.split(' ').nth(1).unwrap().parse::<usize>().unwrap()
}

#[test]
fn an_idle_connection_is_small() {
    const CLIENTS: u16 = 3000;
    let authority = Authority::ecdsa();
    let mut endpoint = authority.endpoint(Limits::default());
    let mut before = 0;
    for number in 0..CLIENTS {
        // Buffers and the allocator's own memory do not count.
        if number == CLIENTS / 10 {
            before = resident();
        }
        let mut client = authority.client(Mono(0));
        exchange(&mut endpoint, &mut client, Mono(0), &path(number));
        assert!(client.is_established());
    }
    let each = (resident() - before) / usize::from(CLIENTS - CLIENTS / 10);
    println!("{each} bytes per idle connection");
    assert_eq!(endpoint.connections(), CLIENTS.into());
    assert!(each < 4000, "{each} bytes");
}
