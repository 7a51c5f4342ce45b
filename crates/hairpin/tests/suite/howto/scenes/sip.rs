//! Pages about SIP.

use super::{Rule, Scene, scene};

pub(super) const SCENES: &[Scene] = &[
    Scene {
        rules: &[
            Rule::of("hairpin sip route --config /etc/hairpin/hairpin.toml --from").appends(" | grep 'trunk carrier'"),
            Rule::of("hairpin sip route --config /etc/hairpin/hairpin.toml --source")
                .appends(" | grep 'reception@example.org'"),
            Rule::of("hairpin sip trunks").prints(&["carrier"]),
        ],
        ..scene(
            "how-to/sip-trunk.md",
            "sip_section 192.0.2.10 alice reception > /etc/hairpin/hairpin.toml
            serve
            cat \"$PAGE/1.toml\" >> /etc/hairpin/hairpin.toml
            sed -i \"/^listen = .*5060/r $PAGE/2.toml\" /etc/hairpin/hairpin.toml",
        )
    },
    scene(
        "how-to/webrtc-phones.md",
        "certify
        { cat \"$PAGE/1.toml\" \"$PAGE/2.toml\"; } > /etc/hairpin/hairpin.toml
        sed -i \"/^listen_wss/r $PAGE/3.toml\" /etc/hairpin/hairpin.toml
        serve",
    ),
    Scene {
        words: &[("a84b4c76e66710@pc33", "\"$CALL_ID\"")],
        rules: &[
            Rule::of("hairpin sip bindings").prints(&[
                "alice@example.org  <sip:alice@",
                ">  udp 192.0.2.",
                "  expires in ",
            ]),
            Rule::of("hairpin sip calls").prints(&["  answered for ", "  sip:", " to sip:", " (UDP 192.0.2.", " -> "]),
            Rule::of("hairpin sip trace").prints(&[
                "UTC ",
                " hairpin ",
                "---------- INVITE ---------->|",
                "|<-- 180 Ringing (INVITE) ----",
            ]),
            Rule::of("hairpin sip trunks").prints(&[
                "carrier",
                " requests, ",
                " without response, ",
                " moved on, ",
                " limited, ",
                " calls to it, ",
                " from it",
                "  sip:192.0.2.7:5060  up",
            ]),
        ],
        ..scene(
            "sip-insight.md",
            "{ sip_section 192.0.2.10 alice u0 u1; trunk_section; } > /etc/hairpin/hairpin.toml
            serve --set sip.call_log=true --set sip.trace_memory=4MiB
            hairpin load sip 192.0.2.10 --workload register --aors 1 --aor alice --user alice:pw --domain example.org \\
                --closed 1 --runs 1
            hairpin load sip 192.0.2.10 --workload proxy --aors 2 --clients 2 --user 'u{n}:pw' --domain example.org \\
                --rate 2/s --hold 1m --duration 1m > load.out 2>&1 &
            until_true calls_are_answered
            CALL_ID=$(hairpin sip calls --json | jq -r 'select(.state == \"answered\").call_id' | head -n 1)",
        )
    },
    Scene {
        rules: &[
            Rule::of("hairpin sip route").prints(&[
                "step         the called user part is `+49301234`\n",
                "step         the sender is the user alice@example.org\n",
                "step         route `1` (prefix `+`) matches\n",
                "step           trunk `carrier`, sip:192.0.2.7:5060: sip:+49301234@192.0.2.7:5060\n",
                "step           busy: stop; no answer: stop; unreachable: next trunk\n",
                "step         the sender must prove to be alice@example.org (407)\n",
                "result       forwarded\n",
                "target       trunk carrier: sip:+49301234@192.0.2.7:5060\n",
            ]),
            Rule::of("hairpin reload").before(
                "# The first part of the page, then the part about rtpengine.
                cp hairpin.toml /etc/hairpin/hairpin.toml
                serve
                sip_section 192.0.2.10 alice > /etc/hairpin/hairpin.toml
                sed -i '/^.sip.$/d' \"$PAGE/3.toml\"
                sed -n '1,/^$/p' \"$PAGE/3.toml\" > in-sip.toml
                sed '1,/^$/d' \"$PAGE/3.toml\" >> /etc/hairpin/hairpin.toml
                sed -i '/^listen = .*5060/r in-sip.toml' /etc/hairpin/hairpin.toml",
            ),
        ],
        ..scene("sip-routing.md", "{ sip_section 192.0.2.10 alice; cat \"$PAGE/1.toml\"; } > hairpin.toml")
    },
    scene(
        "from-kamailio.md",
        "rm -f /etc/kamailio
        mkdir /etc/kamailio
        cat > /etc/kamailio/kamailio.cfg <<'END'
#!KAMAILIO
listen=udp:192.0.2.10:5060
alias=\"example.org\"
request_route {
    route(REQINIT);
}
END",
    ),
    scene(
        "from-repro.md",
        "mkdir /etc/repro
        cat > /etc/repro/repro.config <<'END'
Domains = example.org
Transport1Interface = 192.0.2.10:5060
Transport1Type = UDP
END",
    ),
];
