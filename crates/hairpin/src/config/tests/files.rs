//! Several files, values from elsewhere, and the example file.

use super::*;

/// A directory with a configuration file and files beside it.
fn load_files(files: &[(&str, &str)]) -> (tempfile::TempDir, Loaded) {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    let name = directory.path().join(files[0].0).display().to_string();
    let loaded = load(&Inputs {
        file: Some((name, files[0].1.to_owned())),
        ..Inputs::default()
    });
    (directory, loaded)
}

const DOMAIN: &str =
    "[[sip.domain]]\nname = \"NAME\"\nusers = [{ name = \"a\", password = \"p\" }]\n";

#[test]
fn included_files_are_read_in_order_and_their_tables_are_joined() {
    let main = "include = [\"conf.d/*.toml\"]\n[log]\nlevel = \"debug\"\n[sip]\nlisten = [\"127.0.0.1:5060\"]\n";
    let [one, two] = ["one.example", "two.example"].map(|name| DOMAIN.replace("NAME", name));
    let (_directory, loaded) = load_files(&[
        ("hairpin.toml", main),
        ("conf.d/20-two.toml", &two),
        ("conf.d/10-one.toml", &one),
        ("conf.d/30-no.toml.bak", "nonsense"),
    ]);
    assert_eq!(loaded.one_line_each(), [""; 0]);
    let config = loaded.config.unwrap();
    let names = config.sip.domains.iter().map(|domain| &domain.name[..]);
    assert_eq!(names.collect::<Vec<_>>(), ["one.example", "two.example"]);
    assert_eq!(config.log_level, LevelFilter::DEBUG);
}

#[test]
fn a_key_and_its_old_name_cannot_be_set_in_two_files() {
    let of = |is_old: bool| if is_old { "t1_ms = 250" } else { "t1 = \"1s\"" };
    for [first, second] in [[false, true], [true, false], [true, true]] {
        let main = format!("include = [\"a.toml\"]\n[sip]\n{}\n", of(first));
        let included = format!("[sip]\n{}\n", of(second));
        let (_directory, loaded) = load_files(&[("hairpin.toml", &main), ("a.toml", &included)]);
        let lines = loaded.one_line_each();
        let expected = match first == second {
            true => "another file sets this key, too",
            false => "`t1` and its old name `t1_ms` are both set",
        };
        let error = lines.iter().find(|line| line.contains(expected));
        assert!(
            error.is_some_and(|line| line.contains("a.toml:2:")),
            "{lines:?}"
        );
        assert!(loaded.config.is_none(), "{lines:?}");
    }
}

#[test]
fn mistakes_of_included_files_name_their_file() {
    let main = "include = [\"a.toml\", \"b.toml\", \"none.toml\"]\n[log]\nlevel = \"debug\"\n";
    let (directory, loaded) = load_files(&[
        ("hairpin.toml", main),
        ("a.toml", "[log]\nlevel = \"info\"\n"),
        ("b.toml", "include = [\"a.toml\"]\n[log]\nlevl = 1\n"),
    ]);
    let prefix = format!("{}/", directory.path().display());
    let lines: Vec<_> = loaded.one_line_each();
    let lines: Vec<_> = lines.iter().map(|line| line.replace(&prefix, "")).collect();
    for (start, what) in [
        ("hairpin.toml:1:32: cannot read none.toml", "No such file"),
        (
            "a.toml:2:9: another file sets this key, too",
            "keep one of them",
        ),
        (
            "b.toml:1:12: a file that is included cannot include others",
            "hairpin.toml itself",
        ),
        ("b.toml:3:1: unknown key `levl`", "level"),
    ] {
        let is_it = |line: &&String| line.starts_with(start) && line.contains(what);
        assert!(lines.iter().any(|line| is_it(&line)), "{start}: {lines:#?}");
    }
    assert_eq!(lines.len(), 4, "{lines:#?}");
}

#[test]
fn a_reference_has_its_value_and_a_mistake_its_line() {
    let text = "[auth]\nrealm = \"${ZONE}.example\"\nsecrets = [\"${NO_SUCH_VARIABLE}\"]\n";
    let loaded = load(&Inputs {
        file: Some(("hairpin.toml".to_owned(), text.to_owned())),
        environment: vec![("ZONE".into(), "north".into())],
        ..Inputs::default()
    });
    let lines = loaded.one_line_each();
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(
        lines[0]
            .starts_with("hairpin.toml:3:12: the environment variable NO_SUCH_VARIABLE is not set"),
        "{lines:?}"
    );
    assert!(
        loaded
            .effective(false)
            .contains("realm = \"north.example\"")
    );
}

#[test]
fn placeholders_of_the_example_are_refused() {
    for text in [
        "[auth]\nsecrets = [\"replace-me: openssl rand -base64 24\"]\n",
        "[auth]\nusers = [{ name = \"a\", password = \"replace-me-too\" }]\n",
    ] {
        let lines = complaints(text);
        assert!(
            lines.len() == 1
                && lines[0].contains("hairpin.toml:2:")
                && lines[0].contains("placeholder"),
            "{lines:?}"
        );
    }
}
