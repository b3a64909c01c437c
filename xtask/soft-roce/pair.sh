# To be sourced in the guest: makes two RDMA devices, rxa (10.9.1.1) and rxb (10.9.1.2), whose packets really cross a
# pair of joined network interfaces, va and vb, although both ends live in one network namespace.
#
#   rdma_pair [MTU]   makes them and waits until their GIDs are there
#   tc qdisc add dev va root netem loss 1% / delay 5ms      disturbs what rxa sends
#   rdma_pull, rdma_plug                                    pulls the cable, and plugs it in again

# rdma_pair [MTU]
rdma_pair() {
    rdma_join va vb 10.9.1.1 10.9.1.2 101 rxa rxb "${1:-1500}"
    rdma_local
    rdma_wait rxa && rdma_wait rxb
}

# This machine's own addresses are looked up behind the rules for cables.
rdma_local() {
    ip rule add pref 100 lookup local
    ip rule del pref 0 lookup local
}

# rdma_second [MTU]: another pair beside it, rxc (10.9.2.1) and rxd (10.9.2.2) over vc and vd
rdma_second() {
    rdma_join vc vd 10.9.2.1 10.9.2.2 103 rxc rxd "${1:-1500}"
    rdma_wait rxc && rdma_wait rxd
}

# rdma_nodes [MTU]: both pairs over NICs of the emulator's own (`--numa`), rxa and rxb on node 1, rxc and rxd on node 0
rdma_nodes() {
    local nic address
    for nic in a b c d; do
        for address in /sys/class/net/*/address; do
            [ "$(cat "$address")" = "52:54:00:00:00:0$nic" ] || continue
            address=${address%/address}
            ip link set "${address##*/}" name v$nic mtu "${1:-1500}"
        done
    done
    rdma_plugged va vb 10.9.1.1 10.9.1.2 101 rxa rxb
    rdma_plugged vc vd 10.9.2.1 10.9.2.2 103 rxc rxd
    rdma_local
    for nic in a b c d; do rdma_wait rx$nic || return 1; done
}

# rdma_join INTERFACE INTERFACE ADDRESS ADDRESS TABLE DEVICE DEVICE MTU: two devices on the ends of a new cable
rdma_join() {
    ip link add "$1" mtu "$8" type veth peer name "$2" mtu "$8"
    rdma_plugged "$@"
}

# rdma_plugged INTERFACE INTERFACE ADDRESS ADDRESS TABLE DEVICE DEVICE: the same where the cable is there
rdma_plugged() {
    local side
    ip addr add "$3/24" dev "$1"
    ip addr add "$4/24" dev "$2"
    ip link set "$1" up
    ip link set "$2" up
    # Both addresses are this machine's own, which the kernel would short-cut: only what arrives on an end of the cable
    # is looked up as local first, and what leaves goes out at the end that has the sender's address.
    for side in all "$1" "$2"; do
        echo 1 >/proc/sys/net/ipv4/conf/$side/accept_local
        echo 0 >/proc/sys/net/ipv4/conf/$side/rp_filter
    done
    ip rule add pref "$(($5 - 91))" iif "$1" lookup local
    ip rule add pref "$(($5 - 90))" iif "$2" lookup local
    rdma_cable "$5" "$1" "$3" "$4"
    rdma_cable "$(($5 + 1))" "$2" "$4" "$3"
    rdma link add "$6" type rxe netdev "$1"
    rdma link add "$7" type rxe netdev "$2"
}

# rdma_cable TABLE INTERFACE FROM TO: what FROM sends to TO leaves at INTERFACE
rdma_cable() {
    ip route add "$4/32" dev "$2" src "$3" table "$1"
    ip rule add pref "$(($1 - 50))" oif "$2" lookup "$1"
    ip rule add pref "$(($1 - 40))" from "$3" to "$4" lookup "$1"
}

# The interface's own routes go when it goes down.
rdma_pull() { ip link set va down; }
rdma_plug() {
    ip link set va up
    ip route replace 10.9.1.2/32 dev va src 10.9.1.1 table 101
}

# rdma_wait DEVICE: GIDs appear a moment after the device; this waits for the IPv4 one, at most five seconds
rdma_wait() {
    local try gid
    for try in $(seq 50); do
        for gid in /sys/class/infiniband/"$1"/ports/1/gids/[0-7]; do
            case $(cat "$gid" 2>/dev/null) in 0000:0000:0000:0000:0000:ffff:*) return 0 ;; esac
        done
        sleep 0.1
    done
    echo "soft-roce: $1 has no IPv4 GID" >&2
    return 1
}
