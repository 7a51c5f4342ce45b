//! The table of API routes. Requests are matched against it, and the OpenAPI document is generated from it.

/// What a request requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Access {
    /// A token of `admin.tokens`, or a client on this machine.
    Read,
    /// A token of `admin.tokens`.
    Change,
    /// A token of `admin.tokens` or of `admin.credential_tokens`.
    Credentials,
}

/// The operation of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Status,
    History,
    Events,
    Failures,
    Configuration,
    Sessions,
    EndSession,
    EndUser,
    Nodes,
    Reload,
    Drain,
    EndDrain,
    Upgrade,
    Users,
    ImportUsers,
    PutUser,
    DeleteUser,
    Secrets,
    AddSecret,
    DeleteSecret,
    Realms,
    SetRealm,
    DeleteRealm,
    Bindings,
    RemoveBindings,
    Calls,
    Trunks,
    Trace,
    ExplainRoute,
    IceServers,
    OpenApi,
}

/// A parameter in the URI, after `?`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Parameter {
    pub(super) name: &'static str,
    /// Whether the value is a number; otherwise it is a text.
    pub(super) is_number: bool,
    pub(super) about: &'static str,
}

const fn text(name: &'static str, about: &'static str) -> Parameter {
    Parameter {
        name,
        is_number: false,
        about,
    }
}

const fn number(name: &'static str, about: &'static str) -> Parameter {
    Parameter {
        name,
        is_number: true,
        about,
    }
}

