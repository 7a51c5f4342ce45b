//! The decisions of the SIP proxy, explained: for `hairpin sip route`, with the settings of a file or of a running
//! server.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use anyhow::Result;
use serde::{Deserialize, Serialize};
use server::sip::{Preview, PreviewRequest, Previewed, Previewer, SipSettings, Transport};

/// A request that is not sent.
#[derive(Clone, Debug)]
pub(crate) struct RouteQuery {
    /// The URI in From.
    pub(crate) from: String,
    /// The Request-URI.
    pub(crate) to: String,
    /// Where it comes from.
    pub(crate) source: IpAddr,
    /// The domain in the client certificate of the sender.
    pub(crate) certificate: Option<String>,
    /// Further header fields.
    pub(crate) headers: Vec<String>,
    pub(crate) method: String,
    pub(crate) call_id: String,
}

impl RouteQuery {
    /// The Call-ID, if none is given.
    pub(crate) const CALL_ID: &str = "1@preview";
}

/// What a decision depends on. Each reload, and each change of the tables of stores, makes a new one.
#[derive(Debug, Default)]
pub(crate) struct Snapshot {
    /// How SIP is served.
    pub(crate) sip: SipSettings,
    /// The names of all users of the configuration.
    pub(crate) users: Vec<String>,
    /// The SIP listeners.
    pub(crate) listeners: Vec<SocketAddr>,
    /// The tables of these, made for the first decision: a store can have many routes.
    pub(crate) previewer: OnceLock<Previewer>,
}

/// The settings that the workers have now.
#[derive(Debug, Default)]
pub(crate) struct Routing(Mutex<Arc<Snapshot>>);

impl Routing {
    /// As it is now.
    pub(crate) fn get(&self) -> Arc<Snapshot> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Replaces it.
    pub(crate) fn set(&self, snapshot: Snapshot) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(snapshot);
    }
}

impl Snapshot {
    /// The decision about a request.
    ///
    /// # Errors
    /// If the request is malformed.
    pub(crate) fn explain(&self, request: &RouteQuery) -> Result<Report> {
        let request = PreviewRequest {
            method: &request.method,
            from: &request.from,
            to: &request.to,
            source: SocketAddr::new(request.source, 5060),
            transport: match request.certificate {
                Some(_) => Transport::Tls,
                None => Transport::Udp,
            },
            certificate: request.certificate.as_deref(),
            headers: &request.headers,
            call_id: &request.call_id,
            draw: draw()?,
        };
        Ok(Report::of(&self.previewer()?.preview(&request)?))
    }

    fn previewer(&self) -> Result<&Previewer> {
        if let Some(previewer) = self.previewer.get() {
            return Ok(previewer);
        }
        let users: Vec<&str> = self.users.iter().map(String::as_str).collect();
        let previewer = Previewer::new(&self.sip, &users, &self.listeners)?;
        // Another thread may have been faster.
        Ok(self.previewer.get_or_init(|| previewer))
    }
}

/// For routes that hunt by weight: another number at each run, as each call has.
fn draw() -> Result<u64> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|error| anyhow::anyhow!("no random number: {error}"))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// A decision with its steps.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Report {
    pub(crate) steps: Vec<String>,
    pub(crate) result: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) code: Option<u16>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) user: Option<String>,
    pub(crate) targets: Vec<Target>,
}

/// Where the request goes.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Target {
    pub(crate) uri: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_hop: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) trunk: Option<String>,
}

impl Report {
    fn of(previewed: &Previewed) -> Report {
        let mut report = Report {
            steps: previewed.steps.clone(),
            result: String::new(),
            code: None,
            user: previewed.user.clone(),
            targets: Vec::new(),
        };
        let (result, code) = match &previewed.outcome {
            Preview::Own => ("for the server itself".to_owned(), None),
            Preview::Elsewhere(_) | Preview::Pending => {
                let user = previewed.user.as_deref().unwrap_or_default();
                (format!("to the registered phones of {user}"), None)
            }
            Preview::Challenge => ("407".to_owned(), Some(407)),
            Preview::Refused(code, reason) => (
                format!("{code} {reason}").trim_end().to_owned(),
                Some(*code),
            ),
            Preview::Forwarded(targets) => {
                let name = |number: u16| previewed.trunks.get(usize::from(number)).cloned();
                report.targets = targets
                    .iter()
                    .map(|target| Target {
                        uri: target.uri.clone(),
                        next_hop: target.next_hop.clone(),
                        trunk: target.trunk.and_then(name),
                    })
                    .collect();
                ("forwarded".to_owned(), None)
            }
        };
        (report.result, report.code) = (result, code);
        report
    }
}

#[cfg(test)]
mod tests {
    use server::sip::Domain;

    use super::*;

    #[test]
    fn the_tables_of_one_snapshot_are_made_once() {
        let routing = Routing::default();
        let of = |domain: &str| {
            let mut snapshot = Snapshot::default();
            snapshot.sip.domains = vec![Domain {
                name: domain.to_owned(),
                ..Domain::default()
            }];
            snapshot.users = vec!["ann".to_owned()];
            snapshot
        };
        let query = RouteQuery {
            from: "sip:ann@a.org".to_owned(),
            to: "sip:ann@a.org".to_owned(),
            source: [192, 0, 2, 1].into(),
            certificate: None,
            headers: Vec::new(),
            method: "INVITE".to_owned(),
            call_id: RouteQuery::CALL_ID.to_owned(),
        };
        routing.set(of("a.org"));
        let first = routing.get();
        let before = first.explain(&query).expect("a decision");
        let tables = first.previewer().expect("tables");
        let again = routing.get();
        assert!(std::ptr::eq(tables, again.previewer().expect("tables")));
        let after = again.explain(&query).expect("a decision");
        assert_eq!(before.steps, after.steps);
        // Another snapshot has its own.
        routing.set(of("b.org"));
        let other = routing.get().explain(&query).expect("a decision");
        assert_ne!(other.steps, before.steps);
    }
}
