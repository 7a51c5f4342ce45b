//! `hairpin doctor` on a machine that a test makes up.

use std::path::Path;

use crate::common::{fails, file, json, run, stderr, stdout};

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn the_status_says_whether_something_is_wrong_and_each_finding_how_to_mend_it() {
    let root = tempfile::tempdir().unwrap();
    let at = root.path().display().to_string();
    write(
        root.path(),
        "proc/sys/net/ipv4/ip_local_port_range",
        "32768 60999",
    );
    write(
        root.path(),
        "proc/sys/net/netfilter/nf_conntrack_max",
        "100",
    );
    write(
        root.path(),
        "proc/sys/net/netfilter/nf_conntrack_count",
        "100",
    );
    let only = [
        "doctor",
        "--root",
        &at,
        "--only",
        "ports",
        "--only",
        "conntrack",
    ];
    let output = run(&only);
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    let text = stdout(&output);
    for part in [
        "warning  ports ",
        "# sysctl -w net.ipv4.ip_local_reserved_ports=49152-60999",
        "error    conntrack ",
        "# sysctl -w net.netfilter.nf_conntrack_max=200000",
        "2 findings.",
    ] {
        assert!(text.contains(part), "`{part}` is not in {text}");
    }
    let found = json(&run(&[&only[..], &["--json"]].concat()));
    assert_eq!(
        (&found["ok"], &found["findings"][1]["level"]),
        (&false.into(), &"error".into())
    );
    let (_folder, config) = file("[relay]\nports = \"61000-65535\"\n[limits]\nallocations = 10\n");
    write(
        root.path(),
        "proc/sys/net/netfilter/nf_conntrack_count",
        "1",
    );
    let output = run(&[&only[..], &["--config", &config.display().to_string()]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", stdout(&output));
    assert!(stdout(&output).ends_with("Nothing is wrong.\n"));
}

#[test]
fn arguments_that_make_no_sense_are_refused() {
    fails(
        &run(&["doctor", "--only", "everything"]),
        2,
        "there is no check everything; there are: files, buffers",
    );
    let (_folder, config) = file("[relay]\nports = 7\n");
    fails(
        &run(&["doctor", "--config", &config.display().to_string()]),
        2,
        "the configuration has mistakes",
    );
}
