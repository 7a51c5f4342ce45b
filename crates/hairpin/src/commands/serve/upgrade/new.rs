//! The new process: it gets the sockets and keys of the running server, and reports when it serves.

use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use server::handover::{ForeignMessage, Joining, Offer, TakeOver};
use server::passing::{self, Message};
use server::{InheritedSockets, stdio};

use super::messages::{self, FOREIGN, HELD, HOLD, OFFER, PROCESS, Process, SERVING, STOP};
use crate::config::ControlSocket;
use crate::control::protocol::{self, Command, MAX_REPLY};
use crate::control::{BoundControlSocket, Change, ChangeSender};

/// Longer than the old process needs for any step: it gives its workers 20 s to hold their clients.
const STEP_TIMEOUT: Duration = Duration::from_secs(30);

/// Requests that may wait for the connection to the old process.
const MAX_WAITING_REQUESTS: usize = 256;

/// The sockets and keys that the old process has handed over.
pub(in super::super) struct InheritedProcess {
    stream: Arc<UnixStream>,
    process: Process,
    control: Option<[OwnedFd; 2]>,
    output: [OwnedFd; 2],
    offer: Option<Offer>,
    others: Vec<OwnedFd>,
    requests: Option<Receiver<ForeignMessage>>,
}

impl InheritedProcess {
    /// Asks the running server at its control socket.
    ///
    /// # Errors
    /// If there is none, or if it refuses.
    pub(in super::super) fn begin(socket: &ControlSocket) -> Result<Self> {
        let path = match socket {
            ControlSocket::Off => bail!(
                "the control socket is off, so no server can be reached: restart the server instead"
            ),
            ControlSocket::Auto => ControlSocket::default_path(),
            ControlSocket::At(path) => path.clone(),
        };
        let from = || format!("cannot take over from the server at {}", path.display());
        let stream = UnixStream::connect(&path).with_context(from)?;
        stream.set_read_timeout(Some(STEP_TIMEOUT))?;
        stream.set_write_timeout(Some(STEP_TIMEOUT))?;
        (&stream).write_all(protocol::request(Command::TakeOver).as_bytes())?;
        let line = read_line(&stream).with_context(from)?;
        let reply = protocol::read_reply(&line)
            .map_err(|error| anyhow!(error))
            .with_context(from)?;
        reply
            .map_err(|refusal| anyhow!(refusal.error))
            .with_context(from)?;
        let offer = expect(&stream, OFFER).with_context(from)?;
        let mut offer = Offer::decode(&offer.body, offer.fds)?;
        let process = expect(&stream, PROCESS).with_context(from)?;
        let mut fds = process.fds.into_iter();
        let mut two = || -> Result<[OwnedFd; 2]> {
            let pair = [fds.next(), fds.next()];
            match pair {
                [Some(one), Some(other)] => Ok([one, other]),
                _ => bail!("the running server has sent too few descriptors"),
            }
        };
        let (control, output) = (two()?, two()?);
        let mut others = offer.take_other_sockets();
        others.extend(fds);
        Ok(Self {
            stream: Arc::new(stream),
            process: serde_json::from_slice(&process.body)
                .context("the running server's message")?,
            control: Some(control),
            output,
            offer: Some(offer),
            others,
            requests: None,
        })
    }

    /// The secret that the running server has generated.
    pub(in super::super) fn made_up_secret(&self) -> Option<String> {
        self.process.made_up_secret.clone()
    }

    /// The sockets for [`InheritedSockets`].
    pub(in super::super) fn sockets(&mut self) -> InheritedSockets {
        InheritedSockets::of_predecessor(std::mem::take(&mut self.others))
    }

    /// Its control socket, if the configuration has the same path; `None` if another one is to be bound.
    ///
    /// # Errors
    /// If its file does not exist any more.
    pub(in super::super) fn control(
        &mut self,
        wanted: &ControlSocket,
    ) -> Result<Option<BoundControlSocket>> {
        let path = match wanted {
            ControlSocket::Off => return Ok(None),
            ControlSocket::Auto => ControlSocket::default_path(),
            ControlSocket::At(path) => path.clone(),
        };
        let is_same = path.as_os_str() == self.process.control_socket.as_str();
        let Some(copies) = self.control.take_if(|_| is_same) else {
            return Ok(None);
        };
        BoundControlSocket::of_predecessor(path, copies).map(Some)
    }

