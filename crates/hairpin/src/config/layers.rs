//! Defaults < file < environment < flags, key by key: a list is replaced as a whole, never appended to.

use std::ffi::OsString;

use super::diagnostics::{Diagnostic, Report};
use super::includes;
use super::key::{ENV_PREFIX, Key};
use super::microseconds::{OldKey, is_set_by_both_names};
use super::node::{Node, Raw};
use super::schema::{KEYS, Settings, sections};
use super::source::{Layer, Location, SourceId, Sources};
use super::suggest::nearest;
use super::walk;

/// The defaults, as the file that a user would write to get them.
pub(crate) const DEFAULTS: &str = include_str!("defaults.toml");

/// One setting from the command line.
#[derive(Clone, Debug)]
pub(crate) struct Flag {
    /// `--port-range`.
    pub(crate) flag: &'static str,
    /// `relay.ports`; only `--set` can name a key that does not exist.
    pub(crate) key: String,
    /// The values in the order given.
    pub(crate) values: Vec<String>,
    /// Whether each value is one element of a list.
    pub(crate) list: bool,
}

/// Everything a load starts from; a reload starts from the same, with the file read anew.
#[derive(Clone, Debug, Default)]
pub(crate) struct Inputs {
    /// Name and text of the configuration file.
    pub(crate) file: Option<(String, String)>,
    /// The environment of the process (all of it; only what begins with `HAIRPIN_` and has `__` is looked at).
    pub(crate) environment: Vec<(OsString, OsString)>,
    /// The flags of the command line.
    pub(crate) flags: Vec<Flag>,
}

/// Reads all layers.
pub(crate) fn read(inputs: &Inputs, sources: &mut Sources, report: &mut Report) -> Settings {
    let mut settings = Settings::default();
    let defaults = sources.add(Layer::Default, "defaults", DEFAULTS);
    walk::document(defaults, DEFAULTS, &mut settings, report);
    if let Some((name, text)) = &inputs.file {
        let environment = &inputs.environment;
        includes::read((name, text), environment, &mut settings, sources, report);
    }
    for (name, value) in &inputs.environment {
        environment(name, value, &mut settings, sources, report);
    }
    for flag in &inputs.flags {
        command_line(flag, &mut settings, sources, report);
    }
    settings
}

/// Reads the environment variable `name` into `settings`. Variables without the prefix and a section are ignored.
fn environment(
    name: &OsString,
    value: &OsString,
    settings: &mut Settings,
    sources: &mut Sources,
    report: &mut Report,
) {
    let name = name.to_string_lossy();
    // Kubernetes sets HAIRPIN_PORT and the like for a service called hairpin: without `__` it is none of ours.
    if !name
        .strip_prefix(ENV_PREFIX)
        .is_some_and(|rest| rest.contains("__"))
    {
        return;
    }
    let key = KEYS.iter().find(|key| key.variable() == name);
    let old = OldKey::find_variable(&name);
    let known = old.map(Named::Old).or(key.map(Named::New));
    let text = value.to_str();
    let (source, at) = shown(
        sources,
        Layer::Environment,
        &format!("{name}="),
        known.is_some_and(Named::is_shown),
        text.unwrap_or("?"),
    );
    match (known, text.map(Raw::Plain)) {
        (Some(known), Some(raw)) => known.read(&Node { raw, at }, settings, sources, report),
        (Some(_), None) => report.error(&at, "the value is not UTF-8"),
        (None, _) => {
            let span = 0..name.len();
            report.push(unknown_variable(&name, &Location { source, span }));
        }
    }
}

/// A key by its name, or by its old one.
#[derive(Clone, Copy)]
enum Named {
    New(&'static Key),
    Old(OldKey),
}

impl Named {
    /// Whether its value may be shown.
    fn is_shown(self) -> bool {
        match self {
            Named::New(key) => key.may_show(""),
            Named::Old(_) => true,
        }
    }

