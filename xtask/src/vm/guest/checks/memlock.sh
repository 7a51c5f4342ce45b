# Before Linux 5.11, BPF maps count against RLIMIT_MEMLOCK, which is 64 KiB for a user.
. /lib.sh
# starts NAME COMMAND..: whether a server that insists on steering starts with this command in front of it.
starts() {
	name=$1
	shift
	"$@" hairpin serve --dev --secret 0123456789abcdef0123 --listen 10.1.0.1:3478 --relay-address 10.1.0.1 --workers 2 \
		--admin 127.0.0.1:9641 --offload off --set server.steering=bpf --log-level warn >/tmp/memlock.log 2>&1 &
	server=$!
	if wait_for_server $server; then
		ok "$name" "the server steers"
	else
		cat /tmp/memlock.log
		fail "$name" "$(grep '^error' /tmp/memlock.log | tail -n 1)"
	fi
	kill $server 2>/dev/null
	wait $server || true
}

# The user and the capabilities of deploy/hairpin.service.
CAPABILITIES=+bpf,+net_admin,+perfmon,+net_bind_service
user() {
	/tools/setpriv --reuid 1000 --regid 1000 --clear-groups --no-new-privs --bounding-set -all,$CAPABILITIES \
		--inh-caps $CAPABILITIES --ambient-caps $CAPABILITIES "$@"
}

(ulimit -l 64; starts "root, 64 KiB" env)
(ulimit -l 64; starts "user, 64 KiB" user)
(ulimit -l unlimited; starts "user, no limit" user)
