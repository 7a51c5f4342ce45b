//! Registration bindings, calls and trunks of SIP. Without a SIP listener, lists are empty.

use std::sync::Arc;

use hyper::StatusCode;
use serde_json::{Value, json};
use server::sip::SipInspector;

use super::access::Caller;
use super::limit;
use super::problem::Problem;
use super::values::Query;
use crate::control::Shared;
use crate::control::sip::{self, PageQuery, SipError};

/// A page of the bindings.
pub(super) async fn bindings(shared: &Arc<Shared>, query: &Query) -> Result<Value, Problem> {
    let wanted = wanted(query)?;
    let list = move |sip: &SipInspector, _: &Shared| sip::bindings(sip, &wanted);
    let none = json!({ "bindings": [], "next": null });
    wait(shared, list).await.unwrap_or(Ok(none))
}

/// A page of the calls.
pub(super) async fn calls(shared: &Arc<Shared>, query: &Query) -> Result<Value, Problem> {
    let wanted = wanted(query)?;
    let list = move |sip: &SipInspector, shared: &Shared| sip::calls(sip, shared, &wanted);
    let none = json!({ "calls": [], "next": null, "dialogs": 0, "requests": 0 });
    wait(shared, list).await.unwrap_or(Ok(none))
}

/// All trunks.
pub(super) fn trunks(shared: &Shared) -> Value {
    let none = || json!({ "trunks": [] });
    shared.sip.as_ref().map_or_else(none, sip::trunks)
}

/// Removes bindings of one address of record.
pub(super) async fn remove(
    shared: &Arc<Shared>,
    query: &Query,
    caller: Caller,
) -> Result<Value, Problem> {
    let text = |name: &str| query.get(name).map(str::to_owned);
    let missing = || Problem::bad_request("aor is missing: send USER@DOMAIN".to_owned());
    let (aor, contact) = (text("aor").ok_or_else(missing)?, text("contact"));
    let remove =
        move |sip: &SipInspector, _: &Shared| sip::remove(sip, &aor, contact.as_deref(), &caller.0);
    let none = || Problem::not_found("this server has no SIP listener".to_owned());
    wait(shared, remove).await.unwrap_or_else(|| Err(none()))
}

fn wanted(query: &Query) -> Result<PageQuery, Problem> {
    let text = |name: &str| query.get(name).map(str::to_owned);
    Ok(PageQuery {
        after: text("after"),
        limit: limit(query)?,
        search: text("search"),
        aor: text("aor"),
    })
}

/// Waits for workers on another thread, so that the thread of the listener can serve other clients. `None` without a
/// SIP listener.
async fn wait(
    shared: &Arc<Shared>,
    ask: impl FnOnce(&SipInspector, &Shared) -> Result<Value, SipError> + Send + 'static,
) -> Option<Result<Value, Problem>> {
    let inspector = shared.sip.clone()?;
    let shared = Arc::clone(shared);
    let outcome = tokio::task::spawn_blocking(move || ask(&inspector, &shared)).await;
    let unavailable = |text: String| Problem::new(StatusCode::SERVICE_UNAVAILABLE, text);
    Some(match outcome {
        Ok(outcome) => outcome.map_err(|error| match error {
            SipError::Wrong(text) => Problem::bad_request(text),
            SipError::Missing(text) => Problem::not_found(text),
            SipError::Busy(text) => unavailable(text),
        }),
        Err(error) => Err(unavailable(error.to_string())),
    })
}
