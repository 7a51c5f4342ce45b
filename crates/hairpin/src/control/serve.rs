//! Serving the control socket: few connections at once, each with one request, and a time limit on each step.

use std::io::{Error, ErrorKind};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;
use server::sessions::Sessions;
use server::sip::SipInspector;
use tokio::net::{UnixListener, UnixStream};
use tokio::time::{sleep, timeout};

use super::protocol::{self, Command, MAX_REQUEST, Refusal, Reply};
use super::routing::Routing;
use super::tasks::Tasks;
use super::upgrade::Upgrade;
use super::{BoundControlSocket, Change, ChangeSender, nodes, sessions, sip, status};
use crate::admin::{Applied, Serving};
use crate::metrics::Source;

/// Connections at once. One more closes the oldest.
const MAX_CONNECTIONS: usize = 16;
/// How long a request or a reply may take to arrive.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long to wait when the system has no descriptor left for another connection.
const ACCEPT_RETRY_TIME: Duration = Duration::from_millis(100);

/// What replies are made of.
#[derive(Debug)]
pub(crate) struct Shared {
    /// The counters and the health of the server.
    pub(crate) source: Arc<Source>,
    /// The configuration file, if there is one.
    pub(crate) config_file: Option<PathBuf>,
    /// Reads the state of SIP; `None` if there is no SIP listener.
    pub(crate) sip: Option<SipInspector>,
    /// Where metrics are served.
    pub(crate) admin: Option<std::net::SocketAddr>,
    /// Whether the server got the command to end.
    pub(crate) stopping: AtomicBool,
    /// What the process says that this one has taken over from, while it is there.
    pub(crate) predecessor: Mutex<Option<Value>>,
    /// The process that this one has started to take over, if any.
    pub(crate) upgrade: Upgrade,
    /// How the SIP proxy decides now.
    pub(crate) routing: Arc<Routing>,
    /// Lists and ends allocations.
    pub(crate) sessions: Sessions,
    /// The part of the current configuration that the API uses.
    pub(crate) applied: Mutex<Arc<Applied>>,
}

impl Shared {
    /// The part of the current configuration that the API uses.
    pub(crate) fn applied(&self) -> Arc<Applied> {
        let applied = self.applied.lock();
        Arc::clone(&applied.unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces the configuration that the API uses, after a reload.
    pub(crate) fn set_applied(&self, applied: Applied) {
        let mut now = self.applied.lock().unwrap_or_else(PoisonError::into_inner);
        *now = Arc::new(applied);
    }
}

impl BoundControlSocket {
    /// Serves until the result is dropped.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be made.
    pub(crate) fn serve(self, shared: Arc<Shared>, changes: ChangeSender) -> Result<Serving> {
        let BoundControlSocket { listener, file } = self;
        Serving::start("hairpin-control", Tasks::default(), move || {
            let listener = UnixListener::from_std(listener)?;
            Ok(async move {
                let owner = file.owner;
                serve(listener, owner, Arc::new((shared, changes))).await;
                drop(file);
            })
        })
        .context("cannot serve the control socket")
    }
}

/// Serves forever.
async fn serve(listener: UnixListener, owner: u32, with: Arc<(Arc<Shared>, ChangeSender)>) {
    let mut open = Vec::with_capacity(MAX_CONNECTIONS);
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                open.retain(|connection: &tokio::task::JoinHandle<()>| !connection.is_finished());
                if open.len() >= MAX_CONNECTIONS {
                    open.remove(0).abort();
                }
                open.push(tokio::spawn(serve_connection(
                    stream,
                    owner,
                    Arc::clone(&with),
                )));
            }
            Err(error) => {
                tracing::debug!("the control socket accepted nothing: {error}");
                sleep(ACCEPT_RETRY_TIME).await;
            }
        }
    }
}

