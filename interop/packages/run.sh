#!/bin/sh
# Runs inside a Debian that systemd has booted: installs, upgrades, downgrades, removes and purges the package.
# Each check prints "ok NAME" or "FAIL NAME: what was seen".
cd /test || exit 1
SECRET=0123456789abcdef

ok() { echo "ok $1"; }
fail() { echo "FAIL $1: $(echo "$2" | tr '\n' ' ')"; }
# check NAME COMMAND..: what the command prints is shown if it fails.
check() {
    name=$1; shift
    if said=$("$@" 2>&1); then ok "$name"; else fail "$name" "$said"; fi
}
main_pid() { systemctl show --property MainPID --value hairpin; }
# eventually NAME COMMAND..: within 20 seconds.
eventually() {
    name=$1; shift
    for _ in $(seq 200); do
        if "$@" > /dev/null 2>&1; then ok "$name"; return; fi
        sleep 0.1
    done
    fail "$name" "$("$@" 2>&1; systemctl status --no-pager hairpin; journalctl --no-pager -u hairpin -n 20)"
}
install_file() { command install "$@"; }
install() { dpkg --force-confold -i "$1"; }
active() { systemctl is-active hairpin; }
gone() { ! test -d "/proc/$1"; }
probe() { hairpin probe turn 127.0.0.1:3478 --secret $SECRET; }
# load SECONDS REPORT: 20 clients that relay; nothing may be lost.
load() { hairpin load turn 127.0.0.1:3478 --secret $SECRET --clients 20 --rate 1k/s --duration "$1" --json "$2" --fail-if 'loss>0'; }

ip link set lo up
check install install first.deb
eventually "runs after the installation" active
# Checks of the watchdog and of the runtime directory need not take half a minute.
mkdir -p /etc/systemd/system/hairpin.service.d
printf '[Service]\nWatchdogSec=6s\n' > /etc/systemd/system/hairpin.service.d/test.conf
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
test_uas = true
[server]
state_dir = "off"
END
check "the configuration is valid" hairpin check /etc/hairpin/hairpin.toml
check restart systemctl restart hairpin
check "relays" probe
check "a SIP call" hairpin load sip 127.0.0.1:5060 --workload call --rate 50/s --duration 1s --fail-if 'failed>0'
journal() { journalctl --no-pager --output cat -u hairpin; }
journal | grep -q 'means="\?tc"\?' && ok "the kernel relays" || fail "the kernel relays" "$(journal)"
journal | grep -q '^{' && fail "the journal has text" "$(journal)" || ok "the journal has text"
check "runs as its own user" sh -c '[ "$(ps -o user= -p '"$(main_pid)"')" = hairpin ] || [ "$(stat -c %U /proc/'"$(main_pid)"')" = hairpin ]'
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

load 12s /tmp/upgrade.json > /tmp/load.txt 2>&1 &
loading=$!
sleep 3
check upgrade install second.deb
after=$(main_pid)
[ "$after" != "$before" ] && ok "another main process" || fail "another main process" "$before $after $(journalctl --no-pager -u hairpin -n 20)"
check "active after the upgrade" active
check "new clients after the upgrade" probe
check "the unit has the process" grep -q hairpin.service "/proc/$after/cgroup"
check "the process has no new privileges" grep -q 'NoNewPrivs:.1' "/proc/$after/status"
if wait $loading; then ok "no datagram is lost in the upgrade"; else fail "no datagram is lost in the upgrade" "$(tail -20 /tmp/load.txt)"; fi
eventually "the old process ends" gone "$before"
# Longer than WatchdogSec.
sleep 8
[ "$(main_pid)" = "$after" ] && ok "the watchdog knows the new process" || fail "the watchdog knows the new process" "$(journalctl --no-pager -u hairpin -n 20)"
check downgrade install first.deb
check "active after the downgrade" active
check "relays after the downgrade" probe

check remove dpkg -r hairpin
active > /dev/null 2>&1 && fail "stops when removed" "$(active)" || ok "stops when removed"
check "the configuration stays" test -f /etc/hairpin/hairpin.toml
check "install again" install second.deb
eventually "runs again" active
check purge dpkg -P hairpin
check "nothing is left after a purge" sh -c '! ls -d /etc/hairpin/hairpin.toml /etc/default/hairpin /var/lib/hairpin /usr/bin/hairpin 2> /dev/null'
check "install after a purge" install first.deb
eventually "runs after a purge" active
exposure=$(systemd-analyze security --no-pager hairpin.service | sed -n 's/.*Overall exposure level for hairpin.service: \([0-9.]*\).*/\1/p')
if [ -n "$exposure" ] && [ "$(echo "$exposure" | tr -d .)" -le 20 ]; then ok "exposure level $exposure"; else fail "exposure level" "$exposure"; systemd-analyze security --no-pager hairpin.service | grep -v '✓'; fi
echo "end"
