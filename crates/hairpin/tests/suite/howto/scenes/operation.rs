//! Pages about a running server.

use super::{Rule, Scene, scene};

pub(super) const SCENES: &[Scene] = &[
    Scene {
        words: &[("cargo run --release --", "hairpin")],
        rules: &[Rule::of("cargo run --release -- serve").runs_until("said 'Stop with Ctrl-C'")],
        ..scene("../README.md", "")
    },
    Scene {
        rules: &[
            Rule::of("hairpin upgrade").before(
                "mkdir /opt/hairpin-new
                ln -s \"$(command -v hairpin)\" /opt/hairpin-new/hairpin",
            ),
        ],
        ..scene("how-to/upgrade.md", "auth_section 0123456789abcdef0123 > /etc/hairpin/hairpin.toml\nserve")
    },
    Scene {
        // What the machine lacks is a warning.
        rules: &[Rule::of("sudo hairpin doctor").statuses(&[0, 1]).prints(&[
            " files        ",
            "warning  ports        the kernel gives the ports 49152-60999 of relay.ports to other programs",
            "# sysctl -w net.ipv4.ip_local_reserved_ports=49152-60999\n",
            "error    firewall     the chain input of inet filter drops by default, and no rule accepts the UDP ports",
            "# nft insert rule inet filter input udp dport '{ 3478, 49152-65535 }' accept\n",
        ])],
        ..scene(
            "doctor.md",
            "auth_section 0123456789abcdef0123 > /etc/hairpin/hairpin.toml
            nft 'table inet filter { chain input { type filter hook input priority 0; policy drop; }; }'",
        )
    },
    scene("how-to/tuning.md", ""),
    Scene {
        words: &[
            ("systemd-sysusers", "systemd-sysusers --root=\"$FOLDER/system\""),
            ("systemctl enable --now", "systemctl --root=\"$FOLDER/system\" enable"),
        ],
        ..scene(
            "packages.md",
            "install_unit
            mkdir -p \"$FOLDER/system/usr/lib/sysusers.d\" \"$FOLDER/system/etc\"
            cp \"$ROOT/deploy/hairpin.sysusers\" \"$FOLDER/system/usr/lib/sysusers.d/hairpin.conf\"
            auth_section 0123456789abcdef0123 > /etc/hairpin/hairpin.toml",
        )
    },
    Scene {
        rules: &[Rule::of("hairpin serve").runs_until("said 'Stop with Ctrl-C'")],
        ..scene("configuration.md", "auth_section 0123456789abcdef0123 > hairpin.toml")
    },
    scene("metrics.md", "auth_section 0123456789abcdef0123 > /etc/hairpin/hairpin.toml\nserve"),
    Scene {
        words: &[("0-17-3", "\"$SESSION\"")],
        rules: &[
            Rule::of("curl -s -H \"Authorization: Bearer $TOKEN\" -X DELETE").appends(" --fail"),
            Rule::of("hairpin sessions --user alice").appends(" | grep alice"),
            Rule::of("curl -s -H \"Authorization: Bearer $TOKEN\" 'http")
                .before("TOKEN=token-of-a-web-service")
                .appends(" --fail"),
        ],
        ..scene(
            "api.md",
            "certify
            TOKEN=token-of-an-operator
            echo \"$TOKEN\" > token.txt
            { auth_section 0123456789abcdef0123 'alice:pw'; certificate_section; } > /etc/hairpin/hairpin.toml
            cat >> /etc/hairpin/hairpin.toml <<'END'
[[auth.stores]]
url = \"sqlite:/var/lib/hairpin/hairpin.db\"
[admin]
listen = \"0.0.0.0:9641\"
allow_remote = true
tokens = [\"token-of-an-operator\"]
credential_tokens = [\"token-of-a-web-service\"]
END
            serve
            hairpin load turn 192.0.2.10 --user alice:pw --clients 3 --rate 10/s --duration 1m > load.out 2>&1 &
            has_session() { hairpin sessions --json | grep -q alice; }
            until_true has_session
            SESSION=$(hairpin sessions --json | jq -r .id | head -n 1)",
        )
    },
    Scene {
        rules: &[Rule::of("redis-cli XREAD")
            .before(
                "make_allocations() { while sleep 0.2; do hairpin probe turn 192.0.2.10 --secret \"$SECRET\"; done; }
                make_allocations > /dev/null 2>&1 &",
            )
            .prints(&["allocation_opened"])],
        ..scene(
            "events.md",
            "redis-server --port 6379 --save '' > redis.out 2>&1 &
            until_true redis-cli ping
            SECRET=0123456789abcdef0123
            auth_section \"$SECRET\" > /etc/hairpin/hairpin.toml
            cat >> /etc/hairpin/hairpin.toml <<'END'
[[events.sinks]]
url = \"redis://127.0.0.1:6379/0\"
END
            serve",
        )
    },
    Scene {
        rules: &[
            Rule::of("systemctl stop hairpin").before("end_server"),
            Rule::of("hairpin probe turn")
                .before("serve")
                .runs_until("test \"$(curl -s 127.0.0.1:9642/metrics | grep -c '^hairpin_probe_success.* 1$')\" = 3"),
        ],
        ..scene(
            "operation.md",
            "certify
            SECRET=0123456789abcdef0123
            { auth_section \"$SECRET\"; certificate_section; } > /etc/hairpin/hairpin.toml
            serve",
        )
    },
    Scene {
        rules: &[Rule::of("redis-server").runs_until("redis-cli -p 16399 ping")],
        ..scene("cluster.md", "")
    },
    scene("data-path.md", ""),
];
