//! The keys of `[cluster]`: nodes that work together. Here, the engine is the Redis or Valkey server that the nodes
//! share.

use std::fmt;

use server::cluster_keys::ClusterKeys;

use stores::Options;

use super::diagnostics::{Diagnostic, Report};
use super::schema::Settings;
use super::setting::{FromText, Mistake, one_of, word};
use super::source::Located;

/// The secret that all nodes have; empty without a cluster.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Secret(String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(***)")
    }
}

impl FromText for Secret {
    const EXPECTED: &'static str = "a secret of at least 32 characters";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        if !text.is_empty() && text.len() < ClusterKeys::MIN_SECRET {
            let message = format!(
                "the secret of the cluster has {} characters; at least {} are required",
                text.len(),
                ClusterKeys::MIN_SECRET
            );
            let help =
                "all keys of the cluster are made of it; make one with: openssl rand -base64 32";
            return Err(Mistake::new(message).help(help));
        }
        super::credentials::reject_placeholder(text)?;
        Ok(Self(text.to_owned()))
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// Bytes of the longest name of a node, as of a DNS label.
const MAX_NAME: usize = 63;
/// The name of the machine.
const HOST_NAME: &str = "/proc/sys/kernel/hostname";

/// The name of this node; empty for the name of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Name(String);

impl FromText for Name {
    const EXPECTED: &'static str = "a name like \"fra-1\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        match text.len() <= MAX_NAME && text.bytes().all(is_allowed) {
            true => Ok(Self(text.to_owned())),
            false => Err(Mistake::new(format!("`{text}` is no name of a node")).help(
                "use at most 63 letters, digits, hyphens, underscores and dots; each node has another name",
            )),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// What all keys in the engine begin with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Prefix(String);

impl FromText for Prefix {
    const EXPECTED: &'static str = "a text like \"hairpin\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.:/".contains(&byte);
        match (1..=MAX_NAME).contains(&text.len()) && text.bytes().all(is_allowed) {
            true => Ok(Self(text.to_owned())),
            false => Err(Mistake::new(format!("`{text}` is no prefix of keys"))
                .help("use 1 to 63 letters, digits and `-_.:/`")),
        }
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The URL of the engine; empty for none. It may have a password in it.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Engine(String);

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Engine(***)")
    }
}

impl FromText for Engine {
    const EXPECTED: &'static str = "a URL like \"rediss://hairpin:PASSWORD@redis.example.org/0\"";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        if !text.is_empty() {
            let options = Options {
                url: text.to_owned(),
                ..Options::default()
            };
            stores::cluster::open(&options, "check").map_err(|error| {
                Mistake::new(format!("the URL cannot be used: {error}"))
                    .help(format!("expected {}; see docs/cluster.md", Self::EXPECTED))
            })?;
        }
        Ok(Self(text.to_owned()))
    }

    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// The password of the Sentinels; none if it is empty.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct SentinelPassword(Option<String>);

impl fmt::Debug for SentinelPassword {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SentinelPassword(***)")
    }
}

impl FromText for SentinelPassword {
    const EXPECTED: &'static str = "a password like \"${file:/run/secrets/sentinel}\"";
    const SECRET: bool = true;

    fn from_text(text: &str) -> Result<Self, Mistake> {
        Ok(Self((!text.is_empty()).then(|| text.to_owned())))
    }

    fn to_text(&self) -> String {
        self.0.clone().unwrap_or_default()
    }
}

/// How nodes send SIP to each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum SipTransport {
    /// Over TLS to nodes that have it, over UDP and TCP to others.
    #[default]
    Auto,
    /// Over TLS only. A node without TLS gets no SIP.
    Tls,
    /// Over UDP and TCP.
    Plain,
}

const SIP_TRANSPORTS: [(&str, SipTransport); 3] = [
    ("auto", SipTransport::Auto),
    ("tls", SipTransport::Tls),
    ("plain", SipTransport::Plain),
];

impl FromText for SipTransport {
    const EXPECTED: &'static str = "\"auto\", \"tls\" or \"plain\"";

    fn from_text(text: &str) -> Result<Self, Mistake> {
        one_of(text, &SIP_TRANSPORTS)
    }

    fn to_text(&self) -> String {
        word(&SIP_TRANSPORTS, *self)
    }
}

/// The cluster of this node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Cluster {
    secret: Secret,
    name: Name,
    engine: Engine,
    engine_ca: Option<std::path::PathBuf>,
    sentinel_password: SentinelPassword,
    /// What all keys in the engine begin with.
    pub(crate) prefix: String,
    /// How nodes send SIP to each other.
    pub(crate) sip_transport: SipTransport,
}

