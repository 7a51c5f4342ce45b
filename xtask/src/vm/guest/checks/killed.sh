# What a server that is killed leaves behind: nothing that answers or changes traffic. Before Linux 6.6 tc attaches by clsact,
# whose filter stays: it passes everything, and the next start removes it, and no filter of anybody else.
. /lib.sh

serve() {
	hairpin serve --dev --listen 10.1.0.1:3478 --relay-address 10.1.0.1 --workers 1 --admin 127.0.0.1:9641 --offload $1 \
		--log-level info >/tmp/serve.log 2>&1 &
	server=$!
	wait_for 20 wget -q -O /dev/null http://127.0.0.1:9641/readyz
}

answers() { far hairpin probe stun 10.1.0.1 --timeout 1s >/dev/null 2>&1; }
silent() { ! answers; }
by_kernel() { wget -q -O - http://127.0.0.1:9641/metrics | grep -q '^hairpin_offload_packets_total{.*binding.*} [1-9]'; }
answered_by_kernel() { answers; sleep 1; by_kernel; }
filters() { tc filter show dev eth0 ingress | grep -o 'hairpin-[0-9a-f]\{16\}' | sort; }

# killed MODE: the server answers by the kernel, is killed, and a second later nobody answers.
killed() {
	mode=$1
	serve $mode || { cat /tmp/serve.log; fail $mode "$(tail -n 1 /tmp/serve.log)"; return; }
	if ! wait_for 10 answered_by_kernel; then fail $mode "the kernel answers no Binding request"; fi
	dead=$(filters)
	kill -9 $server
	wait $server
	if wait_for 1 silent; then ok $mode "silent; filters: $(filters)"; else fail $mode "still answers after 1 s"; fi
}

killed xdp
if ip -details link show dev eth0 | grep -q xdp; then fail xdp_left "XDP is still attached"; else ok xdp_left "nothing"; fi

killed tc
if [ -z "$dead" ]; then
	ok removal "TCX leaves nothing to remove"
	exit
fi
# A filter of somebody else stays. (Those of servers that live: crates/server/src/offload/clsact_tests.rs.)
tc filter add dev eth0 ingress pref 1 protocol all matchall action ok
serve tc
now=$(filters)
if [ "$(echo "$now" | wc -l)" = 1 ] && [ "$now" != "$dead" ]; then
	ok removal "$dead is gone, $now is there"
else
	fail removal "filters: $(echo $now), before: $dead"
fi
if tc filter show dev eth0 ingress | grep -q matchall; then ok foreign "stays"; else fail foreign "is gone"; fi
kill $server
wait $server
if [ -z "$(filters)" ]; then ok end "no filter after a clean end"; else fail end "$(filters)"; fi
if tc filter show dev eth0 ingress | grep -q matchall; then ok foreign_at_end "stays"; else fail foreign_at_end "is gone"; fi

# Without the module, one line says so.
tc qdisc del dev eth0 clsact
rmmod sch_ingress
echo /bin/false >/proc/sys/kernel/modprobe
reason=$(hairpin probe offload eth0 | grep '^eth0: no tc: ')
echo /bin/modprobe >/proc/sys/kernel/modprobe
case $reason in
*sch_ingress*) ok no_module "$reason" ;;
*) fail no_module "the reason is '$reason'" ;;
esac
