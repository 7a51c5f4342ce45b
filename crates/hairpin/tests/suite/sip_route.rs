//! `hairpin sip route`: where a request goes, and why; and what `hairpin check` says about routes.

use crate::common::{file, run, stderr, stdout};

const EXAMPLE: &str = include_str!("../../../../deploy/sip-trunks.example.toml");

fn route(config: &str, flags: &[&str]) -> std::process::Output {
    let (_directory, path) = file(config);
    let mut args = vec!["sip", "route", "--config", path.to_str().expect("a path")];
    args.extend(flags);
    run(&args)
}

fn check(text: &str) -> std::process::Output {
    let (_directory, path) = file(text);
    run(&["check", path.to_str().expect("a path")])
}

const ALICE: [&str; 2] = ["--from", "sip:alice@example.org"];

/// The status and the text for a call of alice.
fn of_alice(to: &str, flags: &[&str]) -> (Option<i32>, String) {
    let flags = [&ALICE[..], &["--to", to], flags].concat();
    let output = route(EXAMPLE, &flags);
    assert_eq!(stderr(&output), "");
    (output.status.code(), stdout(&output))
}

#[test]
fn a_number_goes_to_the_trunks_of_its_route_in_order() {
    let (status, text) = of_alice("sip:+49301234@example.org", &[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(
        text.contains("route `germany` (prefix `+49`) matches"),
        "{text}"
    );
    let targets: Vec<&str> = text
        .lines()
        .filter(|line| line.starts_with("target "))
        .collect();
    assert_eq!(
        targets[..3],
        [
            "target       trunk carrier-a: sip:+49301234@192.0.2.7:5060",
            "target       trunk carrier-a: sip:+49301234@192.0.2.8:5060",
            "target       trunk carrier-b: sip:+49301234@198.51.100.4:5060;transport=tcp",
        ]
    );
    // What follows if all of these are unreachable: the route to the rest of the world.
    assert_eq!(targets.len(), 6, "{text}");
}

#[test]
fn numbers_are_rewritten_and_blocked() {
    let (_, text) = of_alice("sip:0301234@example.org", &[]);
    assert!(text.contains("the user part becomes `+49301234`"), "{text}");
    let (status, text) = of_alice("sip:+499001234@example.org", &[]);
    assert_eq!(status, Some(1));
    assert!(
        text.contains("result       403 Premium Numbers Are Blocked\n"),
        "{text}"
    );
    let (status, text) = of_alice("tel:+1-212-555", &[]);
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("sip:+1212555@"), "{text}");
}

#[test]
fn a_user_rings_and_a_trunk_reaches_the_reception() {
    let (status, text) = of_alice("sip:reception@example.org", &[]);
    assert_eq!(status, Some(0));
    assert!(
        text.contains("to the registered phones of reception@example.org"),
        "{text}"
    );
    for step in [
        "no answer after 20 s: the call goes on to sip:+49170123@example.org",
        "  route `germany` (prefix `+49`) matches",
        "not registered: the call goes on to sip:voicemail@192.0.2.50",
        "  no route matches: it goes to the host of the URI",
    ] {
        assert!(text.contains(step), "{step}: {text}");
    }
    let from_trunk = ["--from", "sip:+1@carrier.example", "--source", "192.0.2.7"];
    let flags = [&from_trunk[..], &["--to", "sip:+49301234500@192.0.2.1"]].concat();
    let output = route(EXAMPLE, &flags);
    let text = stdout(&output);
    assert!(
        text.contains("the sender is the trunk `carrier-a`"),
        "{text}"
    );
    assert!(
        text.contains("to the registered phones of reception@example.org"),
        "{text}"
    );
    // No open relay.
    let flags = [&from_trunk[..], &["--to", "sip:+1212555@192.0.2.1"]].concat();
    let output = route(EXAMPLE, &flags);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text.contains("only if `from_trunks` names the trunk"),
        "{text}"
    );
    assert!(
        text.contains("result       403 Relaying Is Not Allowed"),
        "{text}"
    );
}

#[test]
fn the_decision_is_json_for_programs() {
    let (status, text) = of_alice("sip:+49301234@example.org", &["--json"]);
    assert_eq!(status, Some(0));
    let json: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["result"], "forwarded");
    assert_eq!(json["targets"][0]["trunk"], "carrier-a");
    assert_eq!(json["targets"][0]["uri"], "sip:+49301234@192.0.2.7:5060");
    assert!(json["steps"].as_array().expect("a list").len() > 3);
}

#[test]
fn a_uri_that_is_none_is_an_error() {
    let output = route(EXAMPLE, &[&ALICE[..], &["--to", "+49301234"]].concat());
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("`+49301234` is not a sip, sips or tel URI"));
}

#[test]
fn check_finds_names_that_are_not_there() {
    let text = EXAMPLE
        .replace(
            "trunks = [\"carrier-a\", \"carrier-b\"]\n\n[[sip.route]]\nname = \"national\"",
            "trunks = [\"carrier-x\"]\n\n[[sip.route]]\nname = \"national\"",
        )
        .replace("to_domain = \"example.org\"", "to_domain = \"example.net\"");
    let output = check(&text);
    assert_eq!(output.status.code(), Some(1));
    let text = stderr(&output);
    assert!(text.contains("there is no trunk `carrier-x`"), "{text}");
    assert!(text.contains("did you mean \"carrier-a\"?"), "{text}");
    assert!(
        text.contains("`example.net` is not the name of a domain"),
        "{text}"
    );
    assert!(text.contains("2 errors"), "{text}");
}

