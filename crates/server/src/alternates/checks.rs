//! Checks whether other servers answer. A separate thread; no worker waits for it.

use super::AlternateServer;
use crate::error::StartError;
use crate::live::Changes;
use crate::privileges::KeptCapabilities;
use std::io;
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use stun::{Builder, Class, Message, Method, TransactionId};
use turn::Transport;

/// How long a check waits for a response. After two failed attempts, the server counts as down.
const CHECK_TIMEOUT: Duration = Duration::from_secs(1);

/// The handle of the thread. Dropping it ends the thread.
#[derive(Debug)]
pub(crate) struct Checks {
    ended: Arc<AtomicBool>,
    changes: Arc<Changes>,
    thread: Option<JoinHandle<()>>,
}

impl Checks {
    /// Starts to check the servers of the settings, whenever they change and at their interval.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(
        changes: Arc<Changes>,
        kept: KeptCapabilities,
    ) -> Result<Checks, StartError> {
        let ended = Arc::new(AtomicBool::new(false));
        let (of_thread, changes_of_thread) = (Arc::clone(&ended), Arc::clone(&changes));
        let thread = std::thread::Builder::new()
            .name("hairpin-checks".to_owned())
            .spawn(move || {
                kept.restrict_worker_thread();
                run(&changes_of_thread, &of_thread);
            })
            .map_err(StartError::Thread)?;
        Ok(Checks {
            ended,
            changes,
            thread: Some(thread),
        })
    }
}

impl Drop for Checks {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        self.changes.notify();
        if let Some(thread) = self.thread.take() {
            // A panic in it has been reported.
            let _ = thread.join();
        }
    }
}

fn run(changes: &Changes, ended: &AtomicBool) {
    let mut checked: Vec<Arc<AlternateServer>> = Vec::new();
    let mut due: Option<Instant> = None;
    while !ended.load(Ordering::Relaxed) {
        let settings = changes.live().settings.alternates.clone();
        let has_changed = !is_same(&checked, &settings.servers);
        if has_changed || due.is_some_and(|due| due <= Instant::now()) {
            due = (!settings.check_interval.is_zero() && !settings.servers.is_empty())
                .then(|| Instant::now() + settings.check_interval);
            if due.is_some() {
                check_all(&settings.servers);
            }
            checked = settings.servers;
        }
        changes.wait(ended, due);
    }
}

fn is_same(one: &[Arc<AlternateServer>], other: &[Arc<AlternateServer>]) -> bool {
    one.len() == other.len() && one.iter().zip(other).all(|(a, b)| Arc::ptr_eq(a, b))
}

/// Checks all servers at once, so that one that is down does not delay the others.
fn check_all(servers: &[Arc<AlternateServer>]) {
    std::thread::scope(|scope| {
        for server in servers {
            // Without a thread for it, the server stays what it was.
            let check = || check(server);
            drop(std::thread::Builder::new().spawn_scoped(scope, check));
        }
    });
}

fn check(server: &AlternateServer) {
    let Some(address) = server.address() else {
        return;
    };
    let probe = || match server.transport {
        Some(Transport::Tcp | Transport::Tls) => accepts(address),
        _ => answers(address),
    };
    let result = probe().or_else(|_| probe());
    let is_down = result.is_err();
    server.checks[usize::from(is_down)].fetch_add(1, Ordering::Relaxed);
    if server.is_down.swap(is_down, Ordering::Relaxed) == is_down {
        return;
    }
    match result {
        Ok(()) => tracing::info!(%address, "an alternate server responds again"),
        Err(error) => {
            tracing::warn!(%address, %error, "an alternate server does not respond: it gets no clients");
        }
    }
}

/// Whether a TCP connection can be opened.
fn accepts(address: SocketAddr) -> io::Result<()> {
    TcpStream::connect_timeout(&address, CHECK_TIMEOUT).map(drop)
}

/// Whether a Binding request is answered: with success or with an error.
fn answers(address: SocketAddr) -> io::Result<()> {
    let any: SocketAddr = match address.is_ipv4() {
        true => ([0, 0, 0, 0], 0).into(),
        false => ([0; 16], 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.connect(address)?;
    let mut id = TransactionId([0; 12]);
    getrandom::fill(&mut id.0).map_err(io::Error::other)?;
    let mut request = [0; stun::HEADER_LEN];
    let request = Builder::new(&mut request, Class::Request, Method::BINDING, &id)
        .map_err(io::Error::other)?
        .finish();
    socket.send(request)?;
    let end = Instant::now() + CHECK_TIMEOUT;
    let mut buffer = [0; 1500];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        socket.set_read_timeout(Some(left))?;
        let length = socket.recv(&mut buffer)?;
        let answer = buffer.get(..length).unwrap_or_default();
        if Message::parse(answer).is_ok_and(|message| message.transaction_id() == id) {
            return Ok(());
        }
    }
}
