//! The endpoints of the process that are not the server's: metrics, the control socket, and validations of the ACME
//! client.

use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Context, Result};
use server::InheritedSockets;
use server::certificates::{CertificateFiles, Certificates};

use super::upgrade::InheritedProcess;
use crate::acme;
use crate::admin::{self, Serving};
use crate::config::Config;
use crate::control::{self, ChangeSender, Shared};

/// Bound sockets. They stay open after the process has handed them over, because it may have to serve again.
#[derive(Default)]
pub(super) struct Endpoints {
    admin: Option<admin::AdminSocket>,
    control: Option<control::BoundControlSocket>,
    acme: Option<acme::AcmeSockets>,
    serving: Option<All>,
}

/// All endpoints are served until this is dropped.
#[expect(dead_code, reason = "held for what dropping them does")]
struct All {
    admin: Option<Serving>,
    control: Option<Serving>,
    acme: Option<acme::Serving>,
}

impl Endpoints {
    /// Binds the sockets before anything is started, or takes them from the process that this one takes over from.
    ///
    /// # Errors
    /// If one cannot be bound.
    pub(super) fn bind(
        config: &Config,
        inherited: &mut InheritedSockets,
        taken: Option<&mut InheritedProcess>,
    ) -> Result<Self> {
        let acme = acme::bind(&config.acme, inherited)?;
        let handed_over = taken.map(|taken| taken.control(&config.control_socket));
        let control = match handed_over.transpose()?.flatten() {
            Some(control) => Some(control),
            None => control::bind(&config.control_socket)?,
        };
        Ok(Self {
            admin: admin::bind(config.admin, inherited)?,
            control,
            acme,
            serving: None,
        })
    }

    /// The files of the certificate that comes from an ACME server.
    pub(super) fn certificate(&self) -> Option<CertificateFiles> {
        self.acme.as_ref().map(acme::AcmeSockets::files)
    }

    /// Where metrics are served.
    pub(super) fn admin_address(&self) -> Option<SocketAddr> {
        self.admin.as_ref().map(admin::AdminSocket::address)
    }

    /// The path of the control socket.
    pub(super) fn control_path(&self) -> Option<PathBuf> {
        Some(self.control.as_ref()?.path().to_owned())
    }

    /// The addresses that clients must not relay to.
    pub(super) fn addresses(&self) -> Vec<SocketAddr> {
        let for_acme = self.acme.iter().flat_map(acme::AcmeSockets::listeners);
        self.admin_address().into_iter().chain(for_acme).collect()
    }

    /// Serves all of them.
    ///
    /// # Errors
    /// If a thread cannot be started, or no descriptor is left.
    pub(super) fn serve(
        &mut self,
        shared: &Arc<Shared>,
        changes: &ChangeSender,
        certificates: Option<Certificates>,
    ) -> Result<()> {
        let source = &shared.source;
        let admin = self.admin.as_ref().map(|admin| {
            let copy = admin.try_clone()?;
            copy.serve(Arc::clone(shared), changes.clone(), certificates.as_ref())
        });
        let acme = self.acme.as_ref().zip(certificates).map(|(acme, of)| {
            let copy = acme.try_clone()?;
            copy.serve(of, Arc::clone(&source.acme))
        });
        let control = self.control.as_ref().map(|control| {
            let copy = control.try_clone()?;
            copy.serve(Arc::clone(shared), changes.clone())
        });
        self.serving = Some(All {
            admin: admin.transpose()?,
            control: control.transpose()?,
            acme: acme.transpose()?,
        });
        Ok(())
    }

    /// No other process has the control socket.
    pub(super) fn own(&self) {
        if let Some(control) = &self.control {
            control.file().own();
        }
    }

    /// Another process serves them from now on.
    pub(super) fn hand_over(&mut self) {
        if let Some(control) = &self.control {
            control.file().hand_over();
        }
        self.serving = None;
    }

    /// Copies for another process: the control socket with its lock, and all listeners over TCP.
    ///
    /// # Errors
    /// If there is no control socket, or no descriptor is left.
    pub(super) fn copies(&self) -> Result<([OwnedFd; 2], Vec<OwnedFd>)> {
        let control = self
            .control
            .as_ref()
            .context("there is no control socket")?;
        let acme = self.acme.iter().flat_map(acme::AcmeSockets::sockets);
        let listeners = self
            .admin
            .iter()
            .map(admin::AdminSocket::socket)
            .chain(acme);
        let copy = |listener: &TcpListener| Ok(listener.try_clone()?.into());
        Ok((
            control.copies()?,
            listeners.map(copy).collect::<Result<_>>()?,
        ))
    }
}
