//! Sessions: the API's name for allocations of clients.

use std::str::FromStr;
use std::sync::Arc;

use hyper::StatusCode;
use serde_json::Value;
use server::sessions::{SessionError, SessionFilter, SessionId, Sessions};

use super::access::Caller;
use super::limit;
use super::problem::Problem;
use super::values::Query;
use crate::control::{Shared, sessions};

/// One page of the list.
pub(super) async fn list(shared: &Shared, query: &Query) -> Result<Value, Problem> {
    let limit = limit(query)?;
    let peer = query.get("peer").map(|text| {
        let wrong = |_| Problem::bad_request(format!("peer is {text}: send an IP address"));
        text.parse().map_err(wrong)
    });
    let filter = SessionFilter {
        user: query.get("user").map(str::to_owned),
        peer: peer.transpose()?,
    };
    let after = query
        .get("after")
        .map(|text| sessions::place(text).map_err(|error| Problem::bad_request(error.to_owned())));
    let after = after.transpose()?.unwrap_or_default();
    let wait = move |all: Sessions| sessions::list(&all, after, limit, filter);
    run_blocking(shared, wait).await
}

/// Ends one session.
pub(super) async fn end(shared: &Shared, id: &str, caller: &Caller) -> Result<Value, Problem> {
    let id = SessionId::from_str(id).map_err(|error| Problem::bad_request(error.to_string()))?;
    let by = caller.0.clone();
    run_blocking(shared, move |all| sessions::end(&all, id, &by)).await
}

/// Ends all sessions of a user, on all nodes.
pub(super) async fn end_user(
    shared: &Arc<Shared>,
    query: &Query,
    caller: &Caller,
) -> Result<Value, Problem> {
    let user = query.get("user").filter(|user| !user.is_empty());
    let missing = || Problem::bad_request("user is missing: add ?user=NAME".to_owned());
    let (user, by) = (user.ok_or_else(missing)?.to_owned(), caller.0.clone());
    let all = Arc::clone(shared);
    let wait = move |_| sessions::end_user_everywhere(&all, &user, &by);
    run_blocking(shared, wait).await
}

/// Waits for workers on another thread, so that the thread of the listener can serve other clients.
async fn run_blocking<T: Send + 'static>(
    shared: &Shared,
    wait: impl FnOnce(Sessions) -> Result<T, SessionError> + Send + 'static,
) -> Result<T, Problem> {
    let sessions = shared.sessions.clone();
    let outcome = tokio::task::spawn_blocking(move || wait(sessions)).await;
    let outcome = outcome
        .map_err(|error| Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))?;
    outcome.map_err(|error| match error {
        SessionError::Ended(_) => Problem::not_found(error.to_string()),
        _ => Problem::new(StatusCode::SERVICE_UNAVAILABLE, error.to_string()),
    })
}
