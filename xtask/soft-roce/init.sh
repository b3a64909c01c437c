#!/bin/sh
# Process 1 in the initramfs: loads the modules in their order, then makes the host's root the guest's own,
# read-only below and a tmpfs above it, and hands over to the program named on the kernel's command line (qdl.init=).
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs devtmpfs /dev
for module in /modules/*.ko; do
    insmod "$module" || echo "soft-roce: $module cannot be loaded"
done
mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=262144,cache=loose host /lower || exec sh
mount -t tmpfs -o size=60% upper /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /root || exec sh
for tree in proc sys dev; do
    mount --move /$tree /root/$tree
done
for word in $(cat /root/proc/cmdline); do
    case $word in qdl.init=*) next=${word#qdl.init=} ;; esac
done
# A path with a space is one word there.
exec switch_root /root /bin/bash "${next//%20/ }"
