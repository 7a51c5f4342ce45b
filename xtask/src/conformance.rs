//! The first part of `docs/sip-conformance.md`: the messages of RFC 4475 and what hairpin makes of them.
//!
//! The table is that of `crates/sip/tests/torture/expected.tsv`, which a test of that crate holds against the code.

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
         Written by `cargo xtask rfc`; do not edit.\n\n\
         ## The messages of RFC 4475\n\n\
         The table is kept in\n\
         [expected.tsv](../crates/sip/tests/torture/expected.tsv), and the test\n\
         `every_message_is_taken_as_the_table_says` holds it against the code: each message is read, bit by bit as the RFC's\n\
         archive has it, as a datagram, once by a user agent (which is a registrar too and knows no extensions) and once by a\n\
         proxy. Answers are given with the reason phrase that is sent.\n\n\
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
