# What the server finds out about the kernel's sockets: GRO, GSO and how many datagrams one send takes, SO_REUSEPORT.
. /lib.sh
hairpin serve --dev --secret 0123456789abcdef0123 --listen 10.1.0.1:3478 --relay-address 10.1.0.1 --workers 2 \
	--admin 127.0.0.1:9641 --offload off --log-level warn >/tmp/serve.log 2>&1 &
wait_for_server $!
cat /tmp/serve.log
found=$(sed -n 's/^kernel *//p' /tmp/serve.log)
segments=128
# Debian's 6.1 has this from a stable update; the change is of 6.9.
case $(uname -r) in 5.*) segments=64 ;; esac
wanted="GRO, GSO (up to $segments packets at once), a socket per worker (SO_REUSEPORT), overflow counted"
if [ "$found" = "$wanted" ]; then ok sockets "$found"; else fail sockets "found: $found; wanted: $wanted"; fi
workers=$(sed -n 's/^workers *//p' /tmp/serve.log)
case $workers in *"on the least loaded") ok steering "$workers" ;; *) fail steering "$workers" ;; esac
