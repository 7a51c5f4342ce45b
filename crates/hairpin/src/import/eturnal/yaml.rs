//! The options of eturnal.yml, each with its line.

use saphyr::{LoadableYamlNode, MarkedYaml, Scalar, YamlData};

/// A node of YAML.
pub(super) type Node<'a> = MarkedYaml<'a>;

/// An option.
pub(super) struct Entry<'a> {
    pub(super) line: usize,
    pub(super) name: String,
    pub(super) value: Node<'a>,
}

/// The options of a file.
#[derive(Default)]
pub(super) struct File<'a> {
    /// The entries of the mapping `eturnal`.
    pub(super) options: Vec<Entry<'a>>,
    /// The line and the name of everything that is not in this mapping.
    pub(super) others: Vec<(usize, String)>,
}

/// Reads a file; or the line and text of a mistake.
pub(super) fn file(text: &str) -> Result<File<'_>, (usize, String)> {
    let documents = MarkedYaml::load_from_str(text)
        .map_err(|error| (error.marker().line(), error.info().to_owned()))?;
    let mut file = File::default();
    let mut has_options = false;
    for (number, document) in documents.into_iter().enumerate() {
        if number > 0 {
            let line = document.span.start.line();
            file.others.push((line, "another YAML document".to_owned()));
            continue;
        }
        for entry in children(document) {
            if entry.name != "eturnal" {
                file.others.push((entry.line, entry.name));
                continue;
            }
            has_options = true;
            if !is_mapping(&entry.value) {
                return Err((entry.line, "`eturnal` has no options".to_owned()));
            }
            file.options = children(entry.value);
        }
    }
    match has_options {
        true => Ok(file),
        false => Err((1, "the file has no mapping `eturnal`".to_owned())),
    }
}

/// Whether the node is a mapping. An empty value is an empty mapping.
pub(super) fn is_mapping(node: &Node<'_>) -> bool {
    matches!(
        node.data,
        YamlData::Mapping(_) | YamlData::Value(Scalar::Null)
    )
}

/// The entries of a mapping; none if the node is something else.
pub(super) fn children(node: Node<'_>) -> Vec<Entry<'_>> {
    let YamlData::Mapping(mapping) = node.data else {
        return Vec::new();
    };
    let entries = mapping.into_iter().map(|(key, value)| Entry {
        line: key.span.start.line(),
        name: text(&key).unwrap_or_default(),
        value,
    });
    entries.collect()
}

/// The elements of a sequence; of another node, itself.
pub(super) fn elements<'n, 'a>(node: &'n Node<'a>) -> Vec<&'n Node<'a>> {
    match &node.data {
        YamlData::Sequence(list) => list.iter().collect(),
        YamlData::Value(Scalar::Null) => Vec::new(),
        _ => vec![node],
    }
}

/// A scalar as text.
pub(super) fn text(node: &Node<'_>) -> Option<String> {
    match &node.data {
        YamlData::Representation(text, ..) => Some(text.to_string()),
        YamlData::Value(Scalar::String(text)) => Some(text.to_string()),
        YamlData::Value(Scalar::Integer(number)) => Some(number.to_string()),
        YamlData::Value(Scalar::FloatingPoint(number)) => Some(number.to_string()),
        YamlData::Value(Scalar::Boolean(truth)) => Some(truth.to_string()),
        _ => None,
    }
}

/// A number.
pub(super) fn number(node: &Node<'_>) -> Option<u64> {
    text(node)?.parse().ok()
}

/// A truth value.
pub(super) fn boolean(node: &Node<'_>) -> Option<bool> {
    match &*text(node)?.to_ascii_lowercase() {
        "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" => Some(false),
        _ => None,
    }
}
