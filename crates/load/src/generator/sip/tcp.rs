//! The connections of a worker.

use std::io as stdio;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use ::io::{Event, Flushed, Poller, TcpConnection};

use crate::sip::layers::ConnectionLayers;
use crate::sip::out::{Origin, Out};
use crate::sip::stream::{SipConnection, SipConnectionState};

/// How long a connection, with its handshakes, may take to come about before the run.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Until a connection that was lost is made anew.
const AGAIN_NS: u64 = 100_000_000;

/// A server, and the connection to it if there is one.
#[derive(Debug)]
struct Target {
    target: SocketAddr,
    pipe: Option<SipConnection>,
    /// Something waits to be written.
    touched: bool,
    again_ns: u64,
}

/// Connections of a worker.
#[derive(Debug)]
pub(super) struct Connections {
    links: Vec<Target>,
    locals: Vec<SocketAddr>,
    local: Option<IpAddr>,
    way: ConnectionLayers,
    lost: Vec<u16>,
}

impl Connections {
    /// Connects to each of `targets` and waits for the handshakes, at most 5 s each. Adds each connection to `poller`;
    /// the token is its index in `targets`. If one of the first `needed` connections fails, returns its error. The
    /// other servers may be down: `send` tries them again.
    pub(super) fn open(
        targets: &[SocketAddr],
        needed: usize,
        local: Option<IpAddr>,
        way: ConnectionLayers,
        poller: &Poller,
    ) -> stdio::Result<Connections> {
        let begun: Vec<stdio::Result<TcpConnection>> = targets
            .iter()
            .map(|&target| connect(target, local))
            .collect();
        let (mut links, mut locals) = (Vec::new(), Vec::new());
        for (index, (connection, &target)) in begun.into_iter().zip(targets).enumerate() {
            let made = connection.and_then(|connection| {
                let mut pipe = SipConnection::with(&way, connection, index as u64)?;
                pipe.establish(CONNECT_TIMEOUT)?;
                pipe.watch_by(poller)?;
                Ok(pipe)
            });
            let pipe = match made {
                Ok(pipe) => Some(pipe),
                Err(error) if index < needed => return Err(error),
                Err(_) => None,
            };
            locals.push(match &pipe {
                Some(pipe) => pipe.local_addr()?,
                // Its own address is not known; that of its client's first connection is.
                None => locals[index % needed.max(1)],
            });
            links.push(Target {
                target,
                pipe,
                touched: false,
                again_ns: 0,
            });
        }
        Ok(Connections {
            links,
            locals,
            local,
            way,
            lost: Vec::new(),
        })
    }

    pub(super) fn local_addrs(&self) -> Vec<SocketAddr> {
        self.locals.clone()
    }

    /// Reads what a connection has.
    pub(super) fn receive(
        &mut self,
        event: Event,
        now_ns: u64,
        on: &mut impl FnMut(Origin, &[u8]),
    ) {
        let index = event.token as usize;
        let link = &mut self.links[index];
        let Some(pipe) = &mut link.pipe else {
            return;
        };
        let origin = Origin {
            link: index as u32,
            from: link.target,
        };
        if pipe.take(event, &mut |message| on(origin, message)) == SipConnectionState::Closed {
            self.lose(index, now_ns);
        } else {
            // It may be writable, or have a ping to answer.
            link.touched = true;
        }
    }

    fn lose(&mut self, index: usize, now_ns: u64) {
        let link = &mut self.links[index];
        link.pipe = None;
        link.again_ns = now_ns + AGAIN_NS;
        self.lost.push(index as u16);
    }

    /// Connections that were lost since it was last asked.
    pub(super) fn take_lost(&mut self) -> Vec<u16> {
        std::mem::take(&mut self.lost)
    }

    /// Makes lost connections anew, a moment after they were lost.
    fn renew(&mut self, index: usize, now_ns: u64, poller: &Poller) {
        let link = &mut self.links[index];
        if link.pipe.is_some() || now_ns < link.again_ns {
            return;
        }
        link.again_ns = now_ns + AGAIN_NS;
        let token = index as u64;
        let made = connect(link.target, self.local).and_then(|connection| {
            let mut pipe = SipConnection::with(&self.way, connection, token)?;
            pipe.watch_by(poller)?;
            Ok(pipe)
        });
        link.pipe = made.ok();
    }

    /// Writes what waits.
    pub(super) fn send(&mut self, out: &Out, now_ns: u64, poller: &Poller) -> Flushed {
        let mut flushed = Flushed::default();
        for entry in &out.entries {
            let index = entry.link as usize;
            self.renew(index, now_ns, poller);
            let link = &mut self.links[index];
            let message = &out.bytes[entry.range.clone()];
            let queued = link.pipe.as_mut().is_some_and(|pipe| pipe.queue(message));
            link.touched |= queued;
            if queued {
                flushed.sent += 1;
                flushed.sent_bytes += message.len() as u64;
            } else {
                flushed.would_block += 1;
            }
        }
        for index in 0..self.links.len() {
            let link = &mut self.links[index];
            if !std::mem::take(&mut link.touched) {
                continue;
            }
            let Some(pipe) = &mut link.pipe else { continue };
            match pipe.flush(poller) {
                Ok(calls) => flushed.syscalls += calls,
                Err(_) => self.lose(index, now_ns),
            }
        }
        flushed
    }
}

fn connect(target: SocketAddr, local: Option<IpAddr>) -> stdio::Result<TcpConnection> {
    TcpConnection::connect(target, local.map(|ip| SocketAddr::new(ip, 0)))
}
