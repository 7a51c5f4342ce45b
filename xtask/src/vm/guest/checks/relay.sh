# A relay between the two ends of a wire of virtio network cards: in user space, by XDP, by the classifier.
# Client and peer are at the far end and compare every byte. The server's counters tell which way the datagrams took.
. /lib.sh
SECRET=0123456789abcdef0123

# packets PATH: what the kernel has relayed by this path, both ways.
packets() {
	wget -q -O - http://127.0.0.1:9641/metrics | grep '^hairpin_offload_packets_total' | grep "path=\"$1\"" |
		grep -E 'outcome="to_(peer|client)"' | awk '{ sum += $2 } END { print sum + 0 }'
}

load() {
	far hairpin load turn 10.1.0.1:3478 --secret $SECRET --reflector --peer-ip 10.1.0.2 --clients 4 --rate 400/s \
		--warm-up 1s --duration 2s --no-tui --fail-if 'corrupt>0' --fail-if 'loss>0.5%'
}

relay() {
	mode=$1 path=$2
	hairpin serve --dev --secret $SECRET --listen 10.1.0.1:3478 --relay-address 10.1.0.1 --workers 2 \
		--admin 127.0.0.1:9641 --offload $mode --log-level warn >/tmp/serve.log 2>&1 &
	server=$!
	if ! wait_for_server $server; then
		cat /tmp/serve.log
		fail $mode "$(grep -v '^$' /tmp/serve.log | tail -n 1)"
		kill -9 $server
		return
	fi
	load >/tmp/load.log 2>&1
	status=$?
	sleep 1.5 # the kernel's counts are up to a second old
	by_kernel=$(packets $path)
	cat /tmp/serve.log /tmp/load.log
	received=$(awk '$1 == "received" { print $2 }' /tmp/load.log)
	echo "$received round trips; the kernel relayed $by_kernel by $path"
	if [ $status -ne 0 ]; then
		fail $mode "load ended with $status: $(tail -n 1 /tmp/load.log)"
	elif [ $mode = off ]; then
		if [ "$by_kernel" = 0 ]; then ok $mode "$received round trips"; else fail $mode "$by_kernel by the kernel"; fi
	# Each round trip is two packets; the first few go through user space.
	elif [ "$by_kernel" -gt "$received" ]; then
		ok $mode "$received round trips, $by_kernel packets by $path"
	else
		fail $mode "only $by_kernel packets of $received round trips by $path: $(grep -E '^offload' /tmp/serve.log)"
	fi
	kill $server 2>/dev/null
	wait $server || true
}

relay off tc
relay auto xdp
relay xdp xdp
relay tc tc
