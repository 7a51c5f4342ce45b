//! How SIP's TLS verifies others.

use std::sync::Arc;

use anyhow::Result;
use server::Builder;
use server::certificates::Certificates;
use server::rustls::RootCertStore;
use server::sip::client_verifier;

use crate::config::{self, Config};

/// Certificates of others: of SIP's clients and next hops.
pub(super) fn with_peers(
    mut builder: Builder,
    config: &Config,
    certificates: Option<&Certificates>,
) -> Result<Builder> {
    let sip = &config.sip;
    let is_required = sip.client_certificates == config::ClientCertificates::Require;
    if let Some(certificates) = certificates
        && sip.client_certificates != config::ClientCertificates::None
    {
        let verifier = client_verifier(Certificates::roots(&sip.client_ca)?, is_required)?;
        let accept = |certificates: &Certificates| {
            certificates.server_config_for_clients(config.only_tls13, Arc::clone(&verifier))
        };
        builder = builder.sip_tls(accept(certificates));
        for listener in certificates.listeners() {
            builder = builder.sip_tls_of(listener, accept(&certificates.at(listener)));
        }
    }
    if sip.listen_tls.is_empty() {
        return Ok(builder);
    }
    let roots = match sip.next_hop_ca.is_empty() {
        true => system_roots(),
        false => Certificates::roots(&sip.next_hop_ca)?,
    };
    if roots.is_empty() {
        tracing::warn!(
            change = "set sip.next_hop_ca",
            "this system has no root certificates: SIP opens no connection over TLS"
        );
        return Ok(builder);
    }
    let own = &sip.next_hop_certificate;
    let own = (!own.is_empty()).then(|| Certificates::from_files(own.clone()));
    Ok(builder.sip_next_hops(roots, own.transpose()?))
}

/// The root certificates of this system. Those that cannot be parsed are left out.
fn system_roots() -> Arc<RootCertStore> {
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    Arc::new(roots)
}
