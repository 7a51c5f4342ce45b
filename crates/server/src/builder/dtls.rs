//! What the UDP listeners carry, and the workers' DTLS.

use super::Builder;
use crate::certificates::{Certificates, OfListeners};
use crate::connections::WorkerLimits;
use crate::dtls::{Dtls, ListenerProtocols, Shared};
use crate::error::StartError;
use crate::random;
use crate::worker::Worker;
use ::dtls::CookieKey;
use std::net::SocketAddr;
use std::sync::Arc;

impl Builder {
    /// The addresses of UDP listeners and what each carries. Those of plain UDP come first.
    pub(super) fn udp_addresses(&self) -> Result<Vec<(SocketAddr, ListenerProtocols)>, StartError> {
        for list in [&self.listen, &self.listen_dtls] {
            let mut known = list.iter().enumerate();
            let duplicate =
                known.find(|(at, address)| address.port() != 0 && list[..*at].contains(address));
            if let Some((_, address)) = duplicate {
                return Err(StartError::DuplicateListener(*address));
            }
        }
        let has_dtls =
            |address: &SocketAddr| address.port() != 0 && self.listen_dtls.contains(address);
        let plain = self.listen.iter().map(|address| {
            let carries = if has_dtls(address) {
                ListenerProtocols::Both
            } else {
                ListenerProtocols::Plain
            };
            (*address, carries)
        });
        let is_shared = |address: &SocketAddr| address.port() != 0 && self.listen.contains(address);
        let only = self
            .listen_dtls
            .iter()
            .filter(|address| !is_shared(address));
        let only = only.map(|address| (*address, ListenerProtocols::Dtls));
        Ok(plain.chain(only).collect())
    }

    /// What each UDP listener carries, in the order of their numbers.
    pub(super) fn carries(&self) -> Result<Arc<[ListenerProtocols]>, StartError> {
        let addresses = self.udp_addresses()?;
        let bound = addresses.into_iter().map(|(_, carries)| carries);
        // Sockets that were given open come behind those that are bound here.
        let open = self.listen_sockets.iter().map(|_| ListenerProtocols::Plain);
        Ok(bound.chain(open).collect())
    }

    /// The certificates of each UDP listener, in the order of their numbers.
    fn certificates_of_listeners(
        &self,
        certificates: &Certificates,
    ) -> Result<OfListeners, StartError> {
        let own = |(address, carries): (SocketAddr, ListenerProtocols)| {
            let own = certificates.at(address);
            match carries != ListenerProtocols::Plain && own.is_empty() {
                true => Err(StartError::NoCertificate(address)),
                false => Ok(own),
            }
        };
        let addresses = self.udp_addresses()?.into_iter();
        Ok(OfListeners(addresses.map(own).collect::<Result<_, _>>()?))
    }

    /// Adds a DTLS endpoint to each worker, if there are DTLS listeners.
    pub(super) fn serve_dtls(
        &self,
        workers: &mut [Worker],
        limits: &WorkerLimits,
    ) -> Result<(), StartError> {
        let Some(first) = self.listen_dtls.first() else {
            return Ok(());
        };
        let certificates = self.certificates.as_ref();
        let certificates = certificates.ok_or(StartError::NoCertificate(*first))?;
        let shared = Shared {
            certificates: Arc::new(self.certificates_of_listeners(certificates)?),
            // One key for all workers: the cookie may come back to another one.
            cookies: CookieKey::new(&random::seed().map_err(StartError::Randomness)?),
            carries: self.carries()?,
        };
        for worker in workers {
            let seed = random::seed().map_err(StartError::Randomness)?;
            let (words, _) = seed.as_chunks::<8>();
            let seed = [u64::from_ne_bytes(words[0]), u64::from_ne_bytes(words[1])];
            worker.core.dtls = Some(Box::new(Dtls::new(shared.clone(), limits, seed)));
        }
        Ok(())
    }
}
