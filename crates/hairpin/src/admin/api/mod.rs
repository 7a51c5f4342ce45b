//! The HTTP API of the admin listener, for programs and for the live page. It has the commands of the control socket,
//! and more.

mod access;
mod directory;
mod ice;
mod openapi;
mod problem;
mod routes;
mod sessions;
mod sip;
mod values;
#[cfg(test)]
mod verbs_tests;

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderValue};
use hyper::{Method, Response, StatusCode};
use serde_json::{Value, json};
use stores::StoreSettings;
use tokio::sync::{Semaphore, mpsc};
use tokio::time::{Instant, timeout_at};

use super::failures;
use super::history::History;
use super::http::{Body, Incoming, Peer, RESPONSE_WITHIN, response};
use crate::config::{AdminTokens, CurrentKey};
use crate::control::tasks::Tasks;
use crate::control::{Change, ChangeSender, Shared, nodes, status};
use access::Caller;
use directory::Open;
use problem::Problem;
use routes::{Match, Operation, RouteSearch};
use values::Query;

/// The path prefix of the API.
pub(super) const BASE: &str = "/api/v1";

const JSON: HeaderValue = HeaderValue::from_static("application/json");
const EVENTS: HeaderValue = HeaderValue::from_static("text/event-stream");
/// Limit of concurrent event streams. Each open live page has one.
const MAX_EVENT_STREAMS: usize = 8;
/// Limit of a body in bytes: ten times the longest useful body.
const MAX_BODY_BYTES: usize = 16 << 10;
/// Limit of the text with users in one request, in bytes.
const MAX_IMPORT_BYTES: usize = 256 << 10;
/// Operations on a store end this long before the response must be ready. So the response says what was done.
const STORE_EARLIER: Duration = Duration::from_secs(1);
/// Entries per page by default.
const DEFAULT_PAGE_ENTRIES: u64 = 100;
/// Limit of entries per page.
const LARGEST_PAGE: u64 = 1_000;

/// The part of the current configuration that the API uses. The main thread replaces it at each reload.
#[derive(Debug, Default)]
pub(crate) struct Applied {
    /// Who may use the API.
    pub(crate) tokens: AdminTokens,
    /// The default realm.
    pub(crate) realm: String,
    /// The first of `auth.secrets`, for time-limited credentials.
    pub(crate) secret: Option<String>,
    /// `turn:` URIs of this server.
    pub(crate) uris: Vec<String>,
    /// The store that the API changes.
    pub(crate) store: Option<StoreSettings>,
    /// All configuration keys with their values.
    pub(crate) keys: Vec<CurrentKey>,
}

/// The API of a server.
#[derive(Clone, Debug)]
pub(super) struct Api(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    shared: Arc<Shared>,
    changes: ChangeSender,
    history: Arc<History>,
    bucket: ice::Bucket,
    streams: Arc<Semaphore>,
    tasks: Tasks,
}

impl Api {
    /// `tasks` makes the changes of stores.
    pub(super) fn new(
        shared: Arc<Shared>,
        changes: ChangeSender,
        history: Arc<History>,
        tasks: Tasks,
    ) -> Self {
        Self(Arc::new(Inner {
            shared,
            changes,
            history,
            bucket: ice::Bucket::default(),
            streams: Arc::new(Semaphore::new(MAX_EVENT_STREAMS)),
            tasks,
        }))
    }

    /// The response to a request whose path begins with [`BASE`].
    pub(super) async fn respond(&self, request: Incoming, peer: &Peer) -> Response<Body> {
        let deadline = peer.begun + RESPONSE_WITHIN;
        let outcome = timeout_at(deadline, self.try_respond(request, peer)).await;
        let outcome = outcome.unwrap_or_else(|_| Err(late()));
        outcome.unwrap_or_else(|problem| problem.response())
    }

