//! The URLs of engines with several servers: `redis-sentinel://HOST:PORT,HOST:PORT/MASTER[/DB]` and
//! `redis-cluster://HOST:PORT,HOST:PORT`, also with `rediss`, `valkey` and `valkeys`, and with `USER:PASSWORD@` in
//! front of the hosts.

use crate::error::StoreError;

/// What the servers of an engine are.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// One server, with the URL as it is.
    Single,
    /// The master of this name, which these Sentinels know.
    Sentinel { hosts: Vec<String>, name: String },
    /// A Redis Cluster with these servers, and maybe others.
    Cluster { hosts: Vec<String> },
}

/// The URL of one server of several. It has a password.
#[derive(Default, PartialEq, Eq)]
pub(super) struct Template {
    scheme: String,
    /// `USER:PASSWORD@`, or nothing.
    user: String,
    db: String,
}

impl std::fmt::Debug for Template {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut text = f.debug_struct("Template");
        text.field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

impl Template {
    pub(super) fn url(&self, address: &str) -> String {
        format!("{}://{}{address}/{}", self.scheme, self.user, self.db)
    }

    /// For a Sentinel, which has other users.
    pub(super) fn without_user(&self, address: &str) -> String {
        format!("{}://{address}/", self.scheme)
    }
}

pub(super) fn parse(url: &str) -> Result<(Kind, Template), StoreError> {
    let single = || Ok((Kind::Single, Template::default()));
    let Some((scheme, rest)) = url.split_once("://") else {
        return single();
    };
    let Some((base, kind)) = scheme.split_once('-') else {
        return single();
    };
    let is_cluster = match kind {
        "cluster" => true,
        "sentinel" => false,
        _ => return single(),
    };
    if !["redis", "rediss", "valkey", "valkeys"].contains(&base) {
        return single();
    }
    let wrong = |form: &str| StoreError::Url(format!("expected {scheme}://{form}"));
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (format!("{user}@"), rest),
        None => (String::new(), rest),
    };
    let (hosts, path) = rest.split_once('/').unwrap_or((rest, ""));
    let hosts: Vec<_> = hosts.split(',').map(str::to_owned).collect();
    let has_empty = hosts.iter().any(String::is_empty);
    let template = |db: &str| Template {
        scheme: base.to_owned(),
        user,
        db: db.to_owned(),
    };
    if is_cluster {
        if has_empty || !["", "0"].contains(&path) {
            return Err(wrong(
                "HOST:PORT,HOST:PORT: a Redis Cluster has no other database than 0",
            ));
        }
        return Ok((Kind::Cluster { hosts }, template("0")));
    }
    let (name, db) = path.split_once('/').unwrap_or((path, "0"));
    if name.is_empty() || has_empty {
        return Err(wrong(
            "HOST:PORT,HOST:PORT/NAME: NAME is that of the master",
        ));
    }
    let name = name.to_owned();
    Ok((Kind::Sentinel { hosts, name }, template(db)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_of_sentinels_has_hosts_and_the_name_of_the_master() {
        let (kind, template) = parse("redis-sentinel://u:p@a:1,[::1]:2/main/3").unwrap();
        let hosts = vec!["a:1".to_owned(), "[::1]:2".to_owned()];
        let name = "main".to_owned();
        assert_eq!(kind, Kind::Sentinel { hosts, name });
        assert_eq!(template.url("b:3"), "redis://u:p@b:3/3");
        assert_eq!(template.without_user("b:3"), "redis://b:3/");
        assert!(!format!("{template:?}").contains("u:p"));
        let (_, template) = parse("valkeys-sentinel://a:1/main").unwrap();
        assert_eq!(template.url("b:3"), "valkeys://b:3/0");
        for bad in [
            "redis-sentinel://a:1",
            "redis-sentinel://a:1/",
            "redis-sentinel:///main",
            "rediss-sentinel://a:1,,b:2/main",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_url_of_a_redis_cluster_has_hosts_and_no_database() {
        for (url, of_server) in [
            ("redis-cluster://a:1,b:2", "redis://c:3/0"),
            ("rediss-cluster://u:p@a:1,b:2/", "rediss://u:p@c:3/0"),
            (
                "valkey-cluster://:ADDRESS@a:1,b:2/0",
                "valkey://:ADDRESS@c:3/0",
            ),
        ] {
            let (kind, template) = parse(url).unwrap();
            let hosts = vec!["a:1".to_owned(), "b:2".to_owned()];
            assert_eq!(kind, Kind::Cluster { hosts });
            assert_eq!(template.url("c:3"), of_server);
        }
        for bad in [
            "redis-cluster://",
            "redis-cluster://a:1,",
            "redis-cluster://a:1/1",
            "redis-cluster://a:1/main",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn other_urls_are_of_one_server() {
        for url in [
            "redis://a-cluster:1/2",
            "redis+unix:///x",
            "http-cluster://a",
            "",
        ] {
            assert_eq!(parse(url).unwrap().0, Kind::Single, "{url}");
        }
    }
}
