# What `hairpin probe offload` says of each kind of interface.
. /lib.sh
ip link add veth0 type veth peer name veth1
ip address add 10.2.0.1/24 dev veth0
ip link set veth0 up
ip link set veth1 up
hairpin probe offload >/tmp/probe 2>&1
cat /tmp/probe
for interface in lo eth0 veth0; do
	row=$(awk -v name=$interface '$1 == name { print "auto " $2 ", xdp " $3 ", tc " $4 }' /tmp/probe)
	if [ -n "$row" ]; then ok $interface "$row"; else fail $interface "no row"; fi
done
