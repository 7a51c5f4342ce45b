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

/// The entries of the mapping `eturnal`, or the line and text of a mistake.
pub(super) fn entries(text: &str) -> Result<Vec<Entry<'_>>, (usize, String)> {
    let documents = MarkedYaml::load_from_str(text)
        .map_err(|error| (error.marker().line(), error.info().to_owned()))?;
    let document = documents.into_iter().next();
    let top = document.map(children).unwrap_or_default();
    match top.into_iter().find(|entry| entry.name == "eturnal") {
        Some(eturnal) => Ok(children(eturnal.value)),
        None => Err((1, "the file has no mapping `eturnal`".to_owned())),
    }
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
