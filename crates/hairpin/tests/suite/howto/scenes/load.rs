//! Pages about measurements.

use super::{Rule, Scene, scene};

/// A shorter run.
const SHORT: &str = " --warm-up 0s --duration 200ms --linger 100ms";
/// A shorter search for the best rate. On a busy machine, the generator may not reach any rate.
const SHORT_SEARCH: &str = " --step 20ms --warm-up 0s --linger 50ms || said 'of it only'";
/// What the command compares with.
const BEFORE: &str = "hairpin load turn 127.0.0.1 --user alice:s3cret --duration 300ms \\
    --json before.json > before.out 2>&1";
const SHORT_SWEEP: &str = " --peak 200/s --sweep-step 100ms --recovery 0s --warm-up 0s";

pub(super) const SCENES: &[Scene] = &[
    Scene {
        words: &[
            ("--step 1s", ""),
            ("--duration 8s", "--duration 200ms --warm-up 0s --linger 100ms"),
            ("--duration 1m", "--duration 300ms"),
        ],
        rules: &[
            Rule::of("hairpin load turn 127.0.0.1 --user alice:s3cret --find-max").appends(SHORT_SEARCH),
            Rule::of("hairpin load turn 127.0.0.1 --user alice:s3cret --json")
                .before(BEFORE)
                .appends(SHORT)
                .statuses(&[0, 99]),
            Rule::of("hairpin load turn 127.0.0.1:3478 --user bench:pw --clients 64 --find-max")
                .appends(SHORT_SEARCH),
            Rule::of("hairpin load turn 127.0.0.1:3478 --user"),
            Rule::of("hairpin load compare"),
            Rule::of("hairpin load").appends(SHORT),
            Rule::of("hairpin peer --listen 10.0.0.9").runs_until("said 10.0.0.9:3480"),
            Rule::of("hairpin peer --listen 0.0.0.0").before("end_last"),
            Rule::of("hairpin peer").before("end_last").runs_until("said :3480"),
        ],
        ..scene(
            "load.md",
            "certify
            cp ca.crt cert.pem
            for address in 10.0.0.5 10.0.0.9; do ip address add $address/24 dev eth0; done
            SECRET=0123456789abcdef0123
            { auth_section \"$SECRET\" alice:s3cret bench:pw; certificate_section; } > /etc/hairpin/hairpin.toml
            serve --listen 0.0.0.0:3478 --set listen.tls=0.0.0.0:5349,192.0.2.10:443",
        )
    },
    Scene {
        words: &[("-m 100 -n 1500", "-m 2 -n 5"), ("--duration 30s", "--duration 200ms --warm-up 0s --linger 100ms")],
        ..scene(
            "load-from-uclient.md",
            "for address in 10.0.0.5 10.0.0.9; do ip address add $address/24 dev eth0; done
            auth_section secret > /etc/hairpin/hairpin.toml
            serve --listen 10.0.0.5:3478
            hairpin peer --listen 10.0.0.9:3480 > peer.out 2>&1 &
            until_true grep 3480 peer.out",
        )
    },
    Scene {
        words: &[
            (
                "--aors 100k --user 'u{n}:s3cret' --rate 20k/s",
                "--aors 4 --user 'u{n}:pw' --rate 1k/s --domain example.org",
            ),
            ("--aors 1k --user 'u{n}:pw{n}'", "--aors 4 --user 'u{n}:pw'"),
            // There is a phone.
            ("sip:bob@10.0.0.5", "sip:bob@10.0.0.9"),
            ("sip 10.0.0.5 --workload call", "sip 10.0.0.9 --workload call"),
        ],
        rules: &[
            Rule::of("hairpin load sip sip:phone.example.org")
                .appends(" --warm-up 0s --duration 200ms --aors 4 --user 'u{n}:pw' --domain example.org"),
            Rule::of("hairpin load sip 10.0.0.5 --workload call --sweep").appends(SHORT_SWEEP),
            Rule::of("hairpin load sip 0.0.0.0:5070").runs_until("said 5070"),
            Rule::of("hairpin load sip --teststack").appends(" --runs 100"),
            Rule::of("hairpin load sip sip:bob").appends(SHORT).statuses(&[0, 99]),
            Rule::of("hairpin load sip").appends(SHORT),
        ],
        ..scene(
            "load-sip.md",
            "certify
            for address in 10.0.0.5 10.0.0.9; do ip address add $address/24 dev eth0; done
            { sip_section 127.0.0.1 u0 u1 u2 u3; certificate_section; } > /etc/hairpin/hairpin.toml
            serve --set sip.listen=127.0.0.1:5060,10.0.0.5:5060 --set sip.listen_wss=192.0.2.10:8443
            hairpin load sip 10.0.0.9:5060 --workload uas > uas.out 2>&1 &",
        )
    },
    Scene {
        // A reader takes the time to type.
        rules: &[
            Rule::of("taskset -c 0 hairpin load turn")
                .before("until_true hairpin probe turn 127.0.0.1 --user alice:s3cret")
                .appends(SHORT),
            Rule::of("taskset -c 0 hairpin load stun").appends(SHORT),
        ],
        ..scene("benchmarking.md", "")
    },
    Scene {
        rules: &[
            Rule::of("hairpin serve").runs_until("said 'Stop with Ctrl-C'"),
            Rule::of("turnserver").runs_until("ss -lun | grep 34797"),
        ],
        ..scene("benchmarks/tcp-allocations.md", "certify; cp tls.key key.pem; cp /etc/hairpin/tls.crt cert.pem")
    },
];