impl Cluster {
    /// What all nodes derive their keys from; `None` without a cluster.
    pub(crate) fn keys(&self) -> Option<ClusterKeys> {
        // Its length has been checked.
        ClusterKeys::new(self.secret.0.as_bytes()).ok()
    }

    /// The engine that the nodes share, if there is one.
    pub(crate) fn engine(&self) -> Option<Options> {
        (!self.engine.0.is_empty()).then(|| Options {
            url: self.engine.0.clone(),
            password: None,
            ca: self.engine_ca.clone(),
            sentinel_password: self.sentinel_password.0.clone(),
        })
    }

    /// The name of this node.
    ///
    /// # Errors
    /// If `cluster.node` is empty, and the machine has no name.
    pub(crate) fn name(&self) -> std::io::Result<String> {
        if !self.name.0.is_empty() {
            return Ok(self.name.0.clone());
        }
        let name = std::fs::read_to_string(HOST_NAME)?;
        let name = name.trim();
        match name.is_empty() || name == "(none)" {
            true => Err(std::io::Error::other("the machine has no name")),
            false => Ok(name.to_owned()),
        }
    }
}

/// The cluster, without the places in the configuration; `None` if a value could not be read.
pub(super) fn resolve(settings: &Settings) -> Option<Cluster> {
    let s = settings.clone();
    Some(Cluster {
        secret: s.cluster_secret?.value,
        name: s.cluster_node?.value,
        engine: s.cluster_engine?.value,
        engine_ca: super::values(s.cluster_engine_ca?.value)
            .into_iter()
            .map(|file| file.0)
            .next(),
        sentinel_password: s.cluster_sentinel_password?.value,
        prefix: s.cluster_prefix?.value.0,
        sip_transport: s.cluster_sip_transport?.value,
    })
}

/// The engine, unless it is the default, an empty text.
pub(super) fn engine(settings: &Settings) -> Option<&Located<Engine>> {
    let engine = settings.cluster_engine.as_ref();
    engine.filter(|engine| !engine.value.0.is_empty())
}

/// The beginnings of the URLs of engines with TLS. The last two are for Sentinels and for a Redis Cluster.
const TLS_SCHEMES: [&str; 4] = ["rediss://", "valkeys://", "rediss-", "valkeys-"];

