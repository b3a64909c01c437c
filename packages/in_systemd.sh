#!/bin/sh
# Boots systemd in a Debian root, in namespaces of its own, runs a command there, and ends it.
#
#     in_systemd.sh ROOT COMMAND...
#
# Exit code: the command's; 77: systemd does not boot on this machine. The device controller is
# left out: DeviceAllow= of a unit has no effect in there.
set -eu
if [ "$1" = --boot ]; then
    root=$2
    mount --make-rprivate /
    mount --bind "$root" "$root"
    ip link set lo up
    mount -t proc proc "$root/proc"
    mount -t sysfs -o ro sysfs "$root/sys"
    if [ "$3" = cgroup2 ]; then
        mount -t cgroup2 cgroup "$root/sys/fs/cgroup"
    else
        mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
        mkdir "$root/sys/fs/cgroup/systemd"
        mount -t cgroup -o none,name=systemd cgroup "$root/sys/fs/cgroup/systemd"
    fi
    mount -t tmpfs tmpfs "$root/run"
    mount -t tmpfs -o mode=755 tmpfs "$root/dev"
    mkdir "$root/dev/shm" "$root/dev/pts"
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm"
    for node in null zero full random urandom tty; do
        cp -a "/dev/$node" "$root/dev/"
    done
    ln -s /proc/self/fd "$root/dev/fd"
    # As systemd has them on a machine: the credentials of a unit arrive through such a mount.
    mount --make-rshared "$root"
    exec env container=other chroot "$root" /lib/systemd/systemd
fi

root=$(readlink -f "$1")
shift
# A control group of its own below this one, so that nothing of it is left in the machine's tree.
kind=cgroup2
tree=$(mktemp -d)
if grep -q name=systemd /proc/self/cgroup || [ ! -f /sys/fs/cgroup/cgroup.controllers ]; then
    kind=cgroup1
    mount -t cgroup -o none,name=systemd cgroup "$tree"
else
    mount -t cgroup2 cgroup "$tree"
fi
group=$tree/qdl-$$
mkdir "$group"
boot=
# shellcheck disable=SC2329 # the trap calls it
end() {
    [ -z "$boot" ] || kill -KILL "$boot" 2>/dev/null || true
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        find "$group" -depth -type d -exec rmdir {} + 2>/dev/null && break
        sleep 0.5
    done
    umount "$tree"
    rmdir "$tree"
}
trap end EXIT
trap 'exit 130' INT TERM
sh -c 'echo $$ >"$1"; shift; exec "$@"' - "$group/cgroup.procs" \
    unshare --mount --pid --net --uts --ipc --cgroup --fork --kill-child=KILL \
    sh "$0" --boot "$root" "$kind" </dev/null >"$root/var/log/boot" 2>&1 &
boot=$!
for _ in $(seq 60); do
    sleep 0.5
    # The kernel lists the one child of unshare: process 1 of the new system.
    init=$(cat "/proc/$boot/task/$boot/children" 2>/dev/null | tr -d ' ') || true
    inside="nsenter --target ${init:-none} --mount --pid --net --uts --ipc --cgroup chroot $root"
    state=$($inside systemctl is-system-running 2>/dev/null) || true
    case $state in running | degraded) break ;; esac
done
case $state in
    running | degraded) ;;
    *) echo "left out: systemd does not boot here"; exit 77 ;;
esac
rc=0
$inside "$@" || rc=$?
exit "$rc"