/// A field of a JSON body: its name, JSON type and description. All fields are optional.
pub(super) type Field = (&'static str, &'static str, &'static str);

/// A method and a path with their operation.
#[derive(Clone, Copy, Debug)]
pub(super) struct Route {
    pub(super) method: &'static str,
    /// Below `/api/v1`; a segment `{name}` is a parameter.
    pub(super) path: &'static str,
    pub(super) access: Access,
    pub(super) operation: Operation,
    /// The summary in the OpenAPI document, in one line.
    pub(super) summary: &'static str,
    pub(super) parameters: &'static [Parameter],
    pub(super) body: &'static [Field],
    /// The content of a 200 response.
    pub(super) result: &'static str,
}

const REALM: Parameter = text("realm", "The realm; auth.realm if it is absent.");
const AFTER: Parameter = text(
    "after",
    "Begin after this entry: `next` of the previous page.",
);
const LIMIT: Parameter = number("limit", "Entries per page, 1 to 1000; 100 if it is absent.");

/// A route without parameters and body.
const fn plain(
    method: &'static str,
    path: &'static str,
    access: Access,
    operation: Operation,
    summary: &'static str,
    result: &'static str,
) -> Route {
    Route {
        method,
        path,
        access,
        operation,
        summary,
        parameters: &[],
        body: &[],
        result,
    }
}

use Access::{Change, Credentials, Read};

/// Every route.
pub(super) const ROUTES: &[Route] = &[
    plain(
        "GET",
        "/status",
        Read,
        Operation::Status,
        "The state of the server, as `hairpin status --json`.",
        "State, health, allocations, listeners.",
    ),
    plain(
        "GET",
        "/history",
        Read,
        Operation::History,
        "The last hour: counters and gauges, one sample every two seconds.",
        "Names of columns, and rows of samples, the oldest first.",
    ),
    plain(
        "GET",
        "/events",
        Read,
        Operation::Events,
        "Samples as server-sent events, one every two seconds.",
        "Events `sample`, each with a row as in `/history`.",
    ),
    plain(
        "GET",
        "/failures",
        Read,
        Operation::Failures,
        "Why requests of clients fail: reasons with their counts, and what to do.",
        "Reasons that have occurred, the most frequent first.",
    ),
    plain(
        "GET",
        "/configuration",
        Read,
        Operation::Configuration,
        "Each key of the configuration that applies, and where its value comes from. Secrets are masked.",
        "Keys with value and origin.",
    ),
    Route {
        parameters: &[
            text("user", "Sessions whose user name contains this text."),
            text(
                "peer",
                "Sessions with this IP address of the client, of a permission, of a channel or of a data connection's peer.",
            ),
            AFTER,
            LIMIT,
        ],
        ..plain(
            "GET",
            "/sessions",
            Read,
            Operation::Sessions,
            "Allocations of clients.",
            "Sessions, each with at most 16 permissions, 16 channels and 16 data connections; `peers_omitted` and `data_connections_omitted` count the others. `data_connections` of a TCP allocation have bytes and idle time. `next` if there are more.",
        )
    },
    plain(
        "DELETE",
        "/sessions/{id}",
        Change,
        Operation::EndSession,
        "End a session: the server closes its allocation.",
        "Nothing.",
    ),
    Route {
        parameters: &[text(
            "user",
            "The name of the user, without the expiry of time-limited credentials. Required.",
        )],
        ..plain(
            "DELETE",
            "/sessions",
            Change,
            Operation::EndUser,
            "End all sessions of a user, on all nodes of the cluster.",
            "`ended` on this node; `other_nodes` that were ordered to do the same.",
        )
    },
    plain(
        "GET",
        "/nodes",
        Read,
        Operation::Nodes,
        "The nodes of the cluster, as this one knows them.",
        "Nodes with state, load, bindings and addresses; their total; whether the engine responds.",
    ),
    plain(
        "POST",
        "/reload",
        Change,
        Operation::Reload,
        "Read the configuration again, as `hairpin reload`.",
        "Warnings, and keys that need a restart.",
    ),
    plain(
        "POST",
        "/drain",
        Change,
        Operation::Drain,
        "Admit no new allocations and SIP transactions, as `hairpin drain`.",
        "Whether the server is idle.",
    ),
    plain(
        "DELETE",
        "/drain",
        Change,
        Operation::EndDrain,
        "Admit new clients again, as `hairpin drain --cancel`.",
        "Nothing.",
    ),
    Route {
        body: &[(
            "timeout_s",
            "integer",
            "The new process has this number of seconds to serve, 1 to 600; 60 if it is absent.",
        )],
        ..plain(
            "POST",
            "/upgrade",
            Change,
            Operation::Upgrade,
            "Start the program that is installed now, which takes over, as `hairpin upgrade`. `upgrade` of `/status` has what follows.",
            "`pid` of the new process.",
        )
    },
    Route {
        parameters: &[
            text("realm", "Users of this realm; all realms if it is absent."),
            text(
                "after",
                "Begin after this user: `next` of the previous page.",
            ),
            text(
                "after_realm",
                "The realm of that user: `next_realm` of the previous page; realm if it is absent.",
            ),
            LIMIT,
        ],
        ..plain(
            "GET",
            "/users",
            Change,
            Operation::Users,
            "The users of the first store that hairpin can change, as `hairpin user list`.",
            "Users as realm and name; `next` and `next_realm` if there are more.",
        )
    },
    Route {
        parameters: &[text(
            "realm",
            "The realm of lines that name none; auth.realm if it is absent.",
        )],
        body: &[(
            "text",
            "string",
            "Lines of htdigest (NAME:REALM:KEY), or of coturn's configuration (user=NAME:PASSWORD). At most 256 KiB. Required.",
        )],
        ..plain(
            "POST",
            "/users",
            Change,
            Operation::ImportUsers,
            "Add all users of a text, or replace their keys, as `hairpin user import`. A text with a mistake changes nothing. If the store fails or the time is over, `detail` says how many users were imported.",
            "`imported`: the number of users.",
        )
    },
    Route {
        parameters: &[REALM],
        body: &[
            (
                "password",
                "string",
                "The password; if it is absent, the server makes a random one.",
            ),
            (
                "mode",
                "string",
                "`add`: the user must be new, else 409. `change`: it must exist, else 404. Absent: both are possible.",
            ),
        ],
        ..plain(
            "PUT",
            "/users/{name}",
            Change,
            Operation::PutUser,
            "Add a user, or change its password, as `hairpin user add` and `hairpin user passwd`.",
            "The password, if the server made it, and whether the user is new.",
        )
    },
    Route {
        parameters: &[REALM],
        ..plain(
            "DELETE",
            "/users/{name}",
            Change,
            Operation::DeleteUser,
            "Delete a user, as `hairpin user del`. Existing allocations stay until they expire.",
            "Nothing.",
        )
    },
    Route {
        parameters: &[REALM],
        ..plain(
            "GET",
            "/secrets",
            Change,
            Operation::Secrets,
            "The secrets of time-limited credentials in the store, as `hairpin secret list`.",
            "Secrets.",
        )
    },
    Route {
        parameters: &[REALM],
        body: &[(
            "secret",
            "string",
            "The secret; if it is absent, the server makes a random one.",
        )],
        ..plain(
            "POST",
            "/secrets",
            Change,
            Operation::AddSecret,
            "Add a secret, as `hairpin secret add`.",
            "The secret, if the server made it.",
        )
    },
    Route {
        parameters: &[REALM],
        body: &[("secret", "string", "The secret.")],
        ..plain(
            "DELETE",
            "/secrets",
            Change,
            Operation::DeleteSecret,
            "Delete a secret, as `hairpin secret del`.",
            "Nothing.",
        )
    },
    plain(
        "GET",
        "/realms",
        Change,
        Operation::Realms,
        "Realms of the store with their origins and limits, as `hairpin realm list`.",
        "Realms.",
    ),
    Route {
        body: &[
            (
                "origins",
                "array",
                "Web origins to add: their clients belong to the realm.",
            ),
            (
                "max_bps",
                "integer",
                "Bytes per second of each allocation; 0 removes the limit.",
            ),
            (
                "total_quota",
                "integer",
                "Allocations of the realm; 0 removes the limit.",
            ),
            (
                "user_quota",
                "integer",
                "Allocations of each user; 0 removes the limit.",
            ),
        ],
        ..plain(
            "PATCH",
            "/realms/{name}",
            Change,
            Operation::SetRealm,
            "Set origins and limits of a realm, as `hairpin realm set`. If the store fails or the time is over, `detail` says what was set.",
            "Nothing.",
        )
    },
    plain(
        "DELETE",
        "/realms/{name}",
        Change,
        Operation::DeleteRealm,
        "Remove origins and limits of a realm, as `hairpin realm del`. Users and secrets stay. If the store fails or the time is over, `detail` says what was removed.",
        "Nothing.",
    ),
    Route {
        parameters: &[
            text(
                "aor",
                "Only bindings of this address of record, USER@DOMAIN.",
            ),
            text(
                "search",
                "Only bindings whose address of record, contact or user agent contains this text.",
            ),
            AFTER,
            LIMIT,
        ],
        ..plain(
            "GET",
            "/sip/bindings",
            Read,
            Operation::Bindings,
            "Registration bindings, as `hairpin sip bindings --json`.",
            "Bindings; `next` if there may be more. A page of a search can be empty.",
        )
    },
    Route {
        parameters: &[
            text("aor", "The address of record, USER@DOMAIN."),
            text("contact", "Only the binding with this contact."),
        ],
        ..plain(
            "DELETE",
            "/sip/bindings",
            Change,
            Operation::RemoveBindings,
            "Remove bindings of one address of record, as `hairpin sip remove`.",
            "The number of removed bindings.",
        )
    },
    Route {
        parameters: &[
            text(
                "search",
                "Only calls whose Call-ID, URIs, source or target contain this text.",
            ),
            AFTER,
            LIMIT,
        ],
        ..plain(
            "GET",
            "/sip/calls",
            Read,
            Operation::Calls,
            "Calls in progress, as `hairpin sip calls --json`. Requires sip.call_log.",
            "Calls, the numbers of dialogs and requests; `next` if there may be more.",
        )
    },
    plain(
        "GET",
        "/sip/trunks",
        Read,
        Operation::Trunks,
        "The state of each address of SIP trunks, as `hairpin sip trunks --json`.",
        "Trunks.",
    ),
    Route {
        parameters: &[text("call_id", "The Call-ID. Required."), AFTER],
        ..plain(
            "GET",
            "/sip/trace",
            Change,
            Operation::Trace,
            "The SIP messages of a call, as `hairpin sip trace --json`. Requires sip.trace_memory.",
            "Messages with their `bytes` in base64; `next` if there may be more. Pages are limited by their size.",
        )
    },
    Route {
        body: &[
            ("from", "string", "The URI in From. Required."),
            ("to", "string", "The Request-URI. Required."),
            (
                "source",
                "string",
                "The IP address that the request comes from; 127.0.0.1 if it is absent.",
            ),
            (
                "certificate",
                "string",
                "The domain in the client certificate of the sender, if it has one.",
            ),
            (
                "headers",
                "array",
                "Further header fields, each as `Name: value`.",
            ),
            ("method", "string", "The method; INVITE if it is absent."),
            (
                "call_id",
                "string",
                "The Call-ID, for routes that hunt by hash.",
            ),
        ],
        ..plain(
            "POST",
            "/sip/route",
            Read,
            Operation::ExplainRoute,
            "Where the proxy would send a request, step by step and without sending it, as `hairpin sip route --json`. Routes and aliases of stores apply.",
            "Steps, the result, and targets.",
        )
    },
    Route {
        parameters: &[
            text("service", "`turn`, or absent."),
            text(
                "username",
                "A name that becomes a part of the TURN user name and appears in logs.",
            ),
            number(
                "ttl",
                "Lifetime in seconds, 60 to 86400; 86400 if it is absent.",
            ),
            text(
                "key",
                "The token, for clients that cannot send a header field.",
            ),
        ],
        ..plain(
            "GET",
            "/ice-servers",
            Credentials,
            Operation::IceServers,
            "Time-limited credentials for a client, as `hairpin creds`.",
            "`username`, `password`, `ttl` and `uris`; the same as `iceServers`, for RTCPeerConnection.",
        )
    },
    plain(
        "GET",
        "/openapi.json",
        Read,
        Operation::OpenApi,
        "This document.",
        "OpenAPI 3.1.",
    ),
];

/// A route, and the value of `{..}` in its path, not yet percent-decoded.
#[derive(Clone, Copy, Debug)]
pub(super) struct Match<'a> {
    pub(super) route: &'static Route,
    pub(super) name: Option<&'a str>,
}

