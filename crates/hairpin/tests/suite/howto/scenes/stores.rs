//! Pages about stores of users.

use super::{Rule, Scene, scene};

pub(super) const SCENES: &[Scene] = &[
    Scene {
        rules: &[
            Rule::of("sudo -u postgres createuser").types("password\npassword\n"),
            Rule::of("install -m 0640").types("password\n"),
            Rule::of("systemctl restart").before("serve"),
            Rule::of("curl").appends(" | grep ' 1$'"),
        ],
        ..scene(
            "how-to/postgresql.md",
            "certify
            start_postgres -c ssl=on -c ssl_cert_file=\"$FOLDER/data/tls.crt\" -c ssl_key_file=\"$FOLDER/data/tls.key\"
            export PGPASSWORD=password
            cp \"$PAGE/1.toml\" /etc/hairpin/hairpin.toml",
        )
    },
    Scene {
        rules: &[
            Rule::of("hairpin sip route").appends(" | grep alice@example.org"),
            Rule::of("hairpin user add").prints(&[
                "audit: user.add store=\"sqlite\" realm=\"example.org\" user=\"alice\" by=\"root (0)\"\n",
            ]),
            Rule::of("hairpin user list").prints(&["example.org", "alice"]),
            Rule::of("createuser hairpin").before("start_postgres; export PGUSER=postgres"),
        ],
        ..scene(
            "stores.md",
            "sip_section 192.0.2.10 alice > /etc/hairpin/hairpin.toml
            cat >> /etc/hairpin/hairpin.toml <<'END'
[[auth.stores]]
url = \"sqlite:/var/lib/hairpin/hairpin.db\"
END
            serve
            sqlite3 /var/lib/hairpin/hairpin.db \\
                \"INSERT INTO hairpin_sip_alias VALUES ('info@example.org', 'alice@example.org')\"
            has_alias() {
                hairpin sip route --api http://127.0.0.1:9641 --from sip:alice@example.org \\
                    --to sip:info@example.org | grep 'alias of alice'
            }
            until_true has_alias",
        )
    },
];
