#!/bin/sh
# Runs inside a Debian that systemd has booted: installs, upgrades, downgrades, removes and purges the package.
# Each check prints "ok NAME" or "FAIL NAME: what was seen". SLOW: how many times slower than a usual machine this one is.
cd /test || exit 1
SECRET=0123456789abcdef
SLOW=${SLOW:-1}

ok() { echo "ok $1"; }
fail() { echo "FAIL $1: $(echo "$2" | tr '\n' ' ')"; }
# check NAME COMMAND..: what the command prints is shown if it fails.
check() {
    name=$1; shift
    if said=$("$@" 2>&1); then ok "$name"; else fail "$name" "$said"; fi
}
main_pid() { systemctl show --property MainPID --value hairpin; }
# eventually NAME COMMAND..: within a minute. A SIP transaction, which keeps a process, lasts for 32 seconds.
eventually() {
    name=$1; shift
    for _ in $(seq $((600 * SLOW))); do
        if "$@" > /dev/null 2>&1; then ok "$name"; return; fi
        sleep 0.1
    done
    fail "$name" "$("$@" 2>&1; systemctl status --no-pager hairpin; journalctl --no-pager -u hairpin -n 20)"
}
install_file() { command install "$@"; }
install() { dpkg --force-confold -i "$1"; }
active() { systemctl is-active hairpin; }
gone() { ! test -d "/proc/$1"; }
nothing_left() { ! ls -d /etc/hairpin/hairpin.toml /etc/default/hairpin /var/lib/hairpin /usr/bin/hairpin 2> /dev/null; }
probe() { hairpin probe turn 127.0.0.1:3478 --secret $SECRET; }
# load SECONDS REPORT: 20 clients that relay; nothing may be lost.
load() { hairpin load turn 127.0.0.1:3478 --secret $SECRET --clients 20 --rate $((1000 / SLOW))/s --duration "$1" --json "$2" --fail-if 'loss>0'; }
# calls RATE SECONDS: phones register at the server and call each other through it; no call may fail.
calls() { hairpin load sip 127.0.0.1:5060 --workload proxy --aors 4 --clients 4 --user 'u{n}:pw{n}' --domain example.org --rate "$1" --duration "$2" --fail-if 'loss>0'; }
# only_refused FILE: without KVM, the overload control of the server refuses some calls (503), and no call fails otherwise.
only_refused() { [ "$SLOW" -gt 1 ] && grep -q '^ *error 503' "$1" && ! grep '^ *error' "$1" | grep -qv 'error 503'; }

ip link set lo up
check install install first.deb
eventually "runs after the installation" active
# Checks of the watchdog and of the runtime directory need not take half a minute.
mkdir -p /etc/systemd/system/hairpin.service.d
printf '[Service]\nWatchdogSec=%ss\n' $((6 * SLOW)) > /etc/systemd/system/hairpin.service.d/test.conf
systemctl daemon-reload
cat > /etc/hairpin/hairpin.toml << END
[listen]
udp = ["127.0.0.1:3478"]
[relay]
addresses = ["127.0.0.1"]
ports = "50000-60000"
[auth]
secrets = ["$SECRET"]
[peers]
allow_local = true
[admin]
listen = "off"
[sip]
listen = ["127.0.0.1:5060"]
[[sip.domain]]
name = "example.org"
users = [
  { name = "u0", password = "pw0" }, { name = "u1", password = "pw1" },
  { name = "u2", password = "pw2" }, { name = "u3", password = "pw3" },
]
[server]
state_dir = "off"
END
check "the configuration is valid" hairpin check /etc/hairpin/hairpin.toml
check restart systemctl restart hairpin
check "relays" probe
check "phones register and call each other" calls 20/s 2s
journal() { journalctl --no-pager --output cat -u hairpin; }
journal | grep -q 'method="\?tc"\?' && ok "the kernel relays" || fail "the kernel relays" "$(journal)"
journal | grep -q '^{' && fail "the journal has text" "$(journal)" || ok "the journal has text"
check "runs as its own user" sh -c '[ "$(ps -o user= -p '"$(main_pid)"')" = hairpin ] || [ "$(stat -c %U /proc/'"$(main_pid)"')" = hairpin ]'
check "the service has its state directory" sh -c '[ "$(stat -c %a:%U:%G /var/lib/hairpin)" = 700:hairpin:hairpin ]'
check "others cannot read the configuration" sh -c '[ "$(stat -c %a:%U:%G /etc/hairpin/hairpin.toml)" = 640:root:hairpin ]'

