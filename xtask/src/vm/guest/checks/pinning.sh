# server.pin_workers = "queues": each worker stays on the processor that takes the interrupts of its receive queue.
# The card eth2 has two queues. Their interrupts are moved, so that the right order is not the ascending one.
. /lib.sh
ip address add 10.2.0.1/24 dev eth2
ip link set eth2 up

# irq QUEUE: the number of the interrupt of this receive queue of eth2.
device=$(basename "$(readlink /sys/class/net/eth2/device)")
irq() { grep -E " $device-input\.$1\$" /proc/interrupts | cut -d : -f 1 | tr -d ' '; }

# processors THREAD: where the thread of this name of the server may run.
processors() {
	for task in /proc/$server/task/*; do
		[ "$(cat $task/comm)" = "$1" ] && awk '$1 == "Cpus_allowed_list:" { print $2 }' $task/status
	done
}

# pinned NAME VALUE FIRST SECOND: with this value of the key, the two workers stay on these processors.
pinned() {
	hairpin serve --dev --secret 0123456789abcdef0123 --listen 10.2.0.1:3478 --relay-address 10.2.0.1 --workers 2 \
		--admin 127.0.0.1:9641 --offload off --set server.pin_workers="$2" --log-level info >/tmp/pinning.log 2>&1 &
	server=$!
	wait_for_server $server
	found="$(processors hairpin-0) $(processors hairpin-1)"
	if [ "$found" = "$3 $4" ]; then
		ok "$1" "the workers stay on processors $found"
	else
		cat /tmp/pinning.log /proc/interrupts
		fail "$1" "the workers may run on '$found', not on '$3 $4'"
	fi
	kill $server
	wait $server || true
}

echo 1 >/proc/irq/"$(irq 0)"/smp_affinity_list
echo 0 >/proc/irq/"$(irq 1)"/smp_affinity_list
pinned queues queues 1 0
pinned ascending true 0 1
ip link set eth2 down
ip address flush dev eth2
