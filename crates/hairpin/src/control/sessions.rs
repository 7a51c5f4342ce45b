//! Sessions: the operator's name for allocations of clients. The control socket and the API list and end them in the
//! same way.

use serde_json::{Value, json};
use server::sessions::{
    Session, SessionDataConnection, SessionError, SessionFilter, SessionId, Sessions,
    SessionsCursor,
};
use stores::cluster::Order;

use super::protocol::{Command, Refusal, Reply};
use super::serve::Shared;
use crate::audit::Audit;

/// Sessions in one reply. The engine bounds the peers of each, so a reply stays below the size limit.
const PAGE_SESSIONS: usize = 250;

/// Responds to a command about sessions. Blocks until workers respond.
pub(super) fn respond(command: Command, arguments: &Value, shared: &Shared, by: &str) -> Reply {
    let sessions = &shared.sessions;
    let refused = |error: SessionError| Refusal::new(error.to_string());
    match command {
        Command::EndSession => {
            let id = arguments["id"].as_str().unwrap_or_default();
            let id = id
                .parse()
                .map_err(|error| Refusal::new(format!("{error}")))?;
            end(sessions, id, by).map_err(refused)
        }
        Command::EndUser => {
            let user = arguments["user"].as_str().unwrap_or_default();
            match user.is_empty() {
                true => Err(Refusal::new("user is missing: send the name of the user")),
                false => end_user_everywhere(shared, user, by).map_err(refused),
            }
        }
        _ => {
            let text = |name: &str| arguments[name].as_str();
            let peer = text("peer").map(|text| {
                let wrong = |_| Refusal::new(format!("peer is {text}: send an IP address"));
                text.parse().map_err(wrong)
            });
            let filter = SessionFilter {
                user: text("user").map(str::to_owned),
                peer: peer.transpose()?,
            };
            let after = text("after").map(|text| place(text).map_err(Refusal::new));
            let after = after.transpose()?.unwrap_or_default();
            list(sessions, after, PAGE_SESSIONS, filter).map_err(refused)
        }
    }
}

/// One page of the list.
pub(crate) fn list(
    sessions: &Sessions,
    after: SessionsCursor,
    limit: usize,
    filter: SessionFilter,
) -> Result<Value, SessionError> {
    let page = sessions.list(after, limit, filter)?;
    let shown = page.sessions.iter();
    let shown: Vec<_> = shown
        .map(|(id, session)| session_to_json(*id, session))
        .collect();
    let next = page
        .next
        .map(|next| format!("{}-{}", next.worker, next.place));
    Ok(json!({ "sessions": shown, "next": next }))
}

/// Ends a session, and writes an audit line.
pub(crate) fn end(sessions: &Sessions, id: SessionId, by: &str) -> Result<Value, SessionError> {
    sessions.end(id)?;
    Audit::new("session.end")
        .with("session", &id.to_string())
        .log(by);
    Ok(json!({}))
}

/// Ends all sessions of a user on this node. Returns how many they were.
pub(crate) fn end_user(sessions: &Sessions, user: &str, by: &str) -> Result<usize, SessionError> {
    let filter = SessionFilter {
        user: Some(user.to_owned()),
        peer: None,
    };
    let (mut after, mut ended) = (SessionsCursor::default(), 0);
    loop {
        let page = sessions.list(after, PAGE_SESSIONS, filter.clone())?;
        let own = page.sessions.iter();
        let own = own.filter(|(_, session)| is_of(&session.user, user));
        for (id, _) in own {
            match end(sessions, *id, by) {
                Ok(_) => ended += 1,
                // Its client was faster.
                Err(SessionError::Ended(_)) => {}
                Err(error) => return Err(error),
            }
        }
        match page.next {
            Some(next) => after = next,
            None => return Ok(ended),
        }
    }
}

/// Ends all sessions of a user on this node, and orders the other nodes to do the same.
pub(crate) fn end_user_everywhere(
    shared: &Shared,
    user: &str,
    by: &str,
) -> Result<Value, SessionError> {
    let cluster = shared.source.cluster.as_ref();
    let ordered = cluster.filter(|cluster| {
        let user = user.to_owned();
        cluster.order(Order::EndSessions { user })
    });
    // The others begin meanwhile.
    let ended = end_user(&shared.sessions, user, by)?;
    let ordered = ordered.map(|cluster| cluster.status().nodes);
    if let Some(nodes) = ordered {
        Audit::new("session.end_user")
            .with("user", user)
            .with("other_nodes", &nodes.to_string())
            .log(by);
    }
    Ok(json!({ "ended": ended, "other_nodes": ordered }))
}

/// Whether a name is that of the user, or one of its time-limited names: `EXPIRY:NAME`.
fn is_of(name: &str, user: &str) -> bool {
    let of_time = name.split_once(':').filter(|(expiry, _)| {
        !expiry.is_empty() && expiry.bytes().all(|byte| byte.is_ascii_digit())
    });
    name == user || of_time.is_some_and(|(_, name)| name == user)
}

/// Reads where a page begins: worker and place.
pub(crate) fn place(text: &str) -> Result<SessionsCursor, &'static str> {
    let read = || {
        let (worker, place) = text.split_once('-')?;
        Some(SessionsCursor {
            worker: worker.parse().ok()?,
            place: place.parse().ok()?,
        })
    };
    read().ok_or("after is malformed: send `next` of the previous page")
}

fn session_to_json(id: SessionId, session: &Session) -> Value {
    let path = &session.path.five_tuple;
    let relayed = [session.relayed.v4, session.relayed.v6];
    let connections = session.data_connections.iter();
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
        "peers_omitted": session.peers_omitted,
        "data_connections": connections.map(data_connection_to_json).collect::<Vec<_>>(),
        "data_connections_omitted": session.data_connections_omitted,
    })
}

/// A data connection (RFC 6062).
fn data_connection_to_json(connection: &SessionDataConnection) -> Value {
    json!({
        "peer": connection.peer,
        "to_peer_bytes": connection.to_peer,
        "to_client_bytes": connection.to_client,
        "idle_s": connection.idle.as_secs(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_not_another_one_whose_name_contains_it() {
        assert!(is_of("alice", "alice"));
        assert!(is_of("1735689600:alice", "alice"));
        for other in ["malice", "alice2", "1735689600:malice", "x:alice", ":alice"] {
            assert!(!is_of(other, "alice"), "{other}");
        }
    }
}
