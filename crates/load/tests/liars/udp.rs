//! A UDP socket that answers as it is told, and keeps an account of it.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Where a liar puts what it sends: at once, or after a while.
#[derive(Default)]
pub(crate) struct Sends(Vec<(Duration, SocketAddr, Vec<u8>)>);

impl Sends {
    pub(crate) fn now(&mut self, to: SocketAddr, bytes: &[u8]) {
        self.after(Duration::ZERO, to, bytes);
    }

    pub(crate) fn after(&mut self, delay: Duration, to: SocketAddr, bytes: &[u8]) {
        self.0.push((delay, to, bytes.to_vec()));
    }
}

/// A socket with an account of type `A`. Stops when dropped.
pub(crate) struct Liar<A> {
    pub(crate) address: SocketAddr,
    account: Arc<Mutex<A>>,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<A: Default + Send + 'static> Liar<A> {
    /// Answers by `serve`, which is given the number of each datagram (from 0), its bytes, its sender and the account.
    pub(crate) fn start(
        mut serve: impl FnMut(u64, &[u8], SocketAddr, &mut A, &mut Sends) + Send + 'static,
    ) -> Liar<A> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        socket
            .set_read_timeout(Some(Duration::from_millis(2)))
            .unwrap();
        let (account, done) = (Arc::new(Mutex::new(A::default())), Arc::default());
        let (shared, stop) = (Arc::clone(&account), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            let stop: Arc<AtomicBool> = stop;
            let mut buffer = [0; 4096];
            let mut waiting: Vec<(Instant, SocketAddr, Vec<u8>)> = Vec::new();
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let mut sends = Sends::default();
                    let mut account = shared.lock().unwrap();
                    serve(number, &buffer[..length], from, &mut account, &mut sends);
                    number += 1;
                    for (delay, to, bytes) in sends.0 {
                        match delay.is_zero() {
                            true => drop(socket.send_to(&bytes, to).unwrap()),
                            false => waiting.push((Instant::now() + delay, to, bytes)),
                        }
                    }
                }
                let now = Instant::now();
                for (_, to, bytes) in waiting.iter().filter(|(at, ..)| *at <= now) {
                    socket.send_to(bytes, *to).unwrap();
                }
                waiting.retain(|(at, ..)| *at > now);
            }
        });
        Liar {
            address,
            account,
            done,
            thread: Some(thread),
        }
    }

    /// What it says of itself.
    pub(crate) fn account(&self) -> MutexGuard<'_, A> {
        self.account.lock().unwrap()
    }
}

impl<A> Drop for Liar<A> {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
