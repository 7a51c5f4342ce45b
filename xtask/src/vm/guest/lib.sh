# Functions for checks. A check is a script in /checks that ends each thing it looks at by `ok` or `fail`.

# ok NAME DETAIL..: NAME works.
ok() { name=$1; shift; echo "@ok $name: $*"; }

# fail NAME REASON..: NAME does not. Where the table expects that, the reason must be one line that contains the expected text.
fail() { name=$1; shift; echo "@fail $name: $*"; }

# The shell prefers busybox's own programs of these names, which know no namespaces and no BPF.
ip() { /tools/ip "$@"; }
tc() { /tools/tc "$@"; }

# Two network cards on one wire: eth0 here (10.1.0.1), the other one in the namespace "far" (10.1.0.2).
set_up_network() {
	ip link set lo up
	ip netns add far
	ip link set eth1 netns far
	ip address add 10.1.0.1/24 dev eth0
	ip link set eth0 up
	ip -n far link set lo up
	ip -n far address add 10.1.0.2/24 dev eth1
	ip -n far link set eth1 up
}

# far COMMAND..: runs it at the other end of the wire.
far() { ip netns exec far "$@"; }

# wait_for_server PROCESS: until the server with its admin listener on port 9641 is ready; fails when it ends or takes 20 s.
wait_for_server() {
	tries=200
	until wget -q -O /dev/null http://127.0.0.1:9641/readyz 2>/dev/null; do
		tries=$((tries - 1))
		kill -0 "$1" 2>/dev/null && [ $tries -gt 0 ] || return 1
		sleep 0.1
	done
}

# wait_for SECONDS COMMAND..: until the command succeeds; fails when it never does.
wait_for() {
	left=$(($1 * 10)); shift
	until "$@" >/dev/null 2>&1; do
		left=$((left - 1))
		[ $left -gt 0 ] || return 1
		sleep 0.1
	done
}