/// The result of a search for a path below `/api/v1`.
#[derive(Clone, Debug)]
pub(super) enum RouteSearch<'a> {
    Route(Match<'a>),
    /// The path exists, but not with this method. These are its methods.
    OtherMethods(Vec<&'static str>),
    Nothing,
}

/// Finds a route.
pub(super) fn find<'a>(method: &str, path: &'a str) -> RouteSearch<'a> {
    let of_path = ROUTES.iter().filter_map(|route| {
        let name = fits(route.path, path)?;
        Some(Match { route, name })
    });
    let of_path: Vec<_> = of_path.collect();
    let found = of_path.iter().find(|found| found.route.method == method);
    match found {
        Some(found) => RouteSearch::Route(*found),
        None if of_path.is_empty() => RouteSearch::Nothing,
        None => RouteSearch::OtherMethods(of_path.iter().map(|found| found.route.method).collect()),
    }
}

/// Whether a path matches this pattern, and the value of its parameter. A pattern has at most one parameter.
fn fits<'a>(pattern: &str, path: &'a str) -> Option<Option<&'a str>> {
    let Some((before, _)) = pattern.split_once('{') else {
        return (pattern == path).then_some(None);
    };
    let value = path.strip_prefix(before)?;
    (!value.is_empty() && !value.contains('/')).then_some(Some(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_to_routes() {
        let RouteSearch::Route(found) = find("PUT", "/users/ann%2F1") else {
            panic!("it is a route");
        };
        assert_eq!(
            (found.route.operation, found.name),
            (Operation::PutUser, Some("ann%2F1"))
        );
        assert!(matches!(find("GET", "/users/"), RouteSearch::Nothing));
        assert!(matches!(find("GET", "/users/a/b"), RouteSearch::Nothing));
        match find("PUT", "/drain") {
            RouteSearch::OtherMethods(methods) => assert_eq!(methods, ["POST", "DELETE"]),
            other => panic!("{other:?}"),
        }
    }

    /// The table of operations in docs/api.md.
    fn table() -> String {
        let mut table = "| method | path | who | what it does | parameters and fields |\n|---|---|---|---|---|\n".to_owned();
        for route in ROUTES {
            let who = match route.access {
                Access::Read => "local, token",
                Access::Change => "token",
                Access::Credentials => "any token",
            };
            let parameters = route.parameters.iter();
            let parameters = parameters.map(|one| format!("`{}`: {}", one.name, one.about));
            let fields = route.body.iter();
            let fields = fields.map(|(name, _, about)| format!("`{name}` (body): {about}"));
            let all: Vec<String> = parameters.chain(fields).collect();
            table.push_str(&format!(
                "| {} | `{}{}` | {who} | {} Result: {} | {} |\n",
                route.method,
                super::super::BASE,
                route.path,
                route.summary,
                route.result,
                all.join("<br>")
            ));
        }
        table
    }

    #[test]
    fn the_page_lists_the_operations() {
        let (begin, end) = ("<!-- operations -->\n", "<!-- end of operations -->");
        let page = std::fs::read_to_string(crate::reference::path("api.md")).unwrap();
        let (before, rest) = page.split_once(begin).expect("the mark in docs/api.md");
        let (_, after) = rest.split_once(end).expect("the mark in docs/api.md");
        crate::reference::compare("api.md", &format!("{before}{begin}{}{end}{after}", table()));
    }
}
