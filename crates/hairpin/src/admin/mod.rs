//! The admin listener: `/metrics`, `/healthz` and `/readyz` over HTTP, for monitoring and for orchestrators.
//!
//! It has a thread of its own and sees the server only through an [`Observer`](server::Observer), so nothing that happens
//! here can hold a worker up. What it may use is bounded: connections at once and per second, the size of a request, the
//! time that a connection lasts.

pub(crate) mod health;
pub(crate) mod http;

#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result, anyhow};
use server::InheritedSockets;
use tokio::sync::oneshot;

use crate::config::AdminListen;
use crate::metrics::Source;

/// A socket that listens, and that nobody serves yet.
#[derive(Debug)]
pub(crate) struct Bound {
    listener: TcpListener,
    address: SocketAddr,
}

/// Binds the socket before anything is started, so that an address that is taken is known in time. `None` if there is to be
/// none, or if nobody asked for one and the usual address is taken.
///
/// # Errors
/// If an address was asked for and cannot be had.
pub(crate) fn bind(wanted: AdminListen, inherited: &mut InheritedSockets) -> Result<Option<Bound>> {
    let mut listen = |address| match inherited.take_tcp(address) {
        Some(listener) => take(listener),
        None => TcpListener::bind(address).and_then(take),
    };
    match wanted {
        AdminListen::Off => Ok(None),
        AdminListen::At(address) => listen(address).map(Some).map_err(|error| explain(address, &error)),
        AdminListen::Auto => Ok(listen(AdminListen::USUAL)
            .inspect_err(|error| {
                tracing::warn!(
                    "no metrics: {} cannot be listened on ({error}); say where with --admin ADDRESS:PORT or admin.listen, or \"off\"",
                    AdminListen::USUAL
                );
            })
            .ok()),
    }
}

fn take(listener: TcpListener) -> std::io::Result<Bound> {
    listener.set_nonblocking(true)?;
    Ok(Bound {
        address: listener.local_addr()?,
        listener,
    })
}

fn explain(address: SocketAddr, error: &std::io::Error) -> anyhow::Error {
    let why = match error.kind() {
        ErrorKind::AddrInUse => "another program listens there".to_owned(),
        ErrorKind::AddrNotAvailable => "it is not an address of this machine".to_owned(),
        ErrorKind::PermissionDenied => {
            "ports below 1024 take privileges (CAP_NET_BIND_SERVICE)".to_owned()
        }
        _ => error.to_string(),
    };
    anyhow!(
        "cannot serve metrics at {address}: {why}; set it with --admin ADDRESS:PORT or admin.listen, or say \"off\""
    )
}

impl Bound {
    /// The same once more, with a copy of the socket: for a server that hands over, and may have to serve again.
    ///
    /// # Errors
    /// When no file descriptor is left.
    pub(crate) fn try_clone(&self) -> std::io::Result<Bound> {
        Ok(Bound {
            listener: self.listener.try_clone()?,
            address: self.address,
        })
    }

    /// Its socket.
    pub(crate) fn socket(&self) -> &TcpListener {
        &self.listener
    }

    /// Where it listens, with the port that was chosen for port 0.
    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Serves until the result is dropped.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be made.
    pub(crate) fn serve(self, source: Arc<Source>) -> Result<Serving> {
        Serving::start("hairpin-admin", move || {
            let listener = tokio::net::TcpListener::from_std(self.listener)?;
            Ok(http::serve(listener, http::admin(source)))
        })
        .context("cannot serve metrics")
    }
}

/// A listener that is served; dropping it ends that.
#[derive(Debug)]
pub(crate) struct Serving {
    /// Dropping it is the sign to stop.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Serving {
    /// Runs a task for ever, on a thread of its own. `make` makes the task, within the runtime that will run it.
    ///
    /// # Errors
    /// If the thread or its runtime cannot be made, and what `make` returns.
    pub(crate) fn start<F: Future<Output = ()> + Send + 'static>(
        name: &str,
        make: impl FnOnce() -> std::io::Result<F>,
    ) -> std::io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()?;
        let task = {
            let _inside = runtime.enter();
            make()?
        };
        let (stop, stopped) = oneshot::channel::<()>();
        let body = move || {
            // Leaving the runtime ends what it runs.
            runtime.block_on(async {
                tokio::spawn(task);
                let _ = stopped.await;
            });
        };
        let thread = std::thread::Builder::new()
            .name(name.to_owned())
            .spawn(body)?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            // It has logged what it died of, if it did.
            let _ = thread.join();
        }
    }
}
