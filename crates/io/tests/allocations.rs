//! Nothing is allocated per datagram once the batches have been made.

#![allow(clippy::unwrap_used)] // a test may fail this way

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::io;
use std::time::Duration;

use hairpin_io::{
    Events, Interest, Poller, RecvBatch, SendOptions, SendQueue, SendTo, UdpOptions, UdpSocket,
};

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is handed to the system's allocator unchanged; counting touches a plain thread-local cell, which
// does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `System.alloc` with this layout.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const CLIENTS: usize = 8;

struct Relay {
    listener: UdpSocket,
    relays: Vec<UdpSocket>,
    peer: UdpSocket,
    poller: Poller,
    events: Events,
    batch: RecvBatch,
    queue: SendQueue,
}

impl Relay {
    fn new(gso: bool) -> Relay {
        let bind = |options: &UdpOptions| {
            UdpSocket::bind("127.0.0.1:0".parse().unwrap(), options).unwrap()
        };
        let poller = Poller::new().unwrap();
        let listener = bind(&UdpOptions::listener());
        poller.add(&listener, 0, Interest::Read).unwrap();
        Relay {
            listener,
            relays: (0..CLIENTS).map(|_| bind(&UdpOptions::relay())).collect(),
            peer: bind(&UdpOptions::default()),
            poller,
            events: Events::with_capacity(16),
            batch: RecvBatch::new(64, RecvBatch::LARGE),
            queue: SendQueue::new(&SendOptions {
                gso,
                capacity: 32,
                ..SendOptions::default()
            }),
        }
    }

    /// Each wake-up relays what came by the relay socket of its sender, once stripped, once with a header.
    fn turn(&mut self) -> u64 {
        self.poller
            .wait(&mut self.events, Some(Duration::from_millis(100)))
            .unwrap();
        self.batch.clear();
        match self.listener.recv(0, &mut self.batch) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => panic!("{error}"),
            _ => {}
        }
        let mut out = self.queue.start();
        for datagrams in self.batch.iter() {
            let relay = &self.relays[datagrams.from.port() as usize % CLIENTS];
            let to = SendTo::new(relay, self.peer.local_addr());
            out.push_strided(&to, datagrams.bytes, datagrams.stride, 4..datagrams.stride);
            for segment in datagrams.segments() {
                out.push_prefixed(&to, &[0x40, 0, 0, 1], segment, 3);
                let back = SendTo {
                    from_ip: datagrams.local_ip,
                    tos: 8,
                    ..SendTo::new(&self.listener, datagrams.from)
                };
                out.push_copied(&back, &segment[..8]);
            }
        }
        out.flush().sent
    }
}

#[test]
fn nothing_is_allocated_per_datagram() {
    for gso in [true, false] {
        let mut relay = Relay::new(gso);
        let to = relay.listener.local_addr();
        let client_options = UdpOptions::default();
        let clients: Vec<_> = (0..CLIENTS)
            .map(|_| UdpSocket::bind("127.0.0.1:0".parse().unwrap(), &client_options).unwrap())
            .collect();
        let mut sent = 0;
        let mut before = 0;
        for round in 0..50 {
            // Also trains, so that the queue overflows its 32 datagrams and flushes by itself.
            for (n, client) in clients.iter().enumerate() {
                for _ in 0..=n {
                    client.send_to(&[round; 120], to, None).unwrap();
                }
            }
            if round == 2 {
                before = ALLOCATIONS.get();
                sent = 0;
            }
            sent += relay.turn();
        }
        assert_eq!(ALLOCATIONS.get() - before, 0, "with GSO {gso}");
        assert!(sent > 48 * 36 * 2, "{sent} sent");
    }
}