    async fn try_respond(&self, request: Incoming, peer: &Peer) -> Result<Response<Body>, Problem> {
        let (head, body) = request.into_parts();
        let path = head.uri.path().strip_prefix(BASE).unwrap_or_default();
        let method = match &head.method {
            method if method == Method::HEAD => "GET",
            method => method.as_str(),
        };
        let found = match routes::find(method, path) {
            RouteSearch::Route(found) => found,
            RouteSearch::OtherMethods(methods) => return Ok(other_methods(&methods)),
            RouteSearch::Nothing => {
                let message =
                    format!("{BASE}{path} does not exist: {BASE}/openapi.json lists all paths");
                return Err(Problem::not_found(message));
            }
        };
        let query = Query::read(head.uri.query())?;
        let applied = self.0.shared.applied();
        let caller = access::check(
            &head.headers,
            &query,
            peer,
            found.route.access,
            &applied.tokens,
        )?;
        let known: Vec<_> = found
            .route
            .parameters
            .iter()
            .map(|known| known.name)
            .collect();
        query.allow(&known)?;
        if found.route.operation == Operation::Events {
            return self.events(peer);
        }
        let deadline = peer.begun + RESPONSE_WITHIN - STORE_EARLIER;
        let body = match found.route.body.is_empty() {
            true => Bytes::new(),
            false => {
                check_type(head.headers.get(CONTENT_TYPE), &body)?;
                let most = match found.route.operation {
                    Operation::ImportUsers => MAX_IMPORT_BYTES,
                    _ => MAX_BODY_BYTES,
                };
                let body = timeout_at(deadline, values::body(most, body)).await;
                body.unwrap_or_else(|_| Err(late_body()))?
            }
        };
        let result = self.perform(found, query, body, (caller, deadline), applied);
        let result = result.await?;
        Ok(response(StatusCode::OK, JSON, result))
    }

    async fn perform(
        &self,
        found: Match<'_>,
        query: Query,
        body: Bytes,
        (caller, deadline): (Caller, Instant),
        applied: Arc<Applied>,
    ) -> Result<String, Problem> {
        let inner = &self.0;
        let name = values::decode(found.name.unwrap_or_default())?;
        let observer = &inner.shared.source.observer;
        let result = match found.route.operation {
            Operation::Status => status::status(&inner.shared),
            Operation::History => return Ok(inner.history.json(observer.threads().len())),
            Operation::Failures => failures::list(&observer.stats()),
            Operation::Configuration => configuration(&applied),
            Operation::Sessions => sessions::list(&inner.shared, &query).await?,
            Operation::EndSession => sessions::end(&inner.shared, &name, &caller).await?,
            Operation::EndUser => sessions::end_user(&inner.shared, &query, &caller).await?,
            Operation::Nodes => nodes(&inner.shared)?,
            Operation::Bindings => sip::bindings(&inner.shared, &query).await?,
            Operation::RemoveBindings => sip::remove(&inner.shared, &query, caller).await?,
            Operation::Calls => sip::calls(&inner.shared, &query).await?,
            Operation::Trunks => sip::trunks(&inner.shared),
            Operation::Trace => sip::trace(&inner.shared, &query).await?,
            Operation::ExplainRoute => {
                sip::explain_route(&inner.shared, values::json(&body)?).await?
            }
            Operation::Upgrade => {
                let timeout = upgrade_timeout(&values::json(&body)?)?;
                let change = Change::Upgrade(timeout);
                self.change(change, "server.upgrade", caller).await?
            }
            Operation::OpenApi => openapi::document(),
            Operation::IceServers => ice::servers(inner, &query)?,
            Operation::Reload => self.change(Change::Reload, "server.reload", caller).await?,
            Operation::Drain => self.change(Change::Drain, "server.drain", caller).await?,
            Operation::EndDrain => {
                self.change(Change::EndDrain, "server.end_drain", caller)
                    .await?
            }
            operation => {
                let work = in_store(operation, name, query, body, (caller, deadline), applied);
                let outcome = inner.tasks.run(work).await;
                outcome.map_err(|error| {
                    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
                })??
            }
        };
        Ok(format!("{result}\n"))
    }

    /// Has the main thread make a change, and waits for the outcome.
    async fn change(
        &self,
        change: Change,
        action: &'static str,
        caller: Caller,
    ) -> Result<Value, Problem> {
        Ok(self.0.changes.make(change, action, caller.0).await?)
    }

    /// A stream of server-sent events, one per sample.
    fn events(&self, peer: &Peer) -> Result<Response<Body>, Problem> {
        let permit = Arc::clone(&self.0.streams)
            .try_acquire_owned()
            .map_err(|_| {
                let message = format!(
                    "the limit of {MAX_EVENT_STREAMS} event streams is reached: close another live page"
                );
                Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
            })?;
        peer.set_stream();
        let mut samples = self.0.history.follow();
        let (sender, receiver) = mpsc::channel(1);
        tokio::spawn(async move {
            let _permit = permit;
            loop {
                let part = match samples.recv().await {
                    Ok(row) => Bytes::from(format!("event: sample\ndata: {row}\n\n")),
                    Err(tokio::sync::broadcast::error::RecvError::Lagged(_)) => continue,
                    Err(tokio::sync::broadcast::error::RecvError::Closed) => return,
                };
                if sender.send(part).await.is_err() {
                    return;
                }
            }
        });
        Ok(response(StatusCode::OK, EVENTS, Body::Parts(receiver)))
    }
}

