//! Pages about a TURN server and its clients.

use super::{Rule, Scene, scene};

pub(super) const SCENES: &[Scene] = &[
    Scene {
        words: &[("systemctl enable", "systemctl --root=\"$FOLDER/system\" enable")],
        rules: &[
            Rule::of("systemctl restart hairpin").before(
                "# Nobody gives certificates here.
                sed -i '/^.acme/,$d' /etc/hairpin/hairpin.toml
                certify
                certificate_section >> /etc/hairpin/hairpin.toml
                serve",
            ),
            Rule::of("hairpin probe turn").prints(&["relaying     works"]),
        ],
        ..scene(
            "how-to/public-server.md",
            "install_unit
            cp \"$PAGE/1.toml\" /etc/hairpin/hairpin.toml",
        )
    },
    Scene {
        rules: &[Rule::of("hairpin probe turn").appends(" | grep '^relayed .*203.0.113.5'")],
        ..scene(
            "how-to/behind-nat.md",
            "ip address add 10.0.0.5/24 dev eth0
            sed -i 's/192.0.2.10 .*/203.0.113.5 turn.example.org/' /etc/hosts
            # The cloud maps both ways, also for the server itself.
            nft -f - <<'END'
table ip cloud {
    chain output {
        type nat hook output priority -100
        ip daddr 203.0.113.5 dnat to 10.0.0.5
    }
    chain postrouting {
        type nat hook postrouting priority 100
        ip saddr 10.0.0.5 ct status dnat snat to 203.0.113.5
    }
}
END
            SECRET=0123456789abcdef0123
            { cat \"$PAGE/1.toml\"; auth_section \"$SECRET\"; } > /etc/hairpin/hairpin.toml
            serve",
        )
    },
    scene(
        "tls.md",
        "certify
        export RENEWED_LINEAGE=$PWD
        cp tls.key privkey.pem
        cp /etc/hairpin/tls.crt fullchain.pem",
    ),
    Scene {
        rules: &[
            Rule::of("HAIRPIN_AUTH__SECRETS=\"$SECRET\" hairpin serve").runs_until("said 'Stop with Ctrl-C'"),
            Rule::of("hairpin creds --secret").prints(&["TURN_URI", "TURN_USERNAME", "TURN_PASSWORD"]),
        ],
        ..scene(
            "credentials.md",
            "SECRET=0123456789abcdef0123
            auth_section \"$SECRET\" > /etc/hairpin/hairpin.toml",
        )
    },
    Scene {
        // Nobody serves SRV records here. With a port, it is not a domain.
        words: &[("stun.example.org", "stun.example.org:3478")],
        rules: &[Rule::of("hairpin probe nat").prints(&[
            "server       ",
            ":3478, also at ",
            ":3479\n",
            "mapped       ",
            "filtering    ",
            "result       ",
        ])],
        ..scene(
            "nat-discovery.md",
            "ip address add 192.0.2.1/24 dev eth0
            ip address add 192.0.2.2/24 dev eth0
            sed -i 's/192.0.2.10 .*/192.0.2.1 stun.example.org/' /etc/hosts
            cp \"$PAGE/1.toml\" /etc/hairpin/hairpin.toml
            serve",
        )
    },
    Scene {
        rules: &[
            Rule::of("hairpin import").prints(&[
                "/etc/turnserver.conf:3: listening-port: carried over to listen.udp and listen.tcp",
                "/etc/turnserver.conf:9: no-cli: unnecessary because there is no telnet interface",
                "/etc/turnserver.conf:12: server-relay: unsupported because it disables the permissions of RFC 8656 §9",
            ]),
            Rule::of("hairpin probe turn").before(
                "# Beside coturn, with another port.
                sed -i 's/:3478/:3479/' /etc/hairpin/hairpin.toml
                serve --set peers.allow_local=true",
            ),
        ],
        ..scene(
            "from-coturn.md",
            "cat > /etc/turnserver.conf <<'END'
# /etc/turnserver.conf

listening-port=3478
listening-ip=192.0.2.10
realm=example.org
lt-cred-mech
user=alice:PASSWORD
# nobody uses it
no-cli

# TODO
server-relay
END",
        )
    },
    scene(
        "from-eturnal.md",
        "cat > /etc/eturnal.yml <<'END'
eturnal:
  secret: 0123456789abcdef0123
  listen:
    - ip: 192.0.2.10
      port: 3478
      transport: udp
END",
    ),
];
