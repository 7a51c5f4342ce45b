# XDP on two interfaces. What comes and leaves by the same one XDP relays on every kernel. Before Linux 6.3 it redirects
# nothing to the other one, and says so.
. /lib.sh
SECRET=0123456789abcdef0123

ip link add veth2 type veth peer name veth3
ip address add 10.3.0.1/24 dev veth2
ip link set veth2 up
ip link set veth3 up
hairpin serve --dev --secret $SECRET --listen 10.1.0.1:3478 --listen 10.3.0.1:3478 --relay-address 10.1.0.1 --workers 1 \
	--admin 127.0.0.1:9641 --offload xdp --log-level warn >/tmp/serve.log 2>&1 &
server=$!
if ! wait_for_server $server; then
	cat /tmp/serve.log
	fail start "$(tail -n 1 /tmp/serve.log)"
	exit
fi
far hairpin load turn 10.1.0.1:3478 --secret $SECRET --reflector --peer-ip 10.1.0.2 --clients 4 --rate 400/s \
	--warm-up 1s --duration 2s --no-tui --fail-if 'corrupt>0' --fail-if 'loss>0.5%' >/tmp/load.log 2>&1
status=$?
sleep 1.5 # the kernel's counts are up to a second old
wget -q -O /tmp/metrics http://127.0.0.1:9641/metrics
by_kernel=$(grep '^hairpin_offload_packets_total' /tmp/metrics | grep 'path="xdp"' |
	grep -E 'outcome="to_(peer|client)"' | awk '{ sum += $2 } END { print sum + 0 }')
received=$(awk '$1 == "received" { print $2 }' /tmp/load.log)
cat /tmp/serve.log /tmp/load.log
if [ $status = 0 ] && [ "$by_kernel" -gt "$received" ]; then
	ok same_interface "$received round trips, $by_kernel packets by XDP"
else
	fail same_interface "load ended with $status; $by_kernel packets of $received round trips by XDP"
fi

case $(uname -r) in
5.* | 6.[012].*) wanted=drivers_do_not_tell ;;
*) wanted=none ;;
esac
mode=$(grep '^hairpin_offload_mode' /tmp/metrics | grep 'interface="eth0"' | grep 'mode="xdp"')
case $mode in *"reason=\"$wanted\""*) ok metric "$mode" ;; *) fail metric "$mode" ;; esac
line=$(grep "^offload *eth0:" /tmp/serve.log)
case $wanted:$line in
none:*"user space relays"*) fail status "$line" ;;
none:*"by XDP"* | *:*"by XDP"*"Linux 6.3"*) ok status "$line" ;;
*) fail status "$line" ;;
esac
kill $server
wait $server
ip link del veth2
