//! A SIP server over UDP that answers as it is told, and counts what it did.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// A request, as text.
pub(crate) struct Request<'a> {
    pub(crate) text: &'a str,
    pub(crate) method: &'a str,
}

impl Request<'_> {
    /// The value of the first line of this name.
    pub(crate) fn value(&self, name: &str) -> &str {
        let lines = self.text.lines();
        let mut values = lines.filter_map(|line| line.split_once(':'));
        let found = values.find(|(found, _)| found.eq_ignore_ascii_case(name));
        found.map_or("", |(_, value)| value.trim())
    }

    /// The response with this status line and more lines.
    pub(crate) fn answer(&self, status: &str, lines: &str) -> String {
        let kept = ["via", "from", "call-id", "cseq", "record-route"];
        let mut text = format!("SIP/2.0 {status}\r\n");
        for line in self.text.lines().take_while(|line| !line.is_empty()) {
            let name = line.split(':').next().unwrap_or_default();
            let name = name.to_ascii_lowercase();
            if kept.contains(&name.as_str()) {
                text += &format!("{line}\r\n");
            } else if name == "to" {
                let tag = if line.contains("tag=") {
                    ""
                } else {
                    ";tag=liar"
                };
                text += &format!("{line}{tag}\r\n");
            }
        }
        text + lines + "Content-Length: 0\r\n\r\n"
    }

    /// The 200 of an INVITE, with a Contact at `local`.
    pub(crate) fn pick_up(&self, local: SocketAddr) -> String {
        self.answer("200 OK", &format!("Contact: <sip:liar@{local}>\r\n"))
    }
}

/// Where a liar puts what it sends: at once, or after a while.
#[derive(Default)]
pub(crate) struct Sends(Vec<(Duration, SocketAddr, String)>);

impl Sends {
    pub(crate) fn now(&mut self, to: SocketAddr, text: String) {
        self.after(Duration::ZERO, to, text);
    }

    pub(crate) fn after(&mut self, delay: Duration, to: SocketAddr, text: String) {
        self.0.push((delay, to, text));
    }
}

/// A server with an account of type `A`. Stops when dropped.
pub(crate) struct Liar<A> {
    pub(crate) address: SocketAddr,
    account: Arc<Mutex<A>>,
    done: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<A: Default + Send + 'static> Liar<A> {
    /// Answers by `serve`, which is given each message, its sender and the account.
    pub(crate) fn start(
        mut serve: impl FnMut(&Request<'_>, SocketAddr, SocketAddr, &mut A, &mut Sends) + Send + 'static,
    ) -> Liar<A> {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let step = Some(Duration::from_millis(2));
        socket.set_read_timeout(step).unwrap();
        let (account, done) = (Arc::new(Mutex::new(A::default())), Arc::default());
        let (shared, stop) = (Arc::clone(&account), Arc::clone(&done));
        let thread = std::thread::spawn(move || {
            let stop: Arc<AtomicBool> = stop;
            let mut buffer = [0; 4096];
            let mut waiting: Vec<(Instant, SocketAddr, String)> = Vec::new();
            while !stop.load(Ordering::Relaxed) {
                if let Ok((length, from)) = socket.recv_from(&mut buffer) {
                    let text = std::str::from_utf8(&buffer[..length]).unwrap();
                    let method = text.split(' ').next().unwrap();
                    let request = Request { text, method };
                    let mut sends = Sends::default();
                    let mut account = shared.lock().unwrap();
                    serve(&request, address, from, &mut account, &mut sends);
                    let now = Instant::now();
                    waiting.extend(
                        sends
                            .0
                            .into_iter()
                            .map(|(delay, to, text)| (now + delay, to, text)),
                    );
                }
                let now = Instant::now();
                let due = waiting.iter().filter(|(at, ..)| *at <= now);
                for (_, to, text) in due {
                    socket.send_to(text.as_bytes(), to).unwrap();
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
    pub(crate) fn account(&self) -> std::sync::MutexGuard<'_, A> {
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
