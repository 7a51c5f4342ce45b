//! The first part of `docs/sip-conformance.md`: the messages of RFC 4475 and how hairpin responds to them.
//!
//! The table is `crates/sip/tests/torture/expected.tsv`. A test of that crate compares it with the code.

use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};

const TABLE: &str = "crates/sip/tests/torture/expected.tsv";

/// Where the page is.
pub(crate) const PAGE: &str = "docs/sip-conformance.md";

/// The text of the page.
pub(crate) fn page(root: &Path) -> Result<String> {
    let table = std::fs::read_to_string(root.join(TABLE));
    render(&table.with_context(|| format!("cannot read {TABLE}"))?)
}

fn render(table: &str) -> Result<String> {
    let mut page = String::from(
        "# SIP conformance\n\n\
         For readers who check hairpin against the SIP RFCs. `cargo xtask rfc` writes this page; do not edit it.\n\n\
         ## The messages of RFC 4475\n\n\
         The source of the table is [expected.tsv](../crates/sip/tests/torture/expected.tsv). The test\n\
         `every_message_is_taken_as_the_table_says` compares it with the code. It reads each message as one datagram with\n\
         the bytes of the RFC's archive. A user agent, which is also a registrar without extensions, reads it first, then a\n\
         proxy. Responses have the reason phrase that the server sends.\n\n\
         | section | message | what it is | the RFC asks for | a user agent | a proxy |\n|---|---|---|---|---|---|\n",
    );
    for line in table.lines().filter(|line| !line.starts_with('#')) {
        let columns: Vec<&str> = line.split('\t').collect();
        let [section, name, title, asked, user_agent, proxy] = columns[..] else {
            bail!("{TABLE}: six columns are needed, separated by tabs: `{line}`");
        };
        let title = title.replace('<', "&lt;").replace('>', "&gt;");
        let cells = [
            section,
            &format!("`{name}`"),
            &title,
            asked,
            user_agent,
            proxy,
        ];
        let _ = writeln!(page, "| {} |", cells.join(" | "));
    }
    Ok(page)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_six_columns() {
        let page = render("# no line\n3.1\tx\ta <b>\taccept\taccept\t400 Bad\n").unwrap();
        assert!(page.ends_with("| 3.1 | `x` | a &lt;b&gt; | accept | accept | 400 Bad |\n"));
        assert!(render("3.1\tx\n").is_err());
    }
}