    /// Reads a value of the environment or of a flag, unless the same layer has set the key by its other name.
    fn read(
        self,
        node: &Node<'_>,
        settings: &mut Settings,
        sources: &Sources,
        report: &mut Report,
    ) {
        let (key, is_old) = match self {
            Named::New(key) => (key, false),
            Named::Old(old) => (old.key(), true),
        };
        let layer = |at: &Location| sources.get(at.source).layer;
        let before = (key.slot)(settings).place();
        let before = before.filter(|before| layer(before) == layer(&node.at));
        let name = (&node.at, is_old);
        if is_set_by_both_names(key, name, before.as_ref(), settings, report) {
            return;
        }
        match self {
            Named::New(key) => (key.slot)(settings).read(node, report),
            Named::Old(old) => old.read(node, None, settings, report),
        }
    }
}

fn unknown_variable(name: &str, at: &Location) -> Diagnostic {
    let path = name
        .trim_start_matches(ENV_PREFIX)
        .to_ascii_lowercase()
        .replace("__", ".");
    let near = nearest(
        &path,
        KEYS.iter()
            .map(Key::path)
            .collect::<Vec<_>>()
            .iter()
            .map(String::as_str),
    )
    .and_then(|near| KEYS.iter().find(|key| key.path() == near));
    let help = near.map_or_else(
        || {
            format!(
                "it is {ENV_PREFIX}SECTION__KEY; the sections are {}",
                sections().join(", ")
            )
        },
        |key| format!("did you mean {}?", key.variable()),
    );
    Diagnostic::error(at, format!("unknown environment variable `{name}`")).help(help)
}

fn command_line(flag: &Flag, settings: &mut Settings, sources: &mut Sources, report: &mut Report) {
    let key = KEYS.iter().find(|key| key.path() == flag.key);
    let old = OldKey::find_path(&flag.key);
    let known = old.map(Named::Old).or(key.map(Named::New));
    let is_shown = known.is_some_and(Named::is_shown);
    let typed = if flag.flag == "--set" {
        format!("--set {}=", flag.key)
    } else {
        format!("{} ", flag.flag)
    };
    let nodes: Vec<_> = flag
        .values
        .iter()
        .map(|value| {
            let (_, at) = shown(sources, Layer::Flag, &typed, is_shown, value);
            Node {
                raw: Raw::Plain(value),
                at,
            }
        })
        .collect();
    let Some(first) = nodes.first().cloned() else {
        return;
    };
    match known {
        Some(Named::New(key)) if flag.list => {
            let list = Node {
                at: first.at,
                raw: Raw::Many(nodes),
            };
            (key.slot)(settings).read(&list, report);
        }
        Some(known) => known.read(&first, settings, sources, report),
        None => report.push(unknown_path(&flag.key, first.at.source)),
    }
}

/// The error for a `--set` with an unknown key. It suggests the nearest known one.
fn unknown_path(path: &str, source: SourceId) -> Diagnostic {
    let start = "--set ".len();
    let paths: Vec<_> = KEYS.iter().map(Key::path).collect();
    let help = nearest(path, paths.iter().map(String::as_str)).map_or_else(
        || {
            format!(
                "it is SECTION.KEY=VALUE; the sections are {}",
                sections().join(", ")
            )
        },
        |near| format!("did you mean `{near}`?"),
    );
    Diagnostic::error(
        &Location {
            source,
            span: start..start + path.len(),
        },
        format!("unknown key `{path}`"),
    )
    .help(help)
}

/// Adds `typed` + `value` as a text that may be shown, and says where in it the value stands. Masks
/// the value unless `is_shown`. The value of an unknown name is masked, because it may be a misspelt secret.
fn shown(
    sources: &mut Sources,
    layer: Layer,
    typed: &str,
    is_shown: bool,
    value: &str,
) -> (SourceId, Location) {
    let value = if is_shown { value } else { "***" };
    let name = if layer == Layer::Flag {
        "command line"
    } else {
        "environment"
    };
    let source = sources.add(layer, name, format!("{typed}{value}"));
    (
        source,
        Location {
            source,
            span: typed.len()..typed.len() + value.len(),
        },
    )
}
