# Kernel memory on a machine that may have 64 processors: what docs/costs.md says, however many there are. Maps with a value
# for each processor would take a multiple.
. /lib.sh
SECRET=0123456789abcdef0123
CLIENTS=100 PEERS=1000 # the product is the number of channels

possible=$(cat /sys/devices/system/cpu/possible)
# Linux 6.12 does not count the processors that QEMU's firmware says may be added.
case $(uname -r) in
6.1.*) wanted=0-63 ;;
*) wanted=$possible ;;
esac
if [ "$possible" = $wanted ]; then ok possible "$possible"; else fail possible "$possible"; fi

# In KiB: slabs, memory for each processor, and maps. Sockets are slabs.
kernel_memory() { awk '/^(Slab|Percpu|VmallocUsed):/ { sum += $2 } END { print sum }' /proc/meminfo; }

# Modules and caches that any server causes to be loaded are not part of it.
hairpin probe offload eth0 >/dev/null
before=$(kernel_memory)
hairpin serve --dev --secret $SECRET --listen 10.1.0.1:3478 --relay-address 10.1.0.1 --workers 2 --admin 127.0.0.1:9641 \
	--offload tc --set offload.channels=100000 --set limits.channels_per_allocation=$PEERS --log-level warn >/tmp/serve.log 2>&1 &
server=$!
if ! wait_for_server $server; then
	cat /tmp/serve.log
	fail start "$(tail -n 1 /tmp/serve.log)"
	exit
fi
started=$(kernel_memory)
cat /tmp/serve.log
# 512 bytes for each of 131,072 channels, and 8 MiB for next hops, limits of Binding, programs and listeners.
limit=$((65536 + 8192))
if [ $((started - before)) -le $limit ]; then
	ok started "$((started - before)) KiB, at most $limit"
else
	fail started "$((started - before)) KiB, more than $limit"
fi

far hairpin load turn 10.1.0.1:3478 --secret $SECRET --clients $CLIENTS --peers $PEERS --peer-ip 10.1.0.2 --peer-ports $PEERS \
	--rate 10/s --warm-up 1s --duration 400s --no-tui >/tmp/load.log 2>&1 &
load=$!
channels() { wget -q -O - http://127.0.0.1:9641/metrics | awk '/^hairpin_offload_channels[{]/ { sum += $2 } END { print sum + 0 }'; }
tries=48
until bound=$(channels) && [ "$bound" -ge $((CLIENTS * PEERS)) ] || [ $tries = 0 ]; do
	tries=$((tries - 1))
	echo "$bound channels"
	sleep 5
done
used=$(kernel_memory)
cat /tmp/load.log
# And 3 kB for each allocation on both ends; neighbours, the sockets of peers, buffers in flight and the like 8 MiB.
limit=$((limit + CLIENTS * 6 + 8192))
if [ "$bound" -ge $((CLIENTS * PEERS)) ] && [ $((used - before)) -le $limit ]; then
	ok idle "$((used - before)) KiB with $bound channels, at most $limit"
else
	fail idle "$((used - before)) KiB with $bound channels of $((CLIENTS * PEERS)); $limit KiB are allowed"
fi
kill $load $server
wait