/// 503: there is no result in time.
fn late() -> Problem {
    let seconds = RESPONSE_WITHIN.as_secs();
    let message = format!(
        "no result within {seconds} s: a change that has begun continues, and its audit line in the log will have the result"
    );
    Problem::new(StatusCode::SERVICE_UNAVAILABLE, message)
}

/// 408: the body has not arrived, so nothing has begun.
fn late_body() -> Problem {
    let seconds = (RESPONSE_WITHIN - STORE_EARLIER).as_secs();
    let message = format!(
        "the body did not arrive within {seconds} s, so nothing was changed: send all of it at once"
    );
    Problem::new(StatusCode::REQUEST_TIMEOUT, message)
}

/// The nodes of the cluster.
fn nodes(shared: &Shared) -> Result<Value, Problem> {
    nodes::list(shared).map_err(|refusal| Problem::not_found(refusal.error))
}

fn other_methods(methods: &[&str]) -> Response<Body> {
    let list = methods.join(", ");
    let problem = Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        format!("this path does not have this method: use {list}"),
    );
    let mut response = problem.response();
    if let Ok(allowed) = HeaderValue::from_str(&list) {
        response.headers_mut().insert(ALLOW, allowed);
    }
    response
}

/// Requires `application/json`: a page of another site cannot send this type without a CORS preflight, which the server
/// rejects.
fn check_type(kind: Option<&HeaderValue>, body: &hyper::body::Incoming) -> Result<(), Problem> {
    let is_json = kind.is_some_and(|kind| kind.as_bytes().starts_with(b"application/json"));
    if is_json || hyper::body::Body::is_end_stream(body) {
        return Ok(());
    }
    let message = "the body is not JSON: send Content-Type: application/json";
    Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, message))
}

/// Operations on the store. They own their arguments, because they continue if the client closes the connection.
async fn in_store(
    operation: Operation,
    name: String,
    query: Query,
    body: Bytes,
    (caller, deadline): (Caller, Instant),
    applied: Arc<Applied>,
) -> Result<Value, Problem> {
    let open = Open::of(applied.store.as_ref(), caller, deadline)?;
    let realm = query.get("realm").unwrap_or(&applied.realm);
    match operation {
        Operation::Users => open.users(&query).await,
        Operation::ImportUsers => open.import_users(realm, values::json(&body)?).await,
        Operation::PutUser => open.put_user(realm, &name, values::json(&body)?).await,
        Operation::DeleteUser => open.delete_user(realm, &name).await,
        Operation::Secrets => open.secrets(realm).await,
        Operation::AddSecret => open.add_secret(realm, values::json(&body)?).await,
        Operation::DeleteSecret => open.delete_secret(realm, values::json(&body)?).await,
        Operation::Realms => open.realms().await,
        Operation::SetRealm => open.set_realm(&name, values::json(&body)?).await,
        Operation::DeleteRealm => open.delete_realm(&name).await,
        _ => Err(Problem::not_found("this is not in the store")),
    }
}

/// The body of `POST /upgrade`.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Upgrade {
    timeout_s: Option<u64>,
}

/// How long the new process may take.
fn upgrade_timeout(body: &Upgrade) -> Result<Duration, Problem> {
    let seconds = body.timeout_s.unwrap_or(60);
    let wrong = || Problem::bad_request("timeout_s is not a number from 1 to 600");
    let seconds = Some(seconds).filter(|seconds| (1..=600).contains(seconds));
    seconds.map(Duration::from_secs).ok_or_else(wrong)
}

/// The number of entries per page: the parameter `limit`, or the default.
fn limit(query: &Query) -> Result<usize, Problem> {
    let limit = query
        .number("limit", 1..=LARGEST_PAGE)?
        .unwrap_or(DEFAULT_PAGE_ENTRIES);
    Ok(usize::try_from(limit).unwrap_or(usize::MAX))
}

fn configuration(applied: &Applied) -> Value {
    let keys = applied.keys.iter().map(|key| {
        json!({
            "key": key.key,
            "value": key.value,
            "origin": key.origin,
            "is_default": key.origin.is_none() || key.origin.as_deref() == Some("default"),
            "is_live": key.is_live,
            "after_restart": key.after_restart,
        })
    });
    json!({ "keys": keys.collect::<Vec<_>>() })
}