#[test]
fn check_finds_prefixes_twice_and_routes_that_no_request_reaches() {
    let more = "\n[[sip.route]]\nname = \"dead\"\nprefixes = [\"09001\", \"+49900\"]\nreject = \"404\"\n\
        [[sip.route]]\nname = \"double\"\nprefixes = [\"77\", \"77\"]\nreject = \"404\"\n";
    let output = check(&format!("{EXAMPLE}{more}"));
    assert_eq!(output.status.code(), Some(0));
    let text = stderr(&output);
    assert!(
        text.contains("no request reaches the route `dead`"),
        "{text}"
    );
    assert!(
        text.contains("this route takes all of its requests"),
        "{text}"
    );
    assert!(text.contains("the prefix `77` is listed twice"), "{text}");
    assert!(stdout(&output).contains("ok (2 warnings)"));
}

#[test]
fn check_says_what_is_wrong_with_a_route_or_a_trunk() {
    for (bad, message, help) in [
        (
            "[[sip.route]]\nprefixes = [\"1\"]\n",
            "the route leads nowhere",
            "write it like",
        ),
        (
            "[[sip.route]]\nreject = \"404\"\nto_domain = \"example.org\"\n",
            "the route leads to several places",
            "keep one of",
        ),
        (
            "[[sip.route]]\nreject = \"407 No\"\n",
            "is not a response",
            "they require a header field",
        ),
        (
            "[[sip.route]]\nprefix = [\"1\"]\nreject = \"404\"\n",
            "unknown key `prefix` in a route",
            "did you mean `prefixes`?",
        ),
        (
            "[[sip.route]]\nhunt = \"wieght\"\ntrunks = [\"carrier-a\"]\n",
            "unknown value `wieght`",
            "did you mean \"weight\"?",
        ),
        (
            "[[sip.trunk]]\nto = [\"192.0.2.9\"]\n",
            "not a sip or sips URI",
            "write it like",
        ),
        (
            "[[sip.trunk]]\nto = [\"sip:sbc.example.net\"]\n",
            "the trunk has no address that it sends from",
            "addresses",
        ),
        (
            "[[sip.trunk]]\nname = \"carrier-a\"\naddresses = [\"192.0.2.9\"]\n",
            "two trunks are called `carrier-a`",
            "rename one",
        ),
        (
            "[[sip.trunk]]\nname = \"deaf\"\naddresses = [\"192.0.2.9\"]\n[[sip.route]]\ntrunks = [\"deaf\"]\n",
            "no call can be sent to the trunk `deaf`",
            "say where calls go",
        ),
        (
            "[[sip.forward]]\nusers = [\"alice\"]\n",
            "the forward leads nowhere",
            "write it like",
        ),
        (
            "[[sip.forward]]\non_busy = \"sip:192.0.2.5\"\n",
            "`sip:192.0.2.5` is not a SIP URI with a user",
            "sip:voicemail@192.0.2.5",
        ),
        (
            "[[sip.forward]]\non_busy = \"sip:a@192.0.2.5\"\nring_time = \"5s\"\n",
            "`ring_time` has no effect",
            "add on_no_answer",
        ),
    ] {
        let output = check(&format!("{EXAMPLE}\n{bad}"));
        assert_eq!(output.status.code(), Some(1), "{bad}");
        let text = stderr(&output);
        assert!(
            text.contains(message) && text.contains(help),
            "{bad}\n{text}"
        );
    }
}

#[test]
fn the_example_is_without_fault_and_survives_being_written() {
    let (_directory, path) = file(EXAMPLE);
    let path = path.to_str().expect("a path").to_owned();
    let output = run(&["check", &path]);
    assert_eq!(
        (output.status.code(), stderr(&output)),
        (Some(0), String::new())
    );
    let effective = run(&["check", "--effective", "--show-secrets", &path]);
    let (_other, written) = file(&stdout(&effective));
    let again = run(&[
        "check",
        "--effective",
        "--show-secrets",
        written.to_str().expect("a path"),
    ]);
    let routes = |output: &std::process::Output| {
        let text = stdout(output);
        let line = text
            .lines()
            .find(|line| line.trim_start().starts_with("route = "));
        line.expect("routes")
            .split(" # ")
            .next()
            .expect("a value")
            .trim()
            .to_owned()
    };
    assert_eq!(routes(&effective), routes(&again));
    assert!(routes(&effective).contains("on_no_answer = \"next_trunk\""));
}

#[test]
fn a_forbidden_number_stays_forbidden_when_a_route_rewrites_it() {
    let text = EXAMPLE.replace(
        "[[sip.domain]]",
        "forbidden_prefixes = [\"+4930\"]\n\n[[sip.domain]]",
    );
    let output = route(
        &text,
        &[&ALICE[..], &["--to", "sip:0301234@example.org"]].concat(),
    );
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("the number is in sip.forbidden_prefixes"),
        "{text}"
    );
    assert!(text.contains("result       403"), "{text}");
}