    /// What the server is built with.
    pub(in super::super) fn take_over(&mut self) -> Option<TakeOver> {
        let (sender, requests) = sync_channel(MAX_WAITING_REQUESTS);
        self.requests = Some(requests);
        let stream = Arc::clone(&self.stream);
        let hold =
            move |joining: &Joining| hold(&stream, joining).map_err(|error| format!("{error:#}"));
        Some(TakeOver::new(self.offer.take()?, hold, sender))
    }

    /// The server runs: reports that to the old process, and receives its messages from now on. With `output`, this
    /// process writes to the standard output and error of the old one.
    ///
    /// # Errors
    /// If the old process has ended meanwhile.
    pub(in super::super) fn serving(
        self,
        changes: ChangeSender,
        output: bool,
    ) -> Result<PredecessorLink> {
        self.stream.set_read_timeout(None)?;
        if output {
            stdio::replace(self.output[0].as_fd(), self.output[1].as_fd())?;
        }
        let pid = std::process::id().to_string();
        passing::send(&self.stream, SERVING, pid.as_bytes(), &[])
            .context("the running server has ended while this one took over")?;
        let writer = Arc::new(Mutex::new(()));
        if let Some(requests) = self.requests {
            let (stream, writer) = (Arc::clone(&self.stream), Arc::clone(&writer));
            let body = move || send_requests(&requests, &stream, &writer);
            std::thread::Builder::new()
                .name("hairpin-foreign".to_owned())
                .spawn(body)?;
        }
        let stream = Arc::clone(&self.stream);
        let body = move || listen(&stream, &changes);
        std::thread::Builder::new()
            .name("hairpin-upgrade".to_owned())
            .spawn(body)?;
        Ok(PredecessorLink {
            stream: self.stream,
            writer,
        })
    }
}

/// The connection to the old process, while the old process has clients.
pub(in super::super) struct PredecessorLink {
    stream: Arc<UnixStream>,
    writer: Arc<Mutex<()>>,
}

impl PredecessorLink {
    /// This process stops because it got a signal or a command.
    pub(in super::super) fn stop(&self) {
        let _writes = lock(&self.writer);
        // It may have ended.
        let _ = passing::send(&self.stream, STOP, &[], &[]);
    }
}

fn lock(writer: &Mutex<()>) -> MutexGuard<'_, ()> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}

fn send_requests(requests: &Receiver<ForeignMessage>, stream: &UnixStream, writer: &Mutex<()>) {
    for request in requests {
        let connection = request.connection.as_ref().map(AsFd::as_fd);
        let body = messages::foreign(&request);
        let _writes = lock(writer);
        if passing::send(stream, FOREIGN, &body, connection.as_slice()).is_err() {
            return;
        }
    }
}

/// Passes messages of the old process to the main thread.
fn listen(stream: &UnixStream, changes: &ChangeSender) {
    while let Ok(message) = passing::receive(stream) {
        if !changes.request_change(Change::FromPredecessor(message)) {
            return;
        }
    }
    changes.request_change(Change::PredecessorEnded);
}

/// Asks the old process to give its clients entries, and waits until it has.
fn hold(stream: &UnixStream, joining: &Joining) -> Result<()> {
    let (body, fds) = joining.encode();
    passing::send(stream, HOLD, &body, &fds)?;
    let held = expect(stream, HELD)?;
    if held.body.is_empty() {
        return Ok(());
    }
    bail!("{}", String::from_utf8_lossy(&held.body))
}

/// The next message, which must be of this kind.
fn expect(stream: &UnixStream, kind: u8) -> Result<Message> {
    let message = passing::receive(stream).context("the running server does not respond")?;
    if message.kind != kind {
        bail!(
            "it sent message {} instead of {kind}: use the same release",
            message.kind
        );
    }
    Ok(message)
}

/// A line, byte by byte: the bytes behind it are binary messages, which must stay in the socket.
fn read_line(stream: &UnixStream) -> Result<Vec<u8>> {
    let mut line = Vec::new();
    let mut reader = stream;
    while line.last() != Some(&b'\n') {
        let mut byte = [0];
        reader
            .read_exact(&mut byte)
            .context("the running server does not respond")?;
        line.push(byte[0]);
        if line.len() > MAX_REPLY {
            bail!("the response of the running server is too long");
        }
    }
    Ok(line)
}
