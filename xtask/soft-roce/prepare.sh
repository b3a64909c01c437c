#!/bin/sh
# Makes what the guest boots from: CACHE/guest, a link to a folder with the files `kernel` and `initramfs`.
#
#   prepare.sh CACHE      CACHE keeps the package of Debian's kernel, which is unpacked and never installed
#
# The initramfs holds a static busybox, init.sh, and the modules in the order in which they load. What fails is told by
# the last line on standard error.
set -eu
here=$(dirname "$0")
cache=$1
# The guest finds the RDMA tools and libraries on this machine's root.
missing=
for package in qemu-system-x86 busybox-static xz-utils iproute2 libibverbs1 ibverbs-providers; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' $package 2>/dev/null)" = installed ] || missing="$missing $package"
done
install="apt-get install --no-install-recommends$missing"
if [ -n "$missing" ] && [ "$(id -u)" != 0 ]; then
    echo "the soft-RoCE guest needs packages that are not installed; as root: $install" >&2
    exit 1
elif [ -n "$missing" ]; then
    echo "soft-roce: $install" >&2
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq >&2
    $install -y -qq -o DPkg::Lock::Timeout=120 >&2
fi

# Another one where these scripts are others.
folder=$cache/guest-$(cat "$0" "$here/init.sh" | cksum | cut -d ' ' -f 1)
if [ -d "$folder" ]; then
    ln -sfn "$(basename "$folder")" "$cache/guest"
    exit
fi
mkdir -p "$cache"
work=$(mktemp -d "$cache/guest.XXXXXX")
trap 'rm -rf "$work"' EXIT
if ! ls "$cache"/linux-image-*.deb >/dev/null 2>&1; then
    current() { apt-cache depends linux-image-amd64 2>/dev/null | sed -n 's/^ *Depends: //p' | head -n 1; }
    [ -n "$(current)" ] || apt-get update -qq >&2
    echo "soft-roce: downloading $(current)" >&2
    (cd "$work" && apt-get download -qq "$(current)") >&2 || {
        apt-get update -qq >&2
        (cd "$work" && apt-get download -qq "$(current)") >&2
    }
    mv "$work"/linux-image-*.deb "$cache"
fi
# The rest of the package, some 400 MB, is never written.
mkdir "$work/tree" "$work/guest" "$work/root"
dpkg-deb --fsys-tarfile "$(ls "$cache"/linux-image-*.deb | tail -n 1)" |
    tar -x -C "$work/tree" --wildcards './boot/vmlinuz*' '*/modules.builtin' '*/drivers/infiniband/*' \
        '*/drivers/virtio/*' '*/drivers/net/veth*' '*/drivers/net/virtio_net*' '*/drivers/net/net_failover*' \
        '*/kernel/net/*' '*/kernel/fs/*' '*/kernel/crypto/*' '*/kernel/lib/*' '*/kernel/arch/*'
mv "$work"/tree/boot/vmlinuz* "$work/guest/kernel"
# Newer packages have them below usr, and compressed.
[ -d "$work/tree/lib" ] || mv "$work/tree/usr/lib" "$work/tree/lib"
find "$work/tree" -name '*.ko.xz' -exec unxz {} +
release=$(ls "$work/tree/lib/modules")
modules=$work/tree/lib/modules/$release
busybox depmod -b "$work/tree" "$release"

# What the guest needs: the two file systems of its root, the cable or the NICs in its place, what disturbs it, and
# soft-RoCE, which will not add a link without a CRC-32. Some kernels have one of them built in.
mkdir "$work/root/bin" "$work/root/modules"
for name in virtio_pci 9pnet_virtio 9p overlay veth virtio_net sch_netem crc32_generic rdma_rxe ib_uverbs rdma_ucm; do
    file=/$(echo $name | sed 's/_/[-_]/g')'\.ko'
    if ! grep "$file:" "$modules/modules.dep" && ! grep -q "$file" "$modules/modules.builtin" &&
        [ $name != crc32_generic ]; then
        echo "the kernel has no module $name" >&2
        exit 1
    fi
done >"$work/needed"
# Each behind what it depends on.
tr -d : <"$work/needed" | awk '{ for (i = NF; i > 0; i--) if (!seen[$i]++) print $i }' >"$work/order"
number=100
while read -r module; do
    number=$((number + 1))
    cp "$modules/$module" "$work/root/modules/$number-$(basename "$module")"
done <"$work/order"
for name in dev proc sys lower upper root; do mkdir "$work/root/$name"; done
cp "$(command -v busybox)" "$work/root/bin/busybox"
for applet in sh mount insmod switch_root mkdir cat; do ln -s busybox "$work/root/bin/$applet"; done
cp "$here/init.sh" "$work/root/init"
chmod +x "$work/root/init"
(cd "$work/root" && find . | busybox cpio -o -H newc) >"$work/guest/initramfs" 2>/dev/null
# A second run may have been faster; its guest is as good.
mv "$work/guest" "$folder" 2>/dev/null || [ -d "$folder" ]
ln -sfn "$(basename "$folder")" "$cache/guest"
