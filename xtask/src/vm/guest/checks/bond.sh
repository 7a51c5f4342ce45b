# The relay of relay.sh with the server's address on a bond: the XDP program runs on the card below.
. /lib.sh
ip link set eth0 down
ip address flush dev eth0
ip link add bond0 type bond mode active-backup miimon 100
ip link set eth0 master bond0
ip address add 10.1.0.1/24 dev bond0
ip link set bond0 up
. /checks/relay.sh
ip link del bond0
ip address add 10.1.0.1/24 dev eth0
ip link set eth0 up
