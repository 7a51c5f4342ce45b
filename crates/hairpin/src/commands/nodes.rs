//! `hairpin nodes`: the nodes of the cluster.

use std::process::ExitCode;

use anyhow::Result;
use serde_json::Value;

use super::control::{ask_with, refused};
use super::output::{self, printable};
use crate::cli::nodes::Nodes;
use crate::config::write_seconds;
use crate::control::protocol::Command;

/// Runs `hairpin nodes`.
pub(crate) fn run(args: &Nodes) -> Result<ExitCode> {
    let result = match ask_with(&args.target, Command::Nodes, &Value::Null)? {
        Ok(result) => result,
        Err(refusal) => return Ok(refused(&refusal)),
    };
    let text = match args.json {
        true => format!("{result}\n"),
        false => describe(&result),
    };
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn describe(result: &Value) -> String {
    let nodes = result["nodes"].as_array();
    let mut text: String = nodes
        .map_or(&[][..], Vec::as_slice)
        .iter()
        .map(line)
        .collect();
    let total = &result["total"];
    if let Some(count) = total["nodes"].as_u64().filter(|count| *count > 1) {
        text += &format!(
            "{count} nodes  {} allocations, {} bindings\n",
            total["allocations"].as_u64().unwrap_or(0),
            total["bindings"].as_u64().unwrap_or(0)
        );
    }
    let engine = &result["engine"];
    // Older servers do not say it.
    if engine["is_up"] == Value::Bool(true) && engine["grants_leases"] == Value::Bool(false) {
        text += "the engine grants no leases: this node applies its own limits\n";
    }
    if engine["is_up"] != Value::Bool(true) {
        let since = write_seconds(engine["since_s"].as_u64().unwrap_or(0));
        text += &format!("the engine has not responded for {since}: this is what was known last\n");
    }
    text
}

fn line(node: &Value) -> String {
    let text = |name: &str| printable(node[name].as_str().unwrap_or_default());
    let addresses = node["addresses"].as_array().map(Vec::as_slice);
    let addresses = addresses.unwrap_or_default().iter();
    let addresses: Vec<_> = addresses.filter_map(Value::as_str).map(printable).collect();
    let own = if node["is_own"] == Value::Bool(true) {
        " (this node)"
    } else {
        ""
    };
    // Older servers do not say it.
    let bindings = node["bindings"].as_u64();
    let bindings = bindings.map_or_else(String::new, |count| format!("  {count} bindings"));
    format!(
        "{}{own}  {}  {} allocations, {} % of its limit{bindings}  {}  version {}\n",
        text("name"),
        text("state"),
        node["allocations"].as_u64().unwrap_or(0),
        node["load_percent"].as_f64().unwrap_or(0.0),
        addresses.join(", "),
        text("version"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_line_per_node_and_one_for_an_engine_that_is_away() {
        let mut result = json!({
            "engine": { "is_up": true, "since_s": 4 },
            "nodes": [
                { "name": "a", "is_own": true, "state": "serving", "allocations": 3, "load_percent": 1.5,
                  "addresses": ["udp 192.0.2.1:3478"], "version": "0.1.0" },
                { "name": "b\u{1b}[2J", "is_own": false, "state": "draining" },
            ],
        });
        let text = describe(&result);
        assert_eq!(
            text.lines().next(),
            Some(
                "a (this node)  serving  3 allocations, 1.5 % of its limit  udp 192.0.2.1:3478  version 0.1.0"
            )
        );
        assert_eq!(text.lines().count(), 2);
        assert!(!text.contains('\u{1b}'), "{text}");
        result["nodes"][0]["bindings"] = json!(7);
        result["total"] = json!({ "nodes": 2, "allocations": 9, "bindings": 7 });
        let text = describe(&result);
        assert!(text.contains("% of its limit  7 bindings  udp "), "{text}");
        assert!(
            text.ends_with("\n2 nodes  9 allocations, 7 bindings\n"),
            "{text}"
        );
        result["engine"]["grants_leases"] = json!(false);
        assert!(describe(&result).contains("grants no leases"));
        result["engine"]["is_up"] = json!(false);
        assert!(describe(&result).ends_with("this is what was known last\n"));
    }
}
