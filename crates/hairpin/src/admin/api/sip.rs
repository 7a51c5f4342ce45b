//! Registration bindings, calls, their messages, trunks and decisions of SIP. Without a SIP listener, lists are empty,
//! and `has_listener` is false.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use hyper::StatusCode;
use serde::Deserialize;
use serde_json::{Value, json};
use server::sip::SipInspector;

use super::access::Caller;
use super::limit;
use super::problem::Problem;
use super::values::Query;
use crate::control::Shared;
use crate::control::routing::RouteQuery;
use crate::control::sip::{self, NO_LISTENER, PageQuery, SipError};

/// A page of the bindings.
pub(super) async fn bindings(shared: &Arc<Shared>, query: &Query) -> Result<Value, Problem> {
    let wanted = wanted(query)?;
    let list = move |sip: &SipInspector, _: &Shared| sip::bindings(sip, &wanted);
    let none = json!({ "bindings": [], "next": null, "has_listener": false });
    wait(shared, list).await.unwrap_or(Ok(none))
}

/// A page of the calls.
pub(super) async fn calls(shared: &Arc<Shared>, query: &Query) -> Result<Value, Problem> {
    let wanted = wanted(query)?;
    let list = move |sip: &SipInspector, shared: &Shared| sip::calls(sip, shared, &wanted);
    let none =
        json!({ "calls": [], "next": null, "dialogs": 0, "requests": 0, "has_listener": false });
    wait(shared, list).await.unwrap_or(Ok(none))
}

/// All trunks.
pub(super) fn trunks(shared: &Shared) -> Value {
    let none = || json!({ "trunks": [], "has_listener": false });
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
    let none = || Problem::not_found(NO_LISTENER);
    wait(shared, remove).await.unwrap_or_else(|| Err(none()))
}

/// Messages of a call, a page of them.
pub(super) async fn trace(shared: &Arc<Shared>, query: &Query) -> Result<Value, Problem> {
    let missing = || Problem::bad_request("call_id is missing: send the Call-ID".to_owned());
    let text = |name: &str| query.get(name).map(str::to_owned);
    let (call_id, after) = (text("call_id").ok_or_else(missing)?, text("after"));
    let read = move |sip: &SipInspector, _: &Shared| sip::trace(sip, &call_id, after.as_deref());
    let none = json!({ "messages": [], "next": null, "has_listener": false });
    wait(shared, read).await.unwrap_or(Ok(none))
}

/// The body of `POST /sip/route`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RouteRequest {
    from: String,
    to: String,
    source: Option<IpAddr>,
    certificate: Option<String>,
    #[serde(default)]
    headers: Vec<String>,
    method: Option<String>,
    call_id: Option<String>,
}

/// Where the proxy would send a request.
pub(super) async fn explain_route(shared: &Shared, body: RouteRequest) -> Result<Value, Problem> {
    let request = RouteQuery {
        from: body.from,
        to: body.to,
        source: body.source.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        certificate: body.certificate,
        headers: body.headers,
        method: body.method.unwrap_or_else(|| "INVITE".to_owned()),
        call_id: body
            .call_id
            .unwrap_or_else(|| RouteQuery::CALL_ID.to_owned()),
    };
    let routing = shared.routing.get();
    // The first decision after a change makes the tables, so it must not block this thread.
    let report = tokio::task::spawn_blocking(move || routing.explain(&request)).await;
    let failed = |text: String| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, text);
    let report = report.map_err(|error| failed(error.to_string()))?;
    let report = report.map_err(|error| Problem::bad_request(format!("{error:#}")))?;
    serde_json::to_value(report).map_err(|error| failed(error.to_string()))
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