/// Reports keys that do not fit together, and files of certificates that cannot be used. An engine requires a secret:
/// otherwise anybody who reaches the engine could act as a node.
pub(super) fn check(settings: &Settings, report: &mut Report) {
    let has_secret = settings.cluster_secret.as_ref();
    let has_secret = has_secret.is_some_and(|secret| !secret.value.0.is_empty());
    if let Some(engine) = engine(settings)
        && !has_secret
    {
        let message = "cluster.engine requires cluster.secret";
        let help = "give all nodes the same secret: openssl rand -base64 32";
        report.push(Diagnostic::error(&engine.at, message).help(help));
    }
    if let (Some(password), Some(engine)) = (
        &settings.cluster_sentinel_password,
        &settings.cluster_engine,
    ) && password.value.0.is_some()
        && !engine.value.0.contains("-sentinel://")
    {
        let message = "cluster.sentinel_password requires an engine with Sentinels";
        let help = "begin the URL of cluster.engine with redis-sentinel:// or rediss-sentinel://, or remove cluster.sentinel_password";
        report.push(Diagnostic::error(&password.at, message).help(help));
    }
    let files = settings.cluster_engine_ca.as_ref();
    let files = files.map_or(&[][..], |list| &list.value);
    if let Some(second) = files.get(1) {
        let message = "the engine has one file of certificates";
        report
            .push(Diagnostic::error(&second.at, message).help("put all issuers into one PEM file"));
    }
    if let (Some(first), Some(engine)) = (files.first(), engine(settings)) {
        let url = &engine.value.0;
        if !TLS_SCHEMES.iter().any(|scheme| url.starts_with(scheme)) {
            let message = "cluster.engine_ca requires an engine with TLS";
            let help =
                "begin the URL of cluster.engine with rediss://, or remove cluster.engine_ca";
            report.push(Diagnostic::error(&first.at, message).help(help));
        }
    }
    for file in files {
        if let Err(error) = server::certificates::Certificates::roots(&[&file.value.0]) {
            let help = "give a PEM file with the certificates of the issuers";
            report.push(Diagnostic::error(&file.at, error.to_string()).help(help));
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{Inputs, Loaded, load};

    fn of(text: &str) -> Loaded {
        load(&Inputs {
            file: Some(("test".to_owned(), format!("[cluster]\n{text}\n"))),
            ..Inputs::default()
        })
    }

    #[test]
    fn an_engine_needs_a_secret_and_a_node_has_a_name() {
        let secret = "secret = \"0123456789abcdef0123456789abcdef\"";
        let whole = of(&format!(
            "{secret}\nnode = \"fra-1\"\nengine = \"redis://:p4ss@localhost/0\""
        ));
        assert!(!whole.effective(false).contains("p4ss"));
        let cluster = whole.config.expect("it is valid").cluster;
        assert_eq!(cluster.name().expect("it has one"), "fra-1");
        assert!(cluster.engine().is_some() && !format!("{cluster:?}").contains("p4ss"));
        let unnamed = of(secret).config.expect("it is valid").cluster;
        assert!(unnamed.engine().is_none() && !unnamed.name().expect("of the machine").is_empty());
        for (text, part) in [
            (
                "engine = \"redis://localhost\"",
                "test:2:10: cluster.engine requires cluster.secret",
            ),
            ("engine = \"http://localhost\"", "the URL cannot be used"),
            (
                "engine = \"redis-cluster://localhost:1,localhost:2/1\"",
                "a Redis Cluster has no other database than 0",
            ),
            (
                "secret = \"0123456789abcdef0123456789abcdef\"\nengine = \"rediss-cluster://a:1,b:2\"\nengine_ca = [\"/nonexistent\"]",
                "/nonexistent",
            ),
            ("node = \"a b\"", "`a b` is no name of a node"),
            (
                "secret = \"0123456789abcdef0123456789abcdef\"\nengine = \"redis://localhost\"\nsentinel_password = \"x\"",
                "test:4:21: cluster.sentinel_password requires an engine with Sentinels",
            ),
            ("sip_transport = \"udp\"", "unknown value `udp`"),
            ("prefix = \"\"", "no prefix of keys"),
            ("engine_ca = [\"/nonexistent\"]", "/nonexistent"),
            (
                "secret = \"0123456789abcdef0123456789abcdef\"\nengine = \"redis://localhost\"\nengine_ca = [\"/nonexistent\"]",
                "test:4:14: cluster.engine_ca requires an engine with TLS",
            ),
            (
                "secret = \"0123456789abcdef0123456789abcdef\"\nengine = \"redis-sentinel://a:1/main\"\nengine_ca = [\"/nonexistent\"]",
                "cluster.engine_ca requires an engine with TLS",
            ),
            (
                "secret = \"0123456789abcdef0123456789abcdef\"\nengine = \"rediss://localhost\"\nengine_ca = [\"/nonexistent\"]",
                "/nonexistent",
            ),
        ] {
            let said = of(text).one_line_each().remove(0);
            assert!(said.contains(part), "{said}");
        }
    }

    #[test]
    fn a_node_that_other_nodes_call_has_an_address_and_no_name() {
        let of = |advertise: &str| {
            let secret = "0123456789abcdef0123456789abcdef";
            of(&format!(
                "secret = \"{secret}\"\nengine = \"redis://localhost\"\n\
                 [sip]\nlisten = [\"10.0.0.5:5060\"]\nadvertise = [\"{advertise}\"]"
            ))
        };
        assert_eq!(of("203.0.113.5").count(), "");
        let warned = of("sip.example.org");
        assert!(warned.config.is_some());
        let said = warned.one_line_each().remove(0);
        assert!(said.contains("do not send calls to a name"), "{said}");
    }

    #[test]
    fn a_node_without_an_engine_may_have_a_name() {
        let sip = "[sip]\nlisten = [\"10.0.0.5:5060\"]\nadvertise = [\"sip.example.org\"]";
        for engine in ["", "engine = \"\""] {
            assert_eq!(of(&format!("{engine}\n{sip}")).one_line_each(), [""; 0]);
        }
    }

    #[test]
    fn a_secret_makes_keys_and_stays_out_of_sight() {
        let none = of("secret = \"\"");
        assert!(none.config.expect("it is valid").cluster.keys().is_none());
        let some = of("secret = \"0123456789abcdef0123456789abcdef\"");
        assert!(!some.effective(false).contains("0123456789"));
        let config = some.config.expect("it is valid");
        assert!(config.cluster.keys().is_some());
        assert!(!format!("{config:?}").contains("0123456789"));
        for (text, part) in [
            (
                "secret = \"0123456789abcdef0123456789abcde\"",
                "test:2:10: the secret of the cluster has 31 characters",
            ),
            (
                "secret = \"replace-me with a long secret of yours\"",
                "placeholder",
            ),
        ] {
            let said = of(text).one_line_each().remove(0);
            assert!(said.contains(part), "{said}");
        }
    }
}
