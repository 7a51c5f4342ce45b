//! Sessions: the API's name for allocations of clients.

use std::str::FromStr;

use hyper::StatusCode;
use serde_json::{Value, json};
use server::sessions::{Session, SessionError, SessionFilter, SessionId, SessionPlace, Sessions};

use super::access::Caller;
use super::limit;
use super::problem::Problem;
use super::values::Query;
use crate::audit::Audit;
use crate::control::Shared;

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
    let from = query.get("after").map(place).transpose()?;
    let from = from.unwrap_or_default();
    let wait = move |sessions: Sessions| sessions.list(from, limit, filter);
    let page = on_a_thread_that_may_wait(shared, wait).await?;
    let sessions: Vec<_> = page
        .sessions
        .iter()
        .map(|(id, session)| show(*id, session))
        .collect();
    let next = page
        .next
        .map(|next| format!("{}-{}", next.worker, next.place));
    Ok(json!({ "sessions": sessions, "next": next }))
}

/// Ends one session.
pub(super) async fn end(shared: &Shared, id: &str, caller: &Caller) -> Result<Value, Problem> {
    let id = SessionId::from_str(id).map_err(|error| Problem::bad_request(error.to_string()))?;
    on_a_thread_that_may_wait(shared, move |sessions| sessions.end(id)).await?;
    Audit::new("session.end")
        .with("session", &id.to_string())
        .log(&caller.0);
    Ok(json!({}))
}

/// Waits for workers on another thread, so that the thread of the listener can serve other clients.
async fn on_a_thread_that_may_wait<T: Send + 'static>(
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

/// Reads the parameter `after`: worker and place.
fn place(text: &str) -> Result<SessionPlace, Problem> {
    let read = || {
        let (worker, place) = text.split_once('-')?;
        Some(SessionPlace {
            worker: worker.parse().ok()?,
            place: place.parse().ok()?,
        })
    };
    read()
        .ok_or_else(|| Problem::bad_request("after is malformed: send `next` of the previous page"))
}

fn show(id: SessionId, session: &Session) -> Value {
    let path = &session.path.five_tuple;
    let relayed = [session.relayed.v4, session.relayed.v6];
    json!({
        "id": id.to_string(),
        "user": session.user,
        "realm": session.realm,
        "transport": format!("{:?}", path.transport).to_lowercase(),
        "client": path.remote,
        "server": path.local,
        "relayed": relayed.into_iter().flatten().collect::<Vec<_>>(),
        "age_s": session.age.as_secs(),
        "expires_in_s": session.expires_in.as_secs(),
        "to_peers": { "packets": session.to_peers.packets, "bytes": session.to_peers.bytes },
        "to_client": { "packets": session.to_client.packets, "bytes": session.to_client.bytes },
        "permissions": session.permissions,
        "channels": session.channels,
    })
}