before=$(main_pid)
check "a reload keeps the process" systemctl reload hairpin
[ "$(main_pid)" = "$before" ] && ok "the same process after a reload" || fail "the same process after a reload" "$before $(main_pid)"

# docs/from-coturn.md, step 1.
printf 'listening-ip=127.0.0.1\nlistening-port=3478\nallow-loopback-peers\nuse-auth-secret\nstatic-auth-secret=%s\nrealm=example.org\n' $SECRET > /tmp/turnserver.conf
cp -p /etc/hairpin/hairpin.toml /tmp/before.toml
check import hairpin import /tmp/turnserver.conf --output /tmp/hairpin.toml
check "install the imported file" install_file -m 640 -g hairpin /tmp/hairpin.toml /etc/hairpin/hairpin.toml
check "restart with the imported file" systemctl restart hairpin
check "relays with the imported file" probe
cat /tmp/before.toml > /etc/hairpin/hairpin.toml
check "restart with the file before" systemctl restart hairpin
before=$(main_pid)

load $((12 * SLOW))s /tmp/upgrade.json > /tmp/load.txt 2>&1 &
loading=$!
calls $((5 / SLOW))/s $((12 * SLOW))s > /tmp/calls.txt 2>&1 &
calling=$!
sleep $((3 * SLOW))
check upgrade install second.deb
after=$(main_pid)
[ "$after" != "$before" ] && ok "another main process" || fail "another main process" "$before $after $(journalctl --no-pager -u hairpin -n 20)"
check "active after the upgrade" active
check "new clients after the upgrade" probe
check "the unit has the process" grep -q hairpin.service "/proc/$after/cgroup"
check "the process has no new privileges" grep -q 'NoNewPrivs:.1' "/proc/$after/status"
if wait $loading; then ok "no datagram is lost in the upgrade"; else fail "no datagram is lost in the upgrade" "$(tail -20 /tmp/load.txt)"; fi
if wait $calling || only_refused /tmp/calls.txt; then ok "no call fails in the upgrade"; else fail "no call fails in the upgrade" "$(tail -30 /tmp/calls.txt)"; fi
eventually "the old process ends" gone "$before"
# Longer than WatchdogSec.
sleep $((8 * SLOW))
[ "$(main_pid)" = "$after" ] && ok "the watchdog knows the new process" || fail "the watchdog knows the new process" "$(journalctl --no-pager -u hairpin -n 20)"
check downgrade install first.deb
check "active after the downgrade" active
check "relays after the downgrade" probe
eventually "calls after the downgrade" calls 5/s 2s

check remove dpkg -r hairpin
active > /dev/null 2>&1 && fail "stops when removed" "$(active)" || ok "stops when removed"
check "the configuration stays" test -f /etc/hairpin/hairpin.toml
check "install again" install second.deb
eventually "runs again" active
check purge dpkg -P hairpin
check "nothing is left after a purge" nothing_left
check "install after a purge" install first.deb
eventually "runs after a purge" active
exposure=$(systemd-analyze security --no-pager hairpin.service | sed -n 's/.*Overall exposure level for hairpin.service: \([0-9.]*\).*/\1/p')
if [ -n "$exposure" ] && [ "$(echo "$exposure" | tr -d .)" -le 20 ]; then ok "exposure level $exposure"; else fail "exposure level" "$exposure"; systemd-analyze security --no-pager hairpin.service | grep -v '✓'; fi
check "remove once more" dpkg -r hairpin
check "purge what was removed" dpkg -P hairpin
check "nothing is left after both" nothing_left
echo "end"