/// Reads one request and answers it.
async fn serve_connection(stream: UnixStream, owner: u32, with: Arc<(Arc<Shared>, ChangeSender)>) {
    let reply = match request(&stream, owner).await {
        // The main thread replies, and goes on with the connection.
        Ok((Command::TakeOver, _, _)) => return hand_over(stream, &with.1),
        Ok((command, arguments, user)) => {
            let by = format!("control socket, user ID {user}");
            respond(command, arguments, &with, by).await
        }
        Err(refusal) => Err(refusal),
    };
    let line = protocol::reply(&reply);
    // A client that does not read it has disconnected.
    let _ = timeout(MESSAGE_TIMEOUT, write(&stream, line.as_bytes())).await;
}

/// Gives the connection to the main thread.
fn hand_over(stream: UnixStream, changes: &ChangeSender) {
    let stream = stream.into_std().and_then(|stream| {
        stream.set_nonblocking(false)?;
        Ok(stream)
    });
    match stream {
        Ok(stream) => drop(changes.request_change(Change::HandOver(stream))),
        Err(error) => tracing::error!("upgrade request refused: {error}"),
    }
}

/// The command, its arguments and the user ID of the peer, if this peer may give it.
async fn request(stream: &UnixStream, owner: u32) -> Result<(Command, Value, u32), Refusal> {
    // The file has the same permissions; this check holds even if somebody changes them.
    let peer = stream
        .peer_cred()
        .map_err(|error| Refusal::new(format!("the kernel does not say who asks: {error}")))?;
    if peer.uid() != owner && peer.uid() != 0 {
        return Err(Refusal::new(
            "permission denied: run the command as the user of the server, or as root",
        ));
    }
    match timeout(MESSAGE_TIMEOUT, read_line(stream)).await {
        Ok(Ok(line)) => {
            let (command, arguments) = protocol::read_request(&line)?;
            Ok((command, arguments, peer.uid()))
        }
        Ok(Err(error)) => Err(Refusal::new(format!("no request: {error}"))),
        Err(_) => Err(Refusal::new(format!(
            "no request within {} s",
            MESSAGE_TIMEOUT.as_secs()
        ))),
    }
}

async fn respond(
    command: Command,
    arguments: Value,
    with: &(Arc<Shared>, ChangeSender),
    by: String,
) -> Reply {
    let (shared, changes) = with;
    match command {
        Command::Status => Ok(status::status(shared)),
        Command::Nodes => nodes::list(shared),
        Command::Reload => changes.make(Change::Reload, "server.reload", by).await,
        Command::Drain => changes.make(Change::Drain, "server.drain", by).await,
        Command::EndDrain => changes.make(Change::EndDrain, "server.end_drain", by).await,
        Command::Describe => changes.send(Change::Describe).await,
        Command::SipBindings
        | Command::SipTrunks
        | Command::SipCalls
        | Command::SipTrace
        | Command::SipRemove
        | Command::Sessions
        | Command::EndSession
        | Command::EndUser => {
            let shared = Arc::clone(shared);
            // The command waits for workers, so it must not block this thread.
            let asked = move || match command {
                Command::Sessions | Command::EndSession | Command::EndUser => {
                    sessions::respond(command, &arguments, &shared, &by)
                }
                _ => sip::respond(command, &arguments, &shared, &by),
            };
            let reply = tokio::task::spawn_blocking(asked).await;
            reply.unwrap_or_else(|_| {
                Err(Refusal::new(
                    "the server is stopping: try again when it has restarted",
                ))
            })
        }
        // Handled before.
        Command::TakeOver => Err(Refusal::new("the connection is gone")),
    }
}

async fn read_line(stream: &UnixStream) -> Result<Vec<u8>, Error> {
    let mut line = Vec::new();
    loop {
        stream.readable().await?;
        let mut part = [0; MAX_REQUEST];
        match stream.try_read(&mut part) {
            Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
            Ok(length) => line.extend_from_slice(&part[..length]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => continue,
            Err(error) => return Err(error),
        }
        if let Some(end) = line.iter().position(|&byte| byte == b'\n') {
            line.truncate(end);
            return Ok(line);
        }
        if line.len() >= MAX_REQUEST {
            return Err(Error::other(format!(
                "a line has at most {MAX_REQUEST} bytes"
            )));
        }
    }
}

async fn write(stream: &UnixStream, mut bytes: &[u8]) -> Result<(), Error> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
